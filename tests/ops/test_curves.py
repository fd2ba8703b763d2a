"""Properties specific to space_filling_curve and serialize; test_contract.py tests the rest."""

import importlib

import pytest
import torch

import pointgrad

CURVES = ["z", "z-trans", "hilbert", "hilbert-trans"]

# The Hilbert curve visits the octants of a cube in this order. In each it is the curve of half the side with exchanged
# axes: the entries are the axes that become x, y and z, numbered from 1, negative if they are mirrored.
OCTANTS = {
    (0, 0, 0): (2, 3, 1), (0, 0, 1): (2, 1, 3), (0, 1, 1): (1, 2, 3), (0, 1, 0): (-3, 2, -1),
    (1, 1, 0): (3, 2, 1), (1, 1, 1): (1, 2, 3), (1, 0, 1): (-2, -1, 3), (1, 0, 0): (-2, 3, -1),
}  # fmt: skip

MODULES = {"reference": "reference", "cpu": "cpu", "triton": "kernels"}


def hilbert(voxel, bits):
    """The place of a voxel along the curve, by recursion over octants."""
    if bits == 0:
        return 0
    half = 2 ** (bits - 1)
    octant = tuple(value // half for value in voxel)
    smaller = [0, 0, 0]
    for value, axis in zip(voxel, OCTANTS[octant], strict=True):
        smaller[abs(axis) - 1] = value % half if axis > 0 else half - 1 - value % half
    return list(OCTANTS).index(octant) * half**3 + hilbert(smaller, bits - 1)


def z_order(voxel, bits):
    """The bits of x, y and z in turn, the highest first."""
    digits = zip(*(f"{value:0{bits}b}" for value in voxel), strict=True)
    return int("".join(map("".join, digits)), 2)


def code(voxel, order, bits):
    x, y, z = voxel
    return (z_order if order[0] == "z" else hilbert)((y, x, z) if order.endswith("-trans") else (x, y, z), bits)


def grid(bits):
    axis = torch.arange(2**bits)
    return torch.cartesian_prod(axis, axis, axis)


@pytest.mark.parametrize("order", CURVES)
@pytest.mark.parametrize("bits", [1, 2, 5, 16, 21])
def test_equals_the_definition(order, bits, place):
    voxels = torch.randint(0, 2**bits, (60, 3))
    voxels[0], voxels[1] = 0, 2**bits - 1
    received = pointgrad.space_filling_curve(voxels.to(place.device), order, bits=bits)
    assert received.tolist() == [code(voxel, order, bits) for voxel in voxels.tolist()]


@pytest.mark.parametrize("bits", [1, 3, 4])
def test_hilbert_visits_every_voxel_and_moves_to_a_face(bits, default_place):
    voxels = grid(bits).to(default_place.device)
    codes = pointgrad.space_filling_curve(voxels, "hilbert", bits=bits)
    assert sorted(codes.tolist()) == list(range(8**bits))
    steps = voxels[codes.argsort()].diff(dim=0).abs()
    assert torch.equal(steps.sum(1), torch.ones_like(steps[:, 0]))


def test_codes_of_point_transformer_v3(place):
    """The codes that Pointcept's function returns for depth 16, in cloud 1."""
    voxels = torch.tensor([[1, 2, 3], [1000, 20, 65535], [65535, 0, 1], [12345, 54321, 777]], device=place.device)
    found = pointgrad.serialize(voxels, offsets=torch.tensor([0, 0, 4], device=place.device))
    expected = [
        [29, 40211324517065, 160842843834661, 81778476018183],
        [43, 40211017750345, 80421421917331, 159845949072903],
        [36, 40211477900425, 281474976710654, 131844176086295],
        [20, 40210864366985, 130684810615658, 277683759620375],
    ]
    assert (found.codes - 2**48).tolist() == expected
    assert found.order.tolist() == [sorted(range(4), key=codes.__getitem__) for codes in expected]


@pytest.mark.parametrize("bits", [2, 16])
@pytest.mark.parametrize("lengths", [[30, 0, 11], [30, 30, 30], [1, 2, 0]])
def test_serialize_sorts_each_cloud_and_keeps_ties(lengths, bits, place):
    """The same clouds, packed and padded, against Python's stable sort."""
    voxels = torch.randint(0, 3, (3, 30, 3))
    mask = torch.arange(30) < torch.tensor(lengths)[:, None]
    voxels[~mask] = -7  # beyond the length anything is allowed
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    padded = pointgrad.serialize(
        voxels.to(place.device), CURVES, bits=bits, lengths=torch.tensor(lengths, device=place.device)
    )
    packed = pointgrad.serialize(voxels[mask].to(place.device), CURVES, bits=bits, offsets=offsets.to(place.device))
    for k, name in enumerate(CURVES):
        for cloud, length in enumerate(lengths):
            codes = [code(voxel, name, bits) for voxel in voxels[cloud, :length].tolist()]
            order = sorted(range(length), key=codes.__getitem__)
            own = slice(int(offsets[cloud]), int(offsets[cloud + 1]))
            gap, begin = [-1] * (30 - length), own.start
            assert (packed.codes[k, own] - (cloud << 3 * bits)).tolist() == codes
            assert (packed.order[k, own] - begin).tolist() == order
            assert padded.order[k, cloud].tolist() == order + gap
            assert padded.codes[k, cloud].tolist() == packed.codes[k, own].tolist() + gap
            assert [padded.inverse[k, cloud, row] for row in order] == list(range(length))
            assert [packed.inverse[k, row + begin] - begin for row in order] == list(range(length))
            assert padded.inverse[k, cloud, length:].tolist() == gap


def test_coordinates_out_of_range_are_clamped_where_they_are_not_checked(place):
    operators = importlib.import_module(f"pointgrad.ops.curves.{MODULES[place.backend]}")
    voxels = torch.tensor([[-1, 8, 3], [2**40, -(2**40), 7]], device=place.device)
    received = operators.serialize(voxels, None, [0, 2], 3)
    expected = operators.serialize(voxels.clamp(0, 7), None, [0, 2], 3)
    assert all(map(torch.equal, received, expected))
    assert received[0].tolist() == [
        [z_order((0, 7, 3), 3), z_order((7, 0, 7), 3)],
        [hilbert((0, 7, 3), 3), hilbert((7, 0, 7), 3)],
    ]


def test_patches_along_a_curve_are_compact(default_place):
    """Patches of 32 consecutive voxels span less than 32 voxels in the order of x, y and z do."""
    torch.manual_seed(0)
    voxels = torch.unique(torch.randint(0, 32, (4000, 3)), dim=0)
    found = pointgrad.serialize(voxels.to(default_place.device), bits=5)

    def extent(order):
        patches = voxels[order[: len(order) // 32 * 32]].unflatten(0, (-1, 32))
        return (patches.amax(1) - patches.amin(1)).sum(1).double().mean()

    plain = extent(torch.arange(len(voxels)))
    for order in found.order.cpu():
        assert extent(order) < plain / 1.5
