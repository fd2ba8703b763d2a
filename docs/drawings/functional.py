"""Figures of the book's pages on elementary operators. All numbers are computed."""

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.patches import FancyArrowPatch, Rectangle
from torch import Tensor

import pointgrad.functional as P

from .style import BLUE, BOOK, GRAY, GREEN, ORANGE, save_svg


def table(axes: Axes, values: Tensor, title: str, limit: float | None = None, digits: int = 2) -> None:
    """A matrix with its numbers: blue above zero, orange below."""
    values = values.detach().double()
    limit = limit or max(values.abs().max().item(), 1e-9)
    cmap = plt.matplotlib.colors.LinearSegmentedColormap.from_list("signed", [ORANGE, "white", BLUE])
    axes.imshow(values.numpy(), cmap=cmap, norm=TwoSlopeNorm(0, -1.4 * limit, 1.4 * limit), aspect="equal")
    for (row, column), value in _entries(values):
        axes.text(column, row, f"{value:.{digits}f}".replace("-0.00", "0.00"), ha="center", va="center", fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, fontsize=10)


def _entries(values: Tensor) -> list[tuple[tuple[int, int], float]]:
    rows, columns = values.shape
    return [((r, c), values[r, c].item()) for r in range(rows) for c in range(columns)]


def save(figure: plt.Figure, name: str) -> None:
    BOOK.mkdir(parents=True, exist_ok=True)
    save_svg(figure, BOOK / f"{name}.svg")
    plt.close(figure)


def softmax() -> None:
    x = torch.tensor([0.0, 1.0, 2.0, 0.5], dtype=torch.float64)
    y = P.softmax(x, 0)
    jacobian = torch.autograd.functional.jacobian(lambda x: P.softmax(x, 0), x)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), width_ratios=[1.2, 1])
    left.bar(range(4), y.numpy(), color=BLUE)
    for i, (logit, value) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        left.text(i, value + 0.01, f"{value:.2f}", ha="center", fontsize=9)
        left.text(i, -0.06, f"x = {logit:g}", ha="center", fontsize=9)
    left.set_title("y = softmax(x)", fontsize=10)
    left.set_ylim(0, 0.75)
    left.set_xticks([])
    table(right, jacobian, "its Jacobian, $y_i(\\delta_{ij} - y_j)$:\npositive on the diagonal, negative off it")
    save(figure, "softmax")


def log_softmax() -> None:
    gap = torch.linspace(0, 150, 301)
    x = torch.stack([torch.zeros_like(gap), -gap], 1)
    figure, axes = plt.subplots(figsize=(7, 3.2))
    naive = P.log(P.softmax(x, 1))[:, 1]
    last = int(naive.isfinite().nonzero().max())
    axes.plot(gap, P.log_softmax(x, 1)[:, 1], color=BLUE, lw=2.5, label="log_softmax(x)")
    axes.plot(gap[: last + 1], naive[: last + 1], color=ORANGE, lw=1.5, ls="--", label="log(softmax(x))")
    axes.annotate(
        "from here on log(softmax(x)) is -inf:\nthe probability is 0 in float32",
        (gap[last], naive[last]),
        (8, -140),
        arrowprops={"arrowstyle": "->", "color": GRAY},
        fontsize=9,
    )
    axes.set_xlabel("distance to the largest logit")
    axes.set_ylabel("log-probability")
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, "log_softmax")


def log() -> None:
    x = torch.linspace(0.05, 4, 400)
    figure, axes = plt.subplots(figsize=(7, 3.2))
    axes.plot(x, P.log(x), color=BLUE, lw=2)
    for at in (0.25, 1.0, 3.0):
        point = torch.tensor(at, requires_grad=True)
        value = P.log(point)
        (slope,) = torch.autograd.grad(value, point)
        reach = 0.35 if at > 0.5 else 0.15
        ends = torch.tensor([at - reach, at + reach])
        axes.plot(ends, value.item() + slope.item() * (ends - at), color=ORANGE, lw=2)
        axes.plot([at], [value.item()], "o", color=ORANGE, ms=5)
        axes.text(at + 0.12, value.item() - 0.5, f"x = {at:g}\nslope 1/x = {slope.item():.2f}", fontsize=9)
    axes.set_ylabel("log x")
    axes.set_xlabel("x, saved for backward")
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, "log")


