"""Sonata (Wu et al. 2025): the encoder of Point Transformer V3, for self-supervised pretraining."""

from dataclasses import replace

from pointgrad.models import options
from pointgrad.models.network import Network
from pointgrad.models.serialized import Serialized, Sizes

SMALL = Sizes((2, 4, 8, 16, 32), (2, 2, 2, 6, 2), conv_stem=False, layer_norm=True, fixed_depth=False)
SIZES = {"base": replace(SMALL, heads=(3, 6, 12, 24, 32), blocks=(3, 3, 3, 12, 3)), "small": SMALL}


def sonata(
    task: str = "classification",
    classes: int = 40,
    channels: int = 6,
    variant: str = "base",
    *,
    categories: int = 0,
    width: float = 1.0,
    voxel: float = 0.02,
    coordinates: bool = True,
    dropout: float = 0.0,
    drop_path: float = 0.3,
) -> Network:
    """Sonata: the encoder of Point Transformer V3, as it is pretrained without labels, and a linear layer.

    For segmentation, the linear layer reads the features of all five levels, copied to the voxels: 1,232 channels in
    the base size, the features for linear probing of the paper. For classification, it reads the mean of the coarsest
    level. With `network.head = torch.nn.Identity()`, the network returns these features.

    Args:
        task: "classification" or "segmentation".
        classes: Number of classes.
        channels: Number of input features in addition to coordinates. The published encoder has colors and normals.
        variant: "base" or "small".
        categories: Number of object categories for part segmentation, 0 for none.
        width: Factor on the numbers of heads, of 16 channels each.
        voxel: Edge length of a voxel, in units of the points. A cloud may span 65,536 voxels along an axis.
        coordinates: Whether coordinates are part of the input. The published encoder has coordinates in metres, with
            the origin below the center of the scene.
        dropout: Dropout probability before the last layer.
        drop_path: Probability to drop attention or MLP of a voxel in the last block; smaller in earlier blocks.

    Returns:
        The network. `load_published` loads the published encoder, with `strict=False` if the linear layer is to be
        trained.

    Example:
        >>> network = sonata("segmentation", classes=10, channels=0, width=0.25)
        >>> network(torch.rand(2, 64, 3)).shape
        torch.Size([2, 64, 10])
        >>> network.head = torch.nn.Identity()
        >>> network(torch.rand(2, 64, 3)).shape
        torch.Size([2, 64, 320])
    """
    config = options.check({"name": "sonata", **locals()})
    options.variant(config, tuple(SIZES))
    return Serialized(config, SIZES[variant])
