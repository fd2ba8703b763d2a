"""Sizes of the grids that layers return."""

from collections.abc import Sequence

from ..core import ConvAlgo

__all__ = ["ConvAlgo", "get_conv_output_size", "get_deconv_output_size"]


def get_conv_output_size(
    input_size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """Return the size of the grid after a convolution or a pool.

    Example:
        >>> get_conv_output_size([41, 1600], [3, 3], [2, 2], [0, 1], [1, 1])
        [20, 800]
    """
    axes = zip(input_size, kernel_size, stride, padding, dilation, strict=True)
    return [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in axes]


def get_deconv_output_size(
    input_size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
) -> list[int]:
    """Return the size of the grid after a transposed convolution, as `torch.nn.ConvTranspose3d`.

    Example:
        >>> get_deconv_output_size([4], [3], [2], [1], [1], [0])
        [7]
    """
    axes = zip(input_size, kernel_size, stride, padding, dilation, output_padding, strict=True)
    return [(size - 1) * s - 2 * p + d * (k - 1) + extra + 1 for size, k, s, p, d, extra in axes]
