"""README's example is run as it stands, and prints what README says it prints."""

import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from duckdb_extensions import import_extension

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.spark
def test_the_example_prints_what_is_written_below_it(tmp_path):
    blocks = BLOCK.findall(README.read_text())
    first = next(place for place, (language, _) in enumerate(blocks) if language == "python")
    example, printed, other_tool = (text for _, text in blocks[first : first + 3])
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.stdout.strip() == printed.strip()

    query = re.search(r'"(SELECT .*?)"\)', other_tool)
    import_extension("delta")
    connection = duckdb.connect()
    connection.execute("LOAD delta")
    wanted = query[1].replace("'shop/", f"'{tmp_path}/shop/")
    assert connection.execute(wanted).fetchone()[0] == 13
