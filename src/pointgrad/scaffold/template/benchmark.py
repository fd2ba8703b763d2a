"""Check the operator against the reference, then time both: python benchmark.py --device cuda

The floor is the time to move the inputs and outputs through memory once, at the bandwidth of a copy on this machine.
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from my_operator import my_operator
from my_operator.reference import forward as plain


def milliseconds(run: Callable[[], object]) -> float:
    """The median. The timer waits for the GPU and repeats short runs."""
    return Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads()).blocked_autorange().median * 1e3


def megabytes(*tensors: Tensor) -> float:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) / 1e6


def copy_speed(device: str) -> float:
    """Megabytes read and written per millisecond."""
    source = torch.ones(2**26 if device == "cuda" else 2**24, device=device)
    target = torch.empty_like(source)
    return megabytes(source, target) / milliseconds(lambda: target.copy_(source))


def backward(form: Callable[[Tensor, Tensor], Tensor], inputs: tuple[Tensor, ...], wanted: tuple[Tensor, ...]):
    """A function that runs only backward."""
    out = form(*inputs)
    upstream = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, wanted, upstream, retain_graph=True)


def check(inputs: tuple[Tensor, ...]) -> None:
    """Raises AssertionError if result or gradients are wrong: the time of a wrong result means nothing."""
    close = {"rtol": 0.02, "atol": 0.02} if inputs[0].element_size() == 2 else {"rtol": 1e-4, "atol": 1e-4}
    out, expected = my_operator(*inputs), plain(*inputs)
    torch.testing.assert_close(out, expected, **close)
    upstream = torch.randn_like(out)
    received = torch.autograd.grad(out, inputs, upstream)
    close["atol"] *= out.shape[1] ** 0.5  # the gradient of the points is a sum over features
    torch.testing.assert_close(received, torch.autograd.grad(expected, inputs, upstream), **close)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float64", "float32", "float16", "bfloat16"])
    parser.add_argument("--points", type=int, help="by default 65536 on a GPU and 4096 on a CPU")
    parser.add_argument("--features", type=int, default=256)
    args = parser.parse_args()
    count = args.points or (65536 if args.device == "cuda" else 4096)
    options = {"device": args.device, "dtype": getattr(torch, args.dtype)}
    torch.manual_seed(0)
    corners = torch.randn(count, 8, args.features, **options).requires_grad_()
    points = (torch.rand(count, 3, **options) * 2 - 1).requires_grad_()
    out = torch.empty(count, args.features, **options)

    check((corners[:1000], points[:1000]))
    speed = copy_speed(args.device)
    print(f"{count} x 8 x {args.features}, {args.dtype}, {args.device}, copies at {speed:.0f} GB/s; times in ms")
    print(f"{'':20} {'plain':>9} {'operator':>9} {'ratio':>6} {'floor':>9}")
    rows = [
        ("forward", lambda form: lambda: form(corners.detach(), points.detach()), megabytes(corners, points, out)),
        (
            "backward, corners",
            lambda form: backward(form, (corners, points.detach()), (corners,)),
            megabytes(corners, points, out),
        ),
        (
            "backward, both",
            lambda form: backward(form, (corners, points), (corners, points)),
            megabytes(corners, corners, points, points, out),
        ),
    ]
    for name, make, moved in rows:
        by_plain, by_operator = milliseconds(make(plain)), milliseconds(make(my_operator))
        print(f"{name:20} {by_plain:9.3f} {by_operator:9.3f} {by_plain / by_operator:6.1f} {moved / speed:9.3f}")


if __name__ == "__main__":
    main()
