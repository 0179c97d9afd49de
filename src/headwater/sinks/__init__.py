"""How results reach other systems exactly once: a pure machine, its executor, and targets."""
