"""`python -m headwater.testing.sink_simulator --seeds 1000`."""

import sys

from headwater.testing.sink_simulator.command import main

sys.exit(main())
