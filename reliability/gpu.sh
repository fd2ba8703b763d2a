#!/usr/bin/env bash
# Everything of this folder that needs a GPU, in one call: ten minutes on a fast one. Needs what benchmarks/gpu.sh needs,
# and NVIDIA's compute-sanitizer. Results go to $1 (default: reliability/results).
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-reliability/results}
export PYTHONPATH=src CUBLAS_WORKSPACE_CONFIG=:4096:8
python3 -m reliability.sizes --device cuda --out "$out/sizes_gpu.json"
python3 -m reliability.gpu_contention --out "$out/gpu_contention.json"
python3 -m reliability.gpu_repeats --out "$out/gpu_repeats.json"
python3 -m reliability.gpu_sanitizer --out "$out/gpu_sanitizer.json"
