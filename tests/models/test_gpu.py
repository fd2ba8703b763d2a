"""Networks on a GPU: agreement with the CPU, compilation and mixed precision."""

import pytest
import torch

from pointgrad import models, nn
from tests.models import test_export

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

NETWORKS = [(name, task) for name in models.names() for task in ("classification", "segmentation")]
every_network = pytest.mark.parametrize(("name", "task"), NETWORKS, ids=lambda value: value)
SIZES = (300, 1, 40, 257)


def pair(name, task):
    """The same network on both devices."""
    torch.manual_seed(1)
    cpu = models.build(name, task=task, classes=5, channels=0, width=0.25, dropout=0.0)
    with torch.no_grad():
        for parameter in cpu.parameters():
            # The relative position of a center to itself is zero. With the initial batch norm, it stays at the kink of
            # the following ReLU, where rounding errors of a mean decide about the gradient.
            if parameter.dim() == 1:
                parameter.uniform_(0.1, 1.0)
    gpu = models.build(**cpu.config).cuda()
    gpu.load_state_dict(cpu.state_dict())
    return cpu, gpu


def inputs(layout):
    if layout == "padded":
        return {"points": torch.rand(3, 256, 3) * 2 - 1}
    return {"points": torch.rand(sum(SIZES), 3) * 2 - 1, "offsets": torch.tensor([0, *SIZES]).cumsum(0)}


@pytest.mark.parametrize("layout", ["padded", "packed"])
@every_network
def test_agrees_with_cpu(name, task, layout):
    """In float64, where rounding errors do not change neighbors or maxima."""
    cpu, gpu = (network.double() for network in pair(name, task))
    given = {key: value.double() if value.is_floating_point() else value for key, value in inputs(layout).items()}
    results = []
    for network, device in ((cpu, "cpu"), (gpu, "cuda")):
        network.train(layout == "padded")  # batch norm in training needs more than one point
        out = network(**{key: value.to(device) for key, value in given.items()})
        out.square().mean().backward()
        results.append([out, *(p.grad for p in network.parameters() if p.grad is not None)])
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-6, atol=1e-8)


@every_network
def test_mixed_precision(name, task):
    _, network = pair(name, task)
    points = torch.rand(4, 256, 3, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = network(points).float().square().mean()
    loss.backward()
    assert all(p.grad.isfinite().all() for p in network.parameters() if p.grad is not None)


@pytest.mark.filterwarnings("ignore:TensorFloat32")  # torch recommends TF32, which would change the results
def test_compiled_with_the_default_backend():
    _, network = pair("pointnet2", "classification")
    network.eval()
    points = torch.rand(4, 256, 3, device="cuda")
    fast = torch.compile(network, fullgraph=True)
    torch.testing.assert_close(fast(points), network(points), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["ptv3", "sonata", "litept"])
def test_training_steps_on_prepared_grids_as_a_cuda_graph(name):
    """Replayed steps give the weights of steps from Python."""
    weights = []
    for captured in (False, True):
        _, network = pair(name, "segmentation")
        for module in network.modules():
            if isinstance(module, nn.DropPath):
                module.p = 0.0
        generator = torch.Generator().manual_seed(0)
        coordinates = torch.unique(torch.randint(40, (3000, 3), generator=generator), dim=0).cuda()
        features = torch.linspace(-1, 1, len(coordinates) * 3, device="cuda").sin().reshape(-1, 3)
        torch.manual_seed(0)
        grids = network.grids(coordinates, torch.tensor([0, len(coordinates)], device="cuda"))
        optimizer = torch.optim.SGD(network.parameters(), lr=1e-4)

        def step(network=network, features=features, grids=grids, optimizer=optimizer):
            network.head(network.voxel_features(features, grids)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
            step()
        torch.cuda.current_stream().wait_stream(side)
        if captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):  # records the third step, without running it
                step()
            graph.replay()
            graph.replay()
        else:
            step()
            step()
        weights.append([parameter.detach().double() for parameter in network.parameters()])
    for received, expected in zip(weights[1], weights[0], strict=True):
        torch.testing.assert_close(received, expected, rtol=1e-4, atol=1e-5)


def test_exported_on_other_sizes():
    network = test_export.small("ptv3", "segmentation").cuda()
    program = test_export.exported(network, "cuda").module()
    for sizes in test_export.SIZES:
        points = test_export.scenes(sizes).cuda()
        with torch.no_grad():
            torch.testing.assert_close(program(points), network(points), rtol=1e-4, atol=1e-5)
