"""`python -m benchmarks [--device cpu|cuda] [--out results.json] [--only words]`"""

import argparse
from pathlib import Path

import torch

from benchmarks import harness, overhead, rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description="Checks, then times, ours and peers in one run.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help="where to write the results as JSON")
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    options = parser.parse_args()
    torch.manual_seed(0)
    sampling = rows.sampling_on_gpu if options.device == "cuda" else rows.sampling_on_cpu
    work = sampling() + rows.gather_rows(options.device) + rows.trilinear_rows(options.device)
    notes = {**overhead.call_overhead(), **overhead.import_time()} if options.device == "cpu" else {}
    if options.device == "cuda":
        size = torch.empty(2**28, device="cuda")
        copy = harness.measure(harness.Row("copy", lambda: None, lambda: size.clone()), "cuda")
        notes["memory limit"] = f"{2 * size.nbytes / copy['ms']['ours']['median'] / 1e9:.2f} TB/s (a device copy)"
        del size
    harness.run([row for row in work if options.only in row.name], options.device, notes, options.out)


if __name__ == "__main__":
    main()
