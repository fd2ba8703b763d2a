"""The operator as a user calls it: numbers worked out by hand, derivatives, registration and errors."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from my_operator import my_operator
from my_operator.function import Trilinear
# [cpp]
from my_operator.kernels import has_kernel
# [/cpp]
from my_operator.reference import forward

FORMS = pytest.mark.parametrize("form", [my_operator, Trilinear.apply], ids=["operator", "function"])


def make_inputs(dtype=torch.float64, device="cpu"):
    """Points inside, outside and at corners of their cells."""
    torch.manual_seed(0)
    points = torch.rand(5, 3, dtype=torch.float64) * 3 - 1.5
    points[0], points[1, 0] = 1, -1
    corners = torch.randn(5, 8, 2, dtype=torch.float64)
    return tuple(value.to(device, dtype).requires_grad_() for value in (corners, points))


@FORMS
def test_one_number_by_hand(form):
    """p = (0.5, -0.5, 0) has the shares (3/4, 1/4, 1/2). Corner 5 is x = 1, y = 0, z = 1."""
    corners = torch.zeros(1, 8, 1, dtype=torch.float64)
    corners[0, 5] = 1
    points = torch.tensor([[0.5, -0.5, 0.0]], dtype=torch.float64)
    corners.requires_grad_()
    points.requires_grad_()
    out = form(corners, points)
    assert out.item() == 3 / 4 * (1 - 1 / 4) * 1 / 2
    for_corners, for_points = torch.autograd.grad(out, (corners, points), torch.full_like(out, 2))
    assert for_corners[0, 5].item() == 2 * 9 / 32
    assert for_corners[0, 0].item() == 2 * (1 / 4 * 3 / 4 * 1 / 2)
    # u (1 - v) w with u = (p + 1) / 2: by x (1 - v) w / 2, by y -u w / 2, by z u (1 - v) / 2.
    assert for_points.tolist() == [[2 * 3 / 16, -2 * 3 / 16, 2 * 9 / 32]]


@FORMS
def test_first_and_second_derivatives(form):
    """At the default tolerances. A looser one would hide a wrong factor."""
    corners, points = make_inputs()
    assert gradcheck(form, (corners, points))
    assert gradgradcheck(form, (corners, points))
    for only_corners, only_points in ((corners, points.detach()), (corners.detach(), points)):
        assert gradcheck(form, (only_corners, only_points))
        assert gradgradcheck(form, (only_corners, only_points))


def test_both_forms_agree():
    corners, points = make_inputs()
    results = [form(corners, points) for form in (my_operator, Trilinear.apply)]
    torch.testing.assert_close(*results)
    upstream = torch.randn_like(results[0])  # not ones: a backward that ignores its argument would look correct
    torch.testing.assert_close(*(torch.autograd.grad(out, (corners, points), upstream) for out in results))


def test_registration():
    """The schema, the fake, autograd, and tracing with unknown sizes."""
    pytest.importorskip("expecttest", reason="torch.library.opcheck needs it: pip install expecttest")
    corners, points = make_inputs()
    grad = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    forward = torch.ops.my_operator.my_operator.default
    backward = torch.ops.my_operator.my_operator_backward.default
    torch.library.opcheck(forward, (corners, points))
    torch.library.opcheck(backward, (grad, corners, points, True))
    torch.library.opcheck(backward, (grad, None, points, True))


# The backend traces like the default one, but needs no compiler.
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic):
    def loss(corners, points):
        return my_operator(corners, points).square().sum()

    inputs = make_inputs()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    received = torch.autograd.grad(compiled(*inputs), inputs)
    torch.testing.assert_close(received, torch.autograd.grad(loss(*inputs), inputs))


def test_only_what_is_needed_is_saved():
    """The gradient of the corners does not need the corners."""
    corners, points = make_inputs()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.shape) or x, lambda x: x):
        my_operator(corners, points.detach())
    assert saved == [points.shape]


@pytest.mark.parametrize(
    ("error", "message", "changed"),
    [
        (TypeError, r"corners must be a tensor, got list", {"corners": [1.0]}),
        (ValueError, r"corners must be \(N, 8, F\), got \(5, 7, 2\)", {"corners": torch.rand(5, 7, 2)}),
        (ValueError, r"points must be \(N, 3\) with N = 5, got \(4, 3\)", {"points": torch.rand(4, 3)}),
        (ValueError, r"corners must be float64, .* got torch.int64", {"corners": torch.ones(5, 8, 2).long()}),
        (ValueError, r"points must have the dtype of corners, torch.float64, got", {"points": torch.rand(5, 3)}),
        (ValueError, r"points must be on the device of corners, cpu, got meta", {"points": "meta"}),
    ],
)
def test_errors(error, message, changed):
    corners, points = make_inputs()
    if changed.get("points") == "meta":
        changed = {"points": points.to("meta")}
    with pytest.raises(error, match=message):
        my_operator(**{"corners": corners, "points": points, **changed})


# [cpp]
def test_kernels_check_their_inputs():
    """A program can call the registered operator directly. Nothing may be read outside a tensor."""
    if not has_kernel("cpu"):
        pytest.skip("the C++ kernel is not built")
    corners, points = (value.detach() for value in make_inputs())
    for wrong in ((corners[:, :7], points), (corners, points[:4]), (corners, points.float()), (corners, points[:, 0])):
        with pytest.raises(RuntimeError, match="must"):
            torch.ops.my_operator.my_operator(*wrong)
    grad = torch.rand(5, 2, dtype=torch.float64)
    for wrong in ((grad[0], corners, points), (grad[:4], corners, points), (grad, corners[:4], points)):
        with pytest.raises(RuntimeError, match="must"):
            torch.ops.my_operator.my_operator_backward(*wrong, True)


# [/cpp]
def test_audit():
    """About twenty properties of a correct operator: layouts, aliasing, precision, threads, leaks and others."""
    inspect = pytest.importorskip("pointgrad.inspect", reason="pointgrad is not installed: pip install pointgrad")

    def plain(corners, points):
        assert corners.shape[1] == 8, "the multiplication would broadcast a single corner"
        return forward(corners, points)

    report = inspect.audit(my_operator, make_inputs, reference=plain)
    assert report.ok, str(report)
