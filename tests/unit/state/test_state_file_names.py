"""Names of files say whose they are, and never repeat."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.state.file_name import CHANGE_FOLDER, Origin, origin_of

origins = st.builds(
    Origin,
    st.integers(0, 2**32 - 1).map(Term),
    st.integers(0, 2**63 - 1).map(Epoch),
)


@given(origins)
def test_the_origin_comes_back_from_every_kind_of_name(origin):
    for path in (origin.data_file(), origin.change_file(), origin.vector_file()):
        assert origin_of(path) == origin
        assert origin_of(f"folder/{path}") == origin
    assert origin.change_file().startswith(f"{CHANGE_FOLDER}/")


def test_names_of_one_origin_differ():
    origin = Origin(Term(1), Epoch(5))
    # Two tables of one epoch share the lookup cache, which goes by name: 32 bits are too few.
    names = {origin.data_file() for _ in range(200_000)}
    assert len(names) == 200_000


@pytest.mark.parametrize(
    "path",
    [
        "",
        "part-1.parquet",
        "part-000001-00000000000000aa-0123456789abcdef.parquet.tmp",
        "part-x-00000000000000aa-0123456789abcdef.parquet",
        "deletion_vector_notes.bin",
        "_delta_log/00000000000000000000.json",
        "_delta_log/_last_checkpoint",
        "readme.txt",
    ],
)
def test_what_is_not_ours_has_no_origin(path):
    assert origin_of(path) is None
