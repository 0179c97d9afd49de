"""Start the child engine of `child.py` again and again on one workspace."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_kit import built, workload
from headwater.testing.processes import ChildProcess

CHILD = Path(__file__).resolve().parent / "child.py"
KILLED = -9
ENDED_BY_ITSELF = 3
NOT_STARTED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Lives:
    """One workspace and its workload, run by one process after the other."""

    workspace: Path
    limit: int = 700
    settings: Sequence[str] = ()
    forked: bool = True

    def begin(self, *more: str, crash: str | None = None) -> ChildProcess:
        """Start the engine in a process of its own."""
        given = ["--limit", str(self.limit)]
        for setting in self.settings:
            given += ["--set", setting]
        return ChildProcess(CHILD, self.workspace, *given, *more, crash=crash, forked=self.forked)

    def crash_at(self, point: str) -> ChildProcess:
        """Run until it dies at a crash point; it must die there, and by SIGKILL."""
        with self.begin(crash=point) as child:
            code = child.wait(timeout=240)
        told = f"at {point}: exit code {code}\n{child.output[-2000:]}{child.errors[-4000:]}"
        assert code == KILLED, told
        return child

    def finish(self, *more: str) -> ChildProcess:
        """Run to the end."""
        with self.begin(*more) as child:
            child.wait_for_line("^done", timeout=240)
            code = child.wait(timeout=120)
        assert code == 0, f"exit code {code}\n{child.output[-2000:]}{child.errors[-4000:]}"
        return child

    def sources(self) -> dict[str, Any]:
        """The workload as an oracle."""
        return built(workload(limit=self.limit))
