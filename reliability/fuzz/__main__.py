"""`python -m reliability.fuzz [FAMILY ...] --cases 10000 --out FILE.json`: random calls of all operators.

In place of a family, `raw` changes calls of the registered operators (raw.py), and `junk` passes arguments of any kind
to the public functions (junk.py).

Each family runs in a separate process, so that a crash is counted instead of ending the run. Calls of the C++ kernels,
or with `--device cuda` of the Triton kernels, are compared with the reference (check.py); `--backend triton` without a
GPU runs Triton's interpreter. `--replay FILE` repeats one case from the output of a failure. Exit status 1 if anything
was found.
"""

import argparse
import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from reliability.arguments import at_least, out_file
from reliability.checkout import commit

from . import CALLS, FAMILIES

# A case takes milliseconds, plus seconds of compilation on a GPU: one that takes this many seconds hangs. The watchdog
# watches cases, not rounds, which may take long on a busy machine.
WATCHDOG = 600
MOST_FAILURES = 10  # a family with more failures is abandoned
ADDRESS_SPACE = 32 * 2**30  # bytes of a child on the CPU: a larger allocation fails instead of filling the memory
STOPPED = threading.Event()  # set by Ctrl-C


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "families", nargs="*", metavar="FAMILY", help=f"any of {', '.join((*FAMILIES, *CALLS))}; default: all families"
    )
    parser.add_argument("--cases", type=at_least(1), default=10_000, help="number of cases per family")
    parser.add_argument("--at-once", type=at_least(1), default=1, metavar="N", help="families run at the same time")
    parser.add_argument("--seed", type=int, help="default: random; printed")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--backend", choices=("cpu", "triton"), help="default: that of the device")
    parser.add_argument("--out", type=out_file, help="JSON file for the counts")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="repeat one case, given as JSON")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(options.families) - {*FAMILIES, *CALLS}
    if unknown and not options.child:
        parser.error(f"FAMILY must be one of {', '.join((*FAMILIES, *CALLS))}, got {', '.join(sorted(unknown))}")
    options.backend = options.backend or ("triton" if options.device == "cuda" else "cpu")
    if options.backend == "triton" and options.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
    if options.replay:
        return again(options)
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    if options.child:
        return child(options, seed)
    print(f"seed {seed}", flush=True)
    results: dict[str, Any] = {}
    tried = commit()
    writing = threading.Lock()

    def run(family: str) -> None:
        for result in run_family(family, options, seed):
            with writing:  # after each round, so that an interrupted run has results
                results[family] = result
                if options.out:
                    write(options, seed, tried, results)
        print(f"{family}: {summary(results[family])}", flush=True)

    pool = ThreadPoolExecutor(options.at_once)
    try:
        list(pool.map(run, options.families or FAMILIES))
    except KeyboardInterrupt:
        STOPPED.set()
        return 130
    finally:
        pool.shutdown(cancel_futures=True)
    return int(any(result["failures"] or result["crashes"] for result in results.values()))


def write(options: argparse.Namespace, seed: int, tried: str | None, results: dict[str, Any]) -> None:
    import hypothesis

    from pointgrad import bench
    from pointgrad.bench.machine import machine

    facts = {**machine(options.device), "hypothesis": hypothesis.__version__, "commit": tried}
    facts |= {"backend": options.backend, "seed": seed}
    ordered = {family: results[family] for family in options.families or FAMILIES if family in results}
    bench.write({"machine": facts, "families": ordered}, options.out)


def child(options: argparse.Namespace, seed: int) -> int:
    """Run one family and print one line of JSON per round."""
    from . import rounds

    rounds.prepare()
    (family,) = options.families
    if options.device == "cpu":
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    for result in rounds.rounds(
        family, options.cases, seed, device=options.device, backend=options.backend, note=options.child
    ):
        print(json.dumps(result), flush=True)
    return 0


def again(options: argparse.Namespace) -> int:
    from . import rounds

    rounds.prepare()
    rounds.replay(json.loads(options.replay.read_text()), options.device, options.backend)
    print("agrees")
    return 0


def run_family(family: str, options: argparse.Namespace, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the counts so far after each round."""
    total = Counter[str]()
    counts: dict[str, Counter[str]] = {}
    failures: list[dict[str, Any]] = []
    crashes: list[dict[str, Any]] = []
    begin = time.perf_counter()

    def so_far() -> dict[str, Any]:
        return {
            "cases": total["cases"],
            "seconds": round(time.perf_counter() - begin, 1),
            **{what: dict(sorted(counter.items())) for what, counter in sorted(counts.items())},
            "failures": failures,
            "crashes": crashes,
        }

    while total["cases"] < options.cases and len(failures) + len(crashes) < MOST_FAILURES:
        for result in lines(family, options, seed + total["rounds"], options.cases - total["cases"]):
            total.update(cases=result["cases"], rounds=1)
            if "crash" in result:
                crashes.append(result["crash"])
                print(f"{family}: {result['crash']['cause']} in {json.dumps(result['crash'])}", flush=True)
            else:
                for what, counter in result["counts"].items():
                    counts.setdefault(what, Counter()).update(counter)
                if result["failure"]:
                    failures.append(result["failure"])
                    print(f"{family}: {json.dumps(result['failure'])}", flush=True)
            yield so_far()
            if len(failures) + len(crashes) >= MOST_FAILURES:
                break


def summary(result: dict[str, Any]) -> str:
    outcome = Counter(result.get("outcome", {}))
    return (
        f"{result['cases']} cases in {result['seconds']:.0f} s, {outcome['agrees']} agree,"
        f" {outcome['refused']} refused,"
        f" {len(result['failures'])} mismatches, {len(result['crashes'])} crashes"
    )


def lines(family: str, options: argparse.Namespace, seed: int, cases: int) -> Iterator[dict[str, Any]]:
    """Yield the reports of a child process, one per round, and the cause of a crash."""
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "case.json"
        command = [sys.executable, "-m", "reliability.fuzz", family, "--child", str(note), "--cases", str(cases)]
        command += ["--seed", str(seed), "--device", options.device, "--backend", options.backend]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            hung, seen = False, ""
            try:
                while not hung and not STOPPED.is_set():
                    if select.select([process.stdout], [], [], WATCHDOG)[0]:
                        line = process.stdout.readline()
                        if not line:
                            break
                        yield json.loads(line)
                    else:
                        seen, before = note.read_text() if note.exists() else "", seen
                        hung = seen == before
                if hung:
                    process.kill()
                status = process.wait()
            finally:
                process.kill()
        if status == -signal.SIGINT or STOPPED.is_set():
            raise KeyboardInterrupt
        if status:
            case = json.loads(note.read_text()) if note.exists() and note.stat().st_size else {}
            cause = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            cause = f"hung for {WATCHDOG} s" if hung else cause
            yield {"cases": case.get("in_round", 0) + 1, "crash": {"cause": cause, **case}}


if __name__ == "__main__":
    sys.exit(main())
