"""Message passing on graphs of points, written for torch-scatter without any reference to pointgrad.

EdgeConv layers on nearest neighbors in feature space, attention with a softmax over the edges of each point, and
pooling over clouds. Prints the loss before each step.
"""

import argparse

import torch
import torch_scatter
from torch import nn
from torch_cluster import knn_graph, radius_graph
from torch_scatter import scatter, scatter_max, scatter_std, segment_csr
from torch_scatter.composite import scatter_softmax
from torch_scatter.utils import broadcast


class EdgeConv(nn.Module):
    """EdgeConv layer of DGCNN."""

    def __init__(self, channels, width, k):
        super().__init__()
        self.k = k
        self.network = nn.Sequential(nn.Linear(2 * channels, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x, batch):
        source, target = knn_graph(x, self.k, batch, loop=False)
        message = self.network(torch.cat([x[target], x[source] - x[target]], dim=-1))
        return scatter(message, target, dim=0, dim_size=x.size(0), reduce="max")


class Attention(nn.Module):
    def __init__(self, channels, heads=4):
        super().__init__()
        self.heads = heads
        self.value, self.logit = nn.Linear(channels, channels), nn.Linear(channels + 1, heads)

    def forward(self, x, pos, batch):
        source, target = radius_graph(pos, r=0.6, batch=batch, loop=True, max_num_neighbors=12)
        distance = (pos[source] - pos[target]).norm(dim=-1, keepdim=True)
        logit = self.logit(torch.cat([x[source], distance], dim=-1))
        weight = scatter_softmax(logit, target, dim=0, dim_size=x.size(0))
        value = self.value(x)[source].view(source.numel(), self.heads, -1)
        return torch_scatter.scatter_add(value * weight[..., None], target, dim=0, dim_size=x.size(0)).flatten(1)


class Net(nn.Module):
    def __init__(self, classes, width=32):
        super().__init__()
        self.first, self.second = EdgeConv(3, width, 8), EdgeConv(width, width, 8)
        self.attention = Attention(width)
        self.head = nn.Sequential(nn.Linear(4 * width, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, pos, batch, ptr):
        x = self.first(pos, batch)
        x = x + self.second(x, batch)
        x = x + self.attention(x, pos, batch)
        highest, argmax = scatter_max(x, batch, dim=0)
        assert (batch[argmax] == torch.arange(len(ptr) - 1, device=x.device)[:, None]).all()
        mean = segment_csr(x, ptr, reduce="mean")
        lowest = scatter(x, broadcast(batch, x, 0), dim=0, reduce="min")
        return self.head(torch.cat([highest, mean, lowest, scatter_std(x, batch, dim=0)], dim=-1))


def shapes(sizes, device):
    """Spheres, cubes and discs."""
    pos = torch.randn(sum(sizes), 3, device=device)
    batch = torch.repeat_interleave(torch.arange(len(sizes), device=device), torch.tensor(sizes, device=device))
    y = torch.arange(len(sizes), device=device) % 3
    sphere, cube = pos / pos.norm(dim=1, keepdim=True), pos / pos.abs().amax(1, keepdim=True)
    disc = pos * torch.tensor([1.0, 1.0, 0.05], device=device)
    kind = y[batch][:, None]
    ptr = nn.functional.pad(torch.tensor(sizes, device=device).cumsum(0), (1, 0))
    return torch.where(kind == 0, sphere, torch.where(kind == 1, cube, disc)), batch, ptr, y


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.manual_seed(0)

    pos, batch, ptr, y = shapes([150, 90, 120, 100, 3, 140], args.device)
    net = Net(3).to(args.device)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(args.steps):
        loss = nn.functional.cross_entropy(net(pos, batch, ptr), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.6f}")


if __name__ == "__main__":
    main()
