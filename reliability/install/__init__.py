"""Tests with several versions of Python and torch, and wheels in empty environments."""
