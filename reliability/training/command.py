"""The `pointgrad` command for fault injection: `python -m reliability.training.command ...`.

POINTGRAD_WAIT shortens the timeout for lost processes, POINTGRAD_PACE slows down training steps; both in seconds.
"""

import os
import sys
import time
from datetime import timedelta
from typing import Any

from pointgrad.cli import main
from pointgrad.train import processes, trainer

if wait := os.environ.get("POINTGRAD_WAIT"):
    processes.TIMEOUT = timedelta(seconds=float(wait))
if pace := os.environ.get("POINTGRAD_PACE"):
    step = trainer.train_step

    def slow(*arguments: Any, **options: Any) -> Any:
        time.sleep(float(pace))
        return step(*arguments, **options)

    trainer.train_step = slow
trainer.CONTROL = 1  # synchronize processes after every step: these runs are short

if __name__ == "__main__":
    sys.exit(main())
