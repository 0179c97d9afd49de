"""Sinks of an engine: what each epoch owes them, and who delivers it."""
