"""The public functions of flash-attn, with its names, argument order and defaults.

Arguments of all functions:
    dropout_p: Probability of dropping an attention weight, in [0, 1).
    softmax_scale: Factor of the products of queries and keys; 1 / sqrt(headdim) if None.
    causal: Query i attends to keys up to i + seqlen_k - seqlen_q only.
    window_size: Numbers of keys before and after key i + seqlen_k - seqlen_q that query i attends to; -1 for all.
    softcap, alibi_slopes, return_attn_probs, block_table: Not provided; other values than the defaults raise
        NotImplementedError.
    deterministic: Accepted without effect. Results on the CPU are always deterministic, and those on a GPU are if
        `torch.use_deterministic_algorithms` is on.

The number of heads of keys and values may be a divisor of that of the queries. A query without keys has output 0.
"""

from torch import Tensor

from ._attention import attend_packed, attend_padded, options, unpack

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor:
    """Attention of q (B, Lq, H, D) to k and v (B, Lk, G, D): (B, Lq, H, D)."""
    given = options(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs)
    return attend_padded(q, k, v, given)


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor:
    """Attention of q (B, Lq, H, D) to kv (B, Lk, 2, G, D): (B, Lq, H, D)."""
    given = options(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs)
    k, v = unpack("kv", kv, 2, "(batch, seqlen_k, 2, nheads_k, headdim)", 2)
    return attend_padded(q, k, v, given)


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor:
    """Self-attention of qkv (B, L, 3, H, D): (B, L, H, D)."""
    given = options(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs)
    q, k, v = unpack("qkv", qkv, 3, "(batch, seqlen, 3, nheads, headdim)", 2)
    return attend_padded(q, k, v, given)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    """Attention of sequences in q (N, H, D) to those in k and v (M, G, D): (N, H, D).

    cu_seqlens_q and cu_seqlens_k (B + 1,) are the cumulative lengths of the sequences: they start with 0 and end with
    N and M, which is checked on the CPU. If all lengths equal max_seqlen_q and max_seqlen_k, nothing is read from the
    GPU; otherwise one call of torch is made for each pair of lengths.
    """
    given = options(
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs, block_table
    )
    return attend_packed(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, given)


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor:
    """Attention of sequences in q (N, H, D) to those in kv (M, 2, G, D): (N, H, D); see `flash_attn_varlen_func`."""
    given = options(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs)
    k, v = unpack("kv", kv, 2, "(total_k, 2, nheads_k, headdim)", 1)
    return attend_packed(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, given)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor:
    """Self-attention of sequences in qkv (N, 3, H, D): (N, H, D); see `flash_attn_varlen_func`."""
    given = options(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs)
    q, k, v = unpack("qkv", qkv, 3, "(total, 3, nheads, headdim)", 1)
    return attend_packed(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, given, ("", ""))
