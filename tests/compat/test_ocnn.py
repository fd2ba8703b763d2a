"""z-order keys of pointgrad.compat.ocnn."""

import pytest
import torch

from pointgrad.compat import ocnn
from pointgrad.compat.ocnn.octree import Octree, Points, xyz2key


@pytest.mark.parametrize("depth", [1, 7, 8, 9, 16])
def test_keys(depth):
    """The bits of the key, one by one; higher bits and signs are dropped."""
    x, y, z = torch.randint(-(2**17), 2**17, (3, 50), generator=torch.Generator().manual_seed(depth))
    batch = torch.arange(50) % 7
    expected = []
    for number, point in zip(batch.tolist(), zip(x.tolist(), y.tolist(), z.tolist(), strict=True), strict=True):
        bits = "".join(str(axis >> bit & 1) for bit in reversed(range(depth)) for axis in point)
        expected.append((number << 48) + int(bits, 2))
    assert xyz2key(x, y.int(), z, batch, depth).tolist() == expected
    assert xyz2key(x, y, z, depth=depth).tolist() == [key % 2**48 for key in expected]
    assert xyz2key(x[:0], y[:0], z[:0]).shape == (0,)


def test_what_is_not_provided():
    x = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"depth must be in \[1, 16\], got 17"):
        xyz2key(x, x, x, depth=17)
    layers = (ocnn.nn.OctreeConv, ocnn.nn.OctreeDeconv, ocnn.nn.OctreeGroupConv, ocnn.nn.OctreeDWConv)
    assert not isinstance(x, (Octree, Points, *layers))  # Pointcept does this for every layer if ocnn can be imported
    for missing in (Octree, Points, *layers):
        with pytest.raises(NotImplementedError, match=f"only the keys of ocnn, not {missing.__name__}; install ocnn"):
            missing(8)
