"""`python -m benchmarks [--device cpu|cuda] [--out results.json] [--rooms ...] [--only words]`"""

import argparse
from pathlib import Path

import torch

from benchmarks import harness, overhead, rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description="Checks, then times, ours and peers in one run.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help="where to write the results as JSON")
    parser.add_argument("--rooms", nargs="+", choices=rows.ROOMS, default=rows.ROOMS)
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    options = parser.parse_args()
    torch.manual_seed(0)
    notes = {**overhead.call_overhead(), **overhead.import_time()} if options.device == "cpu" else {}
    if options.device == "cuda":
        size = torch.empty(2**28, device="cuda")
        copy = harness.measure(harness.Row("copy", lambda: None, lambda: size.clone()), "cuda")
        notes["memory limit"] = f"{2 * size.nbytes / copy['ms']['ours']['median'] / 1e9:.2f} TB/s (a device copy)"
        del size
    results = []
    for room in options.rooms:  # one after another: the inputs of all of them at once would fill the memory
        results += harness.measure_all(rows.make(room, options.device), options.device, options.only)
    harness.report(results, options.device, notes, options.out)


if __name__ == "__main__":
    main()
