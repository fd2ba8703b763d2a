"""space_filling_curve and serialize: integers, the same bits on every backend."""

from typing import Any

import torch
from torch import Tensor

from pointgrad import serialize, space_filling_curve
from pointgrad.ops.curves import CURVES, reference

from .base import Benchmark, OpInfo, Sample, equal_offsets, ints
from .errors import BadCall, bad_values, each, got, tensor_errors, type_error, value_error
from .inputs import Draw, Make
from .magnitudes import Arguments

EDGES = (511, 512, 513, 1025, 70_001)
MOST = 2**21 - 1
rows, padded = torch.zeros(6, 3, dtype=torch.int64), torch.zeros(2, 6, 3, dtype=torch.int64)


def cells(m: Make, *shape: int, bits: int = 16, **options: Any) -> Arguments:
    return {"coordinates": m.below(2**bits, *shape), "bits": bits, **options}


def draw_cells(d: Draw) -> Arguments:
    kind, batch = d.layout()
    most = 21 if batch <= 1 else 20
    bits = d.pick("bits", (1, 2, 3, 9, 10, 16, most))
    count = d.size(70_001, EDGES) if batch or kind != "offsets" else 0
    values = min(2**bits, d.pick("extent", (2, 9, 2**21)))
    if kind in ("packed", "offsets"):
        arguments = {"coordinates": d.below(values, count, 3), "bits": bits}
        return arguments if kind == "packed" else {**arguments, "offsets": d.offsets(count, batch)}
    arguments = {"coordinates": d.below(values, batch, count, 3), "bits": bits}
    return arguments if kind == "padded" else {**arguments, "lengths": d.below(count + 1, batch)}


def draw_orders(d: Draw) -> list[str]:
    return [name for name in CURVES if d.flag(name)] or ["hilbert"]


def plain_codes(coordinates: Tensor, order: str, bits: int) -> Tensor:
    return reference.space_filling_curve(coordinates, None, [CURVES.index(order)], bits)[0]


