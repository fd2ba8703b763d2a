"""A custom operator with a hand-written backward, and an audit that finds a mistake in it.

Density at points: y_i = sum_k w_ik, w_ik = exp(-|d_ik|² / h²), d_ik = x_j - x_i for the neighbour j = index[i, k].
An upstream gradient g adds t_ik = -2 / h² g_i w_ik d_ik to the gradient of x_j, and -t_ik to that of x_i.
"""

from pathlib import Path

import torch

import pointgrad


def terms(points, index, h):
    d = pointgrad.group(points, index) - points[:, None]  # (N, K, 3)
    return d, torch.where(index >= 0, torch.exp(-d.square().sum(-1) / h**2), 0)  # -1: no neighbour


class Density(torch.autograd.Function):
    @staticmethod
    def forward(ctx, points, index, h):  # (N, 3), (N, K), a number -> (N,)
        ctx.save_for_backward(points, index)  # d and w are recomputed to save memory
        ctx.h = h
        return terms(points, index, h)[1].sum(1)

    @staticmethod
    def contributions(ctx, grad):  # consists of differentiable operators, so second derivatives work
        points, index = ctx.saved_tensors
        d, w = terms(points, index, ctx.h)
        t = -2 / ctx.h**2 * (grad[:, None] * w)[..., None] * d
        return pointgrad.scatter(t.flatten(0, 1), index.flatten(), len(points)), -t.sum(1)  # as neighbours; as centres

    @staticmethod
    def backward(ctx, grad):
        return sum(Density.contributions(ctx, grad)), None, None


class WrongDensity(Density):
    @staticmethod
    def backward(ctx, grad):  # a common mistake: a point is not only a neighbour but also a centre
        return Density.contributions(ctx, grad)[0], None, None


def make_inputs(dtype, device):
    points = torch.randn(12, 3, dtype=dtype, device=device)
    return points, pointgrad.ball_query(points, 1.0, 5).index, 0.8


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    right, wrong = (pointgrad.inspect.audit(f.apply, make_inputs, device=device) for f in (Density, WrongDensity))
    print(right, wrong, sep="\n\n")
    Path("out").mkdir(exist_ok=True)
    Path("out/02_audit.html").write_text(wrong.html())
    return right, wrong


if __name__ == "__main__":
    main()
