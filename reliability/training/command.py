"""`pointgrad`, as `python -m reliability.training.command ...`: waits shorter for lost processes if POINTGRAD_WAIT says
so, and trains slowly enough to be disturbed if POINTGRAD_PACE does."""

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
trainer.CONTROL = 1  # processes agree after every step, not after every sixteenth: these trainings are short

if __name__ == "__main__":
    sys.exit(main())
