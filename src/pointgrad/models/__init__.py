"""Whole networks, in the sizes of their papers."""
