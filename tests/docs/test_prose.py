"""The written pages: links lead somewhere, promises are shown, words are defined once."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "changes").glob("*.md")]
)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    missing = [
        target
        for target in LINK.findall(page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not missing, f"{page.relative_to(ROOT)} links to {missing}"


def test_every_promise_names_what_shows_it():
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "docs" / "promises.md").read_text().splitlines()
        if line.startswith("|") and not line.startswith(("|---", "| promise", "| line"))
    ]
    assert {row[0] for row in rows} >= {f"P{number}" for number in range(1, 9)}
    for row in rows:
        assert len(row) == 3, row
        assert "`" in row[2] or "later" in row[2], f"nothing shows {row[0]}: {row[1]}"


def test_what_shows_a_promise_is_there():
    text = (ROOT / "docs" / "promises.md").read_text()
    named = set(re.findall(r"`((?:tests|bench)/[^`: ]+?\.py)`", text))
    assert named
    missing = [name for name in sorted(named) if not list(ROOT.glob(name))]
    assert not missing, f"docs/promises.md names what is not there: {missing}"


def test_the_glossary_has_one_meaning_per_word():
    words = re.findall(r"^\*\*(.+?)\*\*", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert words == sorted(words, key=str.lower)
    assert len(set(words)) == len(words)


def test_design_notes_are_numbered_and_of_one_shape():
    notes = sorted((ROOT / "docs" / "design").glob("*.md"))
    assert [int(note.name[:4]) for note in notes] == list(range(1, len(notes) + 1))
    for note in notes:
        parts = re.findall(r"^## (.+)$", note.read_text(), re.MULTILINE)
        for part in ("Problem", "Decision", "Alternatives", "Consequences"):
            assert part in parts, f"{note.name} has no part {part!r}"
