"""pooled_mlp compared with separate layers."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import functional

from pointgrad.nn import SharedMLP, pooled
from tests.nn.norms import randomize_norms


def repeated(mlp, rows, offsets, weights):
    """The same computation with torch's layers and rows repeated according to their weights."""
    index = torch.repeat_interleave(torch.arange(len(rows)), weights)
    x = rows[index]
    for layer, norm in enumerate(mlp.norms):
        x = norm(x if layer == 0 else mlp.linears[layer](x))
        if mlp.last == "full" or layer < len(mlp.norms) - 1:
            x = mlp.activation(x.clone())
    owner = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())[index]
    lowest = torch.full((len(offsets) - 1, x.shape[1]), -torch.inf, dtype=x.dtype)
    out = lowest.scatter_reduce(0, owner[:, None].expand_as(x), x, "amax")
    return out.masked_fill(out == -torch.inf, 0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("options", [{}, {"activation": "leaky_relu"}, {"last": "norm"}], ids=str)
@pytest.mark.parametrize("widths", [[16], [16, 24], [16, 8, 40]], ids=str)
def test_agrees_with_separate_layers(widths, options, weighted, monkeypatch):
    monkeypatch.setattr(pooled, "BLOCK", 300)  # several blocks
    mlp = randomize_norms(SharedMLP(5, widths, **options)).double()
    sizes = torch.tensor([3, 0, 1, 8, 2, 40, 5, 0, 7])
    offsets = functional.pad(sizes.cumsum(0), (1, 0))
    rows = torch.randn(int(offsets[-1]), 16, dtype=torch.float64, requires_grad=True)
    weights = torch.randint(1, 4, rows.shape[:1]) if weighted else torch.ones(len(rows), dtype=torch.int64)
    parameters = [*mlp.norms.parameters(), *mlp.linears[1:].parameters()]
    twin = SharedMLP(5, widths, **options).double()
    twin.load_state_dict(mlp.state_dict())
    assert pooled.applies(mlp)
    quick = pooled.pooled_mlp(mlp, rows, offsets, weights.double() if weighted else None)
    plain = repeated(twin, rows, offsets, weights)
    torch.testing.assert_close(quick, plain)
    upstream = torch.randn_like(quick)
    twins = [*twin.norms.parameters(), *twin.linears[1:].parameters()]
    grads = torch.autograd.grad(quick, [rows, *parameters], upstream)
    torch.testing.assert_close(grads, torch.autograd.grad(plain, [rows, *twins], upstream))
    torch.testing.assert_close(mlp.state_dict(), twin.state_dict())


def test_second_derivative():
    mlp = randomize_norms(SharedMLP(5, [4, 3], activation="leaky_relu")).double()
    rows = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    offsets = torch.tensor([0, 4, 4, 9])
    assert torch.autograd.gradgradcheck(lambda x: pooled.pooled_mlp(mlp, x, offsets, None), rows)


def test_statistics_with_a_large_mean():
    """The variance is accurate for values near 10,000 with a standard deviation of 1."""
    mlp = SharedMLP(5, [4])
    rows = 1e4 + torch.randn(5000, 4)
    pooled.pooled_mlp(mlp, rows, torch.tensor([0, 2000, 5000]), None)
    expected = 0.9 + 0.1 * rows.double().var(0)
    torch.testing.assert_close(mlp.norms[0].running_var, expected.float(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("threads", [1, 3])
def test_result_does_not_depend_on_threads(threads, monkeypatch):
    """The number of threads of torch is also unchanged, in this thread and in new ones."""
    monkeypatch.setattr(pooled, "BLOCK", 64)
    rows = torch.randn(500, 8, requires_grad=True)
    mlp, offsets = SharedMLP(5, [8, 4]), torch.arange(0, 501, 5)
    before = torch.get_num_threads()
    results = []
    try:
        for count in (1, threads):
            torch.set_num_threads(count)
            out = pooled.pooled_mlp(mlp, rows, offsets, None)
            results.append((out, *torch.autograd.grad(out.sum(), [rows, *mlp.linears[1].parameters()])))
            with ThreadPoolExecutor(1) as executor:
                assert executor.submit(torch.get_num_threads).result() == torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_retain_graph_and_single_row():
    mlp = SharedMLP(5, [4, 8])
    rows = torch.randn(6, 4, requires_grad=True)
    out = pooled.pooled_mlp(mlp, rows, torch.tensor([0, 2, 6]), None)
    first = torch.autograd.grad(out.sum(), rows, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), rows), first, rtol=0, atol=0)
    with pytest.raises(ValueError, match="batch norm in training requires more than one row, got 1"):
        pooled.pooled_mlp(mlp, rows[:1], torch.tensor([0, 1]), None)
