"""The generated pages are current, and everything that must be documented is."""

import importlib.util
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from headwater import crash_points, errors
from headwater.backfill.cdc.metrics import CdcBackfillMetrics
from headwater.config import Settings
from headwater.observe.cdc_metrics import CdcSourceMetrics
from headwater.observe.metrics import Metrics
from headwater.observe.sink_metrics import SinkMetrics

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def gen_docs():
    spec = importlib.util.spec_from_file_location("gen_docs", ROOT / "scripts" / "gen_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def headings(page: str) -> set[str]:
    text = (ROOT / "docs" / "reference" / page).read_text()
    return set(re.findall(r"^## `([^`]+)`$", text, re.MULTILINE))


def test_generated_pages_are_current():
    answer = subprocess.run(
        [sys.executable, ROOT / "scripts" / "gen_docs.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr


def test_every_setting_has_a_heading_and_nothing_else_has():
    assert headings("settings.md") == {setting.name for setting in fields(Settings)}


def test_every_error_has_a_heading_and_nothing_else_has():
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.HeadwaterError)
    }
    assert headings("errors.md") == classes - {"HeadwaterError"}


def test_every_crash_point_has_a_row_and_nothing_else_has():
    text = (ROOT / "docs" / "reference" / "crash-points.md").read_text()
    assert set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)) == set(crash_points.POINTS)


def test_every_metric_has_a_row_and_nothing_else_has():
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    named = set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))
    registry = Metrics().registry
    # An engine has these as well, in the same registry.
    CdcBackfillMetrics(registry)
    CdcSourceMetrics(registry)
    SinkMetrics(registry)
    families = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in registry.collect()
    }
    assert named == families


def test_a_changed_page_is_noticed(gen_docs, tmp_path, monkeypatch):
    monkeypatch.setattr(gen_docs, "ROOT", tmp_path)
    (tmp_path / "docs" / "reference").mkdir(parents=True)
    (tmp_path / "README.md").write_text("# x\n<!-- map: begin --><!-- map: end -->\n")
    everything = gen_docs.pages()
    for name, text in everything.items():
        (tmp_path / name).write_text(text)
    assert gen_docs.stale() == []
    page = tmp_path / "docs" / "reference" / "settings.md"
    page.write_text(page.read_text().replace("1000", "1001"))
    assert gen_docs.stale() == ["docs/reference/settings.md"]


def test_commands_are_read_from_the_code(gen_docs, tmp_path, monkeypatch):
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "main.py").write_text(
        "import typer\n"
        "app = typer.Typer()\n"
        "@app.command()\n"
        "def serve(listen: str = typer.Option('127.0.0.1:4566', help='Where to listen.')):\n"
        "    'Run in the foreground.'\n"
        "@app.command()\n"
        "def demo():\n"
        "    'Show it.'\n"
    )
    monkeypatch.setattr(gen_docs, "PACKAGE", tmp_path)
    spec = importlib.util.spec_from_file_location(
        "headwater.cli.main", tmp_path / "cli" / "main.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(gen_docs.importlib, "import_module", lambda name: module)

    page = gen_docs.cli_page()
    assert "## `headwater serve`\n\nRun in the foreground." in page
    assert "| `--listen` | `127.0.0.1:4566` | Where to listen. |" in page
    assert "## `headwater demo`" in page