def relu() -> None:
    torch.manual_seed(3)
    x = torch.randn(3, 4, requires_grad=True)
    upstream = torch.randn(3, 4)
    y = P.relu(x)
    (grad,) = torch.autograd.grad(y, x, upstream)
    figure, axes = plt.subplots(1, 4, figsize=(11, 2.6))
    for place, values, title in zip(
        axes,
        (x, y, upstream, grad),
        ("x", "y = relu(x): saved", "upstream gradient ȳ", "x̄ = ȳ where y > 0"),
        strict=True,
    ):
        table(place, values, title)
        for (row, column), value in _entries(y.detach()):
            if value == 0 and place is not axes[2]:
                place.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, ec=GRAY, hatch="///", lw=0))
    save(figure, "relu")


def mean() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 6.0], [0.0, 4.0, 4.0, 0.0]], requires_grad=True)
    y = P.mean(x, 1, keepdim=True)
    upstream = torch.tensor([[1.0], [-2.0]])
    (grad,) = torch.autograd.grad(y, x, upstream)
    figure, axes = plt.subplots(1, 4, figsize=(11, 2), width_ratios=[4, 1, 1, 4])
    for place, values, title in zip(axes, (x, y, upstream, grad), ("x", "y", "ȳ", "x̄ = ȳ / 4, expanded"), strict=True):
        table(place, values, title, limit=6 if values is x or values is y else 2)
    save(figure, "mean")


def cat() -> None:
    figure, axes = plt.subplots(figsize=(8, 3))
    parts = [("A", 2, BLUE), ("B", 3, GREEN), ("C", 1, ORANGE)]
    start = 0
    for number, (name, size, color) in enumerate(parts):
        y = 2.2 - 1.1 * number
        axes.add_patch(Rectangle((0, y), size, 0.8, fc=color, alpha=0.5, ec="black"))
        axes.text(size / 2, y + 0.4, name, ha="center", va="center")
        axes.add_patch(Rectangle((6 + start, 1.1), size, 0.8, fc=color, alpha=0.5, ec="black"))
        axes.text(6 + start + size / 2, 1.5, f"{name} at {start}", ha="center", va="center", fontsize=9)
        start += size
    for y, text, ends in ((1.75, "forward: copy", (3.4, 5.7)), (1.25, "backward: narrow", (5.7, 3.4))):
        axes.add_patch(FancyArrowPatch((ends[0], y), (ends[1], y), arrowstyle="-|>", mutation_scale=14, color=GRAY))
        axes.text(4.55, y + (0.15 if y > 1.5 else -0.3), text, ha="center", fontsize=9)
    axes.text(9, 0.7, "only the offset of each part is saved", ha="center", fontsize=9)
    axes.set_xlim(-0.2, 12.4)
    axes.set_ylim(-0.2, 3.2)
    axes.set_axis_off()
    save(figure, "cat")


