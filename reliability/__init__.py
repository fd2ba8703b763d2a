"""Long runs that try to break the library, and what they found. The short form of each is in `tests`."""
