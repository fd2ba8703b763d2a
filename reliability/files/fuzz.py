"""`python -m reliability.files.fuzz --seconds 60 --out FILE.json`: coverage-guided fuzzing of all readers with atheris.

New files are derived from the valid and damaged files of `corpus.py`, guided by the lines of our code that they reach.
A file may be read or refused, as in `corpus.py`; anything else is a finding, and its bytes are saved in --keep. Needs
`pip install atheris`. Each kind is fuzzed in a separate process for the given number of seconds.
"""

import argparse
import base64
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from ..arguments import out_file

SEEDS = 30  # initial damaged files
MEMORY = 2500  # MiB of the whole process, including torch
SECONDS = 20  # for one file
MAX_SIZE = 20_000  # bytes of a file
OURS = ["pointgrad.data.files", "pointgrad.data.datasets", "pointgrad.train", "pointgrad.cli.config"]


def fuzz(subject: str, seconds: float, folder: Path) -> None:
    """Fuzz one kind. Does not return: the process exits with status 0, or another one after a finding."""
    import atheris  # type: ignore[import-not-found]
    import torch  # noqa: F401  # imported first, so that it is not instrumented

    # Atheris does not instrument modules that the finder of an editable install loads; `run` sets PYTHONPATH instead.
    sys.meta_path[:] = [finder for finder in sys.meta_path if "Redirecting" not in type(finder).__name__]
    with atheris.instrument_imports(include=OURS):
        from . import corpus
        from .subjects import SUBJECTS
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as name:
        good = {each: SUBJECTS[each].make(Path(name)) for each in SUBJECTS}
    begin = folder / "begin"
    begin.mkdir()
    for number in range(SEEDS):
        (begin / f"{number}").write_bytes(corpus.make(good, subject, number))
    path = folder / f"a.{SUBJECTS[subject].suffix}"

    def target(raw: bytes) -> None:
        path.write_bytes(raw)
        try:
            SUBJECTS[subject].read(path)
        except Exception as error:
            what, words = corpus.judge(error, path)
            if what != corpus.REFUSED:
                raise RuntimeError(f"{what}: {words}") from error

    options = {"max_total_time": round(seconds), "max_len": MAX_SIZE, "timeout": SECONDS, "rss_limit_mb": MEMORY,
               "print_final_stats": 1, "seed": 1, "artifact_prefix": f"{folder}/finding-"}  # fmt: skip
    atheris.Setup([sys.argv[0], *(f"-{key}={value}" for key, value in options.items()), str(begin)], target)
    atheris.Fuzz()


def run(subject: str, seconds: float, keep: Path | None) -> dict[str, Any]:
    """Fuzz one kind in a separate process. Returns the number of files, the covered code and the findings."""
    source = importlib.util.find_spec("pointgrad")
    assert source is not None
    assert source.origin is not None
    environment = {**os.environ, "PYTHONPATH": str(Path(source.origin).parents[1])}
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "reliability.files.fuzz", "--one", subject, "--seconds", str(seconds)]
        done = subprocess.run(
            [*command, "--folder", name], env=environment, capture_output=True, text=True, errors="replace", check=False
        )
        found = sorted(Path(name).glob("finding-*"))
        row: dict[str, Any] = {
            "subject": subject,
            "seconds": seconds,
            "files": _last(r"stat::number_of_executed_units:\s*(\d+)", done.stderr),
            "reached": _last(r"cov: (\d+)", done.stderr),
            "status": done.returncode,
            "findings": len(found),
        }
        if found or done.returncode:
            row["words"] = next((line for line in done.stdout.splitlines() if "Error" in line), done.stderr[-300:])[
                :300
            ]
            row["file"] = base64.b64encode(found[0].read_bytes()).decode()[:8000] if found else ""
        for file in found if keep else ():
            assert keep is not None
            keep.mkdir(exist_ok=True)
            (keep / f"{subject.replace(' ', '-')}-{file.name}").write_bytes(file.read_bytes())
    return row


def _last(pattern: str, text: str) -> int:
    return int(([0, *re.findall(pattern, text)])[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds for each kind")
    parser.add_argument("--only", nargs="*", help="kinds of files; all by default")
    parser.add_argument("--out", type=out_file, help="file for the counts, which are also printed")
    parser.add_argument("--keep", type=Path, help="folder for the files of findings")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        fuzz(options.one, options.seconds, options.folder)
    from pointgrad.bench import write

    from .corpus import describe
    from .subjects import SUBJECTS

    unknown = [name for name in options.only or () if name not in SUBJECTS]
    if unknown:
        parser.error(f"--only must be one of {', '.join(SUBJECTS)}, got {unknown[0]!r}")
    described, rows = describe(), []
    for subject in options.only or SUBJECTS:
        rows.append(run(subject, options.seconds, options.keep))
        print(*(f"{key} {value}" for key, value in rows[-1].items() if key != "file"), sep="  ", flush=True)
    total = {key: sum(row[key] for row in rows) for key in ("files", "findings", "seconds")}
    if options.out:
        from importlib import metadata

        write({"machine": {**described, "atheris": metadata.version("atheris")}, **total, "rows": rows}, options.out)
    # Without coverage, the instrumentation failed.
    return 1 if any(row["status"] or row["findings"] or not row["reached"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
