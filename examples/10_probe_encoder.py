"""Linear probing: a frozen encoder gives features, and one linear layer is trained on them.

python examples/10_probe_encoder.py [WEIGHTS]    a published Sonata checkpoint; default: random weights of a small size
"""

import sys

import torch

from pointgrad import data, models, train


def main(weights=None, scenes=4, points=4000, steps=60, voxel=0.4):
    torch.manual_seed(0)
    classes = len(data.STREET_CLASSES)
    size = {} if weights else {"variant": "small", "width": 0.25}
    network = models.sonata("segmentation", classes, voxel=voxel, **size).eval()
    if weights:
        published = torch.load(weights, map_location="cpu", weights_only=True)
        unloaded = models.load_published(network, published, strict=False)
        print(f"not loaded: {', '.join([*unloaded.missing, *unloaded.unexpected, *unloaded.mismatched])}")
    head, network.head = network.head, torch.nn.Identity()  # the network now returns the features of all levels

    def encode(seed):
        scene = data.Normalize("center")(data.street(points, length=24.0, seed=seed), torch.Generator())
        with torch.no_grad():  # streets have no colors and normals
            return network(scene.points, torch.zeros(len(scene), 6)), scene.labels

    pairs = [encode(seed) for seed in range(1, scenes + 1)]
    rows, labels = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    mean, spread = rows.mean(0), rows.std(0) + 1e-6
    optimizer = torch.optim.AdamW(head.parameters(), 0.01)
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(head((rows - mean) / spread), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    rows, labels = encode(0)
    metrics = train.Metrics(classes)
    metrics.add(head((rows - mean) / spread).detach(), labels)
    accuracy = metrics.compute()["accuracy"]
    print(f"{rows.shape[1]} features; accuracy on a street that the layer has not seen: {accuracy:.2f}")
    return accuracy


if __name__ == "__main__":
    main(*sys.argv[1:2])
