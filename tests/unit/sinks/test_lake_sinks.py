"""Every promise of a sink, tried on Delta, Iceberg and plain files in a local folder."""

import pytest

from headwater.sinks.sink import SinkKind
from headwater.testing.sink_kit import CHECKS, run_check
from lake_sinks import DeltaCase, FileCase, IcebergCase

LARGE = 2000
NO_SECOND_LOOK = {"repeated", "large", "target_away", "empty_epochs"}
"""Checks that say nothing new of a variant once its sibling has passed them."""


@pytest.mark.parametrize("kind", [SinkKind.APPEND_ONLY, SinkKind.UPSERT])
@pytest.mark.parametrize("check", CHECKS)
def test_delta(tmp_path, kind, check):
    case = DeltaCase(str(tmp_path), kind)
    case.large_rows = LARGE
    run_check(case, check)


@pytest.mark.parametrize("check", CHECKS)
def test_iceberg(tmp_path, check):
    case = IcebergCase(tmp_path, SinkKind.UPSERT)
    case.large_rows = LARGE
    run_check(case, check)


@pytest.mark.parametrize("check", ["rows_arrive", "crashed_with_receipts", "zombie", "aborted"])
def test_iceberg_that_is_only_appended_to(tmp_path, check):
    run_check(IcebergCase(tmp_path, SinkKind.APPEND_ONLY), check)


@pytest.mark.parametrize("check", CHECKS)
def test_files(tmp_path, check):
    case = FileCase(str(tmp_path), "parquet")
    case.large_rows = LARGE
    run_check(case, check)


@pytest.mark.parametrize("encode", ["json", "csv"])
@pytest.mark.parametrize("check", ["rows_arrive", "rescaled", "large"])
def test_files_of_text(tmp_path, encode, check):
    case = FileCase(str(tmp_path), encode)
    case.large_rows = LARGE
    run_check(case, check)


@pytest.mark.parametrize("check", sorted(CHECKS.keys() - NO_SECOND_LOOK))
def test_files_held_together_by_the_log(tmp_path, check):
    run_check(FileCase(str(tmp_path), "parquet", manifest=True), check)
