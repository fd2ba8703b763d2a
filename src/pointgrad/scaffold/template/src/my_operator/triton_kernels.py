"""The GPU kernels in Triton: one program computes a tile of BLOCK_N points and BLOCK_F features.

With the environment variable TRITON_INTERPRET=1, set before this file is imported, they run on CPU tensors, slowly:
for tests without a GPU, and with `print` inside kernels.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def forward(corners: Tensor, points: Tensor) -> Tensor:
    """(N, 8, F), (N, 3) -> (N, F)"""
    corners, points = corners.contiguous(), points.contiguous()  # kernels compute addresses from the shape alone
    count, _, features = corners.shape
    out = corners.new_empty(count, features)
    if out.numel():  # a grid of size 0 is an error
        block_n, block_f = _tile(features)
        grid = (triton.cdiv(count, block_n), triton.cdiv(features, block_f))
        with torch.cuda.device_of(corners):  # otherwise the kernel starts on the current GPU
            _forward[grid](
                corners, points, out, count, features, WIDE=_wide(corners.dtype), BLOCK_N=block_n, BLOCK_F=block_f,
                num_warps=1,
            )  # fmt: skip
    return out


def backward(grad: Tensor, corners: Tensor | None, points: Tensor, for_corners: bool) -> tuple[Tensor, Tensor]:
    """The gradients of corners (N, 8, F) and points (N, 3), or an empty tensor for one that is not needed."""
    grad, points = grad.contiguous(), points.contiguous()
    count, features = grad.shape
    for_points = corners is not None
    corners = corners.contiguous() if for_points else grad  # never read
    corners_grad = grad.new_empty((count, 8, features) if for_corners else 0)
    points_grad = grad.new_empty((count, 3) if for_points else 0)
    if count and (for_corners or for_points):
        block_n, block_f = _tile(features)
        with torch.cuda.device_of(grad):
            _backward[(triton.cdiv(count, block_n),)](
                grad, corners, points, corners_grad, points_grad, count, features, FOR_CORNERS=for_corners,
                FOR_POINTS=for_points, WIDE=_wide(grad.dtype), BLOCK_N=block_n, BLOCK_F=block_f, num_warps=1,
            )  # fmt: skip
    return corners_grad, points_grad


def _tile(features: int) -> tuple[int, int]:
    """Small tiles and one warp each, so that many programs wait for memory at the same time."""
    block_f = min(triton.next_power_of_2(max(features, 1)), 256)
    return 256 // block_f, block_f


def _wide(dtype: torch.dtype) -> tl.dtype:
    """The dtype of sums."""
    return tl.float64 if dtype == torch.float64 else tl.float32


@triton.jit
def _shares(points_ptr, row, row_mask, WIDE: tl.constexpr):
    """The shares of the upper sides, (BLOCK_N, 1) for each axis."""
    x = tl.load(points_ptr + row * 3, mask=row_mask, other=0).to(WIDE)
    y = tl.load(points_ptr + row * 3 + 1, mask=row_mask, other=0).to(WIDE)
    z = tl.load(points_ptr + row * 3 + 2, mask=row_mask, other=0).to(WIDE)
    return (x + 1) * 0.5, (y + 1) * 0.5, (z + 1) * 0.5


@triton.jit
def _forward(
    corners_ptr, points_ptr, out_ptr, count, features,
    WIDE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)  # 64 bits: row * features may not fit in 32
    feature = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    mask = (row < count)[:, None] & (feature < features)[None, :]
    u, v, w = _shares(points_ptr, row, row < count, WIDE)
    total = tl.zeros((BLOCK_N, BLOCK_F), WIDE)
    for k in tl.static_range(8):  # unrolled: the conditions below are evaluated while compiling
        x = u if k // 4 == 1 else 1 - u
        y = v if k // 2 % 2 == 1 else 1 - v
        z = w if k % 2 == 1 else 1 - w
        corner = tl.load(corners_ptr + (row * 8 + k)[:, None] * features + feature[None, :], mask=mask, other=0)
        total += (x * y * z)[:, None] * corner.to(WIDE)
    out = total.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row[:, None] * features + feature[None, :], out, mask=mask)


@triton.jit
def _backward(
    grad_ptr, corners_ptr, points_ptr, corners_grad_ptr, points_grad_ptr, count, features,
    FOR_CORNERS: tl.constexpr, FOR_POINTS: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """All features of BLOCK_N points: each gradient of a corner is written once, and no program adds to another's."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_mask = row < count
    u, v, w = _shares(points_ptr, row, row_mask, WIDE)
    slope_x = tl.zeros((BLOCK_N,), WIDE)
    slope_y = tl.zeros((BLOCK_N,), WIDE)
    slope_z = tl.zeros((BLOCK_N,), WIDE)
    for k in tl.static_range(8):
        x = u if k // 4 == 1 else 1 - u
        y = v if k // 2 % 2 == 1 else 1 - v
        z = w if k % 2 == 1 else 1 - w
        product = tl.zeros((BLOCK_N, BLOCK_F), WIDE)  # of corner and gradient
        for start in range(0, features, BLOCK_F):
            feature = start + tl.arange(0, BLOCK_F)
            mask = row_mask[:, None] & (feature < features)[None, :]
            grad = tl.load(grad_ptr + row[:, None] * features + feature[None, :], mask=mask, other=0).to(WIDE)
            place = (row * 8 + k)[:, None] * features + feature[None, :]
            if FOR_CORNERS:
                share = ((x * y * z)[:, None] * grad).to(corners_grad_ptr.dtype.element_ty)
                tl.store(corners_grad_ptr + place, share, mask=mask)
            if FOR_POINTS:
                product += grad * tl.load(corners_ptr + place, mask=mask, other=0).to(WIDE)
        if FOR_POINTS:
            total = tl.sum(product, 1)
            slope_x += (0.5 if k // 4 == 1 else -0.5) * y * z * total
            slope_y += (0.5 if k // 2 % 2 == 1 else -0.5) * x * z * total
            slope_z += (0.5 if k % 2 == 1 else -0.5) * x * y * total
    if FOR_POINTS:
        dtype = points_grad_ptr.dtype.element_ty
        tl.store(points_grad_ptr + row * 3, slope_x.to(dtype), mask=row_mask)
        tl.store(points_grad_ptr + row * 3 + 1, slope_y.to(dtype), mask=row_mask)
        tl.store(points_grad_ptr + row * 3 + 2, slope_z.to(dtype), mask=row_mask)
