"""The contract of an operator (CONTRIBUTING.md), for every sample in the catalogue."""

import math
import multiprocessing
import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import pointgrad
from pointgrad.catalog import CASES, Case, Make, first_float
from pointgrad.ops.gather.cpu import gather as gather_on_cpu

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
FIRST_CASES = list({case.op.name: case for case in reversed(CASES)}.values())
LARGE = [case for case in CASES if case.sample.large]


def _each(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


every_case = _each(CASES)
every_kernel = _each([case for case in CASES if case.op.registered])
every_differentiable = _each([case for case in CASES if case.differentiable])
every_large = _each(LARGE)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


def converted(arguments, change):
    """The arguments with every floating tensor changed."""
    return {
        name: change(value) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in arguments.items()
    }


def output_of(case: Case, arguments) -> Tensor:
    """The output that is differentiated."""
    return first_float(case(arguments))


def gradients(case: Case, arguments, upstream=None):
    """Gradients of all differentiable inputs, under a random upstream gradient if none is given."""
    sources = case.op.sources(arguments)
    output = output_of(case, {**arguments, **sources})
    upstream = torch.randn_like(output) if upstream is None else upstream
    return torch.autograd.grad(output, list(sources.values()), upstream)


def assert_same(received, expected):
    assert len(received) == len(expected)
    for actual, desired in zip(received, expected, strict=True):
        torch.testing.assert_close(actual, desired, rtol=0, atol=0, equal_nan=True)


def rounding_of_sums(inputs, dtype) -> float:
    """Rounding error of a sum in `dtype` with at most as many terms as there are inputs."""
    tensors = [value for value in inputs if isinstance(value, Tensor) and value.numel()]
    floats = [value.double() for value in tensors if value.is_floating_point()]
    terms = max((value.numel() for value in floats), default=0)
    magnitude = math.prod(max(value.abs().max().item(), 1) for value in floats)
    return terms * torch.finfo(dtype).eps * magnitude


def assert_repeats(case: Case, place, received, expected):
    """Asserts that two calls with equal input returned the same bits, where the order of sums is fixed."""
    # On a GPU the order is not fixed in plain PyTorch's index_add either.
    if (case.sample.any_order and place.backend == "triton") or place == ("cuda", "reference"):
        allowed = rounding_of_sums(case.sample.build(Make()).values(), torch.float32)
        torch.testing.assert_close(received, expected, rtol=1.3e-6, atol=max(allowed, 1e-5))
    else:
        assert_same(received, expected)


def assert_as_precise(received: Tensor, reference: Tensor, truth: Tensor, inputs):
    """Asserts an error of at most twice the reference's in the same precision, both against float64.

    Because the reference's error may be zero by chance, one rounding of the result is added, and the rounding of a sum
    in the accumulation precision with at most as many terms as there are inputs.
    """
    assert received.dtype == reference.dtype
    assert received.shape == reference.shape
    finite = truth.isfinite()
    torch.testing.assert_close(received[~finite].double(), truth[~finite], rtol=0, atol=0, equal_nan=True)
    received, reference, truth = received[finite], reference[finite], truth[finite]
    if not truth.numel():
        return
    rounding = torch.finfo(received.dtype).eps * truth.abs().max()
    rounding += rounding_of_sums(inputs, torch.promote_types(received.dtype, torch.float32))
    allowed = 2 * (reference.double() - truth).norm() + rounding
    assert (received.double() - truth).norm() <= allowed


@every_dtype
@every_kernel
def test_agrees_with_reference(case, dtype, kernel_place):
    """Results, and the gradients of all differentiable arguments."""
    arguments = case.sample.build(Make(dtype, kernel_place.device))
    with pointgrad.backend("reference"):
        if not case.differentiable:
            expected = case(arguments)
        else:
            upstream = torch.randn_like(output_of(case, arguments))
            expected = case.with_gradients(arguments, upstream)
            truth = case.with_gradients(converted(arguments, Tensor.double), upstream.double())
    if not case.differentiable:
        assert_same(case(arguments), expected)
        return
    received = case.with_gradients(arguments, upstream)
    for number, (actual, desired, exact) in enumerate(zip(received, expected, truth, strict=True)):
        is_gradient = number >= len(received) - len(case.differentiable)
        if actual.is_floating_point():
            inputs = [*arguments.values(), *([upstream] if is_gradient else [])]
            assert_as_precise(actual, desired, exact, inputs)
        else:
            assert_same([actual], [desired])


def first_and_second(call, values):
    """Gradients under a random upstream gradient, and second derivatives under another."""
    torch.manual_seed(4)
    output = call(*values)
    first = torch.autograd.grad(output, values, torch.randn_like(output), create_graph=True)
    live = [grad for grad in first if grad.requires_grad]
    upstream = [torch.randn_like(grad) for grad in live]
    second = torch.autograd.grad(live, values, upstream, allow_unused=True) if live else ()
    return [grad.detach() for grad in (*first, *second) if grad is not None]


@every_differentiable
def test_gradcheck_and_gradgradcheck(case, place):
    arguments = case.sample.build(Make(torch.float64, place.device))
    sources = case.op.sources(arguments)

    def call(*values):
        output = output_of(case, {**arguments, **dict(zip(sources, values, strict=True))})
        return output[output.isfinite()]  # infinite distances are padding

    values = tuple(sources.values())
    if not case.sample.smooth or not all(value.numel() for value in values):
        # Finite differences do not hold or there is nothing to differentiate; the graph must still run.
        assert all(g.shape == v.shape for g, v in zip(gradients(case, arguments), values, strict=True))
        return
    if not place.is_default:
        # Finite differences take long: compare with the derivatives of the default backend, which pass gradcheck.
        received = first_and_second(call, values)
        with pointgrad.backend(place.default_backend):
            expected = first_and_second(call, values)
        torch.testing.assert_close(received, expected)
        return
    assert torch.autograd.gradcheck(call, values, nondet_tol=place.nondet_tol)
    assert torch.autograd.gradgradcheck(call, values, nondet_tol=place.nondet_tol)


class RecordOperators(TorchDispatchMode):
    """Records every call of a pointgrad operator, including those of backward passes."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "pointgrad":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def operator_calls(case: Case, arguments):
    sources = case.op.sources(arguments)
    with RecordOperators() as record:
        results = case({**arguments, **sources})
        if sources:
            output, values = first_float(results), list(sources.values())
            grads = torch.autograd.grad(output, values, torch.randn_like(output), create_graph=True)
            live = [grad for grad in grads if grad.requires_grad]
            torch.autograd.grad(live, values, [torch.randn_like(g) for g in live], allow_unused=True)
    return record.calls


# torch 2.15 warns about tensors in its own checks.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.interpreted_once
@every_case
def test_opcheck(case, place):
    calls = operator_calls(case, case.sample.build(Make(torch.float32, place.device)))
    assert calls or not case.op.registered
    # Tracing depends neither on the backend nor on the values: all checks run once per operator and device, those of a
    # kernel's results run for every case and backend (test_compile traces every case).
    all_checks = place.is_default and case in FIRST_CASES
    checks = {} if all_checks else {"test_utils": ("test_schema", "test_faketensor")}
    for op, args in {op: (op, args) for op, args in calls}.values():  # each operator once
        fresh = [
            arg.detach().clone().requires_grad_(bool(case.differentiable) and arg.is_floating_point())
            if isinstance(arg, Tensor)
            else arg
            for arg in args
        ]
        torch.library.opcheck(op, tuple(fresh), **checks)


@every_case
# The number of packed voxels depends on the data.
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_compile(case, default_place):
    arguments = case.sample.build(Make(torch.float32, default_place.device))
    torch._dynamo.reset()
    fast = replace(case, call=torch.compile(case.call, fullgraph=True, backend="aot_eager"))
    if not case.differentiable:
        assert_repeats(case, default_place, fast(arguments), case(arguments))
        return
    upstream = torch.randn_like(output_of(case, arguments))
    expected = case.with_gradients(arguments, upstream)
    received = fast.with_gradients(arguments, upstream)
    results = len(expected) - len(case.differentiable)
    assert_repeats(case, default_place, received[:results], expected[:results])
    for actual, desired in zip(received[results:], expected[results:], strict=True):
        torch.testing.assert_close(actual, desired)


@every_case
def test_export(case, default_place):
    arguments = case.sample.build(Make(torch.float32, default_place.device))

    class Module(torch.nn.Module):
        def forward(self, **inputs):
            return case.call(**fixed, **inputs)

    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    fixed = {name: value for name, value in arguments.items() if name not in tensors}
    program = torch.export.export(Module(), (), tensors)
    exported = replace(case, call=lambda **_: program.module()(**tensors))
    assert_repeats(case, default_place, exported(arguments), case(arguments))


@every_case
def test_autocast_changes_nothing_or_lowers(case, default_place):
    arguments = case.sample.build(Make(torch.float32, default_place.device))
    lowered = converted(arguments, Tensor.bfloat16) if case.op.lowers else arguments
    expected = case(lowered)
    with torch.autocast(default_place.device, torch.bfloat16):
        assert_repeats(case, default_place, case(arguments), expected)


def strided(value: Tensor) -> Tensor:
    """Equal values with gaps between them in memory."""
    if value.dim() == 0:
        return value
    wide = value.new_zeros(*value.shape[:-1], 2 * value.shape[-1] + 1)
    wide[..., 1::2] = value
    return wide[..., 1::2]


@pytest.mark.interpreted_once
@every_case
def test_non_contiguous(case, place):
    arguments = case.sample.build(Make(torch.float32, place.device))
    gaps = {name: strided(value) if isinstance(value, Tensor) else value for name, value in arguments.items()}
    assert_repeats(case, place, case(gaps), case(arguments))
    if case.differentiable:
        upstream = torch.randn_like(output_of(case, arguments))
        expected = gradients(case, arguments, upstream)
        received = gradients(case, gaps, strided(upstream))
        for actual, desired in zip(received, expected, strict=True):
            torch.testing.assert_close(actual, desired)


@pytest.mark.interpreted_once
@every_case
def test_expanded(case, place):
    arguments = case.sample.build(Make(torch.float32, place.device))
    expanded = converted(
        arguments,
        lambda value: value.narrow(0 if value.dim() == 1 else -2, 0, 1).expand_as(value) if value.numel() else value,
    )
    solid = converted(expanded, Tensor.contiguous)
    assert_repeats(case, place, case(expanded), case(solid))
    if case.differentiable:
        # As the gradient of sum(): expanded from a single number.
        ones = torch.ones_like(output_of(case, solid))
        expected = gradients(case, solid, ones)
        received = gradients(case, solid, torch.ones(()).to(ones).expand_as(ones))
        for actual, desired in zip(received, expected, strict=True):
            torch.testing.assert_close(actual, desired)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")], ids=["nan", "inf", "-inf"])
@every_kernel
def test_nan_and_infinity(case, poison, kernel_place):
    def poisoned(value):
        value = value.clone()
        value.view(-1)[torch.rand(value.numel()) < 0.1] = poison
        return value

    finite = case.sample.build(Make(torch.float32, kernel_place.device))
    arguments = {**converted(finite, poisoned), **{name: finite[name] for name in case.op.finite}}
    received = case(arguments)
    with pointgrad.backend("reference"):
        expected = case(arguments)
    for actual, desired in zip(received, expected, strict=True):
        torch.testing.assert_close(actual, desired, equal_nan=True)


@pytest.mark.interpreted_once
@every_case
def test_writes_every_element(case, place):
    """In deterministic mode torch fills new memory with NaN or the largest integer."""
    arguments = case.sample.build(Make(torch.float32, place.device))
    expected = case(arguments)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        received = case(arguments)
        grads = gradients(case, arguments) if case.differentiable else ()
    finally:
        torch.use_deterministic_algorithms(False)
    assert_repeats(case, place, received, expected)
    assert all(grad.isfinite().all() for grad in grads)


def indexed(case):
    arguments = case.sample.build(Make())
    return case.op.index_rows(arguments) is not None and arguments["index"].numel() > 0


@pytest.mark.parametrize("bad", ["end", -2, 2**40])
@_each([case for case in CASES if indexed(case)])
def test_index_out_of_range(case, bad, checked_place):
    """A ValueError on the CPU; treated as -1 on a GPU, where values are not read on the host."""
    arguments = case.sample.build(Make(device=checked_place.device))
    index = arguments["index"].to(torch.int64, copy=True)
    index.view(-1)[0] = case.op.index_rows(arguments) if bad == "end" else bad
    if checked_place.device == "cpu":
        with pytest.raises(ValueError, match="index must be -1 or in"):
            case({**arguments, "index": index})
        return
    received = case({**arguments, "index": index})
    index.view(-1)[0] = -1
    assert_repeats(case, checked_place, received, case({**arguments, "index": index}))


def test_compiled_once_for_all_sizes():
    """Sizes stay symbolic in the checks: no specialization, no recompilation."""
    fps, trilinear, gather = pointgrad.farthest_point_sampling, pointgrad.trilinear, pointgrad.gather
    calls = {
        trilinear: lambda n: (torch.rand(n, 8, 2), torch.rand(n, 3)),
        gather: lambda n: (torch.rand(n, 3), torch.arange(n - 2)),
        (lambda p, lengths: fps(p, 2, lengths=lengths, start="random")): lambda n: (
            torch.rand(n, 9, 3),
            torch.full((n,), 9),
        ),
        (lambda p, start: fps(p, 3, start=start)): lambda n: (torch.rand(n, 9, 3), torch.zeros(n, dtype=torch.int64)),
    }
    for call, inputs in calls.items():
        torch._dynamo.reset()
        compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
        compiled(*inputs(6))
        with torch._dynamo.config.patch(error_on_recompile=True):
            for size in (7, 11, 30):
                assert_same([compiled(*inputs(size))[..., :0]], [call(*inputs(size))[..., :0]])


def test_all_threads_flush_denormals_alike():
    points = torch.rand(16, 900, 3) * 1e-21
    before = torch.get_num_threads()
    torch.set_flush_denormal(True)
    try:
        torch.set_num_threads(4)
        several = [pointgrad.farthest_point_sampling(points, 40) for _ in range(4)]
        torch.set_num_threads(1)
        alone = pointgrad.farthest_point_sampling(points, 40)
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)
    assert all(torch.equal(picks, alone) for picks in several)


@every_large
def test_threads_do_not_change_bits(case):
    arguments = case.sample.large(Make())

    def results(threads):
        torch.set_num_threads(threads)
        return case.with_gradients(arguments)

    before = torch.get_num_threads()
    try:
        alone, pair, many = results(1), results(2), results(7)
    finally:
        torch.set_num_threads(before)
    assert_same(pair, alone)
    assert_same(many, alone)


class CallsEachCase(torch.utils.data.Dataset):
    def __len__(self):
        return len(LARGE)

    def __getitem__(self, number):
        torch.manual_seed(3)
        return [result.numpy() for result in LARGE[number](LARGE[number].sample.large(Make()))]


def quiet_fork():
    """Ignores the warning of Python 3.12 about forking a process with threads, which is what is tested."""
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)


@pytest.mark.parametrize(("start", "workers"), [("fork", 2), ("spawn", 1)])
def test_data_loader_workers(start, workers):
    """Workers start after the parent has used its threads."""
    quiet_fork()
    data = CallsEachCase()
    expected = [data[number] for number in range(len(data))]
    context = multiprocessing.get_context(start)
    options = {"num_workers": workers, "timeout": 120, "multiprocessing_context": context}
    received = list(torch.utils.data.DataLoader(data, batch_size=None, **options))
    for actual, desired in zip(received, expected, strict=True):
        assert_same([torch.as_tensor(m) for m in actual], [torch.as_tensor(t) for t in desired])


def kernel_in_child(channel, features, index):
    # Calls the kernel directly: torch's own parallel loops would hang in a forked child.
    torch.set_num_threads(2)
    channel.put(float(gather_on_cpu(features, index).numpy().sum()))


def test_threads_of_a_forked_child():
    quiet_fork()
    features, index = torch.ones(500, 64), torch.randint(0, 500, (20000,))
    assert gather_on_cpu(features, index).sum() == 20000 * 64  # starts the parent's threads
    context = multiprocessing.get_context("fork")
    channel = context.SimpleQueue()
    child = context.Process(target=kernel_in_child, args=(channel, features, index))
    child.start()
    child.join(60)
    hung = child.is_alive()
    child.kill()
    assert not hung
    assert channel.get() == 20000 * 64
