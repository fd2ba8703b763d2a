"""Point Transformer V3 (Wu et al. 2024): attention within patches along space-filling curves."""

from dataclasses import replace

from pointgrad.models import options
from pointgrad.models.network import Network
from pointgrad.models.serialized import Serialized, Sizes

BASE = Sizes((2, 4, 8, 16, 32), (2, 2, 2, 6, 2), (4, 4, 8, 16), (2, 2, 2, 2))
SIZES = {"base": BASE, "rpe": replace(BASE, patch=128, position_bias=True)}


def ptv3(
    task: str = "classification",
    classes: int = 40,
    channels: int = 0,
    variant: str = "base",
    *,
    categories: int = 0,
    width: float = 1.0,
    voxel: float = 0.05,
    coordinates: bool = True,
    norm: str = "batch",
    dropout: float = 0.0,
    drop_path: float = 0.3,
    legacy: bool = False,
) -> Network:
    """Point Transformer V3: attention within patches of voxels along space-filling curves, with five levels.

    The input of a voxel is the mean of its points' coordinates and features, and every point gets the logits of its
    voxel. In training, the curves of each level are drawn at random from torch's default generator; in evaluation they
    are fixed. Classification is the encoder with a mean over the coarsest level. The number of voxels depends on the
    data, so a GPU is synchronized once per level.

    Args:
        task: "classification" or "segmentation".
        classes: Number of classes.
        channels: Number of input features in addition to coordinates.
        variant: "base", with patches of 1024 voxels, or "rpe", with patches of 128 and a relative position bias.
        categories: Number of object categories for part segmentation, 0 for none.
        width: Factor on the numbers of heads, of 16 channels each.
        voxel: Edge length of a voxel, in units of the points. A cloud may span 65,536 voxels along an axis.
        coordinates: Whether coordinates are part of the input, as in published networks for lidar scans. Published
            networks for rooms have colors and normals: `channels=6, coordinates=False`.
        norm: "batch" or "group", outside of blocks.
        dropout: Dropout probability before the last layer.
        drop_path: Probability to drop attention or MLP of a voxel in the last block; smaller in earlier blocks.
        legacy: Whether the convolution of a block reads the output of the MLP of the block before it, without the
            residual connection, as in Pointcept up to version 1.5.1. Weights that were published for these versions,
            such as those for ScanNet and S3DIS, need it.

    Returns:
        The network. `load_published` loads weights of Pointcept.

    Example:
        >>> ptv3("segmentation", classes=10, width=0.25)(torch.rand(2, 64, 3)).shape
        torch.Size([2, 64, 10])
    """
    config = options.check({"name": "ptv3", **locals()})
    options.variant(config, tuple(SIZES))
    return Serialized(config, SIZES[variant])
