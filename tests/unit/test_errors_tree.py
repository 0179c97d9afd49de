"""The drawing in errors.py is the tree of classes, and errors travel whole."""

import copy
import pickle
import re

import pytest

from headwater import errors
from headwater.errors import BrokenInvariant, ConfigError, HeadwaterError


def all_errors() -> list[type[HeadwaterError]]:
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, HeadwaterError)
    ]


def drawn() -> list[tuple[int, str, str]]:
    """Depth, name and meaning of every line of the drawing."""
    drawing = errors.__doc__.split("\n\n")[1]
    found = []
    for line in drawing.splitlines():
        indent, name, meaning = re.fullmatch(r"( *)(\w+)(?:\(.*\))? *(.*)", line).groups()
        found.append((len(indent) // 2 - 2, name, meaning))
    return found


def test_drawing_equals_classes():
    as_drawn: dict[str, str] = {}
    path: list[str] = []
    for depth, name, _ in drawn():
        path[depth:] = [name]
        as_drawn[name] = path[depth - 1] if depth else "Exception"
    as_written = {error.__name__: error.__bases__[0].__name__ for error in all_errors()}
    assert as_drawn == as_written


def test_drawing_says_what_the_docstrings_say():
    for _, name, meaning in drawn():
        if name != "HeadwaterError":
            said = getattr(errors, name).__doc__.rstrip(".").lower()
            assert said.endswith(meaning.lower()), f"{name}: {said!r} and {meaning!r}"


@pytest.mark.parametrize("error", all_errors(), ids=lambda error: error.__name__)
def test_every_error_has_an_sqlstate(error):
    assert re.fullmatch(r"[0-9A-Z]{5}", error.sqlstate)


@pytest.mark.parametrize("error", all_errors(), ids=lambda error: error.__name__)
@pytest.mark.parametrize("travel", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])
def test_errors_travel_between_processes(error, travel):
    if error is BrokenInvariant:
        original = BrokenInvariant("no", story=("a", "b"), hint="look")
    else:
        original = error("no", detail="because", hint="look")
    arrived = travel(original)
    assert type(arrived) is error
    assert str(arrived) == str(original)
    assert vars(arrived) == vars(original)
    assert arrived.args == original.args


def test_text_has_three_parts_and_no_empty_ones():
    assert str(ConfigError("wrong", detail="seen", hint="do")) == "wrong\nDETAIL: seen\nHINT: do"
    assert str(ConfigError("wrong", hint="do")) == "wrong\nHINT: do"
    assert str(ConfigError("wrong")) == "wrong"


def test_broken_invariant_tells_its_story():
    error = BrokenInvariant("epoch 7 collected twice", story=["injected 7", "collected 7"])
    assert error.story == ("injected 7", "collected 7")
    assert "injected 7\ncollected 7" in str(error)
    assert "bug in Headwater" in error.hint
