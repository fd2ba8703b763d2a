"""Each kernel against the reference, on difficult input."""

# [triton]
import os

# [/triton]
import pytest
import torch

from my_operator import reference
# [compiled]
from my_operator.kernels import built
from my_operator.register import interpolate, interpolate_backward
# [/compiled]
# [triton]

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # runs Triton kernels on CPU tensors; read when Triton is imported
# [/triton]

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def values(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def inside(count, dtype=torch.float32):
    return (torch.rand(count, 3, dtype=torch.float64) * 2 - 1).to(dtype)


# The corners, the points and the upstream gradient.
CASES = {
    **{f"{dtype}".removeprefix("torch."): lambda dtype=dtype: (values(37, 8, 20, dtype=dtype), inside(37, dtype),
                                                             values(37, 20, dtype=dtype)) for dtype in DTYPES},
    "no points": lambda: (values(0, 8, 4), inside(0), values(0, 4)),
    "no features": lambda: (values(5, 8, 0), inside(5), values(5, 0)),
    "one point, one feature": lambda: (values(1, 8, 1), inside(1), values(1, 1)),
    "odd number of features": lambda: (values(9, 8, 37), inside(9), values(9, 37)),
    "many features": lambda: (values(2, 8, 300), inside(2), values(2, 300)),
    "transposed": lambda: (values(6, 7, 8).mT, inside(6).T.contiguous().T, values(7, 6).T),
    "strided": lambda: (values(7, 8, 12)[:, :, ::2], values(7, 6)[:, ::2], values(7, 12)[:, ::2]),
    "expanded": lambda: (values(1, 8, 6).expand(7, 8, 6), inside(1).expand(7, 3), values(1, 1).expand(7, 6)),
    "unaligned address": lambda: (values(7 * 8 * 4 + 1)[1:].view(7, 8, 4), inside(7), values(29)[1:].view(7, 4)),
    "outside": lambda: (values(7, 8, 6), inside(7) * 50, values(7, 6)),
    "at corners": lambda: (values(8, 8, 6), torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3), values(8, 6)),
    "NaN": lambda: (_with_nan(values(7, 8, 6)), _with_nan(inside(7)), values(7, 6)),
    "large": lambda: (values(7, 8, 6) * 1e30, inside(7), values(7, 6)),
    "large float16": lambda: (torch.full((7, 8, 6), 6e4).half(), inside(7).half(), values(7, 6).half() / 99),
    "long sum of float16": lambda: (torch.ones(2, 8, 3000).half(), torch.ones(2, 3).half(), torch.ones(2, 3000).half()),
}  # fmt: skip


def _with_nan(tensor):
    tensor.view(-1)[3::11] = torch.nan
    return tensor


def _runs():
    """The name of each kernel, and the device of its inputs."""
    # [cpp]
    yield "C++", "cpu"
    # [/cpp]
    # [cuda]
    yield "CUDA", "cuda"
    # [/cuda]
    # [triton]
    yield "Triton", "cuda" if torch.cuda.is_available() else "cpu"
    # [/triton]


@pytest.fixture(params=_runs(), ids=lambda run: run[0])
def kernel(request):
    """(device, forward, backward); skips if the kernel cannot run here."""
    name, device = request.param
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    # [triton]
    if name == "Triton":
        pytest.importorskip("triton", reason="Triton is not installed: pip install triton")
        from my_operator import triton_kernels

        return device, triton_kernels.forward, triton_kernels.backward
    # [/triton]
    # [compiled]
    if device not in built:
        pytest.skip(f"the {name} kernel is not built: no compiler was found when the package was installed")
    return device, interpolate, interpolate_backward
    # [/compiled]


@pytest.mark.parametrize("case", CASES)
def test_kernel_equals_reference(kernel, case):
    device, forward, backward = kernel
    torch.manual_seed(0)
    corners, points, grad = (value.to(device) for value in CASES[case]())
    assert_near(forward(corners, points), reference.forward(*exact(corners, points)), terms=8, size=corners)

    corners_grad, points_grad = backward(grad, corners, points, True)
    expected = reference.corners_grad(*exact(grad, points)), reference.points_grad(*exact(grad, corners, points))
    assert_near(corners_grad, expected[0], terms=1, size=grad)
    products = (corners.double() * grad.double().unsqueeze(1)).flatten(1)
    assert_near(points_grad, expected[1], terms=8 * grad.shape[1], size=products)

    # Only one of the gradients: the other is not computed.
    only_corners, nothing = backward(grad, None, points, True)
    assert nothing.numel() == 0
    assert torch.equal(only_corners.nan_to_num(), corners_grad.nan_to_num())
    nothing, only_points = backward(grad, corners, points, False)
    assert nothing.numel() == 0
    assert torch.equal(only_points.nan_to_num(), points_grad.nan_to_num())


def exact(*tensors):
    return [tensor.double() for tensor in tensors]


def assert_near(received, expected, terms, size):
    """Equal up to the rounding of a sum of `terms` numbers, in float32 or wider, and of the result to its dtype.

    The terms are as large as `size` times a weight; weights grow with the distance from the cell.
    """
    assert received.shape == expected.shape
    wide = torch.promote_types(received.dtype, torch.float32)
    largest = size.double().abs().nan_to_num().max().item() if size.numel() else 0.0
    outside = max(1.0, expected.abs().nan_to_num(posinf=0, neginf=0).max().item() / largest if largest else 1.0)
    torch.testing.assert_close(
        received.double(),
        expected.to(received.dtype).double(),  # beyond the range of float16 both are infinite
        rtol=2 * torch.finfo(received.dtype).eps,
        atol=(terms + 16) * torch.finfo(wide).eps * largest * outside,
        equal_nan=True,
    )


# [cuda]
def test_current_stream_and_device(kernel):
    """A kernel runs on the stream that the caller selected, and on the GPU of its inputs."""
    device, forward, _ = kernel
    if device != "cuda":
        pytest.skip("needs a GPU")
    last = torch.device("cuda", torch.cuda.device_count() - 1)
    corners, points = values(1000, 8, 64).to(last), inside(1000).to(last)
    expected = reference.forward(corners * 2, points)
    torch.cuda.synchronize(last)
    stream = torch.cuda.Stream(last)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)  # a kernel on another stream would not wait for the next line
        doubled = corners * 2
        received = forward(doubled, points)
    stream.synchronize()
    torch.testing.assert_close(received, expected)


# [/cuda]
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_more_than_2_to_the_31_numbers(kernel):
    """Addresses do not fit in 32 bits."""
    device, forward, _ = kernel
    if device != "cuda" or torch.cuda.mem_get_info()[0] < 12e9:
        pytest.skip("needs a GPU with 12 GB of free memory")
    count = 2**31 // (8 * 64) + 100
    corners = torch.zeros(count, 8, 64, dtype=torch.float16, device=device)
    corners[-1] = 3
    received = forward(corners, torch.zeros(count, 3, dtype=torch.float16, device=device))
    assert received[-1].eq(3).all()
    assert not received[:-1].any()
