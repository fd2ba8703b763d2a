"""The audit catches planted bugs and reports nothing for correct functions."""

import random
import re
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pointgrad.catalog import CASES, Make
from pointgrad.inspect import audit
from pointgrad.inspect.audit import CHECKS
from tests.inspect.auditing import BAD, QUICK, statuses
from tests.support.planted import PLANTED, floats, function, good_square, square

pytestmark = pytest.mark.usefixtures("plain_torch")


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_planted_bug_is_caught(planted):
    found = statuses(planted.bad, planted.inputs, planted.rows)
    assert any(row.status in BAD for row in found.values()), found
    assert all(row.message for row in found.values() if row.status in BAD)


TWINS = {(planted.good, planted.inputs, planted.rows): planted for planted in PLANTED}.values()


@pytest.mark.parametrize("planted", TWINS, ids=lambda planted: planted.name)
def test_function_without_the_bug_passes(planted):
    found = statuses(planted.good, planted.inputs, planted.rows)
    assert all(row.status in ("passed", "warned", "skipped") for row in found.values()), found


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        ("wrong sign", "the gradient of `x` has the opposite sign"),
        ("wrong factor", "is 0.5 times the correct one"),
        ("gradient dropped", "is missing (None)"),
        ("transposed gradient", "the gradient of `a` is transposed"),
        ("upstream ignored", "backward ignores the upstream gradient"),
        ("one entry forgotten", "at [4, 3] it is"),
    ],
)
def test_gradcheck_describes_the_error(fn, message):
    planted = next(each for each in PLANTED if each.name == fn)
    assert message in statuses(planted.bad, planted.inputs, ["gradcheck"])["gradcheck"].message


def indexed(dtype, device):
    return torch.randn(6, 5, dtype=dtype), 0, torch.randint(0, 6, (9, 5))


TORCH = {
    "softmax": (lambda x: torch.softmax(x, -1), floats((5, 40))),
    "linear": (F.linear, floats((7, 64), (5, 64), (5,))),
    "conv2d": (F.conv2d, floats((2, 3, 7, 7), (4, 3, 3, 3), (4,))),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (32,), w, b), floats((4, 32), (32,), (32,))),
    "relu": (F.relu, floats((5, 7))),
    "max": (lambda x: x.max(-1), floats((5, 17))),
    "sort": (lambda x: x.sort(-1), floats((5, 17))),
    "cumsum": (lambda x: x.cumsum(-1), floats((5, 64))),
    "matmul": (torch.matmul, floats((9, 64), (64, 8))),
    "attention": (F.scaled_dot_product_attention, floats((2, 3, 8, 4), (2, 3, 8, 4), (2, 3, 8, 4))),
    "gather": (torch.gather, indexed),
    "index_add": (
        torch.index_add,
        lambda dtype, device: (
            torch.randn(6, 5, dtype=dtype),
            0,
            torch.randint(0, 6, (9,)),
            torch.randn(9, 5, dtype=dtype),
        ),
    ),
    "cat": (torch.cat, lambda dtype, device: ([torch.randn(4, 3, dtype=dtype), torch.randn(5, 3, dtype=dtype)],)),
    "transpose": (torch.t, floats((4, 5))),
    "identity": (lambda x: x, floats((4, 5))),
    "std": (lambda x: x.std(-1), floats((5, 9))),
    "inverse": (torch.linalg.inv, floats((4, 4))),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), floats((8, 5))),
    "cdist": (torch.cdist, floats((6, 3), (7, 3))),
    "argmax": (lambda x: x.argmax(-1), floats((5, 7))),
    "scalar": (lambda x: x * 2, floats(())),
    "nearest": (lambda a, b: (a[:, None] - b).square().sum(-1).amin(1).mean(), floats((20, 3), (15, 3))),
    "complex": (lambda x: (x * x.conj()).real, lambda dtype, device: (torch.randn(4, dtype=torch.complex128),)),
    "module": (nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.BatchNorm1d(4)), floats((5, 6))),
    "recurrent": (nn.GRU(4, 3), floats((5, 2, 4))),
}


@pytest.mark.parametrize("name", TORCH)
def test_torch_functions_pass(name):
    fn, inputs = TORCH[name]
    assert not [row for row in statuses(fn, inputs, QUICK, isolated=False).values() if row.status in BAD]


OURS = [
    "aggregate/packed", "neighbor_attention/padded", "chamfer_distance/one-cloud", "group/relative-packed",
    "trilinear/inside", "grid_sample/reflection", "knn/queries", "ball_query/random", "scatter/max-padded",
    "segment_softmax/packed",
]  # fmt: skip


