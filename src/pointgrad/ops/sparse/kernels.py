"""Triton kernels of this family: maps, products and maxima."""

from .conv_kernels import sparse_conv as sparse_conv
from .map_kernels import kernel_table as kernel_table
from .pool_kernels import sparse_max as sparse_max
from .pool_kernels import sparse_max_backward as sparse_max_backward
from .weight_kernels import sparse_conv_weight as sparse_conv_weight
from .window_kernels import sparse_readers as sparse_readers
