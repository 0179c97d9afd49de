"""A process that owns a ledger and commits epoch after epoch, for tests that kill or freeze it.

Prints `term N` once and then every epoch after it is committed. A line on standard input makes
it commit one more; with `free` as the second argument it does not wait for that.
"""

import sys

from sqlalchemy import text

from headwater.errors import Fenced
from headwater.ledger.fence import Owner
from headwater.ledger.ledger import Ledger
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.record import EpochRecord


def main(url: str, mode: str) -> None:
    ledger = Ledger.open(url)
    term = ledger.take_over(Owner.this_process())
    print(f"term {term}", flush=True)
    epoch = ledger.last_epoch()
    while mode == "free" or sys.stdin.readline():
        after, epoch = epoch, Epoch(epoch + 1)
        record = EpochRecord(
            epoch=epoch, after=after, term=term, positions={"a": str(epoch), "b": str(epoch)}
        )

        def count(connection, value=epoch):
            connection.execute(text("DELETE FROM hw_counter WHERE name = 'worker'"))
            connection.execute(text(f"INSERT INTO hw_counter VALUES ('worker', {value})"))

        try:
            ledger.append(record, manifests={TableId(1): b"at %d" % epoch}, also=count)
        except Fenced:
            print("fenced", flush=True)
            return
        print(epoch, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
