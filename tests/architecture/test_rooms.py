"""The order of rooms: imports go downwards only, and decisions never touch Spark."""

import subprocess
import sys

import pytest
from source_tree import PACKAGE, Module, imports, modules

FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("config", "crash_points"),
    ("model",),
    ("ledger", "catalog", "observe"),
    ("sql", "pgwire", "barrier", "state", "logstore", "cdc"),
    ("backfill", "views", "sinks", "spark_source", "system"),
    ("runtime",),
    ("session",),
    ("cli", "dashboard", "testing"),
)
FLOOR = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
DECIDING = {"errors", "config", "crash_points", "model", "ledger", "catalog", "sql", "barrier"}


def wrong_imports(module: Module) -> list[str]:
    """Why this module breaks the order, one line per import."""
    wrong = []
    for line, name in imports(module.tree):
        where = f"{module.shown}:{line}"
        parts = name.split(".")
        if parts[0] == "":
            wrong.append(f"{where} has a relative import; write the full name")
        if parts[0] != "headwater" or module.name == "headwater":
            continue
        room = parts[1]
        if room not in FLOOR:
            wrong.append(f"{where} imports {name}, and {room!r} is not a room (DESIGN section 4)")
        elif room != module.room and FLOOR[room] >= FLOOR[module.room]:
            relation = "beside" if FLOOR[room] == FLOOR[module.room] else "above"
            wrong.append(f"{where} imports {name}: {room} lies {relation} {module.room}")
    return wrong


def decides(module: Module) -> bool:
    """Whether this module makes decisions, and so must run without Spark."""
    return module.room in DECIDING or module.path.name == "machine.py"


def test_every_room_has_a_floor():
    unknown = {module.room for module in modules()} - FLOOR.keys() - {""}
    assert not unknown, f"rooms that DESIGN section 4 does not have: {sorted(unknown)}"


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_imports_go_downwards_only(module):
    assert not (wrong := wrong_imports(module)), "\n".join(wrong)


@pytest.mark.parametrize(
    ("room", "statement", "complaint"),
    [
        ("model", "from headwater.ledger.ledger import Ledger", "ledger lies above model"),
        ("state", "import headwater.cdc.source", "cdc lies beside state"),
        ("state", "def f():\n    from headwater import runtime", "runtime lies above state"),
        ("ledger", "from headwater import Engine", "'Engine' is not a room"),
        ("ledger", "from .store import Store", "relative import"),
        ("errors", "from headwater.config import Settings", "config lies above errors"),
    ],
)
def test_the_rule_sees_a_wrong_import(room, statement, complaint):
    import ast

    path = PACKAGE / room / "example.py"
    module = Module(path=path, name=f"headwater.{room}.example", tree=ast.parse(statement))
    assert complaint in "\n".join(wrong_imports(module))


def test_deciding_rooms_never_load_pyspark():
    """Not even by way of something that they import."""
    names = [module.name for module in modules() if decides(module)]
    program = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "    assert 'pyspark' not in sys.modules, f'{name} loads pyspark'\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr[-2000:]


def test_only_doing_modules_name_pyspark():
    wrong = [
        f"{module.shown}:{line} imports {name}"
        for module in modules()
        if decides(module)
        for line, name in imports(module.tree)
        if name.split(".")[0] in ("pyspark", "py4j")
    ]
    assert not wrong, "\n".join(wrong)
