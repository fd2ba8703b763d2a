"""Damaged checkpoints."""

import io
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pointgrad.train import CheckpointError, checkpoint

from .attempts import flat
from .disturb import Record, Reference


def _flipped(content: bytes) -> bytes:
    """Flip one bit in the middle of the largest tensor."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
    place = largest.header_offset + 1000 + largest.file_size // 2
    return content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :]


def _changed(content: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    loaded = torch.load(io.BytesIO(content), weights_only=True)
    memory = io.BytesIO()
    torch.save(change(loaded), memory)
    return memory.getvalue()


def _text_in_a_zip(_: bytes) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        archive.writestr("readme.txt", "not a checkpoint")
    return memory.getvalue()


def _without(name: str) -> Callable[[dict[str, Any]], Any]:
    def change(loaded: dict[str, Any]) -> Any:
        return {**loaded, "training": {key: value for key, value in loaded["training"].items() if key != name}}

    return change


KINDS: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[: len(content) // 2],
    "without its last byte": lambda content: content[:-1],
    "empty": lambda content: b"",
    "zeroed": lambda content: bytes(len(content)),
    "a bit flipped in a tensor": _flipped,
    "a page of zeros": lambda content: content[:8192] + bytes(4096) + content[12288:],
    "another zip": _text_in_a_zip,
    "a picture": lambda content: b"\x89PNG\r\n\x1a\n" + bytes(1000),
    "without an entry": lambda content: _changed(content, _without("optimizer")),
    "a network only": lambda content: _changed(content, lambda loaded: {**loaded, "training": None}),
    "of a different network": lambda content: _changed(
        content, lambda loaded: {**loaded, "model": {**loaded["model"], "width": 0.5}}
    ),
    "a weight of another shape": lambda content: _changed(
        content, lambda loaded: {**loaded, "state": {key: value[None] for key, value in loaded["state"].items()}}
    ),
}


def damaged(reference: Reference, *kinds: str) -> Record:
    """Damage the last checkpoint: the run reports it, continues from the previous one, and has the same result."""
    wrong, different = [], []
    for kind in kinds:
        out = reference.begun()
        bad = KINDS[kind]((out / "last.pt").read_bytes())
        (out / "last.pt").write_bytes(bad)
        attempt = reference.start(out)
        status = attempt.wait()
        reported = f"{out / 'last.pt'}: " in attempt.output and "; continuing from previous.pt" in attempt.output
        if status or not reported:
            wrong.append(f"{kind}: {status}: {attempt.output}")
            continue
        if (out / "unusable.pt").read_bytes() != bad:
            wrong.append(f"{kind}: the damaged file is not kept")
        different += reference.different(out)
    return {"kinds": list(kinds), "wrong": wrong, "different": different}


def all_damaged(reference: Reference) -> Record:
    """Damage all checkpoints: the run reports each of them, and writes nothing."""
    out = reference.begun()
    for name in ("last.pt", "previous.pt"):
        (out / name).write_bytes(_flipped((out / name).read_bytes()))
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.iterdir() if path.name != ".lock"}
    attempt = reference.start(out)
    status, wrong = attempt.wait(), []
    expected = "; ".join(f"{out / name}: is not a checkpoint, or is damaged" for name in ("last.pt", "previous.pt"))
    if (status, attempt.errors()) != (2, [f"pointgrad train: {expected}"]):
        wrong.append(f"{status}: {attempt.output}")
    if before != {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.iterdir() if path.name != ".lock"}:
        wrong.append("something was written")
    return {"wrong": wrong}


def flips(reference: Reference, count: int, seed: int) -> Record:
    """Flip random bits of a checkpoint: each is detected, or has no effect."""
    content = (reference.run / "last.pt").read_bytes()
    rng, path = random.Random(seed), reference.scratch / "flipped.pt"
    expected = flat(checkpoint.read(reference.run / "last.pt"))
    detected, harmless, wrong = 0, 0, []
    for _ in range(count):
        place, bit = rng.randrange(len(content)), 1 << rng.randrange(8)
        path.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
        found = _attempt(path)
        if found is None:
            detected += 1
        elif found == expected:
            harmless += 1
        else:
            wrong.append(f"byte {place}, bit {bit}")
    return {"flips": count, "detected": detected, "same content": harmless, "wrong": wrong}


def _attempt(path: Path) -> dict[str, Any] | None:
    try:
        return flat(checkpoint.read(path))
    except CheckpointError:
        return None
