"""Functions with one bug each, which the audit must catch, and the same functions without it, which must pass."""

import ctypes
import mmap
import random
from dataclasses import dataclass

import torch
from torch import Tensor

SAVED = []


@dataclass(frozen=True)
class Planted:
    name: str
    bad: object
    good: object
    inputs: object
    rows: tuple[str, ...]  # checks, of which at least one must fail with the bug and none without it


def floats(*shapes):
    return lambda dtype, device: tuple(torch.randn(shape, dtype=dtype, device=device) for shape in shapes)


def function(forward, backward):
    """The `apply` of an autograd.Function with this forward and backward."""
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Planted", (torch.autograd.Function,), members).apply


def save(ctx, *tensors):
    ctx.save_for_backward(*tensors)


# Squares with wrong derivatives


def square(ctx, x):
    save(ctx, x)
    return x * x


good_square = function(square, lambda ctx, g: 2 * ctx.saved_tensors[0] * g)


def scaled_square(factor):
    return function(square, lambda ctx, g: factor * ctx.saved_tensors[0] * g)


ignores_upstream = function(square, lambda ctx, g: 2 * ctx.saved_tensors[0])
sign_of_upstream = function(square, lambda ctx, g: 2 * ctx.saved_tensors[0] * g.sign())
drops = function(square, lambda ctx, g: None)
zeros = function(square, lambda ctx, g: torch.zeros_like(g))


def without_the_last(g: Tensor) -> Tensor:
    mask = torch.ones_like(g)
    mask[-1, -1] = 0
    return g * mask


one_entry_forgotten = function(square, lambda ctx, g: 2 * ctx.saved_tensors[0] * without_the_last(g))


def detached(x):
    return (x * x).detach()


def square_of_no_grad(x):
    with torch.no_grad():
        y = x * x
    return y


# Matrix products


def product(ctx, a, b):
    save(ctx, a, b)
    return a @ b


def product_grads(ctx, g):
    a, b = ctx.saved_tensors
    return (g @ b.mT if ctx.needs_input_grad[0] else None), (a.mT @ g if ctx.needs_input_grad[1] else None)


good_product = function(product, product_grads)


def transposed_grads(ctx, g):
    left, right = product_grads(ctx, g)
    return left if left is None else left.mT, right


def forgets_need(ctx, g):
    a, b = ctx.saved_tensors
    return g @ b.mT, a.mT @ g


def saves_what_is_needed(ctx, a, b):
    save(ctx, b if a.requires_grad else None, a if b.requires_grad else None)
    return a @ b


def crashes_on_need(ctx, g):
    b, a = ctx.saved_tensors
    return g @ b.mT, a.mT @ g


# Raw memory access, as in a kernel


def raw(x: Tensor) -> Tensor:
    """The first numel() values in memory, ignoring the strides."""
    return torch.as_strided(x, x.shape, torch.empty(x.shape, device="meta").stride(), x.storage_offset())


def raw_forward(ctx, x):
    save(ctx, x)
    if x.device.type != "cpu":
        raise ValueError(f"x must be on the CPU, got {x.device}")
    y = torch.empty(x.shape, dtype=x.dtype)
    ctypes.memmove(y.data_ptr(), x.data_ptr(), x.numel() * x.element_size())
    return y * y


def careful_forward(ctx, x):
    return raw_forward(ctx, x.contiguous())


def raw_backward(ctx, g):
    return 2 * ctx.saved_tensors[0] * raw(g)


def careful_backward(ctx, g):
    return 2 * ctx.saved_tensors[0] * g


def viewed(ctx, x):
    save(ctx, x)
    return (x.view(-1) ** 2).view(x.shape)


# Sums in low precision


def add_up(x):
    total = torch.zeros_like(x[0])
    for row in x:
        total = total + row
    return total


def half_sum(ctx, x):
    ctx.shape = x.shape
    return add_up(x)


def float_sum(ctx, x):
    ctx.shape = x.shape
    return x.to(torch.promote_types(x.dtype, torch.float32)).sum(0).to(x.dtype)


def spread_out(ctx, g):
    return g.expand(ctx.shape)


def repeat(ctx, x):
    return x.expand(64, *x.shape).clone()


def half_product(a, b):
    total = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    for k in range(a.shape[1]):
        total = total + a[:, k, None] * b[None, k]
    return total


def overflowing_norm(x):
    return x.square().sum(-1).sqrt()


def careful_norm(x):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide.square().sum(-1).sqrt().to(x.dtype)


def large_rows(dtype, device):
    return ((torch.rand(4, 16, dtype=torch.float64) * 400 + 100).to(device, dtype),)


def through_half(x):
    return (x.half() * 2).to(x.dtype) if x.dtype == torch.float32 else x * 2


# Shared memory and in-place writes


def write_input(ctx, x):
    save(ctx, x.clone())
    y = x * x
    x.data.mul_(0.5)
    return y


def write_upstream(ctx, g):
    (x,) = ctx.saved_tensors
    return g.mul_(2 * x)


def keep_raw(ctx, x):
    ctx.x = x
    return x * x


