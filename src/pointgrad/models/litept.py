"""LitePT (Yue et al. 2025): convolutions on fine voxels, attention on coarse ones."""

from dataclasses import replace

from pointgrad.models import options
from pointgrad.models.network import Network
from pointgrad.models.serialized import Serialized, Sizes

SMALL = Sizes(
    (2, 4, 8, 14, 28),
    (2, 2, 2, 6, 2),
    (4, 4, 8, 14),
    (0, 0, 0, 0),
    head_size=18,
    conv=(True, True, True, False, False),
    attention=(False, False, False, True, True),
    rotary=100.0,
    fixed_depth=False,
    conv_skip=False,
)
BASE = replace(SMALL, heads=(3, 6, 12, 24, 32), blocks=(3, 3, 3, 12, 3), decoder_heads=(4, 6, 12, 24))
LARGE = replace(BASE, heads=(4, 8, 16, 32, 48), decoder_heads=(4, 8, 16, 32))
SIZES = {"s": SMALL, "b": BASE, "l": LARGE}


def litept(
    task: str = "classification",
    classes: int = 40,
    channels: int = 0,
    variant: str = "s",
    *,
    categories: int = 0,
    width: float = 1.0,
    voxel: float = 0.05,
    coordinates: bool = True,
    norm: str = "batch",
    dropout: float = 0.0,
    drop_path: float = 0.3,
) -> Network:
    """LitePT: sparse convolutions on three fine levels, attention with rotary embedding on two coarse levels.

    Otherwise as `ptv3`. The decoder has no blocks.

    Args:
        task: "classification" or "segmentation".
        classes: Number of classes.
        channels: Number of input features in addition to coordinates.
        variant: "s", "b" or "l".
        categories: Number of object categories for part segmentation, 0 for none.
        width: Factor on the numbers of heads, of 18 channels each.
        voxel: Edge length of a voxel, in units of the points. A cloud may span 65,536 voxels along an axis.
        coordinates: Whether coordinates are part of the input, as in published networks for lidar scans. Published
            networks for rooms have colors and normals: `channels=6, coordinates=False`.
        norm: "batch" or "group", outside of blocks.
        dropout: Dropout probability before the last layer.
        drop_path: Probability to drop attention or MLP of a voxel in the last block; smaller in earlier blocks.

    Returns:
        The network. `load_published` loads weights of LitePT.

    Example:
        >>> litept("segmentation", classes=10, width=0.25)(torch.rand(2, 64, 3)).shape
        torch.Size([2, 64, 10])
    """
    config = options.check({"name": "litept", **locals()})
    options.variant(config, tuple(SIZES))
    return Serialized(config, SIZES[variant])
