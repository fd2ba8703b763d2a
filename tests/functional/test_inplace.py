"""Tensors that pointgrad.functional saves for backward, and in-place writes to them."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pointgrad.functional as P


def floats(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def saved_bytes(call) -> int:
    """The bytes saved for backward, including inputs."""
    kept = {}

    def pack(tensor):
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    return sum(kept.values())


def test_saved_bytes():
    x, a = floats(30, 20, dtype=torch.float32).requires_grad_(), floats(10, 20, dtype=torch.float32)
    full = 30 * 20 * 4
    assert saved_bytes(lambda: P.softmax(x, 1)) == full
    assert saved_bytes(lambda: P.relu(x)) == full
    assert saved_bytes(lambda: P.log(x)) == full
    assert saved_bytes(lambda: P.mean(x)) == 0
    assert saved_bytes(lambda: P.cat([x, x])) == 0
    assert saved_bytes(lambda: P.linear(x, a)) == 10 * 20 * 4  # the weight, for the gradient of the input
    assert saved_bytes(lambda: P.linear(x.detach(), a.requires_grad_())) == full
    assert saved_bytes(lambda: P.nll_loss(x, torch.zeros(30, dtype=torch.int64), reduction="sum")) == 30 * 8


def test_inplace_returns_its_input():
    x = floats(3, 4)
    assert P.relu(x, inplace=True) is x
    assert (x >= 0).all()
    view = (y := floats(3, 4).requires_grad_() * 1)[:, :2]
    P.relu(view, inplace=True)
    expected = torch.cat([F.relu(y.detach()[:, :2]), y.detach()[:, 2:]], 1)
    torch.testing.assert_close(y.detach(), expected)


def test_inplace_through_views():
    source = floats(3, 4).requires_grad_()

    def half(relu):
        y = source * 2
        relu(y[:, 1:3], inplace=True)
        return torch.autograd.grad(y.pow(2).sum(), source)[0]

    torch.testing.assert_close(half(P.relu), half(F.relu))


@pytest.mark.parametrize("view", [False, True])
def test_inplace_rejects_leaves_before_writing(view):
    leaf = floats(4).requires_grad_()
    before = leaf.detach().clone()
    for relu in (P.relu, F.relu):
        with pytest.raises(RuntimeError, match=r"leaf Variable that requires grad is being used in an in-place op"):
            relu(leaf[1:] if view else leaf, inplace=True)
    assert torch.equal(leaf.detach(), before)
    with torch.no_grad():
        assert P.relu(leaf, inplace=True).min() >= 0


@pytest.mark.parametrize(
    ("saves", "raises"),
    [
        (lambda x: P.softmax(x, 0), True),  # its output
        (lambda x: P.log_softmax(x, 0), True),
        (lambda x: P.relu(x), True),  # its output: relu does not change it, but the version counter increases
        (lambda x: P.mean(x, 1), False),
        (lambda x: P.cat([x, x]), False),
        (lambda x: P.linear(x, torch.ones(2, 4, dtype=x.dtype)), False),  # the weight, not the output
        (lambda x: P.log(x.abs()), False),  # its input
    ],
)
def test_overwriting_an_output(saves, raises):
    x = floats(3, 4).requires_grad_()
    y = saves(x * 1)
    P.relu(y, inplace=True)
    if raises:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(y.sum(), x)
    else:
        torch.autograd.grad(y.sum(), x)


@pytest.mark.parametrize(
    ("uses", "raises"),
    [
        (lambda x: P.log(x), True),
        (lambda x: P.cosine_similarity(x, x), True),
        (lambda x: P.linear(x, torch.ones(2, 4, dtype=x.dtype, requires_grad=True)), True),
        (lambda x: P.cross_entropy(x, torch.tensor([0, 1, 2])), True),
        (lambda x: P.softmax(x, 1), False),
        (lambda x: P.nll_loss(x, torch.tensor([0, 1, 2])), False),
        (lambda x: P.mean(x), False),
        (lambda x: P.cat([x, x]), False),
    ],
)
def test_overwriting_an_input(uses, raises):
    """As in PyTorch, except for cross_entropy, where PyTorch saves the softmax."""
    x = floats(3, 4).requires_grad_()
    y = x * 1
    result = uses(y)
    y.add_(1)
    if raises:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(result.sum(), x)
    else:
        torch.autograd.grad(result.sum(), x)
