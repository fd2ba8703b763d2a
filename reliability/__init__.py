"""Long runs that look for faults, and what they found. Short ones of the same kind run in `tests`."""
