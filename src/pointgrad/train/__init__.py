"""Training: loops, metrics, checkpoints, distribution."""
