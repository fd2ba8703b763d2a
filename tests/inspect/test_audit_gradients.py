"""The audit of gradients: large inputs, kinks, slow functions, single dtypes and checkpoints."""

import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from pointgrad.inspect.audit import differences
from tests.inspect.auditing import BAD, statuses
from tests.support.planted import floats, function, square

pytestmark = pytest.mark.usefixtures("plain_torch")


def damaged(forward, damage, where="backward"):
    """The function, with a damaged gradient of its first input, or a damaged result."""

    def run(ctx, *inputs):
        with torch.enable_grad():
            ctx.inputs = [each.detach().requires_grad_() for each in inputs]
            ctx.output = forward(*ctx.inputs)
        result = ctx.output.detach().clone()
        return damage(result) if where == "forward" else result

    def backward(ctx, upstream):
        first, *others = torch.autograd.grad(ctx.output, ctx.inputs, upstream, retain_graph=True)
        return (damage(first.clone()) if where == "backward" else first, *others)

    return function(run, backward)


def at(coordinate, factor):
    """Multiply one coordinate."""

    def damage(gradient):
        gradient.view(-1)[coordinate] *= factor
        return gradient

    return damage


def used(forward, inputs, number):
    """A coordinate of the first input with a gradient, by number."""
    torch.manual_seed(0)  # as in the audit
    values = [value.requires_grad_() for value in inputs(torch.float64, "cpu")]
    (gradient,) = torch.autograd.grad(forward(*values).sin().sum(), values[:1])
    coordinates = (gradient.reshape(-1).abs() > 0.1).nonzero()[:, 0]
    return int(coordinates[number % len(coordinates)])


def smooth(x):
    return 0.5 * x.square() + x.sin()


LARGE = {  # function, inputs, number of the damaged coordinate, factor
    "smooth": (smooth, floats((64, 10)), 17, 1.5),
    "smooth, zero": (smooth, floats((64, 10)), 500, 0.0),
    "relu": (lambda x: F.relu(x) * x, floats((300, 10)), 100_003, 0.0),
    "max": (lambda x: x.reshape(-1, 10, 3).amax(1), floats((1000, 3)), 1234, 1.5),
    "distance": (torch.cdist, floats((300, 3), (20, 3)), 777_777, 1.1),
    "linear": (torch.matmul, floats((1000, 20), (20, 5)), 9_999, 1.1),
}


@pytest.mark.parametrize("name", LARGE)
def test_one_wrong_coordinate_of_many(name):
    forward, inputs, coordinate, factor = LARGE[name]
    damage = at(used(forward, inputs, coordinate), factor)
    row = statuses(damaged(forward, damage), inputs, ["gradcheck"], budget=60.0)["gradcheck"]
    assert row.status == "failed", row
    assert "is wrong by up to" in row.message
    assert ": at [" in row.message


def test_what_was_compared():
    row = statuses(smooth, floats((64, 10)), ["gradcheck"], budget=60.0)["gradcheck"]
    assert row.status == "passed"
    assert row.message == "200 of 640 coordinates were moved one by one, and all along random directions"
    row = statuses(torch.sin, floats((20, 10)), ["gradcheck"])["gradcheck"]
    assert (row.status, row.message) == ("passed", "")


def test_kinks_among_many_coordinates():
    """Coordinates that are not on kinks are still compared along random directions."""

    def inputs(dtype, device):
        values = torch.arange(1.0, 601.0, dtype=dtype) / 600
        values[::100] = 0.0
        return (values,)

    row = statuses(F.relu, inputs, ["gradcheck"], budget=60.0)["gradcheck"]
    assert row.status == "passed"
    assert "and all along random directions" in row.message
    assert "6 of " in row.message
    row = statuses(damaged(F.relu, at(333, 1.2)), inputs, ["gradcheck"], budget=60.0)["gradcheck"]
    assert row.status == "failed"


CORRECT = {
    "relu on kinks": (F.relu, lambda dtype, device: (torch.arange(-300, 300).to(dtype) % 3,)),
    "max with ties": (lambda x: x.amax(0), lambda dtype, device: (torch.arange(600).reshape(60, 10).to(dtype) % 4,)),
    "clamp at its bounds": (lambda x: x.clamp(-1, 1), lambda dtype, device: (torch.arange(600).to(dtype) % 3 - 1,)),
    "sort": (lambda x: x.sort(0).values, floats((300, 4))),
    "median": (lambda x: x.median(0).values, floats((301, 3))),
    "distance to itself": (lambda x: torch.cdist(x, x), floats((80, 3))),
    "chamfer": (lambda a, b: torch.cdist(a, b).square().amin(1).mean(), floats((120, 3), (130, 3))),
    "inverse": (lambda x: 1 / x, floats((500,))),
    "large offset": (lambda x: x + 1e6, floats((600,))),
    "some NaN": (
        lambda x: torch.where(x.isnan(), 0, x * x),
        lambda dtype, device: (torch.where(torch.arange(600) % 7 == 0, torch.nan, torch.randn(600)).to(dtype),),
    ),
    "tiny results": (lambda x: x * 1e-8, floats((600,))),
    "result out of range": (lambda x: (5 * x).exp(), floats((500,))),
    "almost cancelled": (lambda x: x.mean(), floats((21,))),
}


