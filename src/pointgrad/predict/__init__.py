"""Labels for clouds of any size, from a trained network."""
