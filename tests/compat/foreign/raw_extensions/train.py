"""A small network for a machine with a GPU, on compiled modules that would have to be built first."""

import multiprocessing
import os
import sys
import tempfile
import threading

import torch
from detector.stack.utils import stack_farthest_point_sample
from extensions.chamfer_dist import ChamferDistanceL2
from knn_cuda import KNN
from lib.pointops import Grouping, KNNQuery
from simple_knn._C import distCUDA2

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "pointnet2"))
import pointnet2_utils


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(6, 16, 1)
        self.second = torch.nn.Linear(16, 3)

    def forward(self, xyz):
        features = xyz.transpose(1, 2).contiguous()
        picks = pointnet2_utils.FurthestPointSampling.apply(xyz, 32)
        centers = pointnet2_utils.GatherOperation.apply(features, picks).transpose(1, 2).contiguous()
        positions, grouped = pointnet2_utils.query_and_group(0.3, 8, xyz, centers, features)
        pooled = torch.relu(self.first(torch.cat([positions, grouped], 1))).amax(3).transpose(1, 2)
        offset = torch.arange(1, len(xyz) + 1, device="cuda", dtype=torch.int32) * 32
        rows, points = pooled.reshape(-1, 16), centers.reshape(-1, 3)
        idx, dist = KNNQuery.apply(4, points, points, offset, offset)
        smooth = Grouping.apply(rows.contiguous(), idx).mean(1)
        assert dist.shape == (len(rows), 4)
        return centers + self.second(smooth).view(len(xyz), 32, 3)


def child(queue):
    queue.put((torch.ones(2).cuda().sum().item(), distCUDA2(torch.zeros(4, 3, device="cuda")).sum().item()))


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    torch.cuda.set_device(0)
    net = Net().to(device)
    loss_function = ChamferDistanceL2().cuda()
    xyz = torch.rand(2, 128, 3).cuda(non_blocking=True)
    target = torch.rand(2, 64, 3).to("cuda:0") + 0.2
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(5):
        net.zero_grad()
        loss = loss_function(net(xyz), target)
        loss.backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad
        print("loss", loss.item())
    end.record()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert begin.elapsed_time(end) > 0

    sizes = torch.tensor([100, 28], dtype=torch.int32, device=device)
    samples = stack_farthest_point_sample(xyz[0].contiguous(), sizes, torch.cuda.IntTensor([5, 3]))
    assert samples[0] == 0
    assert samples[5] == 100
    distance, index = KNN(k=2, transpose_mode=True)(xyz, xyz)
    assert index[0, :, 0].tolist() == list(range(128))
    assert distance[..., 0].max() == 0
    scales = torch.log(torch.sqrt(distCUDA2(xyz[0]).clamp_min(0.0000001)))
    print("scales", bool(torch.isfinite(scales).all()))

    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        torch.save(net.state_dict(), file.name)
        net.load_state_dict(torch.load(file.name, map_location="cuda:0"))
    assert torch.cuda.current_device() == 0
    assert torch.cuda.device_count() == 1
    assert isinstance(xyz, torch.cuda.FloatTensor)
    assert xyz.type("torch.cuda.DoubleTensor").dtype == torch.float64
    assert torch.empty(1, device=0).new_zeros(2, device="cuda").to(device, torch.float16).dtype == torch.float16
    with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()):
        assert torch.rand(2, pin_memory=False).pin_memory().shape == (2,)
    generator = torch.Generator(device="cuda").manual_seed(3)
    assert torch.rand(2, generator=generator, device="cuda").shape == (2,)
    torch.set_default_device("cuda")
    assert torch.zeros(2).sum() == 0
    torch.set_default_device(None)
    thread = threading.Thread(target=lambda: print("thread", torch.ones(2, device="cuda").sum().item()))
    thread.start()
    thread.join()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print("child", *queue.get(timeout=100))
    process.join()


if __name__ == "__main__":
    main()
