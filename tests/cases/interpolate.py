"""Ways to call interpolation, right and wrong."""

from dataclasses import replace
from typing import Any

import torch

import pointgrad

from .base import Case, Make

grads = ("corners", "points")
trilinear, grid_sample, splat = pointgrad.trilinear, pointgrad.grid_sample, pointgrad.splat


def on_voxels(m: Make, *shape: int) -> torch.Tensor:
    """Points on the centres, faces and outermost corners of four voxels per axis, and as far outside."""
    return (torch.randint(-8, 9, (*shape, 3)) / 4).to(m.device, m.dtype)


def sample_case(name: str, grid: tuple[int, ...], num_points: int, **settings: Any) -> Case:
    return Case(
        f"grid_sample/{name}", grid_sample,
        lambda m: {"grid": m.floats(*grid), "points": m.floats(grid[0], num_points, 3), **settings},
        ("grid", "points"),
    )  # fmt: skip


def splat_case(name: str, features: tuple[int, ...], size: tuple[int, ...], **settings: Any) -> Case:
    return Case(
        f"splat/{name}", splat,
        lambda m: {"features": m.floats(*features), "points": m.floats(*features[:2], 3), "size": size, **settings},
        ("features", "points"), any_order=True,
    )  # fmt: skip


interpolate, interpolate_at = pointgrad.interpolate, pointgrad.interpolate_at
all_three = ("features", "points", "queries")

CASES = [
    Case(
        "interpolate/packed", interpolate,
        lambda m: {
            "features": m.floats(20, 4), "points": m.floats(20, 3), "queries": m.floats(15, 3),
            "offsets": m.ints(0, 8, 20), "query_offsets": m.ints(0, 9, 15),
        },
        all_three,
    ),
    Case(
        "interpolate/padded", interpolate,
        lambda m: {
            "features": m.floats(3, 9, 4), "points": m.floats(3, 9, 3), "queries": m.floats(3, 6, 3),
            "lengths": m.ints(9, 2, 0), "query_lengths": m.ints(6, 6, 4),
        },
        all_three,
        large=lambda m: {
            "features": m.floats(2, 600, 33), "points": m.floats(2, 600, 3), "queries": m.floats(2, 3000, 3),
        },
    ),
    Case(
        "interpolate/squared", interpolate,
        lambda m: {
            "features": m.floats(20, 4), "points": m.floats(20, 2), "queries": m.floats(7, 2), "k": 5, "power": 2.0,
        },
        all_three,
    ),
    Case(
        "interpolate/coinciding", interpolate,
        lambda m: {"features": m.floats(30, 2), "points": m.grid(30, 3), "queries": m.grid(9, 3)}, all_three,
        smooth=False,
    ),
    Case(
        "interpolate/empty", interpolate,
        lambda m: {"features": m.floats(0, 2), "points": m.floats(0, 3), "queries": m.floats(4, 3)}, all_three,
    ),
    Case(
        "interpolate_at/packed", interpolate_at,
        lambda m: {"features": m.floats(9, 5), "index": m.index(9, 7, 3), "weights": m.floats(7, 3)},
        ("features", "weights"), rows=lambda arguments: arguments["features"].shape[-2],
    ),
    Case(
        "interpolate_at/padded", interpolate_at,
        lambda m: {"features": m.floats(2, 9, 5), "index": m.index(9, 2, 7, 3), "weights": m.floats(2, 7, 3)},
        ("features", "weights"), rows=lambda arguments: arguments["features"].shape[-2],
    ),
    Case(
        "trilinear", trilinear, lambda m: {"corners": m.floats(5, 8, 4), "points": m.floats(5, 3) / 2}, grads,
        large=lambda m: {"corners": m.floats(3001, 8, 37), "points": m.floats(3001, 3)},
    ),
    Case(
        "trilinear/wide", trilinear,
        lambda m: {"corners": m.floats(3, 8, 19), "points": m.floats(3, 3) / 2}, grads,
    ),
    Case("trilinear/one", trilinear, lambda m: {"corners": m.floats(1, 8, 1), "points": m.floats(1, 3)}, grads),
    Case("trilinear/equal", trilinear, lambda m: {"corners": m.equal(4, 8, 2), "points": m.equal(4, 3)}, grads),
    Case("trilinear/empty", trilinear, lambda m: {"corners": m.floats(0, 8, 4), "points": m.floats(0, 3)}, grads),
    Case(
        "trilinear/no-features", trilinear,
        lambda m: {"corners": m.floats(3, 8, 0), "points": m.floats(3, 3)}, grads,
    ),
    Case(
        "grid_sample/zeros", grid_sample,
        lambda m: {"grid": m.floats(2, 3, 2, 4, 3), "points": m.floats(2, 7, 3)}, ("grid", "points"),
        large=lambda m: {"grid": m.floats(2, 19, 9, 10, 11), "points": m.floats(2, 5003, 3)},
    ),
    sample_case("border-aligned", (2, 2, 3, 3, 2), 6, padding_mode="border", align_corners=True),
    sample_case("reflection", (2, 2, 3, 3, 2), 6, padding_mode="reflection"),
    sample_case("few-points", (1, 5, 4, 5, 6), 4),
    sample_case("one-voxel-reflected", (2, 3, 1, 1, 1), 5, padding_mode="reflection", align_corners=True),
    Case(
        "grid_sample/on-voxels", grid_sample,
        lambda m: {"grid": m.floats(2, 3, 4, 4, 4), "points": on_voxels(m, 2, 40)}, ("grid", "points"), smooth=False,
    ),
    sample_case("empty", (2, 3, 2, 2, 2), 0),
    sample_case("no-channels", (2, 0, 2, 2, 2), 4),
    sample_case("no-clouds", (0, 3, 2, 2, 2), 4),
    Case(
        "splat/zeros", splat,
        lambda m: {"features": m.floats(2, 7, 3), "points": m.floats(2, 7, 3), "size": (2, 4, 3)},
        ("features", "points"), any_order=True,
        large=lambda m: {"features": m.floats(2, 5003, 19), "points": m.floats(2, 5003, 3), "size": (9, 10, 11)},
    ),
    splat_case("reflection-aligned", (2, 6, 2), (2, 3, 3), padding_mode="reflection", align_corners=True),
    Case(
        "splat/few-points", splat,
        lambda m: {"features": m.floats(1, 4, 5), "points": m.floats(1, 4, 3), "size": (4, 5, 6)},
        ("features", "points"), any_order=True,
        large=lambda m: {"features": m.floats(1, 3001, 17), "points": m.floats(1, 3001, 3), "size": (41, 42, 43)},
    ),
    Case(
        "splat/equal", splat,
        lambda m: {"features": m.floats(1, 2, 2), "points": m.equal(1, 2, 3), "size": (3, 3, 3)},
        ("features", "points"), any_order=True,
    ),
    splat_case("empty", (2, 0, 3), (2, 2, 2)),
]  # fmt: skip

