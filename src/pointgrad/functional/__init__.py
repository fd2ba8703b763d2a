"""Elementary operators with the signatures and results of `torch.nn.functional`, their backward derived by hand.

Each is derived and checked on a page of docs/book.
"""

from pointgrad.ops.conv import max_pool2d as max_pool2d
