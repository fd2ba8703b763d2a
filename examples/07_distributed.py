"""Train in two processes, each with half the batch: the losses match those of one process with the whole batch.

`pointgrad.train.launch` starts this program again for the second process. With two GPUs each process uses one;
otherwise both compute on the CPU and communicate with gloo.
"""

import torch

from pointgrad import data, models, train


def losses(processes, batch_size=8, epochs=3):
    torch.manual_seed(0)
    place = "cuda" if torch.cuda.device_count() >= processes > 1 else "cpu"
    config = train.TrainConfig(epochs=epochs, devices=processes, accelerator=place, lr=0.003)
    fabric = train.launch(config)  # the second process continues from here, too
    prepare = data.Prepare(points=256)
    loader = data.Loader(
        data.Shapes("train", size=64, points=256),
        batch_size=batch_size // processes,  # per process
        transform=prepare,
        shuffle=True,
        rank=fabric.global_rank,
        world=fabric.world_size,
    )
    # Batch norm would normalize over half a batch in each process; group norm handles each cloud separately.
    model = models.pointnet2(classes=12, width=0.125, density=0.25, norm="group", dropout=0)
    trainer = train.Trainer(model, loader, config=config, prepare=prepare, fabric=fabric)
    trainer.fit()
    return [row["train_loss"] for row in trainer.history], fabric.global_rank


def main():
    torch.set_num_threads(1)  # per process
    two, rank = losses(2)
    if rank == 0:  # the second process ends here
        one, _ = losses(1)
        print("epoch    two processes    one process")
        for epoch, (a, b) in enumerate(zip(two, one, strict=True), start=1):
            print(f"{epoch:5}    {a:.8f}       {b:.8f}")
            assert abs(a - b) < 1e-4 * b, "the losses of two processes must match those of one"


if __name__ == "__main__":
    main()