def keep_data(ctx, x):
    ctx.x = x.data
    return x * x


def from_kept(ctx, g):
    return 2 * ctx.x * g


def write_saved(ctx, g):
    (x,) = ctx.saved_tensors
    y = 2 * x * g
    x.data.mul_(2)
    return y


SCRATCH = {}


def scratch_like(x):
    return SCRATCH.setdefault((x.shape, x.dtype), torch.empty_like(x))


def static_output(ctx, x):
    save(ctx, x)
    out = scratch_like(x)
    return torch.mul(x, x, out=out.detach())


def static_gradient(ctx, g):
    return torch.mul(2 * ctx.saved_tensors[0], g, out=scratch_like(g))


LAST = {}


def keep_on_class(ctx, x):
    LAST["x"] = x.detach().clone()
    return x * x


def from_class(ctx, g):
    return 2 * LAST["x"] * g


def partly_written(ctx, x):
    save(ctx, x)
    y = torch.empty_like(x)
    y[:-1] = x[:-1] * x[:-1]
    if not torch.are_deterministic_algorithms_enabled():
        y[-1] = x[-1] * x[-1]  # simulates memory that still holds the result of the previous call
    return y


# Races


def sometimes(chance):
    def race(x):
        y = x * x
        return y + 1e-6 if random.random() < chance else y

    return race


def random_order(x):
    return x[torch.randperm(len(x))].cumsum(0)[-1]


CALLS = [0]


def every_seventh(ctx, g):
    CALLS[0] += 1
    y = 2 * ctx.saved_tensors[0] * g
    return y * (1 + 1e-9) if CALLS[0] % 7 == 0 else y


BUFFER = {}


def shared_scratch(x):
    buffer = BUFFER.setdefault((x.shape, x.dtype), torch.zeros(x.shape, dtype=x.dtype))
    with torch.no_grad():
        buffer.copy_(x)
        for _ in range(20):
            buffer.add_(0)
    return x * x + x * (buffer - x.detach())  # the second term is zero unless another thread writes to the buffer


# Leaks


def leak_list(ctx, x):
    SAVED.append(x.detach().clone())
    return square(ctx, x)


def leak_cycle(ctx, x):
    y = x * x
    ctx.x, ctx.y = x, y
    return y


def from_cycle(ctx, g):
    return 2 * ctx.x * g


def leak_bytes(x):
    SAVED.append(bytes(10))
    return x * x


def leak_native(x):
    """Leak mapped pages; malloc might reuse memory of the process, which would then not grow."""
    allocate = ctypes.CDLL(None).mmap
    allocate.restype = ctypes.c_void_p
    allocate.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    access, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    ctypes.memset(allocate(None, 100_000, access, kind, -1, 0), 1, 100_000)
    return x * x


# Second derivatives and several outputs


def frozen_grad(ctx, g):
    return (2 * ctx.saved_tensors[0].detach() * g).detach()


def half_frozen_grad(ctx, g):
    return 2 * ctx.saved_tensors[0].detach() * g


def two_outputs(ctx, x):
    save(ctx, x)
    ctx.set_materialize_grads(False)
    return x * x, x * 3


def needs_both(ctx, g, h):
    return 2 * ctx.saved_tensors[0] * g + 3 * h


def takes_either(ctx, g, h):
    terms = ([] if g is None else [2 * ctx.saved_tensors[0] * g]) + ([] if h is None else [3 * h])
    return sum(terms) if terms else None


def swapped(ctx, g, h):
    return takes_either(ctx, h, g)


def reads_as_float(x):
    """A kernel that reads any dtype as float64 or float32."""
    y = torch.empty(x.shape, dtype=torch.float64 if x.element_size() == 8 else torch.float32)
    ctypes.memmove(y.data_ptr(), x.contiguous().data_ptr(), min(x.element_size(), 8) * x.numel())
    return y * 2


def checks_dtype(x):
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"x must be float32 or float64, got {x.dtype}")
    return x * 2


