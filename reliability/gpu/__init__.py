"""Tests of the Triton kernels on a GPU, and compilation for GPUs that are not available."""
