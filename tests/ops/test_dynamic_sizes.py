"""`torch.compile(dynamic=True)` of every operator: growing numbers of clouds, points, neighbors and channels."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from pointgrad.catalog import OPERATORS

SIZES = range(3, 7)


@pytest.mark.parametrize("op", [op for op in OPERATORS if op.samples], ids=lambda op: op.name)
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_two_compilations(op):
    """The second one where equal sizes of the first call differ later."""
    assert op.growing is not None, f"{op.name} needs `growing` in the catalogue"
    torch._dynamo.reset()
    counter = CompileCounter()
    call, *_ = op.growing(SIZES[0])
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=counter)
    for n in SIZES:
        _, *arguments = op.growing(n)
        compiled(*arguments)
    assert counter.frame_count <= 2
