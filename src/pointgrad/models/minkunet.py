"""MinkUNet (Choy et al. 2019): a U-Net of sparse convolutions."""

from pointgrad.models import options
from pointgrad.models.network import Network
from pointgrad.models.sparse_unet import SparseUNet

WIDTHS = (32, 64, 128, 256, 256, 128, 96, 96)
BLOCKS = {"18": (2, 2, 2, 2, 2, 2, 2, 2), "34c": (2, 3, 4, 6, 2, 2, 2, 2)}


def minkunet(
    task: str = "classification",
    classes: int = 40,
    channels: int = 0,
    variant: str = "18",
    *,
    categories: int = 0,
    width: float = 1.0,
    voxel: float = 0.05,
    coordinates: bool = True,
    norm: str = "batch",
    dropout: float = 0.0,
) -> Network:
    """MinkUNet: a U-Net of sparse convolutions on voxels, with five levels.

    The input of a voxel is the mean of its points' coordinates and features, and every point gets the logits of its
    voxel. With `categories`, the category of each cloud is appended to the input. Classification uses the mean over the
    coarsest level. The number of voxels depends on the data, so a GPU is synchronized once per level.

    Args:
        task: "classification" or "segmentation".
        classes: Number of classes.
        channels: Number of input features in addition to coordinates.
        variant: "18" or "34c", by the number of layers.
        categories: Number of object categories for part segmentation, 0 for none.
        width: Factor on all widths.
        voxel: Edge length of a voxel, in units of the points.
        coordinates: Whether coordinates are part of the input, as in published networks for lidar scans. Published
            networks for rooms only have colors: `channels=3, coordinates=False`.
        norm: "batch" or "group".
        dropout: Dropout probability before the last layer.

    Returns:
        The network. `load_published` loads weights of MinkowskiEngine.

    Example:
        >>> minkunet("segmentation", classes=10, width=0.25)(torch.rand(2, 64, 3)).shape
        torch.Size([2, 64, 10])
    """
    variant = str(variant)  # on the command line, 18 is a number
    config = options.check({"name": "minkunet", **locals()})
    options.variant(config, tuple(BLOCKS))
    return SparseUNet(config, WIDTHS, BLOCKS[variant], widen_first=False, eps=1e-5)
