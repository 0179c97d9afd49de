"""A seed of the fuzzer in a process of its own, to be killed: `python fuzz_child.py FOLDER SEED`.

Prints `epoch N` after each epoch that was committed and checked, and `done`.
"""

import sys
from pathlib import Path

from headwater.testing.fuzz.command import quick_session
from headwater.testing.fuzz.script import Script
from headwater.testing.fuzz.world import World


class Told(Script):
    """A script that says how far it is."""

    def check(self, epoch=None):
        super().check(epoch)
        print(f"epoch {self.life.hw.visible}", flush=True)


if __name__ == "__main__":
    script = Told(quick_session(), Path(sys.argv[1]))
    World(script, int(sys.argv[2])).run()
    print("done", flush=True)
