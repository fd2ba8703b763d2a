"""PointNet++ for classification and segmentation, written for pointnet2_ops without any reference to pointgrad.

Run it with `python -m pointgrad.compat run tests/compat/foreign/pointnet2_ops_model.py`.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
from pointnet2_ops import pointnet2_utils
from pointnet2_ops.pointnet2_modules import PointnetFPModule, PointnetSAModule, PointnetSAModuleMSG


def break_up(cloud):
    """Split (B, N, 3 + C) into positions (B, N, 3) and features (B, C, N)."""
    xyz = cloud[..., 0:3].contiguous()
    features = cloud[..., 3:].transpose(1, 2).contiguous() if cloud.size(-1) > 3 else None
    return xyz, features


class Classifier(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.SA_modules = nn.ModuleList(
            [
                PointnetSAModule(npoint=32, radius=0.3, nsample=16, mlp=[3, 16, 16, 32], use_xyz=True),
                PointnetSAModule(npoint=8, radius=0.6, nsample=16, mlp=[32, 32, 64], use_xyz=True),
                PointnetSAModule(mlp=[64, 64, 128], use_xyz=True),
            ]
        )
        self.fc_layer = nn.Sequential(nn.Linear(128, 32), nn.ReLU(True), nn.Linear(32, num_classes))

    def forward(self, cloud):
        xyz, features = break_up(cloud)
        for module in self.SA_modules:
            xyz, features = module(xyz, features)
        return self.fc_layer(features.squeeze(-1))


class Segmenter(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.SA_modules = nn.ModuleList(
            [
                PointnetSAModuleMSG(npoint=32, radii=[0.2, 0.4], nsamples=[8, 16], mlps=[[3, 16], [3, 16]]),
                PointnetSAModule(npoint=8, radius=0.6, nsample=16, mlp=[32, 64], use_xyz=True),
            ]
        )
        self.FP_modules = nn.ModuleList([PointnetFPModule(mlp=[32 + 3, 32]), PointnetFPModule(mlp=[64 + 32, 32])])
        self.fc_layer = nn.Sequential(nn.Conv1d(32, 32, kernel_size=1), nn.ReLU(True), nn.Conv1d(32, num_classes, 1))

    def forward(self, cloud):
        xyz, features = break_up(cloud)
        l_xyz, l_features = [xyz], [features]
        for module in self.SA_modules:
            li_xyz, li_features = module(l_xyz[-1], l_features[-1])
            l_xyz.append(li_xyz)
            l_features.append(li_features)
        for i in range(-1, -(len(self.FP_modules) + 1), -1):
            l_features[i - 1] = self.FP_modules[i](l_xyz[i - 1], l_xyz[i], l_features[i - 1], l_features[i])
        return self.fc_layer(l_features[0])


class Grouper(nn.Module):
    """Patches around farthest points, as in masked autoencoders of point clouds."""

    def forward(self, xyz):
        fps_idx = pointnet2_utils.furthest_point_sample(xyz, 8)
        center = (
            pointnet2_utils.gather_operation(xyz.transpose(1, 2).contiguous(), fps_idx).transpose(1, 2).contiguous()
        )
        idx = pointnet2_utils.ball_query(0.4, 16, xyz, center)
        patches = pointnet2_utils.grouping_operation(xyz.transpose(1, 2).contiguous(), idx)
        b, c, m, k = patches.shape
        return center, patches.view(b, c, m * k).view(b, c, m, k) - center.transpose(1, 2).unsqueeze(-1)


def train(model, clouds, labels, steps=8):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(clouds), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # Flat and cubic clouds; the label of a point is the sign of its x coordinate.
    clouds = torch.rand(8, 128, 3) * 2 - 1
    classes = torch.arange(8) % 2
    clouds[classes == 1, :, 2] *= 0.1
    labels = (clouds[..., 0] > 0).long()
    clouds = torch.cat([clouds, clouds], dim=-1).to(device)
    for name, model, target in (("classes", Classifier(2), classes), ("points", Segmenter(2), labels)):
        losses = train(model.to(device), clouds, target.to(device))
        assert losses[-1] < losses[0], losses
        print(f"{name}: {losses[0]:.3f} -> {losses[-1]:.3f}")
    _, patches = Grouper()(clouds[..., :3].contiguous())
    assert patches.shape == (8, 3, 8, 16)
    assert patches.norm(dim=1).max() < 0.4
    print("patches:", tuple(patches.shape))


if __name__ == "__main__":
    main()
