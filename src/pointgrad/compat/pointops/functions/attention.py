"""`pointops.functions.attention`: attention over pairs, each of a target row and the row that it refers to."""

from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ._packed import check_rows

__all__ = ["AttentionFusionStep", "AttentionRelationStep", "attention_fusion_step", "attention_relation_step"]


def attention_relation_step(
    query: Tensor, key: Tensor, weight: Tensor, index_target: Tensor, index_refer: Tensor
) -> Tensor:
    """The weighted product of each pair: `out[m, g] = sum_c query[target[m], g, c] * key[refer[m], g, c] * weight[c]`.

    query, key: (N, G, C). weight: (C,). index_target, index_refer: (M,). returns: (M, G), 0 where an index is -1.
    Gradients reach query, key and weight; the original computes that of the weight and then drops it.
    """
    _check_heads("query", query)
    _check_heads("key", key)
    checks.tensor("weight", weight)
    checks.shape(key.shape[1:] == query.shape[1:], "key", lambda: f"(N, {query.shape[1]}, {query.shape[2]})", key)
    checks.shape(weight.shape == query.shape[2:], "weight", lambda: f"(C,) = ({query.shape[2]},)", weight)
    _check_pairs(index_target, index_refer)
    asked = _gather("query", query * weight, "index_target", index_target)
    return (asked * _gather("key", key, "index_refer", index_refer)).sum(-1)


def attention_fusion_step(weight: Tensor, value: Tensor, index_target: Tensor, index_refer: Tensor) -> Tensor:
    """Weighted values, summed by target: `out[target[m], g] += weight[m, g] * value[refer[m], g]`.

    weight: (M, G). value: (N, G, C). index_target, index_refer: (M,), -1 takes no part. returns: (N, G, C).
    Gradients reach weight and value.
    """
    _check_heads("value", value)
    checks.tensor("weight", weight)
    _check_pairs(index_target, index_refer)
    fits = weight.shape == (index_target.shape[0], value.shape[1])
    checks.shape(fits, "weight", lambda: f"(M, G) = ({index_target.shape[0]}, {value.shape[1]})", weight)
    sent = weight.unsqueeze(-1) * _gather("value", value, "index_refer", index_refer)
    return pointgrad.scatter(sent.flatten(1), index_target, value.shape[0]).reshape(value.shape)


class AttentionRelationStep:
    apply = staticmethod(attention_relation_step)


class AttentionFusionStep:
    apply = staticmethod(attention_fusion_step)


def _check_heads(name: str, features: Tensor) -> None:
    checks.tensor(name, features)
    checks.shape(features.dim() == 3, name, "(N, G, C)", features)


def _check_pairs(index_target: Tensor, index_refer: Tensor) -> None:
    for name, index in (("index_target", index_target), ("index_refer", index_refer)):
        checks.tensor(name, index)
        checks.shape(index.dim() == 1, name, "(M,)", index)
    fits = index_target.shape == index_refer.shape
    checks.shape(fits, "index_refer", lambda: f"{tuple(index_target.shape)}, like index_target", index_refer)


def _gather(name: str, features: Tensor, index_name: str, index: Tensor) -> Tensor:
    """(M, G, C)"""
    rows = features.flatten(1)
    check_rows(name, rows, index, idx_name=index_name, idx_shape="(M,)")
    return pointgrad.gather(rows, index).reshape(-1, *features.shape[1:])
