"""The shape of the code: short files, exact names, docstrings, doors without furniture."""

import ast

import pytest
from source_tree import PACKAGE, ROOT, modules

LONGEST_FILE = 500
LONGEST_FUNCTION = 80
NO_NAME = {"utils", "util", "helpers", "helper", "misc", "impl", "common", "v2"}
NO_WHOLE_NAME = NO_NAME | {"core", "base", "manager", "handler"}
PYTHON_FOLDERS = ("src", "tests", "scripts", "bench", "examples")


def test_files_are_short():
    long = [
        f"{path.relative_to(ROOT)} has {lines} lines"
        for folder in PYTHON_FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (lines := len(path.read_text().splitlines())) > LONGEST_FILE
    ]
    assert not long, "\n".join(long)


def test_functions_are_short():
    long = [
        f"{module.shown}:{node.lineno} {node.name} has {lines} lines"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > LONGEST_FUNCTION
    ]
    assert not long, "\n".join(long)


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_names_say_what_is_inside(module):
    for part in module.path.relative_to(PACKAGE).with_suffix("").parts:
        assert part not in NO_WHOLE_NAME, f"{module.shown}: find the noun"
        assert not NO_NAME & set(part.split("_")), f"{module.shown}: find the noun"


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_every_module_says_what_it_is(module):
    docstring = ast.get_docstring(module.tree)
    assert docstring, f"{module.shown} has no docstring"
    first = docstring.splitlines()[0]
    assert first.endswith((".", ":")), f"{module.shown}: the first line is one whole sentence"


@pytest.mark.parametrize(
    "module",
    [module for module in modules() if module.path.name == "__init__.py"],
    ids=lambda module: module.name,
)
def test_a_door_has_only_a_sign(module):
    allowed: set[type] = {ast.Expr}
    if module.name == "headwater":
        # The public names, each loaded when it is first asked for.
        allowed |= {ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.Import, ast.ImportFrom, ast.If}
    extra = [node.lineno for node in module.tree.body if type(node) not in allowed]
    assert not extra, f"{module.shown} holds code in lines {extra}"


def test_every_writing_function_may_be_replayed():
    """A docstring that speaks of replays does so in the agreed form."""
    wrong = [
        f"{module.shown}:{node.lineno} {node.name}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for line in (ast.get_docstring(node) or "").splitlines()
        if line.strip().lower().startswith("replay") and not line.strip().startswith("Replay: ")
    ]
    assert not wrong, "\n".join(wrong)
