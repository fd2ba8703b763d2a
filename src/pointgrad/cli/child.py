"""Child process of `pointgrad check`: loads the target, finds inputs, and reports one row after another."""

import functools
import json
import os
import sys
from dataclasses import asdict
from typing import Any

import torch

from pointgrad.inspect.audit import rows
from pointgrad.inspect.audit.subject import InputsError, Subject

from .functions import find_inputs, guess_inputs, load_function
from .status import ExitStatus
from .target import TargetError


def main(pipe: int, spec: dict[str, Any]) -> None:
    """Audit the target of `spec`, and write messages as lines of JSON to a pipe."""
    with os.fdopen(pipe, "w", encoding="utf-8") as report:

        def send(kind: str, value: Any) -> None:
            report.write(json.dumps([kind, value]) + "\n")
            report.flush()

        try:
            send("versions", {"python": sys.version.split()[0], "torch": torch.__version__})
            send("stage", f"importing {spec['target']}")
            fn = load_function(spec["target"])
            reference = load_function(spec["reference"]) if spec["reference"] else None
            send("stage", f"making inputs for {spec['target']}")
            make_inputs = find_inputs(spec["target"], spec["inputs"], spec["shapes"]) or guess_inputs(fn)
            subject = Subject(fn, make_inputs, reference, spec["device"], spec["seeded"], isolated=True)
            subject.progress = functools.partial(send, "progress")
            for name in spec["checks"]:
                send("running", name)
                for row in rows(subject, [name]):
                    send("row", asdict(row))
            send("done", None)
        except TargetError as error:
            send("error", [error.status, str(error)])
        except InputsError as error:
            send("error", [ExitStatus.BAD_TARGET, f"{spec['target']}: {error}"])
    sys.stdout.flush()
    os._exit(0)  # without exit handlers of the user's code


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
