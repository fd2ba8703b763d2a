"""Grid pooling, drop path and prompt-driven norm, compared with loops."""

import pytest
import torch
from torch import nn as torch_nn

from pointgrad import nn


def voxels(channels=4, dtype=torch.float64):
    """Distinct voxels of three clouds in random order, one of them a single voxel."""
    parts = [torch.randperm(125)[:count] for count in (40, 1, 17)]
    flat = torch.cat(parts)
    coordinates = torch.stack([flat // 25, flat // 5 % 5, flat % 5], 1)
    return nn.SparseTensor(coordinates, torch.randn(58, channels, dtype=dtype), torch.tensor([0, 40, 41, 58]))


@pytest.mark.parametrize("stride", [2, 3])
def test_pooling_equals_a_loop(stride):
    pool, tensor = nn.GridPool(4, 6, stride).double(), voxels()
    cells = {}
    projected = pool.proj(tensor.features)
    cloud = [0] * 40 + [1] + [2] * 17
    for row, (number, place) in enumerate(zip(cloud, (tensor.coordinates // stride).tolist(), strict=True)):
        cells.setdefault((number, *place), []).append(row)
    cells = dict(sorted(cells.items()))
    rows = torch.stack([projected[own].amax(0) for own in cells.values()])
    coarse, parent = pool.eval()(tensor)
    assert coarse.coordinates.tolist() == [list(place) for _, *place in cells]
    assert torch.equal(coarse.offsets.diff(), torch.tensor([[cell[0] for cell in cells].count(n) for n in range(3)]))
    assert all(list(cells)[cell] == (cloud[row], *(tensor.coordinates[row] // stride).tolist())
               for row, cell in enumerate(parent.tolist()))  # fmt: skip
    torch.testing.assert_close(coarse.features, torch_nn.functional.gelu(pool.norm(rows)))

    back = nn.GridUnpool(6, 4, 5, norm=torch_nn.LayerNorm).double()
    fine = back(coarse, tensor, parent)
    assert fine.coordinates is tensor.coordinates
    torch.testing.assert_close(fine.features, back.proj_skip(tensor.features) + back.proj(coarse.features)[parent])


def test_gradients():
    tensor = voxels(2)
    pool = nn.GridPool(2, 3, norm=torch_nn.LayerNorm).double()
    back = nn.GridUnpool(3, 2, 2, norm=torch_nn.LayerNorm).double()

    def there_and_back(rows):
        fine = tensor.with_features(rows)
        coarse, parent = pool(fine)
        return back(coarse, fine, parent).features

    assert torch.autograd.gradcheck(there_and_back, tensor.features.requires_grad_(), fast_mode=True)


def test_negative_coordinates_are_rounded_down():
    tensor = nn.SparseTensor(torch.tensor([[-1, 0, 0], [0, 0, 0], [-2, 1, 1]]), torch.rand(3, 2))
    coarse, parent = nn.GridPool(2, 2)(tensor)
    assert coarse.coordinates.tolist() == [[-1, 0, 0], [0, 0, 0]]
    assert parent.tolist() == [0, 1, 0]


def test_drop_path():
    """Whole rows are dropped at the given rate; the mean is kept; evaluation changes nothing."""
    torch.manual_seed(0)
    drop, rows = nn.DropPath(0.25), torch.ones(20_000, 3, requires_grad=True)
    out = drop(rows)
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert torch.equal(out[:, 0], out[:, 2])
    assert abs((out[:, 0] == 0).float().mean() - 0.25) < 0.015  # five standard deviations
    out.sum().backward()
    assert torch.equal(rows.grad, out)
    assert drop.eval()(rows) is rows
    assert nn.DropPath(0.0)(rows) is rows


def test_prompt_driven_norm():
    """Each condition has its own statistics, and the context a scale and a shift."""
    norm, rows = nn.PDNorm(4, ("rooms", "streets"), context_channels=2).double(), torch.randn(9, 4).double() + 3
    context = torch.randn(1, 2).double()
    norm.condition = "streets"
    out = norm(rows, context)
    shift, scale = norm.modulation(context).chunk(2, 1)
    normed = (rows - rows.mean(0)) / (rows.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(out, normed * (1 + scale) + shift)
    assert norm.norm[1].num_batches_tracked == 1
    assert norm.norm[0].num_batches_tracked == 0
    assert nn.PDNorm(4, ["rooms"], torch_nn.LayerNorm)(rows.float()).shape == (9, 4)


BAD = [
    (lambda: nn.GridPool(2, 2, 0), ValueError, "stride must be at least 1, got 0"),
    (lambda: nn.GridPool(2, 2, 1.5), TypeError, "stride must be an int, got float 1.5"),
    (lambda: nn.GridPool(2, 2)(torch.rand(3, 2)), TypeError, "tensor must be a SparseTensor, got torch.Tensor"),
    (lambda: nn.GridUnpool(2, 2, 2)(voxels(), None, None), TypeError, "skip must be a SparseTensor, got NoneType"),
    (lambda: nn.DropPath(1.0), ValueError, r"p must be in \[0, 1\), got 1.0"),
    (lambda: nn.PDNorm(4, "rooms"), TypeError, "conditions must be a list of names, got str 'rooms'"),
    (lambda: nn.PDNorm(4, []), ValueError, r"conditions must have one or more different names, got \[\]"),
    (lambda: nn.PDNorm(4, ["a"])(torch.rand(3, 4), torch.rand(1, 2)), ValueError, "context must be given if and only"),
    (lambda: nn.PatchAttention(10, 3), ValueError, "channels must be a multiple of heads = 3, got 10"),
]


@pytest.mark.parametrize(("call", "kind", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_arguments(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_unknown_condition():
    norm = nn.PDNorm(4, ["rooms", "streets"])
    norm.condition = "street"
    with pytest.raises(ValueError, match="condition must be one of rooms, streets, got 'street'"):
        norm(torch.rand(3, 4))