@pytest.mark.parametrize("case", [case for case in CASES if case.name in OURS], ids=lambda case: case.name)
def test_our_operators_pass(case):
    names = list(case.sample.build(Make()))

    def make_inputs(dtype, device):
        made = case.sample.build(Make(dtype, device))
        return tuple(v.requires_grad_() if name in case.differentiable else v for name, v in made.items())

    def call(*values):
        return case(dict(zip(names, values, strict=True)))

    quick = [name for name in QUICK if name != "determinism"]  # tested by the operator contract
    assert not [row for row in statuses(call, make_inputs, quick).values() if row.status in BAD]


def test_every_check_on_gather():
    pytest.importorskip("expecttest", reason="required by torch.library.opcheck")

    def inputs(dtype, device):
        return torch.randn(7, 3, dtype=dtype, device=device), torch.tensor([3, 1, -1, 3])

    import pointgrad

    report = audit(pointgrad.gather, inputs, lambda features, index: F.pad(features, (0, 0, 0, 1))[index])
    assert report.ok, str(report)
    assert [row.name for row in report.rows] == list(CHECKS)
    assert report["opcheck"].status == "passed"
    assert report["compile"].status == "passed"
    assert report["reference"].status == "passed"
    assert "reference" in report["timing"].message


def test_reference_with_different_results():
    def slightly_different(x):
        return x.tanh() + 1e-6 * x.square()

    row = statuses(torch.tanh, floats((4, 5)), ["reference"], reference=slightly_different)["reference"]
    assert row.status == "failed"
    assert "the output differs" in row.message


def test_reference_with_a_different_gradient():
    row = statuses(torch.tanh, floats((4, 5)), ["reference"], reference=lambda x: x.detach() * 0 + torch.tanh(x) * 1.0)
    assert row["reference"].status == "passed"
    other = function(lambda ctx, x: x.tanh(), lambda ctx, g: g)
    row = statuses(torch.tanh, floats((4, 5)), ["reference"], reference=other)["reference"]
    assert "the gradient of" in row.message


def test_clear_errors_are_not_failures():
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if x.dtype != torch.float64:
                raise TypeError(f"x must be float64, got {x.dtype}")
            if not x.is_contiguous():
                raise ValueError("x must be contiguous")
            if not x.numel():
                raise ValueError("x must not be empty")
            return square(ctx, x)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            return 2 * ctx.saved_tensors[0] * g

    found = statuses(Once.apply, floats((4, 5)), QUICK)
    assert not [row for row in found.values() if row.status in BAD]
    assert found["gradgradcheck"].status == "skipped"
    assert "once_differentiable" in found["gradgradcheck"].message
    assert found["layouts"].status == "warned"
    assert "rejects float16 (TypeError: x must be float64" in found["dtypes"].message


def test_float32_only():
    """Finite differences in float32 are coarse, but still catch a wrong factor."""

    def kernel(factor):
        def forward(ctx, x):
            if x.dtype != torch.float32:
                raise TypeError("float32 only")
            return square(ctx, x)

        return function(forward, lambda ctx, g: factor * ctx.saved_tensors[0] * g)

    assert statuses(kernel(2), floats((4, 5)), ["runs", "gradcheck"])["gradcheck"].status == "passed"
    assert "1.25 times" in statuses(kernel(2.5), floats((4, 5)), ["gradcheck"])["gradcheck"].message


def test_float64_computed_in_float32():
    found = statuses(lambda x: x.float().sin().to(x.dtype), floats((4, 5)), ["runs", "gradcheck"])
    assert found["gradcheck"].status == "passed"
    assert "float32 at best" in found["runs"].message


def test_kinks_are_not_compared():
    row = statuses(torch.relu, lambda dtype, device: (torch.tensor([0.0, 1.0, -1.0, 0.0], dtype=dtype),), ["gradcheck"])
    assert row["gradcheck"].status == "passed"
    assert "2 of 4 coordinates lie on kinks" in row["gradcheck"].message


def test_seeded_function_is_deterministic():
    dropout = floats((40, 5))
    assert statuses(F.dropout, dropout, ["determinism"])["determinism"].status == "failed"
    found = statuses(F.dropout, dropout, ["runs", "gradcheck", "determinism", "in-place"], seeded=True)
    assert [row.status for row in found.values()] == ["passed"] * 4


