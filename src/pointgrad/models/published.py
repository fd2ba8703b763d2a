"""Weights of MinkowskiEngine and spconv."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from pointgrad.models.network import Network
from pointgrad.nn.sparse_conv import InverseConv, SparseConv, SubmanifoldConv
from pointgrad.ops import checks


class Unloaded(NamedTuple):
    """Names of weights that did not fit when published weights were loaded.

    Attributes:
        missing: Names that the weights do not contain.
        unexpected: Names that the network does not have.
        mismatched: Names with the shapes of tensors that have the wrong shape.
    """

    missing: list[str]
    unexpected: list[str]
    mismatched: list[str]

    def text(self) -> str:
        """Return the names on one line, at most three of each kind; an empty text if everything fitted."""
        kinds = (("missing", self.missing), ("unexpected", self.unexpected), ("wrong shape", self.mismatched))
        return "; ".join(
            f"{kind} {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            for kind, names in kinds
            if names
        )


def load_published(network: Network, weights: Mapping[str, Any], *, strict: bool = True) -> Unloaded:
    """Load weights that were published for MinkowskiEngine or spconv.

    `minkunet` has the names and kernels of MinkowskiEngine's MinkUNet; `spunet` those of Pointcept's SpUNet-v1m1, with
    kernels of spconv 2 (Cout, kx, ky, kz, Cin) or spconv 1 (kx, ky, kz, Cin, Cout). `ptv3`, `sonata` and `litept` have
    those of Pointcept's networks with their linear layer "seg_head", and of the Sonata and LitePT repositories. Weights
    of Point Transformer V3 that were published for Pointcept up to version 1.5.1 need `ptv3(legacy=True)`.

    Args:
        network: From `minkunet`, `spunet`, `ptv3`, `sonata` or `litept`, with the `channels`, `coordinates` and
            `classes` of the weights.
        weights: The published `state_dict`, or a checkpoint with an entry of this name. A prefix that all names share,
            such as "module.backbone.", is ignored.
        strict: Raise if anything does not fit. Otherwise load what fits, for example all but the last layer.

    Returns:
        `Unloaded`, in the names of the published weights.

    Raises:
        TypeError: If there are no published weights for this network, or `weights` is not a dictionary of names.
        ValueError: If `strict` and something does not fit. The network is then unchanged.

    Example:
        >>> from pointgrad.models import spunet
        >>> unloaded = load_published(spunet(width=0.25), {"final.bias": torch.zeros(40)}, strict=False)
        >>> unloaded.missing[0], unloaded.unexpected
        ('conv_input.0.weight', [])
    """
    checks.kind(isinstance(network, Network), "network", _or(_NAMES), network)
    name = network.config["name"]
    checks.kind(name in _NAMES, "network", _or(_NAMES), name)
    checks.kind(isinstance(weights, Mapping), "weights", "a state_dict", weights)
    content = weights.get("state_dict", weights)
    checks.kind(isinstance(content, Mapping), "weights['state_dict']", "a dictionary", content)
    for key in content:
        checks.kind(isinstance(key, str), "names of weights", "strings", key)
    state, unloaded = network.state_dict(), Unloaded([], [], [])
    theirs = {ours: _NAMES[name](ours) for ours in state}
    prefix = _prefix(content, theirs.values())
    if name in _SERIALIZED:  # the last layer is outside of "backbone."
        prefix = prefix.removesuffix("backbone.")
        content = {key.removeprefix(prefix).removeprefix("backbone."): value for key, value in content.items()}
    given = {key.removeprefix(prefix): value for key, value in content.items() if key not in _UNUSED}
    kernels = {
        f"{part}.weight": module.kernel_size
        for part, module in network.named_modules()
        if isinstance(module, (SubmanifoldConv, SparseConv, InverseConv))
    }
    found = {}
    for ours, target in state.items():
        key = theirs[ours]
        if key not in given:
            if not key.endswith("num_batches_tracked"):  # weights of old versions of torch do not have it
                unloaded.missing.append(key)
            continue
        value = _converted(given[key], target, kernels.get(ours), key.endswith("kernel"), name in _SERIALIZED)
        if value is None:
            shape = tuple(getattr(given[key], "shape", ()))
            unloaded.mismatched.append(f"{key} {shape} for {ours} {tuple(target.shape)}")
        else:
            found[ours] = value
    unloaded.unexpected.extend(key for key in given if key not in theirs.values())
    fits = not strict or not any(unloaded)
    checks.value(fits, "weights", f"those of {name}", unloaded.text())
    network.load_state_dict({**state, **found})
    return unloaded


def _converted(
    value: Any, target: Tensor, kernel: tuple[int, int, int] | None, mink: bool, linear: bool
) -> Tensor | None:
    """The value in the layout of the target, or None if it does not fit."""
    if not isinstance(value, Tensor):
        return None
    if linear and kernel is None:
        pass
    elif target.dim() < 2:
        value = value.reshape(-1) if value.dim() == 2 and len(value) == 1 else value  # MinkowskiEngine's bias (1, Cout)
    elif kernel is None:  # a linear layer (Cout, Cin)
        outputs, inputs = target.shape
        shapes = [(inputs, outputs), (1, inputs, outputs)]  # MinkowskiEngine from version 0.5 on, and before
        if not mink:
            # spconv reads the memory of a kernel of size 1 as (Cin, Cout), whatever its shape.
            shapes = [(outputs, 1, 1, 1, inputs), (1, 1, 1, inputs, outputs)]
        return value.reshape(inputs, outputs).t() if tuple(value.shape) in shapes else None
    elif mink:  # (K, Cin, Cout), where the first axis of the kernel is the fastest
        if value.shape == target.shape:
            value = value.unflatten(0, kernel[::-1]).transpose(0, 2).flatten(0, 2)
    elif value.dim() == 5:
        if value.shape[1:4] == kernel:
            value = value.permute(1, 2, 3, 4, 0)
        value = value.flatten(0, 2)
    return value if value.shape == target.shape else None


def _or(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


def _prefix(given: Mapping[str, Any], expected: Any) -> str:
    """The prefix of the expected names in the given ones; empty if no name is found."""
    known = set(expected)
    for key in given:
        parts = key.split(".")
        for start in range(len(parts)):
            if ".".join(parts[start:]) in known:
                return "".join(f"{part}." for part in parts[:start])
    return ""


def _mink(name: str) -> str:
    """The name in MinkowskiEngine's MinkUNet."""
    part, *rest = name.split(".")
    kind = rest[-1]
    suffix = "kernel" if kind == "weight" else kind
    if part == "head":
        return f"final.{suffix}"
    if part == "stem":
        return f"conv0p1s1.{suffix}" if rest[0] == "0" else f"bn0.bn.{kind}"
    level = int(rest[0])
    if part in ("down", "up"):
        strided = f"conv{level + 1}p{2**level}s2" if part == "down" else f"convtr{level + 4}p{16 >> level}s2"
        normed = f"bn{level + 1}" if part == "down" else f"bntr{level + 4}"
        return f"{strided}.{suffix}" if rest[1] == "0" else f"{normed}.bn.{kind}"
    block = f"block{level + (1 if part == 'encode' else 5)}.{rest[1]}"
    inner = ".".join(rest[2:-1]).replace("project", "downsample")
    if inner.startswith("conv") or inner == "downsample.0":
        return f"{block}.{inner}.{suffix}"
    return f"{block}.{inner}.bn.{kind}"


