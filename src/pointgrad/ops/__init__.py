"""The operators, one room (package) per family; `README.md` here says how a room is built."""
