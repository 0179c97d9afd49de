"""The source files of the repository, parsed once, for the tests in this folder."""

import ast
import functools
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "headwater"


@dataclass(frozen=True)
class Module:
    """One module of the package."""

    path: Path
    name: str
    tree: ast.Module

    @property
    def shown(self) -> str:
        """The path as a reader would type it."""
        return str(self.path.relative_to(ROOT))

    @property
    def room(self) -> str:
        """`barrier` for headwater.barrier.machine, `errors` for headwater.errors."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else ""


@functools.cache
def modules() -> tuple[Module, ...]:
    """All modules of the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        found.append(Module(path=path, name=".".join(parts), tree=ast.parse(path.read_text())))
    return tuple(found)


def imports(tree: ast.Module) -> list[tuple[int, str]]:
    """Line and full name of everything imported, wherever the statement stands."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            prefix = "." * node.level + (node.module or "")
            found += [(node.lineno, f"{prefix}.{alias.name}") for alias in node.names]
    return found


@functools.cache
def repository_files() -> tuple[Path, ...]:
    """Every file that is, or would be, under version control."""
    ignored = [line for line in (ROOT / ".gitignore").read_text().splitlines() if line]
    folders = {line.rstrip("/") for line in ignored if line.endswith("/")} | {".git"}
    patterns = [re.escape(line).replace(r"\*", "[^/]*") for line in ignored]
    skipped = re.compile("|".join(f"(?:{pattern.rstrip('/')})" for pattern in patterns))
    found = []
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        if path.is_file() and not folders & set(parts):
            if not any(skipped.fullmatch(part) for part in parts):
                found.append(path)
    return tuple(found)
