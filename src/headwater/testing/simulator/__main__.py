"""Run seeds: `python -m headwater.testing.simulator --seeds 10000 --seed0 0`."""

import sys

from headwater.testing.simulator.command import main

if __name__ == "__main__":
    sys.exit(main())
