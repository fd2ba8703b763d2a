"""`python -m reliability.foreign.logits`: compare networks of torch-pointcloud and of pointgrad with equal weights.

torch-pointcloud has independent implementations of Point Transformer V3, Sonata and SpUNet. They run on
`pointgrad.compat` in place of spconv and pyg-lib. Both networks are loaded from the same random weights, in the layout
of published checkpoints: ours by `models.load_published`, theirs by their own conversion. The logits of one cloud, in
evaluation mode and float32, must be equal up to `TOLERANCE` of the largest. The exit status is 1 if they are not.

Flash attention of torch-pointcloud is disabled, because it rounds to float16. Without it, torch-pointcloud fills clouds
that are smaller than a patch with copies of voxels, unlike the published programs. With patches of 16 voxels there are
no such clouds in any stage.
"""

import sys
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import pointgrad.compat
from pointgrad import models
from pointgrad.models.published import _NAMES
from pointgrad.models.serialized import Serialized
from pointgrad.nn.sparse_conv import Conv

TOLERANCE = 1e-4
VOXEL = 0.02
PATCH = 16
COMMON = {"task": "segmentation", "classes": 20, "channels": 6, "voxel": VOXEL}
SMALL = {"encoder_channels": (16, 16, 16, 32, 64), "encoder_num_heads": (1, 1, 1, 2, 4)}
DECODER = {"decoder_patch_size": (PATCH,) * 4}
SMALL_DECODER = {**DECODER, "decoder_channels": (32, 16, 16, 16), "decoder_num_heads": (2, 1, 1, 1)}
PTV3 = {"name": "ptv3", "coordinates": False, "width": 0.125}
SCANNET = "ptv3-base.scannet20.pointcept"
CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {  # our network, and their name and sizes
    "ptv3": (PTV3, SCANNET, {**SMALL, **SMALL_DECODER, "legacy": False}),
    "ptv3, legacy": ({**PTV3, "legacy": True}, SCANNET, {**SMALL, **SMALL_DECODER}),
    "ptv3, legacy, full size": ({**PTV3, "legacy": True, "width": 1.0}, SCANNET, DECODER),
    "ptv3, rpe": (
        {**PTV3, "variant": "rpe", "legacy": True},
        "ptv3-base.s3dis-area5.pointcept",
        {**SMALL, **SMALL_DECODER, "num_classes": 20},
    ),
    "sonata": (
        {"name": "sonata", "variant": "small", "width": 0.125},
        "sonata-base-lp.scannet20.fair",
        {**SMALL, "encoder_depths": (2, 2, 2, 6, 2)},
    ),
    "spunet": ({"name": "spunet", "coordinates": False}, "spunet-v1m1.scannet20.pointcept", {}),
}


def voxels() -> Tensor:
    """The voxels (N, 3) of a sphere.

    Its extent is not a power of two, where torch-pointcloud and the published programs differ in the number of bits.
    """
    axis = torch.arange(48)
    grid = torch.cartesian_prod(axis, axis, axis)
    radius = (grid - 23.5).square().sum(1).sqrt()
    return grid[(radius < 23.9) & (radius > 23.0)]


def published(network: models.Network) -> dict[str, Tensor]:
    """The weights of a network in the published layout."""
    names = _NAMES[network.config["name"]]
    kernels = {f"{name}.weight": module for name, module in network.named_modules() if isinstance(module, Conv)}
    found = {}
    for name, value in network.state_dict().items():
        if name in kernels:  # (K, Cin, Cout) to (Cout, kx, ky, kz, Cin)
            value = value.unflatten(0, kernels[name].kernel_size).permute(4, 0, 1, 2, 3)
        elif network.config["name"] == "spunet" and value.dim() == 2:  # linear layers are convolutions of size 1
            value = value[:, None, None, None]
        found[names(name)] = value
    return found


def convert(weights: dict[str, Tensor], theirs: nn.Module) -> dict[str, Tensor]:
    """Published weights in the names of torch-pointcloud: from its own function, plus those that it leaves out."""
    from torch_pointcloud.models import point_transformer_v3 as module

    expected = theirs.state_dict()
    if any(name.startswith("conv_input") for name in weights):
        parts = {"conv_input": "encoder.", "down": "encoder.", "enc": "encoder.", "up": "decoder.", "dec": "decoder."}
        named = {parts.get(key.partition(".")[0], "") + key: value for key, value in weights.items()}
        named = {key.replace("final.", "head.").replace(".bn", ".norm"): value for key, value in named.items()}
    else:
        decoder = any(key.startswith("decoder.") for key in expected)
        renamed = {key.replace("stem.conv.", "stem.linear."): value for key, value in weights.items()}
        if decoder:
            renamed = {key if "seg_head" in key else f"backbone.{key}": value for key, value in renamed.items()}
            named = module.segmentation_checkpoint_filter_fn(renamed, theirs)
        else:
            named = module.encoder_checkpoint_filter_fn(renamed, theirs)
    found = {}
    for key, value in named.items():
        head, _, last = key.rpartition(".")
        names = (key, f"{head}.module.{last}", key.replace("attn.rpe.", "attn."))
        found[next((name for name in names if name in expected), key)] = value
    return found


def difference(case: str) -> float:
    """The largest difference of the logits, relative to the largest logit."""
    from torch_pointcloud import create_model

    options, name, sizes = CASES[case]
    torch.manual_seed(0)
    network = build(options)
    with torch.no_grad():  # the initial statistics and factors of norms would hide mistakes
        for module in network.modules():
            if isinstance(module, (nn.BatchNorm1d, nn.LayerNorm)):
                for value in module.state_dict().values():
                    if value.is_floating_point():
                        value.copy_(0.5 + torch.rand(value.shape))
    weights = published(network)
    if isinstance(network, Serialized):
        sizes = {**sizes, "encoder_patch_size": (PATCH,) * 5, "shuffle_serialization_orders": False}
        sizes["use_flash_attn"] = False
    theirs: Any = create_model(name, "semantic-segmentation", **sizes)
    theirs.load_state_dict(convert(weights, theirs))
    ours = build(options)
    models.load_published(ours, weights)
    grid = voxels()
    points, features = (grid + 0.5) * VOXEL, torch.randn(len(grid), 6)
    inputs = torch.cat([points, features], 1) if ours.config["coordinates"] else features
    with torch.no_grad():
        received = ours.eval()(points, features)
        expected = theirs.eval()(inputs, grid, torch.zeros(len(grid), dtype=torch.int64))
    return float((received - expected).abs().max() / expected.abs().max())


def build(options: dict[str, Any]) -> models.Network:
    """Our network, with small patches if it has patches."""
    network = models.build(**COMMON, **options)
    if isinstance(network, Serialized):
        return Serialized(network.config, replace(network.sizes, patch=PATCH))
    return network


def main() -> None:
    pointgrad.compat.install()
    failed = False
    for case in sys.argv[1:] or CASES:
        error = difference(case)
        failed |= not error <= TOLERANCE
        print(f"{case}: logits differ by {error:.1e} of the largest")
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
