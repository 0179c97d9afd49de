"""Write constraints.txt: every installed package at its exact version, and nothing else.

The file names no index, no address and no path, so it works with any package index.
"""

import importlib.metadata
import re
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"
OWN_NAME = "headwater"
HEAD = "# Exact versions of everything that `make setup` installs. Written by `make pins`.\n"


def main() -> None:
    """Replace the file."""
    pins: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        if name != OWN_NAME:
            pins[name] = f"{name}=={distribution.version}"
    CONSTRAINTS.write_text(HEAD + "".join(f"{pins[name]}\n" for name in sorted(pins)))


if __name__ == "__main__":
    main()