def linear() -> None:
    figure, axes = plt.subplots(figsize=(10, 5.2))

    def block(x: float, y: float, width: float, height: float, color: str, name: str, shape: str) -> None:
        axes.add_patch(Rectangle((x, y), width, height, fc=color, alpha=0.45, ec="black"))
        axes.text(x + width / 2, y + height / 2, name, ha="center", va="center", fontsize=12)
        axes.text(x + width / 2, y - 0.12, shape, ha="center", va="top", fontsize=8)

    n_i, n_o, o_i = (1.2, 1.6), (0.8, 1.6), (1.2, 0.8)  # width and height of each kind of matrix
    i_o, o_n = o_i[::-1], n_o[::-1]
    rows = [
        (4.9, "y = x Aᵀ + b", ("x", n_i, BLUE, "(N, I)"), ("Aᵀ", i_o, GREEN, "(I, O)"), ("y", n_o, GRAY, "(N, O)")),
        (2.5, "x̄ = ȳ A", ("ȳ", n_o, ORANGE, "(N, O)"), ("A", o_i, GREEN, "(O, I)"), ("x̄", n_i, ORANGE, "(N, I)")),
        (0.2, "Ā = ȳᵀ x", ("ȳᵀ", o_n, ORANGE, "(O, N)"), ("x", n_i, BLUE, "(N, I)"), ("Ā", o_i, ORANGE, "(O, I)")),
    ]
    for y, formula, *matrices in rows:
        axes.text(0, y + 0.6, formula, fontsize=13, va="center")
        at = 2.2
        for sign, (name, (width, height), color, shape) in zip(("", "·", "="), matrices, strict=True):
            axes.text(at, y + 0.6, sign, fontsize=16, ha="center", va="center")
            block(at + 0.3, y + 0.6 - height / 2, width, height, color, name, shape)
            at += width + 0.6
    axes.text(7.4, 3.6, "each product sums over:", fontsize=10)
    axes.text(7.4, 2.7, "I for y\nO for x̄\nN for Ā and b̄ = Σ ȳ:\nall leading dimensions of x", fontsize=10, va="center")
    axes.set_xlim(-0.1, 10.6)
    axes.set_ylim(-0.6, 6.5)
    axes.set_axis_off()
    save(figure, "linear")


def cosine_similarity() -> None:
    b = torch.tensor([2.0, 0.6])
    figure, axes = plt.subplots(figsize=(6.4, 4.2))
    for angle, length in ((1.2, 1.0), (1.9, 1.6), (0.75, 2.2)):
        a = length * torch.stack([torch.tensor(angle).cos(), torch.tensor(angle).sin()])
        a.requires_grad_()
        value = P.cosine_similarity(a, b, dim=0)
        (grad,) = torch.autograd.grad(value, a)
        start = a.detach()
        axes.annotate("", start, (0, 0), arrowprops={"arrowstyle": "-|>", "color": BLUE, "lw": 1.6})
        axes.annotate("", start + 0.6 * grad, start, arrowprops={"arrowstyle": "-|>", "color": ORANGE, "lw": 2})
        axes.text(start[0] + 0.05, start[1] + 0.08, f"cos {value.item():.2f}", fontsize=9, ha="right")
    axes.annotate("", b, (0, 0), arrowprops={"arrowstyle": "-|>", "color": GREEN, "lw": 2})
    axes.text(b[0], b[1] + 0.08, "x₂", color=GREEN, fontsize=12)
    axes.text(
        -0.6, -0.42, "blue: x₁   orange: its gradient, orthogonal to x₁, towards x₂,\nshorter for longer x₁", fontsize=9
    )
    axes.set_xlim(-1, 2.5)
    axes.set_ylim(-0.5, 2.1)
    axes.set_aspect("equal")
    axes.set_axis_off()
    save(figure, "cosine_similarity")


def nll_loss() -> None:
    torch.manual_seed(1)
    x = P.log_softmax(torch.randn(3, 4), 1).detach().requires_grad_()
    target = torch.tensor([2, 0, 3])
    loss = P.nll_loss(x, target)
    (grad,) = torch.autograd.grad(loss, x)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.6))
    table(left, x, f"log-probabilities; loss {loss.item():.2f}\n= minus the mean of the framed entries")
    table(right, grad, "gradient: -1/3 at the targets, 0 elsewhere\n")
    for place in (left, right):
        for row, column in enumerate(target.tolist()):
            place.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, ec="black", lw=2))
    save(figure, "nll_loss")


