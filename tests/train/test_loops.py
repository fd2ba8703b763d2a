"""Training loops against plain torch: updates, accumulation, modes, and metrics over all data."""

import contextlib
import copy
import doctest

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import pointgrad
from pointgrad.data import Cloud, collate
from pointgrad.train import CrossEntropy, TrainConfig, evaluate, loops, optimize, train_epoch
from tests.support.tiny import Tiny, loaders


def ragged(sizes, task="classification", seed=0):
    generator = torch.Generator().manual_seed(seed)
    clouds = []
    for number, size in enumerate(sizes):
        points = torch.randn(size, 3, generator=generator)
        labels = torch.randint(-1, 2, (size,), generator=generator)
        per_point = task == "segmentation"
        clouds.append(Cloud(points, labels=labels if per_point else None, label=None if per_point else number % 2))
    return clouds


def gradients(model):
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_one_epoch_matches_plain_torch(task):
    batches = [collate(ragged((5, 9, 7), task, seed=seed)) for seed in range(3)]
    model = Tiny(task=task)
    other = copy.deepcopy(model)
    train_epoch(model, batches, torch.optim.SGD(model.parameters(), 0.1), classes=2)
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    for batch in batches:
        optimizer.zero_grad()
        logits = other(**batch.inputs())
        cross_entropy(logits.reshape(-1, 2), batch.target, ignore_index=-1).backward()
        optimizer.step()
    torch.testing.assert_close(model.state_dict(), other.state_dict())


@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 2.0])])
def test_accumulation_equals_one_large_batch(weights):
    """Also with different numbers of labels per batch, and with class weights."""
    clouds = ragged((4, 30, 8, 3, 12), "segmentation")
    small = [collate(clouds[:1]), collate(clouds[1:3]), collate(clouds[3:])]
    model = Tiny(task="segmentation").double()
    for batch in (*small, whole := collate(clouds)):
        batch.points = batch.points.double()
    other = copy.deepcopy(model)
    objective = CrossEntropy(None if weights is None else weights.double(), smoothing=0.1)
    for own, batches in ((model, small), (other, [whole])):
        optimizer = torch.optim.SGD(own.parameters(), 0.1)
        train_epoch(own, batches, optimizer, classes=2, objective=objective, accumulate=3)
    torch.testing.assert_close(gradients(model), gradients(other))


def test_metrics_are_over_all_data_not_means_of_batches():
    sizes = [ragged((6,) * count, seed=count) for count in (1, 5, 2)]
    batches, whole = [collate(clouds) for clouds in sizes], collate([cloud for clouds in sizes for cloud in clouds])
    model = Tiny()
    values = evaluate(model, batches, classes=2).compute()
    with torch.no_grad():
        logits = model(**whole.inputs())
    assert values["loss"] == pytest.approx(cross_entropy(logits, whole.target).item())
    assert values["accuracy"] == pytest.approx((logits.argmax(1) == whole.target).double().mean().item())


def test_modes_are_restored_even_after_an_error():
    model = Tiny(dropout=0.5).train()
    model.first.eval()  # a frozen layer
    modes = [module.training for module in model.modules()]
    batch = collate(ragged((6, 6)))

    def broken():
        yield batch
        raise OSError("the disk is gone")

    def assert_restored():
        assert [module.training for module in model.modules()] == modes
        assert torch.is_grad_enabled()

    evaluate(model, [batch], classes=2)
    assert_restored()
    with pytest.raises(OSError, match="disk is gone"):
        evaluate(model, broken(), classes=2)
    assert_restored()
    with pytest.raises(OSError, match="disk is gone"):
        train_epoch(model, broken(), torch.optim.SGD(model.parameters(), 0.1), classes=2)
    assert_restored()


def test_dropout_works_in_training_and_not_in_evaluation():
    seen = {"train": [], "eval": []}
    model = Tiny(dropout=0.5)
    model.last[0].register_forward_hook(
        lambda layer, inputs, output: seen["train" if layer.training else "eval"].append((output == 0).sum().item())
    )
    model.first[-1].register_forward_hook(
        lambda layer, inputs, output: output.abs() + 1
    )  # so that only dropout makes zeros
    batch = collate(ragged((6,) * 8))
    evaluate(model, [batch], classes=2)
    train_epoch(model, [batch], torch.optim.SGD(model.parameters(), 0.1), classes=2)
    assert seen["eval"] == [0]
    assert seen["train"][0] > 0


