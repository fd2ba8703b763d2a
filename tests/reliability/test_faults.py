"""Fault injection for training, in short. `make faults` runs more and longer scenarios."""

import csv
import errno
import os
import re
import zipfile

import pytest
import torch

from pointgrad import train
from pointgrad.train import TrainConfig, Trainer, checkpoint
from pointgrad.train.run_folder import RunFolder
from tests.support.tiny import Tiny, loaders

pytest.importorskip("lightning_fabric")
pytest.importorskip("tyro")
pytest.importorskip("yaml")

from reliability.training import damage, disturb, ranks
from reliability.training.attempts import STAMP


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return disturb.Reference(tmp_path_factory.mktemp("faults") / "trainings")


def test_kills_at_random_moments(reference):
    record = disturb.kills(reference, 3, 0, "--checkpoint-minutes", "1e-9")
    assert record["kills"] == 3
    assert record["different"] == []


@pytest.mark.parametrize("kind", ["a bit flipped in a tensor", "without an entry"])
def test_damaged_checkpoint_falls_back_to_the_previous_one(reference, kind):
    record = damage.damaged(reference, kind)
    assert record["wrong"] == record["different"] == []


def test_nothing_is_written_if_all_checkpoints_are_damaged(reference):
    assert damage.all_damaged(reference)["wrong"] == []


def test_every_flipped_bit_is_detected(reference):
    record = damage.flips(reference, 100, 0)
    assert record["wrong"] == []
    assert record["detected"] == 100


def test_killed_worker(reference):
    record = disturb.workers(reference, "killed")
    assert record["wrong"] == record["different"] == []


def test_second_training_in_the_same_folder_is_refused(reference):
    record = disturb.together(reference)
    assert record["wrong"] == record["different"] == []


def test_results_do_not_depend_on_the_clock(reference):
    record = disturb.clock(reference, 1)
    assert record["negative durations"] == record["different"] == []


def test_small_disk(reference):
    try:
        record = disturb.disk(reference, 1)
    except OSError as error:
        pytest.skip(str(error))
    assert record["enough space"] == 0
    assert record["wrong"] == record["different"] == []


def test_killed_process(tmp_path):
    record = ranks.lost_forked(tmp_path)
    assert record["wrong"] == record["different"] == []


@pytest.fixture
def no_figures(monkeypatch):
    for name in ("curves", "results"):
        monkeypatch.setattr(f"pointgrad.train.report.Report.{name}", lambda self, **_: None)


def fit(out, resume=False, tensorboard=False, **options):
    torch.manual_seed(0)
    config = TrainConfig(epochs=3, accelerator="cpu", tensorboard=tensorboard)
    return Trainer(Tiny(), *loaders(), config, out=out, resume=resume, **options).fit()


def killed_after_the_last_checkpoint(out, monkeypatch, **options):
    save = checkpoint.save

    def last(path, content, *previous):
        save(path, content, *previous)
        if path.name == "last.pt" and content["training"]["epoch"] == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", last)
        with pytest.raises(KeyboardInterrupt):
            fit(out, **options)


def test_a_kill_after_the_last_checkpoint_loses_no_row(tmp_path, monkeypatch, no_figures):
    killed_after_the_last_checkpoint(tmp_path / "run", monkeypatch)
    fit(tmp_path / "run", resume=True)
    with open(tmp_path / "run" / "metrics.csv") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2", "3"]
    log = (tmp_path / "run" / "log.txt").read_text()
    assert [log.count(f"epoch {epoch}/3") for epoch in (1, 2, 3)] == [1, 1, 1]


def test_tensorboard_has_every_epoch_once(tmp_path, monkeypatch, no_figures):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    killed_after_the_last_checkpoint(tmp_path / "run", monkeypatch, tensorboard=True)
    fit(tmp_path / "run", resume=True, tensorboard=True)
    events = event_accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("val/loss")] == [1, 2, 3]


def test_damaged_best_checkpoint_is_reported_and_replaced(tmp_path, capsys, no_figures):
    out = tmp_path / "run"

    class Stop(train.Hook):
        def after_epoch(self, trainer):
            trainer.stop()

    with pytest.raises(train.Interrupted):
        fit(out, hooks=[Stop()])
    (out / "best.pt").write_bytes(b"")
    fit(out, resume=True)
    assert (
        "best.pt: is not a checkpoint, or is damaged; the best epoch is chosen among the remaining ones"
        in capsys.readouterr().out
    )
    checkpoint.read(out / "best.pt")


def test_full_disk_leaves_no_partial_log_line(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    folder.log("whole")

    class Full:
        def __init__(self, *arguments):
            self.file = open(*arguments)  # noqa: SIM115

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, text):
            self.file.write(text[:10])
            self.file.flush()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("pointgrad.writing.os.fdopen", Full)
        with pytest.raises(train.WriteError, match=r"log\.txt: cannot be written: No space left on device"):
            folder.log("half")
    folder.log("whole again")
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [re.sub(f"^{STAMP}", "", line) for line in lines] == ["whole", "whole again"]


def test_checkpoints_with_a_checksum_are_readable_by_torch_and_zip_tools(tmp_path):
    """Checkpoints of older versions, without a checksum, are read too."""
    content = checkpoint.content_of(
        Tiny(), Tiny().state_dict(), "classification", ["a", "b"], train.checkpoint.Prepare()
    )
    checkpoint.save(tmp_path / "new.pt", content)
    assert torch.load(tmp_path / "new.pt", weights_only=True).keys() == content.keys()
    with zipfile.ZipFile(tmp_path / "new.pt") as archive:
        assert archive.testzip() is None
    torch.save(content, tmp_path / "old.pt")
    assert checkpoint.read(tmp_path / "old.pt").keys() == content.keys()