SQUARE = floats((5, 4))
PLANTED = [
    Planted("wrong sign", scaled_square(-2), good_square, SQUARE, ("gradcheck",)),
    Planted("wrong factor", scaled_square(1), good_square, SQUARE, ("gradcheck",)),
    Planted("slightly wrong factor", scaled_square(2.02), good_square, SQUARE, ("gradcheck",)),
    Planted("gradient dropped", drops, good_square, SQUARE, ("gradcheck",)),
    Planted("gradient zero", zeros, good_square, SQUARE, ("gradcheck",)),
    Planted("one entry forgotten", one_entry_forgotten, good_square, SQUARE, ("gradcheck",)),
    Planted("detached", detached, good_square, SQUARE, ("gradcheck",)),
    Planted("forward without gradients", square_of_no_grad, good_square, SQUARE, ("gradcheck",)),
    Planted("gradient dropped for one of two",
            function(product, lambda ctx, g: (g @ ctx.saved_tensors[1].mT, None)), good_product,
            floats((4, 4), (4, 4)), ("gradcheck",)),
    Planted("transposed gradient", function(product, transposed_grads), good_product, floats((4, 4), (4, 4)), ("gradcheck",)),
    Planted("transposed gradient of another shape", function(product, transposed_grads), good_product,
            floats((4, 3), (3, 4)), ("runs",)),
    Planted("upstream ignored", ignores_upstream, good_square, SQUARE, ("upstream",)),
    Planted("only the sign of upstream", sign_of_upstream, good_square, SQUARE, ("upstream",)),
    Planted("needs_input_grad forgotten", function(product, forgets_need), good_product, floats((4, 3), (3, 2)), ("needs_input_grad",)),
    Planted("needs_input_grad forgotten, crash", function(saves_what_is_needed, crashes_on_need), good_product,
            floats((4, 3), (3, 2)), ("needs_input_grad",)),
    Planted("missing contiguous", function(raw_forward, careful_backward), function(careful_forward, careful_backward), SQUARE, ("layouts",)),
    Planted("missing contiguous in backward", function(careful_forward, raw_backward), function(careful_forward, careful_backward), SQUARE, ("layouts",)),
    Planted("view instead of reshape", function(viewed, careful_backward), good_square, SQUARE, ("layouts",)),
    Planted("float16 sum", function(half_sum, spread_out), function(float_sum, spread_out), floats((64, 3)), ("dtypes",)),
    Planted("float16 sum of ones", function(half_sum, spread_out), function(float_sum, spread_out),
            lambda dtype, device: (torch.ones(3000, 2, dtype=dtype),), ("dtypes",)),
    Planted("float16 sum in backward", function(repeat, lambda ctx, g: add_up(g)), function(repeat, lambda ctx, g: g.sum(0)), floats((5,)), ("dtypes",)),
    Planted("float16 product", half_product, torch.matmul, floats((3, 128), (128, 2)), ("dtypes",)),
    Planted("float16 overflow", overflowing_norm, careful_norm, large_rows, ("dtypes",)),
    Planted("float32 through float16", through_half, lambda x: x * 2, SQUARE, ("dtypes",)),
    Planted("output is the input", function(lambda ctx, x: x, lambda ctx, g: g), function(lambda ctx, x: x.clone(), lambda ctx, g: g), SQUARE, ("aliasing",)),
    Planted("output is a view of the input", function(lambda ctx, x: x.view(-1), lambda ctx, g: g.view(5, 4)), lambda x: x.reshape(-1), SQUARE, ("aliasing",)),
    Planted("output shares raw memory", lambda x: torch.from_numpy(x.detach().numpy()), lambda x: x + 0, SQUARE, ("aliasing",)),
    Planted("input written", function(write_input, careful_backward), good_square, SQUARE, ("in-place",)),
    Planted("upstream written", function(square, write_upstream), good_square, SQUARE, ("in-place",)),
    Planted("saved written", function(square, write_saved), good_square, SQUARE, ("in-place",)),
    Planted("kept on ctx", function(keep_raw, from_kept), good_square, SQUARE, ("in-place",)),
    Planted("kept as data", function(keep_data, from_kept), good_square, SQUARE, ("in-place",)),
    Planted("static output", function(static_output, careful_backward), good_square, SQUARE, ("interleaved",)),
    Planted("static gradient", function(square, static_gradient), good_square, SQUARE, ("interleaved",)),
    Planted("kept on the class", function(keep_on_class, from_class), good_square, SQUARE, ("interleaved",)),
    Planted("partly written", function(partly_written, careful_backward), good_square, SQUARE, ("uninitialized",)),
    Planted("race", sometimes(0.2), good_square, SQUARE, ("determinism",)),
    Planted("rare race", sometimes(0.03), good_square, SQUARE, ("determinism",)),
    Planted("race in backward", function(square, every_seventh), good_square, SQUARE, ("determinism",)),
    Planted("sum in random order", random_order, lambda x: x.sum(0), floats((50, 2)), ("determinism",)),
    Planted("shared scratch", shared_scratch, good_square, floats((50, 40)), ("threads",)),
    Planted("leak in a list", function(leak_list, careful_backward), good_square, SQUARE, ("leaks",)),
    Planted("leak in a cycle", function(leak_cycle, from_cycle), good_square, SQUARE, ("leaks",)),
    Planted("leak of Python objects", leak_bytes, good_square, SQUARE, ("leaks",)),
    Planted("leak of native memory", leak_native, good_square, SQUARE, ("leaks",)),
    Planted("second derivative frozen", function(square, frozen_grad), good_square, SQUARE, ("gradgradcheck",)),
    Planted("second derivative half frozen", function(square, half_frozen_grad), good_square, SQUARE, ("gradgradcheck",)),
    Planted("undefined gradients", function(two_outputs, needs_both), function(two_outputs, takes_either), SQUARE, ("gradcheck", "upstream")),
    Planted("swapped gradients", function(two_outputs, swapped), function(two_outputs, takes_either), SQUARE, ("gradcheck",)),
    Planted("reads any dtype as float", reads_as_float, checks_dtype, lambda dtype, device: (torch.rand(4, 3, dtype=dtype) + 1,), ("wrong dtype", "dtypes")),
]  # fmt: skip
