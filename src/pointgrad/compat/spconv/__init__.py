"""The interface of spconv 2.3.8: convolution and pooling of sparse voxels; the layers are in `spconv.pytorch`.

See docs/migration/spconv.md.
"""

from . import constants as constants
from .core import AlgoHint, ConvAlgo

__version__ = "2.3.8"  # the version whose interface is provided

SPCONV_VERSION_NUMBERS = [2, 3, 8]

__all__ = ["AlgoHint", "ConvAlgo", "__version__"]
