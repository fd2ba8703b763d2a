"""Cross entropy and its gradient."""

import functools
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from pointgrad.functional import cross_entropy

from ..comparison import Comparison, Implementation, Row, Setup, short

Outcome = tuple[Tensor, Tensor]
CHUNK = 20_000_000  # logits that are checked at a time, in float64


def loss_and_gradient(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, target: Tensor) -> Outcome:
    value = loss(logits, target)
    return value.detach(), torch.autograd.grad(value, logits)[0]


def errors(outcome: Outcome, logits: Tensor, target: Tensor) -> tuple[float, float]:
    """Relative errors of the loss and of the gradient (in norm) against float64."""
    value, received = outcome
    exact = wrong = norm = 0.0
    rows = max(1, CHUNK // logits[0].numel())
    for x, t, mine in zip(logits.detach().split(rows), target.split(rows), received.split(rows), strict=True):
        x = x.double().requires_grad_()
        part = F.cross_entropy(x, t, reduction="sum") / target.numel()
        (grad,) = torch.autograd.grad(part, x)
        exact += float(part.detach())
        wrong += float((mine - grad).square().sum())
        norm += float(grad.square().sum())
    return abs(float(value) - exact) / exact, (wrong / norm) ** 0.5


def compare(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Comparison:
    logits = torch.randn(shape, device=device, dtype=dtype).requires_grad_()
    target = torch.randint(0, shape[1], (shape[0], *shape[2:]), device=device)

    def implementation(loss: Callable[[Tensor, Tensor], Tensor]) -> Implementation:
        return Implementation(functools.partial(loss_and_gradient, loss, logits, target))

    theirs = implementation(F.cross_entropy)
    least = functools.cache(lambda: errors(theirs.call(), logits, target))

    def check(received: Outcome) -> None:
        rounding = torch.finfo(dtype).eps
        for what, mine, torchs in zip(("loss", "gradient"), errors(received, logits, target), least(), strict=True):
            assert mine <= 2 * torchs + rounding, f"error of the {what} is {mine:.1e}, PyTorch's is {torchs:.1e}"

    return Comparison(
        implementation(cross_entropy),
        check,
        {"PyTorch": theirs},
        lambda: implementation(torch.compile(F.cross_entropy)),
        moved=2 * logits.numel() * logits.element_size(),
    )


def rows(setup: Setup) -> Iterator[Row]:
    gpu, classes = setup.gpu, 50_257 // (64 if setup.quick else 1)
    many = setup.size(1_000_000)
    batch, points = (16, setup.size(65536)) if gpu else (4, setup.size(16384))
    work: list[tuple[tuple[int, ...], torch.dtype]] = [
        ((many, 200), torch.float32),
        ((many, 200), torch.bfloat16),
        ((batch, 50, points), torch.float32),
        ((setup.size(8192) if gpu else min(setup.size(256), 256), classes), torch.float32),
    ]
    for shape, dtype in work:
        name = f"{' x '.join(map(short, shape))}{'' if dtype == torch.float32 else ' bfloat16'}"
        yield Row(f"cross entropy {name}, and back", functools.partial(compare, shape, dtype, setup.device))
