"""Functions of torch.nn.functional applied to the features."""

from collections.abc import Callable
from typing import Any

from torch.nn import functional

_TENSORS = (
    "threshold", "relu", "hardtanh", "hardswish", "relu6", "elu", "selu", "celu", "leaky_relu", "prelu", "rrelu", "glu",
    "gelu", "logsigmoid", "hardshrink", "tanhshrink", "softsign", "softplus", "softmin", "softmax", "softshrink",
    "gumbel_softmax", "log_softmax", "tanh", "sigmoid", "hardsigmoid", "silu", "batch_norm", "normalize", "linear",
    "dropout", "alpha_dropout",
)  # fmt: skip
_LOSSES = ("binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "kl_div", "l1_loss", "mse_loss", "nll_loss", "smooth_l1_loss")  # fmt: skip  # noqa: E501
__all__ = [*_TENSORS, *_LOSSES]


def _wrap(name: str, is_loss: bool) -> Callable[..., Any]:
    function = getattr(functional, name)

    def apply(input: Any, *args: Any, **kwargs: Any) -> Any:
        result = function(input.F, *args, **kwargs)
        return result if is_loss else input.with_features(result)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"`torch.nn.functional.{name}` of the features."
    return apply


globals().update({name: _wrap(name, name in _LOSSES) for name in __all__})
