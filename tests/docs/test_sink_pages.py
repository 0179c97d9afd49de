"""Every option of the sinks into tables, files and webhooks is on their page."""

from pathlib import Path

import pytest

from headwater.sinks.delta.sink import OPTIONS as DELTA
from headwater.sinks.files.sink import OPTIONS as FILES
from headwater.sinks.iceberg.sink import OPTIONS as ICEBERG
from headwater.sinks.webhook import OPTIONS as WEBHOOK

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sinks-files.md").read_text()


OPTIONS = sorted({*DELTA, *ICEBERG, *FILES, *WEBHOOK}, key=lambda o: (o.name, o.default or ""))


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_has_its_line(option):
    lines = [line for line in PAGE.splitlines() if line.startswith(f"| `{option.name}` |")]
    wanted = [*(f"`{name}`" for name in option.also), option.default or ""]
    assert any(all(text in line for text in wanted) for line in lines), option
