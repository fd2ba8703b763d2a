"""The Triton kernels: on a GPU under compute-sanitizer, in a crowd, again and again; compiled without a GPU."""
