"""Which kernels exist on this machine, and what runs in place of missing ones."""

import warnings
# [compiled]
from importlib import import_module
# [/compiled]
# [triton]
from importlib.util import find_spec
# [/triton]

import torch
# [triton]
from torch import Tensor
# [/triton]
# [compiled]

_state = "is not built"
try:
    import_module("._C", __package__)  # built by setup.py; registers its kernels when it is loaded
except ModuleNotFoundError:
    pass  # no compiler was found
except ImportError as error:
    _state = f"cannot be loaded ({error})"  # for example built with another version of torch
# [/compiled]

_missing: dict[str, str] = {}  # the reasons, by device type
# [compiled]
built: list[str] = []  # the devices of compiled kernels
# [/compiled]


def has_kernel(device: str) -> bool:
    """Whether a kernel runs for tensors on a device, "cpu" or "cuda", and not the reference."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(
        "my_operator::my_operator",
        {"cpu": "CPU", "cuda": "CUDA"}[device],
    )


def warn_if_missing(device: str) -> None:
    """Called by the reference: warn if a kernel was meant to run in its place."""
    if device in _missing:
        warnings.warn(f"my_operator: {_missing[device]}", RuntimeWarning, stacklevel=3)


def add_kernels() -> None:
    """Add the kernels that need no compiler, and collect the reasons for those that are missing."""
    # [compiled]
    built.extend(device for device in ("cpu", "cuda") if has_kernel(device))
    # [/compiled]
    # [cpp]
    if not has_kernel("cpu"):
        _missing["cpu"] = (
            f"CPU tensors use the slower plain PyTorch form, because the C++ kernel {_state}. "
            "Install a C++ compiler and repeat pip install"
        )
    # [/cpp]
    # [cuda]
    if not has_kernel("cuda"):
        _missing["cuda"] = (
            f"GPU tensors use the slower plain PyTorch form, because the CUDA kernel {_state}. "
            "Install a CUDA toolkit with nvcc and repeat pip install"
        )
    # [/cuda]
    # [triton]
    if not has_kernel("cuda"):
        if find_spec("triton") is None:
            _missing["cuda"] = (
                "GPU tensors use the slower plain PyTorch form, because Triton is not installed: pip install triton"
            )
        else:
            _register_triton()
            _missing.pop("cuda", None)


def _register_triton() -> None:
    """Triton is imported by the first call on a GPU, because importing it takes time."""
    from .register import interpolate, interpolate_backward

    @interpolate.register_kernel("cuda")
    def _(corners: Tensor, points: Tensor) -> Tensor:
        from . import triton_kernels

        return triton_kernels.forward(corners, points)

    @interpolate_backward.register_kernel("cuda")
    def _(grad: Tensor, corners: Tensor | None, points: Tensor, for_corners: bool) -> tuple[Tensor, Tensor]:
        from . import triton_kernels

        return triton_kernels.backward(grad, corners, points, for_corners)
    # [/triton]
