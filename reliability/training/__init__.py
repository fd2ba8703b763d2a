"""Trainings that are killed, starved, cut off and resumed."""
