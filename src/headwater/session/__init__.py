"""Conversations with users: statements in, results out, over the wire or from Python."""