def plain_serialize(coordinates: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    return reference.serialize(coordinates, None, [0, 1, 2, 3], bits)


def check_codes(arguments: Arguments, received: Tensor) -> None:
    assert torch.equal(received, plain_codes(**arguments)), "codes differ"


def check_serialized(arguments: Arguments, received: tuple[Tensor, ...]) -> None:
    assert all(map(torch.equal, received, plain_serialize(**arguments))), "orders differ"


def cloud_errors() -> list[BadCall]:
    return [
        *tensor_errors({"coordinates": rows, "offsets": ints(0, 6)}, coordinates=[None, rows.to_sparse()], offsets=[[0, 6], torch.zeros(2), ints(0, 6).to("meta")]),
        *each(type_error, "coordinates must be int64 or int32", got("float32", rows.float()), got("uint8", rows.byte())),
        *each(value_error, "coordinates must be (N, 3) or (B, N, 3)", got("(6, 4)", torch.zeros(6, 4).long()), got("(3,)", ints(0, 0, 0))),
        value_error("offsets must be None for padded coordinates (B, N, 3); use lengths, got a tensor", padded, offsets=ints(0, 6)),
        value_error("lengths must be None for packed coordinates (N, 3); use offsets, got a tensor", rows, lengths=ints(6)),
        *each(type_error, "bits must be an int", got("float 16.0", rows, bits=16.0), got("bool True", rows, bits=True)),
        *each(value_error, "bits must be in [1, 21]", got("0", rows, bits=0), got("22", rows, bits=22)),
        value_error("bits must be at most 20 for B = 2 clouds, so that codes have 63 bits, got 21", padded, bits=21),
        value_error("bits must be at most 19 for B = 9 clouds, so that codes have 63 bits, got 20", rows, bits=20, offsets=ints(*[0] * 9, 6)),
        bad_values("coordinates must be in [0, 2**bits = 65536), got 65536", rows + 2**16),
        bad_values("coordinates must be in [0, 2**bits = 8), got -1; subtract the minimum of each axis first", rows - 1, bits=3),
        bad_values("offsets[-1] must equal N = 6, got 7", rows, offsets=ints(0, 7)),
        bad_values("lengths[0] must be in [0, N = 6], got 7", padded, lengths=ints(7, 0)),
    ]  # fmt: skip


NAMES = '"z", "z-trans", "hilbert" or "hilbert-trans"'

OPERATORS = [
    OpInfo(
        "space_filling_curve", space_filling_curve,
        samples=[
            Sample("z", lambda m: cells(m, 50, 3, order="z"), large=lambda m: cells(m, 40_011, 3, order="z")),
            Sample("z-trans", lambda m: cells(m, 30, 3, order="z-trans", offsets=m.ints(0, 9, 9, 30))),
            Sample("hilbert", lambda m: cells(m, 60, 3, bits=3, order="hilbert", offsets=m.ints(0, 20, 20, 60, 60)), large=lambda m: cells(m, 40_011, 3, order="hilbert", offsets=m.ints(0, 15_000, 15_000, 40_011))),
            Sample("hilbert-trans", lambda m: cells(m, 3, 20, 3, bits=9, order="hilbert-trans", lengths=m.ints(20, 0, 7)), large=lambda m: cells(m, 5, 9000, 3, order="hilbert-trans", lengths=m.ints(9000, 0, 7, 8999, 1500))),
            Sample("most-bits", lambda m: cells(m, 40, 3, bits=21, order="hilbert")),
            Sample("one-bit", lambda m: {**cells(m, 2, 9, 3, bits=1, order="hilbert"), "coordinates": m.below(2, 2, 9, 3).int()}),
            Sample("corners", lambda m: {"coordinates": MOST * m.below(2, 20, 3), "bits": 21, "order": "hilbert-trans"}),
            Sample("beyond-the-length", lambda m: {"coordinates": m.ints(1, 2, 3, -5, 2**40, 7).reshape(1, 2, 3), "lengths": m.ints(1)}),
            Sample("one-row", lambda m: cells(m, 1, 3)),
            Sample("empty", lambda m: cells(m, 0, 3)),
            Sample("no-clouds", lambda m: cells(m, 0, 5, 3)),
        ],
        errors=[
            *cloud_errors(),
            type_error(f"order must be {NAMES}, got int 3", rows, 3),
            value_error(f"order must be {NAMES}, got 'Z'", rows, "Z"),
        ],
        draw=lambda d: {**draw_cells(d), "order": d.pick("order", CURVES)},
        bad_arguments={"order": ["x", None, 3, ["z"]], "bits": [0, 22, -1, 1.5, None, "3"], "coordinates": [None]},
        benchmarks=[
            Benchmark("hilbert codes {0}", lambda m, rows: cells(m, rows, 3, order="hilbert"), (100_000,), {"bit by bit": plain_codes}, cuda=(1_000_000,), check=check_codes, rounds=5),
        ],
        growing=lambda n: (
            lambda c, o: space_filling_curve(c, "z", offsets=o), torch.randint(n, (n * n, 3)), equal_offsets(n, n),
        ),
    ),
    OpInfo(
        "serialize", serialize,
        samples=[
            Sample("one-cloud", lambda m: cells(m, 50, 3), large=lambda m: cells(m, 70_011, 3)),
            Sample("packed", lambda m: cells(m, 60, 3, bits=1, offsets=m.ints(0, 20, 20, 60, 60)), large=lambda m: cells(m, 9000, 3, bits=4, offsets=m.ints(0, 4000, 4000, 7001, 9000), orders=["hilbert"])),
            Sample("padded", lambda m: cells(m, 3, 20, 3, bits=2, lengths=m.ints(20, 0, 7), orders=("hilbert-trans", "z")), large=lambda m: cells(m, 5, 3000, 3, bits=4, lengths=m.ints(3000, 0, 7, 2999, 1500))),
            Sample("padded-long", lambda m: cells(m, 2, 30, 3, bits=20, lengths=m.ints(12, 30))),
            Sample("padded-full", lambda m: cells(m, 2, 30, 3, bits=1, orders=["z"])),
            Sample("all-equal", lambda m: {"coordinates": m.ints(*[7] * 27).reshape(9, 3).int(), "orders": ["hilbert"]}),
            Sample("most-bits", lambda m: cells(m, 1, 40, 3, bits=21, lengths=m.ints(25))),
            Sample("one-row", lambda m: cells(m, 1, 3)),
            Sample("empty", lambda m: cells(m, 0, 3)),
            Sample("no-clouds", lambda m: cells(m, 0, 5, 3)),
        ],
        errors=[
            *cloud_errors(),
            *each(type_error, "orders must be a list of names", got("str 'z'", rows, "z"), got("NoneType None", rows, None), got("list", rows, ["z", 3])),
            value_error(f"orders must be {NAMES}, got 'y'", rows, ["z", "y"]),
            *each(value_error, "orders must have one or more different names", got("[]", rows, []), got("['z', 'hilbert', 'z']", rows, ["z", "hilbert", "z"])),
        ],
        draw=lambda d: {**draw_cells(d), "orders": draw_orders(d)},
        bad_arguments={"orders": ["z", None, [], ["z", "z"], [3]], "bits": [0, 22, -1, 1.5, None, "3"], "coordinates": [None]},
        benchmarks=[
            Benchmark("serialize {0}, four curves", lambda m, rows: cells(m, rows, 3), (100_000,), {"bit by bit": plain_serialize}, cuda=(1_000_000,), check=check_serialized, rounds=5),
        ],
        growing=lambda n: (
            lambda c, s: serialize(c, lengths=s), torch.randint(n, (n, n + 1, 3)), torch.arange(n),
        ),
    ),
]  # fmt: skip
