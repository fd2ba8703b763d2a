"""Elementary operators with the signatures and results of `torch.nn.functional`, and a backward derived by hand.

docs/book has one page per operator with the derivation.
"""

from pointgrad.ops.conv import conv1d as conv1d
from pointgrad.ops.conv import conv2d as conv2d
from pointgrad.ops.conv import fold as fold
from pointgrad.ops.conv import max_pool2d as max_pool2d
from pointgrad.ops.conv import unfold as unfold
from pointgrad.ops.loss import cross_entropy as cross_entropy
from pointgrad.ops.loss import nll_loss as nll_loss

from .elementwise import log as log
from .elementwise import relu as relu
from .joining import cat as cat
from .linear import linear as linear
from .normalization import batch_norm as batch_norm
from .normalization import group_norm as group_norm
from .normalization import layer_norm as layer_norm
from .reduction import mean as mean
from .similarity import cosine_similarity as cosine_similarity
from .softmax import log_softmax as log_softmax
from .softmax import softmax as softmax
