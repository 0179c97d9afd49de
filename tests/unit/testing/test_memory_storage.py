import pytest

from headwater.errors import StorageUnavailable
from headwater.testing.memory_storage import FileReplaced, MemoryFiles, MemoryStorage
from storage_contract import StorageContract


class TestMemory(StorageContract):
    @pytest.fixture
    def storage(self):
        return MemoryStorage(MemoryFiles())


class Gate:
    def __init__(self):
        self.calls = []
        self.fail_before = self.fail_after = None

    def before(self, call, path):
        self.calls.append((call, path))
        if call == self.fail_before:
            raise StorageUnavailable("away")

    def after(self, call, path):
        self.calls.append((f"{call} done", path))
        if call == self.fail_after:
            raise StorageUnavailable("no answer")


def test_a_gate_sees_every_call():
    gate = Gate()
    storage = MemoryStorage(MemoryFiles(), gate=gate).below("t")
    storage.put("a", b"1")
    storage.put_if_absent("b", b"2")
    storage.put_if_absent("b", b"3")
    storage.get("b")
    list(storage.list())
    storage.delete("a")
    storage.delete("a")
    assert [call for call, _ in gate.calls] == [
        *("put", "put done", "claim", "claim done", "claim", "get", "list"),
        *("delete", "delete done", "delete"),
    ]
    assert {path for _, path in gate.calls} == {"t", "t/a", "t/b"}


@pytest.mark.parametrize("call", ["put", "claim", "delete"])
def test_failed_and_unanswered_are_different(call):
    def act(storage):
        match call:
            case "put":
                storage.put("new", b"1")
            case "claim":
                storage.put_if_absent("new", b"1")
            case "delete":
                storage.delete("old")

    for lost in (False, True):
        files, gate = MemoryFiles(), Gate()
        files.put("old", b"0")
        gate.fail_after, gate.fail_before = (call, None) if lost else (None, call)
        with pytest.raises(StorageUnavailable):
            act(MemoryStorage(files, gate=gate))
        done = "old" not in files.content if call == "delete" else "new" in files.content
        assert done == lost


def test_files_may_be_immutable():
    storage = MemoryStorage(MemoryFiles(immutable=True))
    storage.put("a", b"1")
    storage.put("a", b"1")
    with pytest.raises(FileReplaced):
        storage.put("a", b"2")
    assert storage.get("a") == b"1"


def test_listing_follows_the_order_of_writing():
    storage = MemoryStorage(MemoryFiles())
    for path in ("z/1", "a/2", "z/0"):
        storage.put(path, b"")
    assert list(storage.list()) == ["z/1", "a/2", "z/0"]
    assert list(storage.list("z")) == ["z/1", "z/0"]
