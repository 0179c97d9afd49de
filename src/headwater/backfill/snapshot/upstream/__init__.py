"""Following tables of another workspace: their snapshot, then their changes, for ever."""
