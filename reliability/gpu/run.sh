#!/usr/bin/env bash
# Run all reliability checks that need a GPU. Takes about 15 minutes on a fast GPU with 16 CPU cores, mostly to compile
# kernels. Needs the dependencies of benchmarks/gpu.sh and NVIDIA's compute-sanitizer. Results are written to $1 (default:
# reliability/results).
set -euo pipefail
out=$(realpath -m "${1:-$(dirname "$0")/../results}")
mkdir -p "$out"
cd "$(dirname "$0")/../.."
export PYTHONPATH=src CUBLAS_WORKSPACE_CONFIG=:4096:8
python3 -m reliability.sizes --device cuda --out "$out/sizes_gpu.json"
python3 -m reliability.gpu.contention --out "$out/gpu_contention.json"
python3 -m reliability.gpu.repeats --out "$out/gpu_repeats.json"
python3 -m reliability.gpu.sanitizer --out "$out/gpu_sanitizer.json"
python3 -m reliability.numbers.precision --device cuda --out "$out/precision_gpu.json"
python3 -m reliability.numbers.properties --cases 10 --at-once 14 --out "$out/properties.json"
python3 -m reliability.fuzz --cases "${CASES:-1000}" --device cuda --at-once 10 --out "$out/fuzz_gpu.json"
