"""`pointops.functions.attention`: attention over pairs of a target row and a reference row."""

from typing import Any

from torch import Tensor

import pointgrad
from pointgrad.ops import checks

__all__ = ["AttentionFusionStep", "AttentionRelationStep", "attention_fusion_step", "attention_relation_step"]


def attention_relation_step(
    query: Tensor, key: Tensor, weight: Tensor, index_target: Tensor, index_refer: Tensor
) -> Tensor:
    """Compute the weighted dot product of each pair.

    `out[m, g] = sum_c query[target[m], g, c] * key[refer[m], g, c] * weight[c]`. The original computes the gradient of
    the weight and then drops it.

    Args:
        query: (N, G, C) queries.
        key: (N, G, C) keys.
        weight: (C,) weights.
        index_target: (M,) row of `query` in each pair.
        index_refer: (M,) row of `key` in each pair.

    Returns:
        (M, G) products, 0 where an index is -1, differentiable in `query`, `key` and `weight`.
    """
    _check_heads("query", query)
    _check_heads("key", key)
    checks.tensor("weight", weight)
    checks.shape(key.shape[1:] == query.shape[1:], "key", lambda: f"(N, {query.shape[1]}, {query.shape[2]})", key)
    checks.shape(weight.shape == query.shape[2:], "weight", lambda: f"(C,) = ({query.shape[2]},)", weight)
    _check_pairs(index_target, index_refer)
    weighted = _rows(query * weight, index_target)
    return (weighted * _rows(key, index_refer)).sum(-1)


def attention_fusion_step(weight: Tensor, value: Tensor, index_target: Tensor, index_refer: Tensor) -> Tensor:
    """Sum weighted values by target row: `out[target[m], g] += weight[m, g] * value[refer[m], g]`.

    Args:
        weight: (M, G) weights.
        value: (N, G, C) values.
        index_target: (M,) target row of each pair.
        index_refer: (M,) row of `value` in each pair. Pairs with an index of -1 are ignored.

    Returns:
        (N, G, C) sums, differentiable in `weight` and `value`.
    """
    _check_heads("value", value)
    checks.tensor("weight", weight)
    _check_pairs(index_target, index_refer)
    fits = weight.shape == (index_target.shape[0], value.shape[1])
    checks.shape(fits, "weight", lambda: f"(M, G) = ({index_target.shape[0]}, {value.shape[1]})", weight)
    weighted = weight.unsqueeze(-1) * _rows(value, index_refer)
    return pointgrad.scatter(weighted.flatten(1), index_target, value.shape[0]).reshape(value.shape)


class AttentionRelationStep:
    apply = staticmethod(attention_relation_step)


class AttentionFusionStep:
    apply = staticmethod(attention_fusion_step)


def _check_heads(name: str, features: Any) -> None:
    checks.tensor(name, features)
    checks.shape(features.dim() == 3, name, "(N, G, C)", features)
    checks.dtype(name, features, checks.FLOATS)


def _check_pairs(index_target: Any, index_refer: Any) -> None:
    for name, index in (("index_target", index_target), ("index_refer", index_refer)):
        checks.tensor(name, index)
        checks.shape(index.dim() == 1, name, "(M,)", index)
        checks.dtype(name, index, checks.INDICES)
    fits = index_target.shape == index_refer.shape
    checks.shape(fits, "index_refer", lambda: f"{tuple(index_target.shape)}, like index_target", index_refer)


def _rows(features: Tensor, index: Tensor) -> Tensor:
    """Rows (M, G, C) of features (N, G, C)."""
    return pointgrad.gather(features.flatten(1), index).unflatten(1, features.shape[1:])
