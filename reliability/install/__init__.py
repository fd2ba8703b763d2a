"""Pairs of Python and torch; wheels in empty environments."""
