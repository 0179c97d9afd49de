"""What the package shows to the outside, and what showing it costs."""

import subprocess
import sys

import pytest
from source_tree import PACKAGE

import headwater

HEAVY = ("pyspark", "pandas", "numpy", "pyarrow")


def loaded_by(statement: str) -> set[str]:
    """Which heavy libraries a fresh interpreter holds after one statement."""
    program = f"{statement}\nimport sys\nprint(*(n for n in {HEAVY!r} if n in sys.modules))"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(answer.stdout.split())


def test_importing_the_package_is_cheap():
    assert loaded_by("import headwater") == set()


def test_the_command_line_starts_fast():
    if not (PACKAGE / "cli" / "main.py").exists():
        return
    assert loaded_by("import headwater.cli.main") == set()


def test_public_names_are_sorted_and_each_is_there():
    names = list(getattr(headwater, "__all__", []))
    assert names == sorted(names)
    missing = [name for name in names if not hasattr(headwater, name)]
    assert not missing, f"headwater.__all__ promises what is not there: {missing}"


def test_asking_for_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError):
        headwater.no_such_name  # noqa: B018  the lazy __getattr__ must refuse it
