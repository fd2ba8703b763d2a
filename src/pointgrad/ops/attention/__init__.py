"""Weighted sums over lists of neighbours, and where the weights come from."""

from torch import Tensor

from .. import checks
from . import register

__all__ = ["aggregate"]


def aggregate(weights: Tensor, values: Tensor, index: Tensor) -> Tensor:
    """The weighted sum of each centre's neighbours, without building the (M, K, C) neighbourhoods.

    weights: (M, K), or (M, K, G) with one weight for each of G groups of neighbouring channels, where G
        divides C; with a leading B if padded. G = C weighs each channel on its own.
    values: (N, C) packed, or (B, N, C) padded; same dtype as `weights`. Under autocast the wider of the two.
    index: (M, K) packed (global), or (B, M, K) padded (local to its cloud); int64 or int32.
    returns: (M, C) or (B, M, C), `out[m, c] = sum_k weights[m, k, c // (C / G)] * values[index[m, k], c]`.
        -1 (nothing here) adds nothing and its weight gets a zero gradient.

    Gradients reach `weights` and `values`, to any order. Sums are kept in at least float32. Any other index
    out of range is a ValueError on the CPU; on a GPU it counts as -1.

    >>> values = torch.tensor([[1., 10.], [2., 20.], [3., 30.]])
    >>> aggregate(torch.tensor([[0.5, 0.5], [2., 9.]]), values, torch.tensor([[0, 1], [2, -1]])).tolist()
    [[1.5, 15.0], [6.0, 60.0]]
    """
    for name, value in (("weights", weights), ("values", values), ("index", index)):
        checks.tensor(name, value)
    checks.shape(values.dim() in (2, 3), "values", "(N, C) or (B, N, C)", values)
    _neighbors("values", "(N, C)", "(B, N, C)", values.shape[:-2], index)
    grouped = weights.dim() == index.dim() + 1
    fits = weights.shape[: index.dim()] == index.shape and weights.dim() <= index.dim() + 1
    checks.shape(fits, "weights", lambda: f"{tuple(index.shape)} as index, or with G groups after it", weights)
    if grouped:
        divides = weights.shape[-1] > 0 and values.shape[-1] % weights.shape[-1] == 0
        checks.shape(divides, "weights", lambda: f"(..., G) with G dividing C = {values.shape[-1]}", weights)
    checks.dtype("weights", weights, checks.FLOATS)
    checks.dtype("values", values, checks.FLOATS)
    if not checks.autocasts(weights):
        checks.same_dtype("values", values, "weights", weights)
    checks.dtype("index", index, checks.INDICES)
    checks.device("values", values, "weights", weights)
    checks.device("index", index, "weights", weights)
    return register.aggregate(weights if grouped else weights.unsqueeze(-1), values, index.long())


def _neighbors(name: str, packed: str, padded: str, batch: tuple[int, ...], index: Tensor) -> None:
    fits = index.dim() == len(batch) + 2 and index.shape[: len(batch)] == batch
    checks.shape(fits, "index", f"(M, K) with {name} {packed}, or (B, M, K) with {padded}", index)
