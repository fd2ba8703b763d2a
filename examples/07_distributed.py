"""Training in two processes: half the batch in each, and the losses of one process with the whole batch.

The program is started once; lightning-fabric, through `pointgrad.train`, starts it again for the second process. On
GPUs each process has one; here, or with a single GPU, both compute on the CPU and talk by gloo.
"""

import torch

from pointgrad import data, models, train


def losses(processes, batch_size=8, epochs=3):
    torch.manual_seed(0)
    place = "cuda" if torch.cuda.device_count() >= processes > 1 else "cpu"
    config = train.TrainConfig(epochs=epochs, devices=processes, accelerator=place, lr=0.003)
    fabric = train.launch(config)  # from here on there are as many of us
    prepare = data.Prepare(points=256)
    loader = data.Loader(
        data.Shapes("train", size=64, points=256),
        batch_size=batch_size // processes,  # of each process
        transform=prepare,
        shuffle=True,
        rank=fabric.global_rank,
        world=fabric.world_size,
    )
    # Batch norm would see half a batch in each process: group norm sees one cloud at a time.
    model = models.pointnet2(classes=12, width=0.125, density=0.25, norm="group", dropout=0)
    trainer = train.Trainer(model, loader, config=config, prepare=prepare, fabric=fabric)
    trainer.fit()
    return [row["train_loss"] for row in trainer.history], fabric.global_rank


def main():
    torch.set_num_threads(1)  # of each process
    two, rank = losses(2)
    if rank == 0:  # the second process is done here
        one, _ = losses(1)
        print("epoch    two processes    one process")
        for epoch, (a, b) in enumerate(zip(two, one, strict=True), start=1):
            print(f"{epoch:5}    {a:.8f}       {b:.8f}")
            assert abs(a - b) < 1e-4 * b, "two processes must learn what one does"


if __name__ == "__main__":
    main()