def test_clipping_matches_torch():
    batch = collate(ragged((8, 8, 8)))
    model = Tiny()
    other = copy.deepcopy(model)
    train_epoch(model, [batch], torch.optim.SGD(model.parameters(), 1.0), classes=2, clip=1e-3)
    cross_entropy(other(**batch.inputs()), batch.target).backward()
    nn.utils.clip_grad_norm_(other.parameters(), 1e-3)
    torch.testing.assert_close(gradients(model), gradients(other))


def test_a_batch_without_labels_changes_nothing_and_counts_nothing():
    batch = collate([Cloud(torch.randn(6, 3), labels=torch.full((6,), -1))])
    model = Tiny(task="segmentation")
    before = copy.deepcopy(model.state_dict())
    metrics = train_epoch(model, [batch, collate([])], torch.optim.SGD(model.parameters(), 1.0), classes=2)
    torch.testing.assert_close(model.state_dict(), before)
    assert int(metrics.confusion.sum()) == 0


def test_invalid_labels_raise_a_clear_error():
    batch = collate([Cloud(torch.randn(6, 3), label=2)])
    model = Tiny()
    with pytest.raises(ValueError, match="from 0 to 1 for 2 classes, or -1 for no label, got 2"):
        train_epoch(model, [batch], torch.optim.SGD(model.parameters(), 1.0), classes=2)
    unlabelled = collate([Cloud(torch.randn(6, 3))])
    with pytest.raises(ValueError, match="must have labels, got none"):
        evaluate(model, [unlabelled], classes=2)


def test_votes_average_probabilities():
    """Compare with the mean of the probabilities that the network returned."""
    shown = []

    class Seen(Tiny):
        def forward(self, points, features=None, **rest):
            logits = super().forward(points, features, **rest)
            shown.append((points.clone(), logits.softmax(1)))
            return logits

    model, batch, result = Seen(), collate(ragged((6, 6))), []
    evaluate(model, [batch], classes=2, votes=4, see=lambda batch, logits: result.append(logits.exp()))
    assert len(shown) == 4
    torch.testing.assert_close(result[0], torch.stack([each for _, each in shown]).mean(0))
    assert torch.equal(shown[0][0], batch.inputs()["points"])
    for points, _ in shown[1:]:
        factor = points / shown[0][0]
        torch.testing.assert_close(factor, factor[:, :1].expand_as(factor))  # one per cloud and axis
        assert factor.min() >= 2 / 3 - 1e-6
        assert factor.max() <= 1.5 + 1e-6
    first = evaluate(model, [batch], classes=2, votes=4).compute()
    assert first == evaluate(model, [batch], classes=2, votes=4).compute()


def test_training_with_the_loader_reduces_the_loss():
    training, validation = loaders(8, clouds=64)
    model = Tiny(width=32)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    before = evaluate(model, validation, classes=2).compute()["loss"]
    for epoch in range(15):
        training.set_epoch(epoch)
        train_epoch(model, training, optimizer, classes=2)
    assert evaluate(model, validation, classes=2).compute()["loss"] < 0.7 * before


def test_ema_matches_the_formula():
    model = Tiny()
    ema = optimize.EMA(model, 0.5)
    weight = model.last[1].weight
    expected = weight.detach().clone()
    for update in range(4):
        with torch.no_grad():
            weight += 1.0
        ema.update(update)
        decay = min(0.5, (1 + update) / (10 + update))
        expected = decay * expected + (1 - decay) * weight.detach()
    kept = weight.detach().clone()
    with contextlib.suppress(KeyError), ema.applied():
        torch.testing.assert_close(weight.detach(), expected)
        raise KeyError
    assert torch.equal(weight, kept)


@pytest.mark.parametrize(("schedule", "last"), [("cosine", 0.0), ("step", 0.25), ("constant", 1.0)])
def test_schedules(schedule, last):
    config = TrainConfig(epochs=30, lr=1.0, schedule=schedule, warmup_epochs=2, step_epochs=10, step_factor=0.5)
    rates = [optimize.learning_rate(config, update, 4) for update in range(120)]
    assert rates[0] == 1 / 8  # two epochs of four updates
    assert max(rates) == rates[8] == 1.0
    assert rates[:8] == sorted(rates[:8])
    assert rates[-1] == pytest.approx(last, abs=1e-3)
    if schedule == "cosine":
        module = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(module.parameters(), 1.0)
        own = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 112)
        for rate in rates[8:]:
            assert rate == pytest.approx(own.get_last_lr()[0], abs=1e-9)
            optimizer.step()
            own.step()


