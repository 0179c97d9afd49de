"""Views: each operator's meaning over whole tables, and over an epoch's changes."""
