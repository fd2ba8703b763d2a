"""Fault injection for training: all scenarios, with a record.

python -m reliability.training.faults --out reliability/results/faults.json   # all; Linux, 15 minutes on one core
python -m reliability.training.faults kills clock                             # only these scenarios
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pointgrad.bench import write
from pointgrad.bench.machine import machine

from ..arguments import out_file
from ..checkout import commit
from . import damage, disturb, ranks
from .attempts import EVERY_STEP
from .disturb import Record, Reference


def _disk(scratch: Path) -> Record:
    try:
        return disturb.disk(Reference(scratch), 8)
    except OSError as error:
        return {"skipped": str(error)}


def _kills(scratch: Path) -> Record:
    """Kill runs with frequent, with rare, and with large writes."""
    every_step = Reference(scratch / "a", epochs=6)
    return {
        "a checkpoint after every step": disturb.kills(every_step, 50, 1, *EVERY_STEP),
        "a checkpoint after every epoch": disturb.kills(Reference(scratch / "b"), 6, 2),
        "with pictures, without workers": disturb.kills(Reference(scratch / "c", workers=0, figures=True), 4, 3),
    }


SCENARIOS: dict[str, Callable[[Path], Record]] = {
    "kills": _kills,
    "stops": lambda scratch: disturb.stops(Reference(scratch), 6, 0),
    "disk": _disk,
    "workers": lambda scratch: disturb.workers(
        Reference(scratch), "killed", "crashes", "raises", "exits 0", "exits 3", "memory"
    ),
    "ranks": lambda scratch: ranks.lost(
        scratch, (1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP), (0, signal.SIGSTOP), wait=45
    ),
    "damaged": lambda scratch: damage.damaged(Reference(scratch), *damage.KINDS),
    "all damaged": lambda scratch: damage.all_damaged(Reference(scratch)),
    "flipped bits": lambda scratch: damage.flips(Reference(scratch), 5000, 0),
    "clock": lambda scratch: disturb.clock(Reference(scratch), 3),
    "together": lambda scratch: disturb.together(Reference(scratch)),
}


def faults(record: object) -> list[str]:
    """List all violations in a record."""
    if not isinstance(record, dict):
        return []
    own = [text for name in ("wrong", "different", "negative durations") for text in record.get(name, [])]
    return own + [text for each in record.values() for text in faults(each)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", choices=[*SCENARIOS, []], help="scenarios to run; by default all")
    parser.add_argument("--out", type=out_file, help="JSON file; other scenarios in it are kept")
    flags = parser.parse_args()
    tried, wrong, skipped = commit(), [], []
    for name in flags.scenarios or SCENARIOS:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            record = SCENARIOS[name](Path(scratch))
            record = json.loads(json.dumps(record).replace(scratch, "..."))
        wrong += faults(record)
        skipped += [name] if "skipped" in record else []
        print(f"{name}: {json.dumps(record, indent=1)}", flush=True)
        if flags.out:
            report = json.loads(flags.out.read_text()) if flags.out.exists() else {}
            report["machine"] = machine("cpu")
            report[name] = {**record, "seconds": round(time.monotonic() - began), "commit": tried}
            write(report, flags.out)
    print(f"{len(wrong)} faults" + (f", not run: {', '.join(skipped)}" if skipped else ""), flush=True)
    return 1 if wrong or skipped else 0


if __name__ == "__main__":
    sys.exit(main())