def test_norms_and_biases_do_not_decay():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = optimize.make_optimizer(model, TrainConfig(weight_decay=0.1))
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decays == {id(p): 0.1 if p is model[0].weight else 0.0 for p in model.parameters()}


def test_documented_examples_run():
    names = {"torch": torch, "pointgrad": pointgrad, **vars(loops), **vars(optimize)}
    for module in (loops, optimize):
        for example in doctest.DocTestFinder(exclude_empty=True).find(module, globs=names):
            assert doctest.DocTestRunner().run(example).failed == 0


def points_and_labels(count=10, *, per_point=False):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, 7, 3, generator=generator)
    return x, torch.randint(-1, 2, (count, 7) if per_point else (count,), generator=generator)


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_plain_dataloader(task):
    data = TensorDataset(*points_and_labels(per_point=task == "segmentation"))
    loader, model = DataLoader(data, batch_size=4), Tiny(task=task)
    other = copy.deepcopy(model)
    metrics = train_epoch(model, loader, torch.optim.SGD(model.parameters(), 0.1), classes=2)
    optimizer, right = torch.optim.SGD(other.parameters(), 0.1), 0
    for x, y in loader:
        optimizer.zero_grad()
        logits = other(x)
        right += int((logits.argmax(-1) == y).sum())
        cross_entropy(logits.reshape(-1, 2), y.reshape(-1), ignore_index=-1).backward()
        optimizer.step()
    torch.testing.assert_close(model.state_dict(), other.state_dict())
    assert int(metrics.confusion.diag().sum()) == right
    x, y = data.tensors
    values = evaluate(model, loader, classes=2).compute()
    with torch.no_grad():
        expected = cross_entropy(model(x).reshape(-1, 2), y.reshape(-1), ignore_index=-1)
    assert values["loss"] == pytest.approx(expected.item())


def test_plain_dataloader_with_several_arguments():
    class Sum(nn.Linear):
        def forward(self, a, b):
            return super().forward(a + b)

    x, y = torch.randn(6, 3), torch.tensor([0, 1, 1, 0, 1, -1])
    model, samples = Sum(3, 2), [((a, 2 * a), b) for a, b in zip(x, y, strict=True)]
    values = evaluate(model, DataLoader(samples, batch_size=4), classes=2).compute()
    assert values["loss"] == pytest.approx(cross_entropy(model(x, 2 * x), y, ignore_index=-1).item())


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ((torch.ones(2, 7, 3),), TypeError, r"pairs \(X, y\), got 1 values"),
        ({"x": 1}, TypeError, r"pairs \(X, y\), got dict"),
        ((torch.ones(2, 7, 3), [0, 1]), TypeError, "X and y of a batch must be tensors, got list"),
        ((torch.ones(2, 7, 3), torch.ones(2)), TypeError, "labels y must be integers, got torch.float32"),
        ((torch.ones(2, 7, 3), torch.ones(3, dtype=int)), ValueError, r"got shapes \(2, 7, 3\) and \(3,\)"),
        ((torch.ones(2, 7, 3), torch.tensor(1)), ValueError, r"got shapes \(2, 7, 3\) and \(\)"),
        ((torch.ones(2, 7, 3), torch.tensor([0, 5])), ValueError, "labels must be from 0 to 1 .* got 5"),
    ],
)
def test_bad_pairs(batch, error, message):
    with pytest.raises(error, match=message):
        evaluate(Tiny(), [batch], classes=2)


def test_model_with_channels_first_is_refused():
    """Reshaping (B, classes, N) to rows would mix them."""
    x, y = points_and_labels(per_point=True)
    transposed = nn.Sequential(nn.Linear(3, 2), nn.Flatten(1), nn.Unflatten(1, (2, 7)))
    with pytest.raises(ValueError, match=r"the model must return logits \(\.\.\., 2\), got \(10, 2, 7\)"):
        train_epoch(transposed, [(x, y)], torch.optim.SGD(transposed.parameters(), 0.1), classes=2)
    with pytest.raises(ValueError, match=r"votes must be 1 for batches \(X, y\).*got 3"):
        evaluate(Tiny(), [points_and_labels()], classes=2, votes=3)
