"""Run seeds: `python -m headwater.testing.fuzz --seeds 100 --seed0 0`."""

import sys

from headwater.testing.fuzz.command import main

if __name__ == "__main__":
    sys.exit(main())
