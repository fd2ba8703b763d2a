#!/usr/bin/env bash
# Build, test and measure on a machine with a GPU, without installing anything. Needs torch with CUDA, Triton, nanobind,
# CMake, pytest, hypothesis, rich, scipy and scikit-learn. Results are written to $1 (default: benchmarks/results).
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-benchmarks/results}
python3 -c "import torch; assert torch.cuda.is_available(), 'no GPU'"
cmake -S . -B build/gpu -DPython_EXECUTABLE="$(command -v python3)" > /dev/null
cmake --build build/gpu -j > /dev/null
cmake --install build/gpu --prefix src > /dev/null
export PYTHONPATH=src
# Load only xdist: other plugins may warn, and warnings are errors.
PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 python3 -m pytest -q -p xdist -n "${WORKERS:-8}" -p no:cacheprovider
# Called from Python, since the command line needs tyro, which may not be installed.
export POINTGRAD_TEST_DATA=${POINTGRAD_TEST_DATA:-$(realpath -m ../shared/data)}
python3 -c "from pointgrad import bench; bench.run(device='cuda', out='$out/gpu.json')"
python3 -c "from pointgrad import bench; bench.run(['scaling'], device='cuda', out='$out/scaling_gpu.json')"
python3 -m benchmarks.networks --device cuda --out "$out/networks_gpu.json"
python3 -m benchmarks.latency --device cuda --out "$out/latency_gpu.json"
if command -v nvcc ninja >/dev/null; then python3 -m benchmarks.cuda_steps --out "$out/cuda_steps_gpu.json"; fi
