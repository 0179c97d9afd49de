"""`python -m headwater.testing.snapshot_simulator --seeds 1000`."""

import sys

from headwater.testing.snapshot_simulator.command import main

sys.exit(main())
