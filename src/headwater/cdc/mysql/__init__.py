"""MySQL and MariaDB: snapshots by split, and changes from the binary log."""
