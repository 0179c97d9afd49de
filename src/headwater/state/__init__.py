"""State tables: rows by vnode and epoch, in open Delta tables."""
