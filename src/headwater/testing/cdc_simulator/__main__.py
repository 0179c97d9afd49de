"""Run seeds: `python -m headwater.testing.cdc_simulator --seeds 5000 --seed0 0`."""

import sys

from headwater.testing.cdc_simulator.command import main

if __name__ == "__main__":
    sys.exit(main())
