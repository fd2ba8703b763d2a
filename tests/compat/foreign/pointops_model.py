"""A small Point Transformer, written for pointops without any reference to pointgrad.

It uses Pointcept's functions and those of the first Point Transformer (other names and argument order); a batched
network uses the generation before. Run it with `python -m pointgrad.compat run tests/compat/foreign/pointops_model.py`.
"""

import pointops
import torch
import torch.nn as nn
import torch.nn.functional as F
from pointops.functions import pointops as pointops_v1


class VectorAttention(nn.Module):
    """One layer of neighborhood attention; `modern` selects Pointcept's functions."""

    def __init__(self, channels, nsample=8, share_planes=4, modern=True):
        super().__init__()
        self.nsample, self.share_planes, self.modern = nsample, share_planes, modern
        self.linear_q = nn.Linear(channels, channels)
        self.linear_k = nn.Linear(channels, channels)
        self.linear_v = nn.Linear(channels, channels)
        self.linear_p = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, channels))
        self.linear_w = nn.Sequential(nn.Linear(channels, channels // share_planes), nn.ReLU(inplace=True))

    def forward(self, pxo):
        p, x, o = pxo
        x_q, x_k, x_v = self.linear_q(x), self.linear_k(x), self.linear_v(x)
        if self.modern:
            x_k, idx = pointops.knn_query_and_group(
                x_k, p, o, new_xyz=p, new_offset=o, nsample=self.nsample, with_xyz=True
            )
            x_v, _ = pointops.knn_query_and_group(x_v, p, o, new_xyz=p, new_offset=o, idx=idx, nsample=self.nsample)
        else:
            x_k = pointops_v1.queryandgroup(self.nsample, p, p, x_k, None, o, o, use_xyz=True)
            x_v = pointops_v1.queryandgroup(self.nsample, p, p, x_v, None, o, o, use_xyz=False)
        p_r, x_k = x_k[:, :, 0:3], x_k[:, :, 3:]
        p_r = self.linear_p(p_r)
        w = F.softmax(self.linear_w(x_k - x_q.unsqueeze(1) + p_r), dim=1)
        n, nsample, c = x_v.shape
        s = self.share_planes
        return ((x_v + p_r).view(n, nsample, s, c // s) * w.unsqueeze(2)).sum(1).view(n, c)


class Network(nn.Module):
    """Attention, downsampling to a quarter of the points, attention, and upsampling."""

    def __init__(self, num_classes, channels=16, modern=True):
        super().__init__()
        self.modern = modern
        self.stem = nn.Linear(6, channels)
        self.fine = VectorAttention(channels, modern=modern)
        self.down = nn.Linear(3 + channels, channels)
        self.coarse = VectorAttention(channels, modern=modern)
        self.head = nn.Linear(2 * channels, num_classes)

    def sample(self, p, o):
        n_o, count = [o[0].item() // 4], o[0].item() // 4
        for i in range(1, o.shape[0]):
            count += (o[i].item() - o[i - 1].item()) // 4
            n_o.append(count)
        n_o = torch.tensor(n_o, dtype=torch.int32, device=o.device)
        sampling = pointops.farthest_point_sampling if self.modern else pointops_v1.furthestsampling
        return sampling(p, o, n_o), n_o

    def forward(self, p, x, o):
        x = self.stem(torch.cat([p, x], dim=1))
        x = x + self.fine([p, x, o])
        idx, n_o = self.sample(p, o)
        n_p = p[idx.long(), :]
        if self.modern:
            y, _ = pointops.knn_query_and_group(x, p, o, new_xyz=n_p, new_offset=n_o, nsample=8, with_xyz=True)
        else:
            y = pointops_v1.queryandgroup(8, p, n_p, x, None, o, n_o, use_xyz=True)
        y = self.down(y).max(dim=1)[0]
        y = y + self.coarse([n_p, y, n_o])
        up = pointops.interpolation if self.modern else pointops_v1.interpolation
        return self.head(torch.cat([x, up(n_p, p, y.contiguous(), n_o, o)], dim=1))


class BatchedLayer(nn.Module):
    """Layer for batched clouds (B, N, 3) with features (B, C, N), without offsets."""

    def __init__(self, channels=16, num_classes=2):
        super().__init__()
        self.grouper = pointops_v1.QueryAndGroup(nsample=8, use_xyz=True)
        self.mlp = nn.Sequential(nn.Conv2d(6, channels, 1), nn.ReLU(inplace=True))
        self.head = nn.Conv1d(channels, num_classes, 1)

    def forward(self, xyz, features):
        idx = pointops.FurthestSampling.apply(xyz, 16)
        new_xyz = pointops.Gathering.apply(xyz.transpose(1, 2).contiguous(), idx).transpose(1, 2).contiguous()
        grouped = self.mlp(self.grouper(xyz, new_xyz, features)).max(dim=3)[0]
        dist, idx = pointops_v1.nearestneighbor(xyz, new_xyz)
        dist_recip = 1.0 / (dist + 1e-8)
        weight = dist_recip / torch.sum(dist_recip, dim=2, keepdim=True)
        return self.head(pointops_v1.interpolation(grouped, idx, weight))


def train(call, parameters, labels, steps=10):
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(call(), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    coord = torch.rand(120, 3).to(device)
    color = torch.rand(120, 3).to(device)
    offset = torch.tensor([50, 120], dtype=torch.int32).to(device)
    labels = (coord[:, 0] > 0.5).long()
    outputs = []
    for modern in (True, False):
        torch.manual_seed(1)
        model = Network(2, modern=modern).to(device)
        outputs.append(model(coord, color, offset).detach())
        losses = train(lambda model=model: model(coord, color, offset), model.parameters(), labels)
        assert losses[-1] < losses[0], losses
        print(f"{'modern' if modern else 'first'}: {losses[0]:.3f} -> {losses[-1]:.3f}")
    assert torch.allclose(*outputs, atol=1e-5)
    batched = BatchedLayer().to(device)
    xyz, features = coord.view(2, 60, 3), color.view(2, 60, 3).transpose(1, 2).contiguous()
    losses = train(lambda: batched(xyz, features), batched.parameters(), labels.view(2, 60))
    assert losses[-1] < losses[0], losses
    print(f"batched: {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
