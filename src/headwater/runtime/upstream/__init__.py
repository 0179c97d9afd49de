"""Tables that are kept in step with those of other workspaces."""
