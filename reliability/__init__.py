"""Runs that take long and show what the library withstands. Short versions of them are in `tests`."""