def test_parameters_of_a_module_are_checked():
    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self, x):
            return x * self.weight.detach()

    assert "`weight`" in statuses(Wrong(), floats((4, 3)), ["gradcheck"])["gradcheck"].message
    module = nn.Linear(3, 2)
    before = [parameter.clone() for parameter in module.parameters()]
    assert statuses(module, floats((4, 3)), ["runs", "gradcheck", "in-place"])["gradcheck"].status == "passed"
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in module.parameters())


def test_intermediate_overflow_in_float16_is_a_warning():
    """float16 cannot represent the square of a distance of 256."""

    def distance(a, b):
        return (a - b).square().sum(-1).sqrt()

    row = statuses(distance, floats((6, 3), (6, 3)), ["dtypes"])["dtypes"]
    assert row.status == "warned"
    assert "with inputs scaled by 256: the result overflows to inf" in row.message
    good = statuses(lambda a, b: distance(a.float(), b.float()).to(a.dtype), floats((6, 3), (6, 3)), ["dtypes"])
    assert good["dtypes"].status == "passed"


def test_small_sizes_are_compared_with_the_reference():
    def careless(x):
        return x.sum(0) / max(len(x), 1) if len(x) else x.sum(0) + 1

    assert (
        statuses(careless, floats((4, 5)), ["sizes"], reference=lambda x: x.sum(0) / max(len(x), 1))["sizes"].status
        == "failed"
    )


def test_global_state_is_preserved():
    torch.manual_seed(3)
    random.seed(3)
    x = torch.randn(4, 5)
    kept = x.clone()
    state = torch.get_rng_state(), random.getstate(), torch.get_default_dtype(), torch.get_num_threads()
    audit(lambda y: torch.tanh(y), lambda dtype, device: (x.to(dtype),))
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1:] == (random.getstate(), torch.get_default_dtype(), torch.get_num_threads())
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.equal(x, kept)
    assert not x.requires_grad


def test_error_message_is_one_line_with_its_location():
    def broken(x):
        raise ValueError("first line\nsecond line")

    report = audit(broken, floats((3,)))
    assert not report.ok
    assert re.fullmatch(r"ValueError: first line \(test_audit.py:\d+\)", report["runs"].message)
    assert {row.status for row in report.rows[1:]} == {"skipped"}


def test_sys_exit_is_an_exception():
    row = statuses(lambda x: sys.exit(7), floats((3,)), ["runs"])["runs"]
    assert row.message.startswith("RuntimeError: the function called sys.exit(7)")


def test_good_square_passes_everything():
    report = audit(good_square, floats((5, 4)), lambda x: x.square())
    assert report.ok, str(report)
    assert {row.status for row in report.rows} == {"passed", "skipped"}


def test_inputs_from_an_unseeded_generator():
    """Inputs are made once per dtype, so make_inputs need not be reproducible."""
    import numpy as np

    def inputs(dtype, device):
        return (torch.from_numpy(np.random.default_rng().normal(size=(4, 5))).to(dtype),)

    found = statuses(torch.tanh, inputs, ["runs", "gradcheck", "layouts", "determinism", "in-place"])
    assert {row.status for row in found.values()} == {"passed"}


def test_output_without_gradient_is_a_warning():
    class Pair(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x * 3
            ctx.mark_non_differentiable(y)
            return square(ctx, x), y

        @staticmethod
        def backward(ctx, g, _):
            return 2 * ctx.saved_tensors[0] * g

    row = statuses(Pair.apply, floats((4, 5)), ["gradcheck"])["gradcheck"]
    assert row.status == "warned"
    assert "output 1 depends on the inputs but has no gradient" in row.message


def test_opcheck_finds_a_wrong_registration():
    pytest.importorskip("expecttest", reason="required by torch.library.opcheck")

    @torch.library.custom_op("pointgrad_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @twice.register_fake
    def _(x):
        return x.new_empty(3)  # wrong shape

    twice.register_autograd(lambda ctx, g: g * 2)
    row = statuses(twice, floats((4, 5)), ["opcheck"])["opcheck"]
    assert row.status == "failed"
    assert "pointgrad_tests.twice.default: test_faketensor" in row.message


def test_compile_finds_different_results():
    def inconsistent(x):
        return x * 2 if torch.compiler.is_compiling() else x * 3

    def breaks_graph(x):
        return x * x.sum().item()

    row = statuses(inconsistent, floats((3,)), ["compile"])["compile"]
    assert "under torch.compile, the output differs" in row.message
    row = statuses(lambda x: breaks_graph(x.detach()) + x, floats((3,)), ["compile"])["compile"]
    assert row.status in ("warned", "passed")
