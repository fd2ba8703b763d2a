"""Functions of pointgrad.compat.flash_attn compared with a loop over queries."""

import pytest
import torch

from pointgrad.compat import flash_attn
from tests.compat.precision import assert_no_worse

LENGTHS = {
    "equal": ([4, 4, 4], [4, 4, 4]),
    "equal, more keys": ([2, 2], [5, 5]),
    "different": ([3, 1, 4, 1], [2, 6, 4, 6]),
    "empty sequences": ([0, 3, 2, 0], [2, 0, 2, 0]),
    "no keys": ([3, 1], [0, 0]),
    "no sequence": ([], []),
    "no rows": ([0, 0], [0, 0]),
}
MASKS = {
    "all": {},
    "causal": {"causal": True},
    "window": {"window_size": (1, 0)},
    "causal window": {"causal": True, "window_size": (2, 5), "softmax_scale": 0.7},
    "left": {"window_size": (0, -1)},
    "right": {"window_size": (-1, 1)},
}


def starts(lengths, device="cpu"):
    return torch.tensor([0, *lengths], device=device).cumsum(0).int()


def rows(lengths, *size, dtype=torch.float64, device="cpu", seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(sum(lengths), *size, generator=generator, dtype=torch.float64)
    return values.to(dtype).to(device).requires_grad_()


def loop(q, k, v, lengths_q, lengths_k, causal=False, window_size=(-1, -1), softmax_scale=None):
    """Attention of one query of one head after another."""
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    left, right = window_size
    if causal:
        right = 0
    repeat = q.shape[1] // k.shape[1] if k.shape[1] else 1
    outs = []
    for length_q, length_k, queries, keys, values in zip(
        lengths_q, lengths_k, q.split(lengths_q), k.split(lengths_k), v.split(lengths_k), strict=True
    ):
        for i in range(length_q):
            at = i + length_k - length_q
            seen = [j for j in range(length_k) if (left < 0 or j >= at - left) and (right < 0 or j <= at + right)]
            for head in range(q.shape[1]):
                scores = keys[seen, head // repeat] @ queries[i, head] * scale
                outs.append(scores.softmax(0) @ values[seen, head // repeat])
    return torch.stack(outs).reshape(q.shape) if outs else q * 1


def compare(out, expected, inputs):
    """Outputs, and gradients for a random upstream gradient."""
    torch.testing.assert_close(out, expected)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(out)
    got = torch.autograd.grad(out, inputs, upstream)
    wanted = torch.autograd.grad(expected, inputs, upstream, allow_unused=True, retain_graph=True)
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, torch.zeros_like(ours) if theirs is None else theirs)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize(("lengths_q", "lengths_k"), LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("heads_k", [4, 2, 1])
def test_sequences(lengths_q, lengths_k, mask, heads_k, device):
    q = rows(lengths_q, 4, 3, device=device)
    k, v = (rows(lengths_k, heads_k, 3, device=device, seed=seed) for seed in (1, 2))
    expected = loop(q, k, v, lengths_q, lengths_k, **mask)
    sizes = starts(lengths_q, device), starts(lengths_k, device), max(lengths_q, default=0), max(lengths_k, default=0)
    compare(flash_attn.flash_attn_varlen_func(q, k, v, *sizes, **mask), expected, (q, k, v))
    kv = torch.stack([k, v], 1)
    compare(flash_attn.flash_attn_varlen_kvpacked_func(q, kv, *sizes, **mask), expected, (q, k, v))


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("lengths", [[4, 4], [3, 0, 5, 3, 1], []], ids=str)
def test_packed_qkv(lengths, mask, device):
    """Also with a bound on the lengths that no sequence reaches, given as a tensor."""
    qkv = rows(lengths, 3, 2, 8, device=device)
    expected = loop(*qkv.unbind(1), lengths, lengths, **mask)
    for longest in (max(lengths, default=0), torch.tensor(9)):
        out = flash_attn.flash_attn_varlen_qkvpacked_func(qkv, starts(lengths, device), longest, **mask)
        compare(out, expected, [qkv])


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("sizes", [(2, 4, 4), (2, 3, 5), (1, 5, 2), (0, 2, 2), (2, 0, 3)], ids=str)
def test_padded(sizes, mask, device):
    batch, length_q, length_k = sizes
    q = rows([length_q] * batch, 4, 3, device=device)
    k, v = (rows([length_k] * batch, 2, 3, device=device, seed=seed) for seed in (1, 2))
    expected = loop(q, k, v, [length_q] * batch, [length_k] * batch, **mask).unflatten(0, (batch, length_q))
    padded = [part.unflatten(0, (batch, length)) for part, length in ((q, length_q), (k, length_k), (v, length_k))]
    compare(flash_attn.flash_attn_func(*padded, **mask), expected, (q, k, v))
    kv = torch.stack(padded[1:], 2)
    compare(flash_attn.flash_attn_kvpacked_func(padded[0], kv, **mask), expected, (q, k, v))


def test_padded_qkv(device):
    qkv = rows([5, 5], 3, 2, 4, device=device)
    expected = loop(*qkv.unbind(1), [5, 5], [5, 5], causal=True).unflatten(0, (2, 5))
    compare(flash_attn.flash_attn_qkvpacked_func(qkv.unflatten(0, (2, 5)), causal=True), expected, [qkv])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("lengths", [[64, 64], [30, 64, 1, 33]], ids=str)
def test_low_precision(lengths, dtype, device):
    qkv = rows(lengths, 3, 2, 16, dtype=dtype, device=device)
    out = flash_attn.flash_attn_varlen_qkvpacked_func(qkv, starts(lengths, device), 64)
    plain = loop(*qkv.unbind(1), lengths, lengths)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).to(out)
    exact_input = qkv.detach().double().requires_grad_()
    exact = loop(*exact_input.unbind(1), lengths, lengths)
    assert_no_worse(out, plain, exact)
    gradients = (torch.autograd.grad(result, qkv, upstream)[0] for result in (out, plain))
    assert_no_worse(*gradients, torch.autograd.grad(exact, exact_input, upstream.double())[0])


@pytest.mark.parametrize("lengths", [[6, 6], [6, 4, 2]], ids=str)
def test_dropout(lengths, device):
    """With one value per key, the output is the weights: each is dropped, or divided by 1 - p."""
    torch.manual_seed(0)
    q, k = (rows(lengths, 2, 6, device=device, seed=seed) for seed in (0, 1))
    v = torch.cat([torch.eye(6, device=device, dtype=torch.float64)[:length] for length in lengths])
    v = v.unsqueeze(1).expand(-1, 2, -1)
    sizes = starts(lengths, device), starts(lengths, device), 6, 6
    weights = flash_attn.flash_attn_varlen_func(q, k, v, *sizes)
    dropped = flash_attn.flash_attn_varlen_func(q, k, v, *sizes, 0.25)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], weights[kept] / 0.75)
    share = 1 - kept.sum().item() / (weights != 0).sum().item()
    assert 0.05 < share < 0.5


def test_sequences_are_independent(device):
    """NaN and infinity stay in their sequence; input may be non-contiguous."""
    lengths = [3, 5, 3]
    qkv = rows(lengths, 3, 2, 8, dtype=torch.float32, device=device).detach()
    clean = flash_attn.flash_attn_varlen_qkvpacked_func(qkv, starts(lengths, device), 5)
    strided = qkv.transpose(0, 3).contiguous().transpose(0, 3)
    torch.testing.assert_close(flash_attn.flash_attn_varlen_qkvpacked_func(strided, starts(lengths, device), 5), clean)
    qkv[3, 1], qkv[7, 2] = torch.nan, torch.inf
    out = flash_attn.flash_attn_varlen_qkvpacked_func(qkv, starts(lengths, device), 5)
    assert torch.equal(out[:3], clean[:3])
    assert torch.equal(out[8:], clean[8:])
    assert out[3:8].isnan().any()


def test_compile_without_breaks():
    """Sequences of one length need no values of `cu_seqlens`."""
    qkv = rows([4, 4], 3, 2, 8, dtype=torch.float32)
    function = torch.compile(flash_attn.flash_attn_varlen_qkvpacked_func, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(
        function(qkv, starts([4, 4]), 4), flash_attn.flash_attn_varlen_qkvpacked_func(qkv, starts([4, 4]), 4)
    )


QKV, SELF = torch.ones(6, 3, 2, 4), (starts([2, 4]), 4)


@pytest.mark.parametrize(
    ("arguments", "changes", "error", "message"),
    [
        ((QKV[:, :2], *SELF), {}, ValueError, r"qkv must be \(total, 3, nheads, headdim\), got \(6, 2, 2, 4\)"),
        ((None, *SELF), {}, TypeError, "qkv must be a torch.Tensor, got NoneType None"),
        ((QKV.int(), *SELF), {}, TypeError, "q must be float32, float64, float16 or bfloat16, got int32"),
        ((QKV, SELF[0].float(), 4), {}, TypeError, "cu_seqlens must be int64 or int32, got float32"),
        ((QKV, SELF[0].to("meta"), 4), {}, ValueError, "cu_seqlens must be on the device of q, cpu, got meta"),
        ((QKV, SELF[0] + 1, 4), {}, ValueError, r"cu_seqlens\[0\] must be 0, got 1"),
        ((QKV, SELF[0][:2], 4), {}, ValueError, r"cu_seqlens\[-1\] must equal the number of rows = 6, got 2"),
        ((QKV, torch.tensor([0, 7, 6]), 7), {}, ValueError, r"cu_seqlens\[2\] must be at least cu_seqlens\[1\] = 7"),
        ((QKV, SELF[0], 3), {}, ValueError, "max_seqlen must be at least 4, the length of the longest sequence, got 3"),
        ((QKV, SELF[0], 2.5), {}, TypeError, "max_seqlen must be an int, got float 2.5"),
        ((QKV, *SELF), {"dropout_p": 1.0}, ValueError, r"dropout_p must be in \[0, 1\), got 1.0"),
        ((QKV, *SELF), {"window_size": 3}, TypeError, "window_size must be two ints, got int 3"),
        ((QKV, *SELF), {"softcap": 1.0}, NotImplementedError, "flash_attn does not provide the argument softcap"),
        ((QKV, *SELF), {"alibi_slopes": QKV}, NotImplementedError, "does not provide the argument alibi_slopes"),
        ((QKV, *SELF), {"return_attn_probs": True}, NotImplementedError, "the argument return_attn_probs"),
    ],
)  # fmt: skip
def test_errors(arguments, changes, error, message):
    with pytest.raises(error, match=message):
        flash_attn.flash_attn_varlen_qkvpacked_func(*arguments, **changes)


def test_errors_of_keys():
    q, cu = torch.ones(6, 4, 8), starts([2, 4])
    cases = {
        r"k must be \(total_k, nheads_k, headdim\) with q's headdim, got \(6, 4, 7\)": (q[..., :7], q, cu),
        r"v must be \(6, 4, 8\), as k, got \(5, 4, 8\)": (q, q[:5], cu),
        r"k must have a number of heads that divides q's 4, got \(6, 3, 8\)": (q[:, :3], q[:, :3], cu),
        r"cu_seqlens_k must be \(3,\), as cu_seqlens_q, got \(2,\)": (q, q, starts([6])),
    }
    for message, (k, v, starts_k) in cases.items():
        with pytest.raises(ValueError, match=message):
            flash_attn.flash_attn_varlen_func(q, k, v, cu, starts_k, 4, 6)
    with pytest.raises(TypeError, match="k must have the dtype of q, float32, got float64"):
        flash_attn.flash_attn_func(q[None], q[None].double(), q[None].double())
    with pytest.raises(ValueError, match=r"k must have the batch size of q, 1, got \(2, 3, 4, 8\)"):
        flash_attn.flash_attn_func(q[None], q.view(2, 3, 4, 8), q.view(2, 3, 4, 8))
    with pytest.raises(NotImplementedError, match="does not provide the argument block_table"):
        flash_attn.flash_attn_varlen_func(q, q, q, cu, cu, 4, 4, block_table=cu)


def test_unchanged_program(device, run_program):
    """A serialized transformer in the style of Point Transformer V3 trains, with clouds smaller than a patch too."""
    packages = "flash_attn", "spconv", "torch_scatter"
    variables, losses = run_program("flash_attn_model.py", packages, "--steps", "4", "--device", device)
    assert len(losses) == 4
    assert losses[-1] < losses[0] / 2
    assert all(parameter.grad.abs().sum() > 0 for parameter in variables["trained"].parameters())
