"""Classification of objects: train, evaluate, save and load a network, and classify a new cloud.

The data are built in. Test objects have proportions that no training object has. The run folder out/03_classification
contains the weights, the metrics of each epoch, curves.png, confusion.png and examples.png.
"""

import shutil

import torch

from pointgrad import data, models, predict, train

RUN = "out/03_classification"


def main(epochs=6, size=1000, points=512):
    torch.manual_seed(0)
    shutil.rmtree(RUN, ignore_errors=True)  # a run folder is never overwritten
    prepare = data.Prepare(points=points)  # random sample, scaled to the unit sphere; saved with the weights
    augment = data.Compose(prepare, data.Rotate("z"), data.Scale(0.9, 1.1))
    loaders = [
        data.Loader(data.Shapes("train", size=size), batch_size=16, transform=augment, shuffle=True, drop_last=True),
        data.Loader(data.Shapes("val", size=size // 5), batch_size=16, transform=prepare),
    ]
    model = models.pointnet2(classes=12, width=0.25, density=0.5, dropout=0.1)  # a quarter as wide as the paper's
    config = train.TrainConfig(epochs=epochs, lr=0.006, warmup_epochs=1, smoothing=0.1, tensorboard=False)
    train.Trainer(model, *loaders, config, out=RUN, prepare=prepare).fit()

    trained = train.load(RUN, "cuda" if torch.cuda.is_available() else "cpu")  # the best epoch
    shapes = data.Shapes("test", size=240)
    test = data.Loader(shapes, batch_size=16, transform=prepare)
    metrics = train.evaluate(trained.model, test, classes=len(trained.classes))
    for name, row in zip(trained.classes, metrics.per_class(), strict=True):
        print(f"{name:>10}: {row['accuracy']:4.0%} of {row['count']} correct")
    accuracy = metrics.compute()["accuracy"]
    print(f"accuracy: {accuracy:.1%}; chance: {1 / 12:.1%}")

    # Classify a new object from a file.
    new = data.Shapes("test", points=3000, seed=1)[0]
    data.write("out/03_new.ply", new)
    probabilities = predict.classify(trained, [data.read("out/03_new.ply")]).probabilities[0]
    for probability, number in zip(*probabilities.topk(3), strict=True):
        print(f"out/03_new.ply: {trained.classes[number]} {probability:.0%}")
    print("true class:", shapes.classes[new.label])
    return accuracy


if __name__ == "__main__":
    main()
