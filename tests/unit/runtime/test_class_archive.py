"""The archive of Spark's classes: used where it is, made once, and never half of it."""

from pathlib import Path

import pytest

from headwater.errors import HeadwaterError
from headwater.runtime import class_archive


@pytest.fixture
def places(tmp_path, monkeypatch):
    found = (tmp_path / "first" / "a.jsa", tmp_path / "second" / "a.jsa")
    monkeypatch.setattr(class_archive, "_places", lambda java_home: found)
    return found


def test_without_an_archive_java_is_asked_for_nothing(places):
    assert class_archive.archive_options(Path("/java")) == ""


def test_it_is_used_where_it_is(places):
    places[1].parent.mkdir()
    places[1].touch()
    assert f"-XX:SharedArchiveFile={places[1]} " in class_archive.archive_options(Path("/java"))


def test_it_is_made_once(places, monkeypatch):
    made = []

    def run(path):
        made.append(path)
        path.write_text("classes")

    monkeypatch.setattr(class_archive, "_run", run)
    assert [class_archive.make_archive(), class_archive.make_archive()] == [places[0]] * 2
    assert len(made) == 1
    assert [path.name for path in places[0].parent.iterdir()] == ["a.jsa"]


def test_one_that_fails_leaves_nothing(places, monkeypatch):
    def run(path):
        path.write_text("half of them")
        raise HeadwaterError("Java has written no archive")

    monkeypatch.setattr(class_archive, "_run", run)
    with pytest.raises(HeadwaterError):
        class_archive.make_archive()
    assert not list(places[0].parent.iterdir())
