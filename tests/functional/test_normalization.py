"""Normalization: running statistics, special values, dtypes, and the example worked out by hand."""

import copy

import pytest
import torch
import torch.nn.functional as F

import pointgrad.functional as P

NORMS = {
    "group": lambda f, x: f.group_norm(x, 2),
    "layer": lambda f, x: f.layer_norm(x, x.shape[1:]),
    "batch": lambda f, x: f.batch_norm(x, None, None, training=True),
}
each_norm = pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)


@pytest.mark.parametrize("dtypes", [(torch.float64, torch.float64), (torch.bfloat16, torch.float32)], ids=str)
def test_running_statistics(dtypes):
    """Three updates, then evaluation, with momenta of 0.1 and 0.3; torch's own are the reference."""
    ours = [torch.randn(3, dtype=dtypes[1]), torch.rand(3, dtype=dtypes[1]) + 0.5]
    theirs = copy.deepcopy(ours)
    for momentum in (0.1, 0.3, 1.0):
        x = (5 + 2 * torch.randn(4, 3, 2)).to(dtypes[0])
        for function, statistics in ((P, ours), (F, theirs)):
            function.batch_norm(x, *statistics, training=True, momentum=momentum)
        torch.testing.assert_close(ours, theirs)
    x = torch.randn(4, 3, 2).to(dtypes[0])
    torch.testing.assert_close(P.batch_norm(x, *ours), F.batch_norm(x, *theirs))


def test_running_statistics_are_constants():
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    statistics = [torch.ones(3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    out = P.batch_norm(x, *statistics)
    (gradient, *others) = torch.autograd.grad(out.sum(), [x, *statistics], allow_unused=True)
    assert others == [None, None]
    torch.testing.assert_close(gradient, torch.full_like(x, (1 + 1e-5) ** -0.5))


def test_running_statistics_do_not_keep_the_graph():
    mean, var = torch.zeros(3), torch.ones(3)
    P.batch_norm(torch.randn(4, 3, requires_grad=True), mean, var, training=True).sum().backward()
    assert mean.grad_fn is None
    assert not mean.requires_grad


def test_compiled_training_step_updates_running_statistics():
    ours, theirs = ([torch.zeros(3), torch.ones(3)] for _ in range(2))
    x = torch.randn(4, 3)
    compiled = torch.compile(P.batch_norm, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, *ours, training=True), F.batch_norm(x, *theirs, training=True))
    torch.testing.assert_close(ours, theirs)


@each_norm
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_constant_input_gives_zeros_and_finite_gradients(norm, dtype):
    x = torch.full((3, 4, 5), 300.0, dtype=dtype, requires_grad=True)
    y = norm(P, x)
    assert not y.count_nonzero()
    (gradient,) = torch.autograd.grad(y, x, torch.randn(y.shape, dtype=dtype), create_graph=True)
    assert gradient.isfinite().all()


@each_norm
def test_large_mean(norm):
    """The variance is that of differences from the mean: E[x^2] - E[x]^2 would cancel."""
    x = torch.randn(8, 4, 64) + 1e4
    torch.testing.assert_close(norm(P, x).double(), norm(F, x.double()), rtol=1e-4, atol=2e-3)


@each_norm
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_infinity_and_nan_agree_with_torch(norm, bad):
    x = torch.randn(4, 4, 5)
    x[1, 2, 3] = bad
    torch.testing.assert_close(norm(P, x), norm(F, x), equal_nan=True)


def test_shift_and_scale_of_the_input_change_nothing():
    x = torch.randn(3, 4, 50, dtype=torch.float64, requires_grad=True)
    y = P.group_norm(x, 2, eps=0.0)
    torch.testing.assert_close(P.group_norm(7 * x + 3, 2, eps=0.0), y)
    (gradient,) = torch.autograd.grad(y, x, torch.randn_like(y))
    groups, values = gradient.reshape(3, 2, -1), x.reshape(3, 2, -1)
    torch.testing.assert_close(groups.sum(-1), torch.zeros(3, 2, dtype=torch.float64))
    torch.testing.assert_close((groups * values).sum(-1), torch.zeros(3, 2, dtype=torch.float64))


def test_no_samples():
    mean, var = torch.zeros(3), torch.ones(3)
    assert P.batch_norm(torch.zeros(0, 3), mean, var, training=True).shape == (0, 3)
    assert mean.tolist() == [0, 0, 0]
    weight = torch.ones(3, requires_grad=True)
    P.batch_norm(torch.zeros(0, 3), None, None, weight, training=True).sum().backward()
    P.group_norm(torch.zeros(2, 3, 0), 1, weight).sum().backward()  # NaN in torch
    assert weight.grad.tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ["group", "layer", "batch"])
def test_float32_parameters_with_16_bit_inputs(name):
    """As mixed-precision training passes them."""
    x = torch.randn(4, 6, 5).bfloat16().requires_grad_()
    weight, bias = torch.randn(6, requires_grad=True), torch.randn(6, requires_grad=True)
    call = {
        "group": lambda f, x: f.group_norm(x, 2, weight, bias),
        "layer": lambda f, x: f.layer_norm(x.mT, (6,), weight, bias).mT,
        "batch": lambda f, x: f.batch_norm(x, None, None, weight, bias, True),
    }[name]
    y = call(P, x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), call(F, x.float()), rtol=1e-2, atol=1e-2)
    dx, dw, db = torch.autograd.grad(y, (x, weight, bias), torch.ones_like(y))
    assert (dx.dtype, dw.dtype, db.dtype) == (torch.bfloat16, torch.float32, torch.float32)


@each_norm
def test_results_do_not_depend_on_the_number_of_threads(norm):
    x = torch.randn(1, 2, 50_000)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            source = x.clone().requires_grad_()
            y = norm(P, source)
            found.append((y.detach(), *torch.autograd.grad(y, source, x.flip(-1))))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_eight_channels_in_two_groups():
    """Channels 1 to 8 of one point: both groups of four become the same four numbers."""
    x = torch.arange(1.0, 9.0)[None].double().requires_grad_()
    y = P.group_norm(x, 2)
    expected = torch.tensor([-1.5, -0.5, 0.5, 1.5]).double() / (1.25 + 1e-5) ** 0.5
    torch.testing.assert_close(y, expected.repeat(1, 2))
