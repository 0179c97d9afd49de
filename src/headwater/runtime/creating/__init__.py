"""Views that are being created: filled beside the live tables, until they join the others."""