CASES = [replace(case, composed=case.operator is interpolate) for case in CASES]

points = torch.zeros(6, 3)
corners = torch.zeros(6, 8, 4)
grid = torch.zeros(2, 4, 3, 3, 3)
padded = torch.zeros(2, 6, 3)
features = torch.zeros(2, 6, 4)

# What metadata shows: the same on every device.
BAD_METADATA = [
    (lambda: interpolate(None, points, points), TypeError, "features must be a torch.Tensor, got NoneType None"),
    (lambda: interpolate(points, points, None), TypeError, "queries must be a torch.Tensor, got NoneType None"),
    (lambda: interpolate(points[:5], points, points), ValueError, "features must be (N, C) with points (N, D), or (B, N, C) with (B, N, D), got (5, 3)"),
    (lambda: interpolate(points.long(), points, points), TypeError, "features must be float32, float64, float16 or bfloat16, got int64"),
    (lambda: interpolate(points, points, points, 0), ValueError, "k must be at least 1, got 0"),
    (lambda: interpolate(points, points, points, power=0), ValueError, "power must be positive and finite, got 0"),
    (lambda: interpolate(points, points, points, power="1"), TypeError, "power must be a number, got str '1'"),
    (lambda: interpolate_at(points, torch.zeros(2, 3).long(), points), ValueError, "weights must be (2, 3), like index, got (6, 3)"),
    (lambda: interpolate_at(points, torch.zeros(2, 3).long(), torch.zeros(2, 3).half()), TypeError, "weights must have the dtype of features, float32, got float16"),
    (lambda: pointgrad.trilinear(corners, None), TypeError, "points must be a torch.Tensor, got NoneType None"),
    (lambda: pointgrad.trilinear(torch.zeros(6, 7, 4), points), ValueError, "corners must be (N, 8, F), got (6, 7, 4)"),
    (lambda: pointgrad.trilinear(corners, points[:5]), ValueError, "points must be (N, 3) = (6, 3), got (5, 3)"),
    (lambda: pointgrad.trilinear(corners.long(), points), TypeError, "corners must be float32, float64, float16 or bfloat16, got int64"),
    (lambda: pointgrad.trilinear(corners, points.half()), TypeError, "points must have the dtype of corners, float32, got float16"),
    (lambda: pointgrad.trilinear(corners, points.to("meta")), ValueError, "points must be on the device of corners, cpu, got meta"),
    (lambda: grid_sample(None, padded), TypeError, "grid must be a torch.Tensor, got NoneType None"),
    (lambda: grid_sample(grid, [0.0]), TypeError, "points must be a torch.Tensor, got list"),
    (lambda: grid_sample(grid, padded, padding_mode=0), TypeError, "padding_mode must be a str, got int 0"),
    (lambda: grid_sample(grid, padded, align_corners=None), TypeError, "align_corners must be a bool, got NoneType None"),
    (lambda: grid_sample(grid[0], padded), ValueError, "grid must be (B, C, D, H, W) with at least one voxel, got (4, 3, 3, 3)"),
    (lambda: grid_sample(grid[:, :, :0], padded), ValueError, "grid must be (B, C, D, H, W) with at least one voxel, got (2, 4, 0, 3, 3)"),
    (lambda: grid_sample(grid, padded[:1]), ValueError, "points must be (B, N, 3) with B = 2, got (1, 6, 3)"),
    (lambda: grid_sample(grid, padded[..., :2]), ValueError, "points must be (B, N, 3) with B = 2, got (2, 6, 2)"),
    (lambda: grid_sample(grid, points), ValueError, "points must be (B, N, 3) with B = 2, got (6, 3)"),
    (lambda: grid_sample(grid.long(), padded), TypeError, "grid must be float32, float64, float16 or bfloat16, got int64"),
    (lambda: grid_sample(grid, padded.double()), TypeError, "points must have the dtype of grid, float32, got float64"),
    (lambda: grid_sample(grid, padded.to("meta")), ValueError, "points must be on the device of grid, cpu, got meta"),
    (lambda: grid_sample(grid, padded, padding_mode="wrap"), ValueError, "padding_mode must be zeros, border or reflection, got wrap"),
    (lambda: splat(None, padded, (2, 2, 2)), TypeError, "features must be a torch.Tensor, got NoneType None"),
    (lambda: splat(features, padded, 2), TypeError, "size must be three integers (D, H, W), got int 2"),
    (lambda: splat(features, padded, (2, 2)), TypeError, "size must be three integers (D, H, W), got (2, 2)"),
    (lambda: splat(features, padded, (2, 2, 2.0)), TypeError, "size must be three integers (D, H, W), got (2, 2, 2.0)"),
    (lambda: splat(features, padded, "abc"), TypeError, "size must be three integers (D, H, W), got str 'abc'"),
    (lambda: splat(features, padded, (2, 2, 2), padding_mode=None), TypeError, "padding_mode must be a str, got NoneType None"),
    (lambda: splat(features[0], padded, (2, 2, 2)), ValueError, "features must be (B, N, C), got (6, 4)"),
    (lambda: splat(features, padded[:, :5], (2, 2, 2)), ValueError, "points must be (B, N, 3) = (2, 6, 3), got (2, 5, 3)"),
    (lambda: splat(features.int(), padded, (2, 2, 2)), TypeError, "features must be float32, float64, float16 or bfloat16, got int32"),
    (lambda: splat(features, padded.half(), (2, 2, 2)), TypeError, "points must have the dtype of features, float32, got float16"),
    (lambda: splat(features, padded.to("meta"), (2, 2, 2)), ValueError, "points must be on the device of features, cpu, got meta"),
    (lambda: splat(features, padded, (2, 0, 2)), ValueError, "size must be at least 1 along each axis, got (2, 0, 2)"),
    (lambda: splat(features, padded, (2, 2, 2), padding_mode="Border"), ValueError, "padding_mode must be zeros, border or reflection, got Border"),
]  # fmt: skip

BAD_VALUES = []
