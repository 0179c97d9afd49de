"""The backfill's simulator, by seeds: `run_seeds` for tests, `main` for a command line."""

from headwater.testing.cdc_simulator.scenario import run_seed
from headwater.testing.many_seeds import Simulator

_SIMULATOR = Simulator("headwater.testing.cdc_simulator", run_seed)

run_seeds = _SIMULATOR.run
main = _SIMULATOR.main