def _spconv(name: str) -> str:
    """The name in Pointcept's SpUNet."""
    part, *rest = name.split(".")
    kind = rest[-1]
    if part == "head":
        return f"final.{kind}"
    if part == "stem":
        return f"conv_input.{rest[0]}.{kind}"
    level = int(rest[0]) if part in ("down", "encode") else 3 - int(rest[0])
    if part in ("down", "up"):
        return f"{part}.{level}.{rest[1]}.{kind}"
    inner = re.sub("^norm", "bn", ".".join(rest[2:-1])).replace("project", "proj")
    return f"{'enc' if part == 'encode' else 'dec'}.{level}.block{rest[1]}.{inner}.{kind}"


def _pointcept(name: str, first: str = "conv", conv: str = "cpe") -> str:
    """The name in Pointcept's Point Transformer V3, with the names of the first layer and of convolutions."""
    part, *rest = name.split(".")
    if part == "head":
        return f"seg_head.{rest[-1]}"
    if part == "stem":
        return f"embedding.stem.{(first, 'norm')[int(rest[0])]}.{rest[-1]}"
    name = re.sub(r"^(enc|dec)\.(\d+)\.", r"\1.\1\2.", name)
    name = re.sub(r"\.blocks\.(\d+)\.", r".block\1.", name)
    name = re.sub(r"\.(norm\d?)\.", r".\1.0.", name)
    for ours, theirs in ((".conv.", f".{conv}."), (".mlp.0.", ".mlp.0.fc1."), (".mlp.2.", ".mlp.0.fc2.")):
        name = name.replace(ours, theirs)
    return name.replace("attn.bias_table", "attn.rpe.rpe_table")


_NAMES: dict[str, Callable[[str], str]] = {
    "minkunet": _mink,
    "spunet": _spconv,
    "ptv3": _pointcept,
    "sonata": partial(_pointcept, first="linear"),
    "litept": partial(_pointcept, conv="conv"),
}
PUBLISHED = tuple(_NAMES)
_SERIALIZED = ("ptv3", "sonata", "litept")  # their linear layers are not stored as convolutions
_UNUSED = ("embedding.mask_token",)  # only used in pretraining
