"""SpUNet (Pointcept): a U-Net of sparse convolutions."""

from pointgrad.models import options
from pointgrad.models.network import Network
from pointgrad.models.sparse_unet import SparseUNet

WIDTHS = (32, 64, 128, 256, 256, 128, 96, 96)
BLOCKS = (2, 3, 4, 6, 2, 2, 2, 2)


def spunet(
    task: str = "classification",
    classes: int = 40,
    channels: int = 0,
    *,
    categories: int = 0,
    width: float = 1.0,
    voxel: float = 0.05,
    coordinates: bool = True,
    norm: str = "batch",
    dropout: float = 0.0,
) -> Network:
    """SpUNet: Pointcept's U-Net of sparse convolutions on voxels, whose strided layers widen the features.

    Otherwise it is `minkunet` with variant "34c". Classification is its encoder with a mean over the coarsest level.

    Args:
        task: "classification" or "segmentation".
        classes: Number of classes.
        channels: Number of input features in addition to coordinates.
        categories: Number of object categories for part segmentation, 0 for none.
        width: Factor on all widths.
        voxel: Edge length of a voxel, in units of the points.
        coordinates: Whether coordinates are part of the input, as in published networks for lidar scans. Published
            networks for rooms have colors and normals: `channels=6, coordinates=False`.
        norm: "batch" or "group".
        dropout: Dropout probability before the last layer.

    Returns:
        The network. `load_published` loads weights of spconv.

    Example:
        >>> spunet("segmentation", classes=10, width=0.25)(torch.rand(2, 64, 3)).shape
        torch.Size([2, 64, 10])
    """
    config = options.check({"name": "spunet", **locals()})
    return SparseUNet(config, WIDTHS, BLOCKS, widen_first=True, eps=1e-3)
