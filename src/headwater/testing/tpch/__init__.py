"""TPC-H as a moving target: the refresh functions, as SQL."""
