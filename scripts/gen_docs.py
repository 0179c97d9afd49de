"""Write the parts of the documentation that the code already says.

    docs/reference/settings.md       from headwater.config.Settings
    docs/reference/errors.md         from headwater.errors
    docs/reference/crash-points.md   from headwater.crash_points.POINTS
    docs/reference/metrics.md        from headwater.observe.metrics and the metrics of CDC and sinks
    docs/reference/cli.md            from the commands of headwater.cli.main
    README.md                        the map, between its two marks

`--check` writes nothing and fails when a file is not current; `--tree` prints the map.
"""

import argparse
import ast
import importlib
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from prometheus_client.metrics import MetricWrapperBase

from headwater import crash_points, errors
from headwater.backfill.cdc.metrics import CdcBackfillMetrics
from headwater.config import Settings
from headwater.observe.cdc_metrics import CdcSourceMetrics
from headwater.observe.metrics import Metrics
from headwater.observe.sink_metrics import SinkMetrics

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "headwater"
NOTE = "<!-- Written by `make docs`. Change the code, not this page. -->\n"
MAP_BEGIN, MAP_END = "<!-- map: begin -->", "<!-- map: end -->"
# From the user's door down to the ground.
ROOMS = (
    "cli dashboard testing runtime backfill views sinks sql pgwire barrier state logstore cdc "
    "ledger catalog observe model errors config crash_points"
).split()


def settings_page() -> str:
    """Every setting with its unit, default, range and meaning."""
    lines = [
        "# Settings",
        "",
        NOTE,
        "A setting comes from `headwater.toml` in the workspace, from the environment",
        "(`HEADWATER_` and the name in capitals), or from the caller; the later ones win.",
        "A *live* setting can change while the engine runs.",
        "",
    ]
    for setting in fields(Settings):
        meta = setting.metadata
        default = '`""`' if setting.default == "" else f"`{_toml(setting.default)}`"
        facts = [f"{type(setting.default).__name__}", f"default {default}"]
        if meta["unit"]:
            facts.append(f"in {meta['unit']}")
        if meta["low"] is not None and meta["high"] is not None:
            facts.append(f"from {meta['low']} to {meta['high']}")
        elif meta["low"] is not None:
            facts.append(f"{meta['low']} or more")
        if meta["live"]:
            facts.append("live")
        lines += [f"## `{setting.name}`", "", meta["doc"], "", f"*{', '.join(facts)}*", ""]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def errors_page() -> str:
    """The tree, then every error with who must act."""
    tree = (errors.__doc__ or "").split("\n\n")[1]
    lines = ["# Errors", "", NOTE, "```", *[line[4:] for line in tree.splitlines()], "```", ""]
    lines += [
        "Every error has a message, a detail and a hint, and an SQLSTATE for SQL clients.",
        "",
    ]
    for error in subclasses(errors.HeadwaterError):
        parent = error.__mro__[1].__name__
        lines += [f"## `{error.__name__}`", "", (error.__doc__ or "").strip(), ""]
        lines += [f"*A `{parent}`; SQLSTATE {error.sqlstate}.*", ""]
    return "\n".join(lines)


def subclasses(parent: type[errors.HeadwaterError]) -> Iterator[type[errors.HeadwaterError]]:
    """All errors below `parent`, in the order in which they are written."""
    for child in parent.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from subclasses(child)


def crash_points_page() -> str:
    """Every named crash point and what has happened there."""
    lines = [
        "# Crash points",
        "",
        NOTE,
        "`HEADWATER_CRASH=name` kills the process the first time it passes that point,",
        "`HEADWATER_CRASH=name:3` the third time. The crash tests do this at every point.",
        "",
        "| point | what has, and what has not, happened |",
        "|---|---|",
    ]
    lines += [f"| `{name}` | {what} |" for name, what in crash_points.POINTS.items()]
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    """Every metric of an engine, as Prometheus will see it."""
    rows = []
    for metric in _metrics():
        [family] = metric.describe()
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(f"`{label}`" for label in metric._labelnames)
        rows.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    lines = ["# Metrics", "", NOTE, "Served in the text format of Prometheus.", ""]
    lines += ["| metric | type | labels | meaning |", "|---|---|---|---|", *sorted(rows)]
    return "\n".join(lines) + "\n"


