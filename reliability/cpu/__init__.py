"""Tests of the C++ kernels with sanitizers, and with concurrent calls from threads and processes."""
