"""Names of things, each a type of its own so that they cannot be mixed up."""

from typing import NewType

TableId = NewType("TableId", int)
JobId = NewType("JobId", int)
ActorId = NewType("ActorId", int)
FragmentId = NewType("FragmentId", int)
SourceName = NewType("SourceName", str)
Term = NewType("Term", int)
"""The fencing term: it grows by one with every engine that takes over a workspace."""
