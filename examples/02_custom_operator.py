"""An operator of your own, with a backward derived by hand, and the audit that tells a right one from a wrong one.

Density at points: y_i = sum_k w_ik, w_ik = exp(-|d_ik|² / h²), d_ik = x_j - x_i for the neighbour j = index[i, k].
With t_ik = -2 / h² g_i w_ik d_ik, an upstream gradient g reaches x_j as t_ik and x_i as -t_ik. Page: out/02_audit.html.
"""

from pathlib import Path

import torch

import pointgrad


def terms(points, index, h):
    d = pointgrad.group(points, index) - points[:, None]  # (N, K, 3)
    return d, torch.where(index >= 0, torch.exp(-d.square().sum(-1) / h**2), 0)  # -1: no neighbour here


class Density(torch.autograd.Function):
    @staticmethod
    def forward(ctx, points, index, h):  # (N, 3), (N, K), a number -> (N,)
        ctx.save_for_backward(points, index)  # autograd would also keep d and w: they are made again instead
        ctx.h = h
        return terms(points, index, h)[1].sum(1)

    @staticmethod
    def shares(ctx, grad):  # made of differentiable operators, so the second derivative comes by itself
        points, index = ctx.saved_tensors
        d, w = terms(points, index, ctx.h)
        t = -2 / ctx.h**2 * (grad[:, None] * w)[..., None] * d
        return pointgrad.scatter(t.flatten(0, 1), index.flatten(), len(points)), -t.sum(1)  # as neighbours; as centres

    @staticmethod
    def backward(ctx, grad):
        return sum(Density.shares(ctx, grad)), None, None


class Forgetful(Density):
    @staticmethod
    def backward(ctx, grad):  # a mistake easily made: a point is a neighbour of others, but also a centre
        return Density.shares(ctx, grad)[0], None, None


def make_inputs(dtype, device):
    points = torch.randn(12, 3, dtype=dtype, device=device)
    return points, pointgrad.ball_query(points, 1.0, 5).index, 0.8


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    right, wrong = (pointgrad.inspect.audit(f.apply, make_inputs, device=device) for f in (Density, Forgetful))
    print(right, wrong, sep="\n\n")
    Path("out").mkdir(exist_ok=True)
    Path("out/02_audit.html").write_text(wrong.html())
    return right, wrong


if __name__ == "__main__":
    main()
