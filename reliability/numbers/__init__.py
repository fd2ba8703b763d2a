"""What mathematics demands of random input, and errors in 16 bits."""
