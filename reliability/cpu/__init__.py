"""The C++ kernels: under sanitizers, and called from many threads and processes at once."""
