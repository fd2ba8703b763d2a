"""Cross entropy against PyTorch's, gradient included."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.harness import Row
from pointgrad.functional import cross_entropy

Loss = Callable[[Tensor, Tensor], Tensor]


def _both(loss: Loss, logits: Tensor, target: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(loss(logits, target), logits)


def _check(logits: Tensor, target: Tensor) -> Callable[[], None]:
    """Against float64, on as many rows as that is quick for; no worse than twice PyTorch's own error."""

    def check() -> None:
        x, t = logits.detach()[:10_000].requires_grad_(), target[:10_000]
        exact_x = x.detach().double().requires_grad_()
        exact = F.cross_entropy(exact_x, t)
        exact_grad = torch.autograd.grad(exact, exact_x)[0]
        errors = []
        for loss in (cross_entropy, F.cross_entropy):
            value = loss(x, t)
            (grad,) = torch.autograd.grad(value, x)
            errors.append(((value.double() - exact).abs().item(), (grad.double() - exact_grad).norm().item()))
        rounding = torch.finfo(x.dtype).eps
        assert errors[0][0] <= 2 * errors[1][0] + rounding * exact.item()
        assert errors[0][1] <= 2 * errors[1][1] + rounding * exact_grad.norm().item()

    return check


def rows(device: str) -> list[Row]:
    gpu = device == "cuda"
    work = [
        ((1_000_000, 200), torch.float32),
        ((1_000_000, 200), torch.bfloat16),
        ((16, 50, 65536) if gpu else (4, 50, 16384), torch.float32),
        ((8192, 50_257) if gpu else (256, 50_257), torch.float32),
    ]
    rows = []
    for shape, dtype in work:
        logits = torch.randn(shape, device=device, dtype=dtype).requires_grad_()
        target = torch.randint(0, shape[1], (shape[0], *shape[2:]), device=device)
        size = " x ".join(str(s) for s in shape)
        asked = shape == (1_000_000, 200)
        rows.append(
            Row(
                f"cross entropy {size} {str(dtype).removeprefix('torch.')} forward + backward",
                _check(logits, target),
                _both(cross_entropy, logits, target),
                {"PyTorch": _both(F.cross_entropy, logits, target)},
                at_least=0.91 if asked else None,  # no slower than 1.1 times
                memory_at_least=2.0 if asked and gpu else None,
                moved=3 * logits.numel() * logits.element_size(),  # read, read again, gradient written
            )
        )
    return rows