def _metrics() -> Iterator[MetricWrapperBase]:
    engine = Metrics()
    followed = (CdcBackfillMetrics(engine.registry), CdcSourceMetrics(engine.registry))
    for owner in (engine, *followed, SinkMetrics(engine.registry)):
        for value in vars(owner).values():
            for metric in value.values() if isinstance(value, dict) else [value]:
                if isinstance(metric, MetricWrapperBase):
                    yield metric


def cli_page() -> str:
    """Every command with its options, as the command line itself describes them."""
    lines = ["# Command line", "", NOTE]
    if not (PACKAGE / "cli" / "main.py").exists():
        return "\n".join([*lines, "There are no commands yet.", ""])
    import typer  # noqa: PLC0415  only needed once there is a command line

    main = importlib.import_module("headwater.cli.main")
    [app] = [value for value in vars(main).values() if isinstance(value, typer.Typer)]
    root: Any = typer.main.get_command(app)
    commands = getattr(root, "commands", {"": root})
    for name in sorted(commands):
        command = commands[name]
        lines += [f"## `{f'headwater {name}'.strip()}`", "", (command.help or "").strip(), ""]
        options = [_option(parameter) for parameter in command.params if parameter.name != "help"]
        if options:
            lines += ["| argument | default | meaning |", "|---|---|---|", *options, ""]
    return "\n".join(lines)


def _option(parameter: Any) -> str:
    option = parameter.param_type_name == "option"
    spelled = ", ".join(parameter.opts) if option else (parameter.name or "").upper()
    required = parameter.required or parameter.default is None or callable(parameter.default)
    default = "" if required else f"`{parameter.default}`"
    return f"| `{spelled}` | {default} | {getattr(parameter, 'help', '') or ''} |"


def tree() -> str:
    """The map: every module with the first line of its docstring."""
    lines = []
    for room in ROOMS:
        folder, file = PACKAGE / room, PACKAGE / f"{room}.py"
        if (folder / "__init__.py").exists():
            lines.append((f"{room}/", _first_line(folder / "__init__.py")))
            for path in sorted(folder.rglob("*.py")):
                inside = path.relative_to(folder)
                depth = "  " * len(inside.parts)
                if path.name != "__init__.py":
                    lines.append((f"{depth}{path.name}", _first_line(path)))
                elif len(inside.parts) > 1:
                    lines.append((f"{depth[2:]}{path.parent.name}/", _first_line(path)))
        elif file.exists():
            lines.append((file.name, _first_line(file)))
    width = max(len(name) for name, _ in lines) + 2
    return "\n".join(f"{name:<{width}}{text}" for name, text in lines)


def _first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return docstring.split("\n")[0].rstrip(".:")


def readme_with_map() -> str:
    """README.md with the map between its marks brought up to date."""
    text = (ROOT / "README.md").read_text()
    before, _, rest = text.partition(MAP_BEGIN)
    _, _, after = rest.partition(MAP_END)
    return f"{before}{MAP_BEGIN}\n```\n{tree()}\n```\n{MAP_END}{after}"


def pages() -> dict[str, str]:
    """Every generated file with what it should hold."""
    return {
        "docs/reference/settings.md": settings_page(),
        "docs/reference/errors.md": errors_page(),
        "docs/reference/crash-points.md": crash_points_page(),
        "docs/reference/metrics.md": metrics_page(),
        "docs/reference/cli.md": cli_page(),
        "README.md": readme_with_map(),
    }


def stale() -> list[str]:
    """Files that do not say what the code says."""
    return [
        name
        for name, text in pages().items()
        if not (ROOT / name).exists() or (ROOT / name).read_text() != text
    ]


def main() -> None:
    """Write, check or print."""
    parser = argparse.ArgumentParser(description="Write the documentation that the code says.")
    parser.add_argument("--check", action="store_true", help="only say which files are stale")
    parser.add_argument("--tree", action="store_true", help="only print the map")
    arguments = parser.parse_args()
    if arguments.tree:
        print(tree())
        return
    out_of_date = stale()
    if arguments.check:
        sys.exit(f"stale, run `make docs`: {', '.join(out_of_date)}" if out_of_date else 0)
    for name in out_of_date:
        (ROOT / name).write_text(pages()[name])
        print(f"wrote {name}")


if __name__ == "__main__":
    main()
