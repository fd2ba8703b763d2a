"""Speed, measured: `python -m benchmarks` on a CPU, `benchmarks/gpu.sh` on a machine with a GPU."""
