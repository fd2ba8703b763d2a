"""Fault injection for training runs: kills, full disks, lost processes, damaged checkpoints."""