@pytest.mark.parametrize("name", CORRECT)
def test_correct_functions_raise_no_alarm(name):
    found = statuses(*CORRECT[name], ["gradcheck", "dtypes"])
    assert all(row.status in ("passed", "warned") for row in found.values()), found


def test_slow_wrong_function_gets_a_diagnosis(monkeypatch):
    """Fewer coordinates are moved than there are, and fewer still in the diagnosis."""
    clock = iter(range(10**6))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock) * 0.05)  # seconds per coordinate
    slow = function(square, lambda ctx, g: g * ctx.saved_tensors[0] * torch.linspace(1, 3, 640).to(g).view(64, 10))
    row = statuses(slow, floats((64, 10)), ["gradcheck"])["gradcheck"]
    assert row.status == "failed"
    assert "is wrong by up to" in row.message
    assert differences.COORDINATES > 20
    row = statuses(function(square, lambda ctx, g: 2 * ctx.saved_tensors[0]), floats((64, 10)), ["gradcheck"])
    assert "backward ignores the upstream gradient" in row["gradcheck"].message


DAMAGES = {
    "smooth": (lambda x: x.sin(), floats((6, 5))),
    "softmax": (lambda x: torch.softmax(x, -1), floats((6, 10))),
    "product": (torch.matmul, floats((6, 5), (5, 4))),
    "norm": (lambda x: x.norm(dim=-1), floats((9, 3))),
    "scalar": (lambda x: (x * x).sum().sqrt(), floats((8, 4))),
}


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("name", DAMAGES)
def test_wrong_factor_in_bfloat16_only(name, where):
    forward, inputs = DAMAGES[name]
    for factor in (1.1, 0.9):

        def damage(value, factor=factor):
            return value * factor if value.dtype == torch.bfloat16 else value

        row = statuses(damaged(forward, damage, where), inputs, ["dtypes"])["dtypes"]
        assert row.status == "failed", row
        assert row.message.startswith("bfloat16: the result" if where == "forward" else "bfloat16: the gradient of ")
    row = statuses(damaged(forward, lambda value: value, where), inputs, ["dtypes"])["dtypes"]
    assert row.status in ("passed", "warned")


def test_gradient_that_only_the_reference_has():
    def multiply(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    drops = function(multiply, lambda ctx, g: (g * ctx.saved_tensors[1], None))
    found = statuses(drops, floats((5, 3), (5, 3)), ["gradcheck", "reference", "dtypes"], reference=torch.mul)
    assert (found["gradcheck"].status, found["reference"].status) == ("failed", "failed")
    assert "is missing (None)" in found["gradcheck"].message
    assert (found["dtypes"].status, found["dtypes"].message) == ("passed", "")  # the other rows report the defect


def test_gradient_missing_in_one_dtype():
    drops = function(square, lambda ctx, g: None if g.dtype == torch.float16 else 2 * g * ctx.saved_tensors[0])
    for reference in (None, torch.square):
        row = statuses(drops, floats((5, 3)), ["dtypes"], reference=reference)["dtypes"]
        assert (row.status, row.message) == ("failed", "float16: the gradient of `x` is missing (None)")


class Checkpointed(nn.Module):
    def __init__(self, reentrant, activation=torch.tanh):
        super().__init__()
        self.reentrant, self.activation = reentrant, activation
        self.first, self.second, self.norm = nn.Linear(4, 5), nn.Linear(5, 4), nn.BatchNorm1d(4)

    def block(self, x):
        return self.second(self.activation(self.first(x)))

    def forward(self, x):
        return x + self.norm(checkpoint(self.block, x, use_reentrant=self.reentrant))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant, dtype):
    module, before = Checkpointed(reentrant).to(dtype), torch.utils.checkpoint.CheckpointFunction
    names = ["runs", "gradcheck", "gradgradcheck", "upstream", "needs_input_grad", "dtypes", "in-place", "interleaved"]
    found = statuses(module, floats((6, 4)), names)
    assert not [row for row in found.values() if row.status in BAD], found
    assert found["gradcheck"].status == "passed"
    assert found["gradgradcheck"].status == ("skipped" if reentrant else "passed")
    assert "torch.utils.checkpoint recomputes" in found["in-place"].message
    assert all(parameter.grad is None for parameter in module.parameters())
    assert torch.utils.checkpoint.CheckpointFunction is before


@pytest.mark.parametrize("reentrant", [False, True])
def test_wrong_gradient_in_a_checkpoint(reentrant):
    wrong = function(square, lambda ctx, g: 2.1 * ctx.saved_tensors[0] * g)
    found = statuses(Checkpointed(reentrant, wrong), floats((6, 4)), ["gradcheck"])
    assert found["gradcheck"].status == "failed"


def test_checkpoints_under_compile_and_leaks():
    found = statuses(Checkpointed(False), floats((6, 4)), ["compile", "leaks"])
    assert {name: row.status for name, row in found.items()} == {"compile": "passed", "leaks": "passed"}, found