def cross_entropy() -> None:
    x = torch.tensor([[1.0, 2.5, 0.0, 1.5]], requires_grad=True)
    q = torch.tensor([[0.1, 0.1, 0.1, 0.7]])
    (grad,) = torch.autograd.grad(P.cross_entropy(x, q), x)
    p = P.softmax(x, 1).detach()
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 3.4), width_ratios=[1, 1.25])
    places = torch.arange(4)
    left.bar(places - 0.27, p[0], 0.25, color=BLUE, label="p = softmax(x)")
    left.bar(places, q[0], 0.25, color=GRAY, label="target q")
    left.bar(places + 0.27, grad[0], 0.25, color=ORANGE, label="gradient p - q")
    left.axhline(0, color="black", lw=0.8)
    left.set_xticks(places, [f"class {i}" for i in range(4)])
    left.legend(frameon=False, fontsize=9)
    left.spines[["top", "right"]].set_visible(False)
    left.set_title("too likely: pushed down; not likely enough: pulled up", fontsize=10)
    held = [("PyTorch", ["log-\nsoftmax", "its\ngradient", "gradient"]), ("pointgrad", ["gradient"])]
    for y, (name, parts) in enumerate(held):
        right.barh(y, 1, color=GRAY, ec="white")
        right.text(0.5, y, "logits", ha="center", va="center", fontsize=9)
        for number, part in enumerate(parts):
            color = BLUE if part == "gradient" else ORANGE
            right.barh(y, 1, left=number + 1, color=color, ec="white", alpha=0.8)
            right.text(number + 1.5, y, part, ha="center", va="center", fontsize=9, color="white")
        right.text(-0.1, y, name, ha="right", va="center", fontsize=10)
    right.set_ylim(-0.6, 1.6)
    right.set_xlim(-1.2, 4.1)
    right.set_title("(N, C) tensors that exist at the peak of backward", fontsize=10)
    right.set_axis_off()
    save(figure, "cross_entropy")


def inplace() -> None:
    figure, axes = plt.subplots(figsize=(10, 6))
    detected = [
        ("y = softmax(x)", "y: version v", "saved: y at version v", GRAY),
        ("relu(y, inplace=True)", "y: version v + 1", "writes to y", ORANGE),
        ("backward", "y: version v + 1", "softmax needs y at version v:\nRuntimeError", ORANGE),
    ]
    silent = [
        ("hidden = 2 * x", "hidden: [-2, 6]", "saved: the number 2", GRAY),
        ("relu(hidden, inplace=True)", "hidden: [0, 6]", "overwrites hidden", ORANGE),
        ("... + hidden", "adds [0, 6], not [-2, 6]", "no error, also in backward", ORANGE),
    ]
    for bottom, name, steps in ((2.6, "detected", detected), (0.0, "silent", silent)):
        axes.text(0, bottom + 1.85, name, fontsize=11, weight="bold")
        for number, (title, value, note, color) in enumerate(steps):
            x = 3.4 * number
            axes.add_patch(Rectangle((x, bottom), 2.8, 1.7, fc="white", ec=color, lw=2))
            axes.text(x + 1.4, bottom + 1.4, title, ha="center", va="center", family="monospace", fontsize=9)
            axes.text(x + 1.4, bottom + 0.85, value, ha="center", va="center", fontsize=10, color=BLUE)
            axes.text(x + 1.4, bottom + 0.35, note, ha="center", va="center", fontsize=9)
            if number:
                ends = (x - 0.55, bottom + 0.85), (x - 0.05, bottom + 0.85)
                axes.add_patch(FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=14))
    axes.set_xlim(-0.1, 9.8)
    axes.set_ylim(-0.2, 4.8)
    axes.set_axis_off()
    save(figure, "inplace")


def draw() -> None:
    pages = (softmax, log_softmax, log, relu, mean, cat, linear, cosine_similarity, nll_loss, cross_entropy, inplace)
    for page in pages:
        page()
