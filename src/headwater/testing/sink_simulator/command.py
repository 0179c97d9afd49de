"""The simulator of deliveries, by seeds: `run_seeds` for tests, `main` for a command line."""

from headwater.testing.many_seeds import Simulator
from headwater.testing.sink_simulator.scenario import run_seed

_SIMULATOR = Simulator("headwater.testing.sink_simulator", run_seed)

run_seeds = _SIMULATOR.run
main = _SIMULATOR.main
