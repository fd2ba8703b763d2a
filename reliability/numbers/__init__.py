"""Mathematical properties on random input, and rounding errors in 16 bits."""
