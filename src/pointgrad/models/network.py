"""Base class of networks: input checks and conversion of layouts."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pointgrad.nn.level import Level, offsets_of
from pointgrad.ops import checks

TASKS = ("classification", "segmentation")


class Network(nn.Module):
    """A network on point clouds. `models.build(**network.config)` builds an equal network.

    Offsets and lengths are read once on the host. Padded clouds of equal size need no such synchronization, and work
    with `torch.compile(fullgraph=True)` and `torch.export`.

    Attributes:
        config: The name and options of the network, as plain values.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = config

    def forward(
        self,
        points: Tensor,
        features: Tensor | None = None,
        *,
        offsets: Tensor | None = None,
        lengths: Tensor | None = None,
        category: Tensor | None = None,
    ) -> Tensor:
        """Compute logits.

        Args:
            points: Packed (N, 3), or padded (B, N, 3). Each cloud must have at least one point.
            features: (N, C) or (B, N, C) with C = `config["channels"]`; None if that is 0.
            offsets: (B + 1,), for packed points.
            lengths: (B,), for padded clouds of different sizes.
            category: (B,) int64, the category of each cloud, for networks with `categories`.

        Returns:
            (B, classes) for classification; (N, classes) or (B, N, classes) for segmentation, zero in padding.
        """
        channels = self.config["channels"]
        checks.clouds(points, offsets, lengths)
        _check_features(features, points, channels)
        level = Level(points, features, offsets)
        real = None
        if lengths is not None:
            level, real = _pack(level, lengths)
        level = level.with_sizes()
        _check_sizes(level)
        batch = len(level.sizes) if level.sizes is not None else points.shape[0]
        self._check_category(category, batch, points)
        # Clouds of equal size need no offsets.
        dense = level.sizes is not None and len(set(level.sizes)) == 1
        logits = self.logits(_unpack(level) if dense else level, category)
        if self.config["task"] == "classification":
            return logits
        if real is not None:
            return logits.new_zeros(*real.shape, logits.shape[-1]).masked_scatter(real.unsqueeze(-1), logits)
        return logits.flatten(0, 1) if dense else logits

    def logits(self, level: Level, category: Tensor | None) -> Tensor:
        """Return the logits of each cloud, or of each point in the layout of the level."""
        raise NotImplementedError

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the network to a folder: weights to `model.safetensors`, name and options to `config.json`.

        Needs the package safetensors.

        Args:
            folder: Created if it does not exist. Files of these names are replaced.

        Raises:
            ValueError: The network was changed, so that its config does not describe it.
            OSError: A file cannot be written.
        """
        from pointgrad.models import hub  # which builds networks of all kinds

        hub.save_pretrained(self, folder)

    @staticmethod
    def from_pretrained(source: str | Path, *, revision: str | None = None, token: str | None = None) -> "Network":
        """Load a network that `save_pretrained` or `push_to_hub` wrote. No code of the source is executed.

        Needs the package safetensors, and for a repository huggingface_hub.

        Args:
            source: A folder, or a repository "owner/name" of Hugging Face's hub.
            revision: Branch, tag or commit of the repository.
            token: Access token, by default that of `hf auth login`.

        Returns:
            The network, in evaluation mode.

        Raises:
            ValueError: The source is not a saved network, or is damaged. The message is one line.

        Example:
            >>> from pointgrad.models import Network
            >>> Network.from_pretrained("nowhere")  # doctest: +ELLIPSIS
            Traceback (most recent call last):
            pointgrad.models.hub.PretrainedError: nowhere: expected a folder with config.json and model.safetensors...
        """
        from pointgrad.models import hub  # which builds networks of all kinds

        return hub.from_pretrained(source, revision=revision, token=token)

    def push_to_hub(
        self,
        repository: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        revision: str | None = None,
        message: str = "Upload network",
    ) -> str:
        """Upload the files of `save_pretrained` to a repository of Hugging Face's hub.

        Needs the packages safetensors and huggingface_hub.

        Args:
            repository: "owner/name"; created if it does not exist.
            private: Whether a created repository is private; by default as set for the owner.
            token: Access token, by default that of `hf auth login`.
            revision: Branch, by default "main".
            message: Subject of the commit.

        Returns:
            The address of the commit.
        """
        from pointgrad.models import hub  # which builds networks of all kinds

        return hub.push_to_hub(self, repository, private=private, token=token, revision=revision, message=message)

    def _check_category(self, category: Tensor | None, batch: int, points: Tensor) -> None:
        categories = self.config.get("categories", 0)
        if category is None or not categories:
            checks.value(category is None, "category", "None for a network without categories", "a tensor")
            checks.value(not categories, "category", lambda: f"a tensor (B,) with values in [0, {categories})", "None")
            return
        checks.tensor("category", category)
        checks.shape(category.shape == (batch,), "category", lambda: f"(B,) = ({batch},)", category)
        checks.dtype("category", category, checks.INDICES)
        checks.device("category", category, "points", points)
        if category.device.type == "cpu" and not torch.compiler.is_compiling():
            for value in category.tolist():
                checks.value(0 <= value < categories, "category", f"in [0, {categories})", value)


def _check_features(features: Any, points: Tensor, channels: int) -> None:
    if features is None:
        checks.value(channels == 0, "features", lambda: f"a tensor with {channels} channels", "None")
        return
    checks.tensor("features", features)
    expected = (*points.shape[:-1], channels)
    checks.value(channels > 0, "features", "None for a network with channels=0", "a tensor")
    checks.shape(features.shape == expected, "features", lambda: f"{expected}", features)
    checks.device("features", features, "points", points)


def _check_sizes(level: Level) -> None:
    if level.sizes is None:
        batch, size, _ = level.points.shape
        checks.shape(batch > 0 and size > 0, "points", "(B, N, 3) with B and N at least 1", level.points)
        return
    checks.value(len(level.sizes) > 0, "points", "at least one cloud", "none", verb="contain")
    for number, size in enumerate(level.sizes):
        checks.value(size > 0, f"cloud {number}", "at least one point", size, verb="have")
    total = sum(level.sizes)
    checks.value(total == len(level.points), "offsets[-1]", f"N = {len(level.points)}", total, verb="equal")


def _pack(level: Level, lengths: Tensor) -> tuple[Level, Tensor]:
    """The packed level, and the mask (B, N) of valid points."""
    sizes = tuple(lengths.tolist())
    most = level.points.shape[1]
    for number, size in enumerate(sizes):
        checks.value(0 < size <= most, f"lengths[{number}]", f"in [1, N = {most}]", size)
    real = torch.arange(most, device=lengths.device) < lengths.unsqueeze(1)
    # Indexing by rows, whose number is known, does not wait for a GPU, unlike indexing by the mask.
    rows = torch.cat([torch.arange(size) + number * most for number, size in enumerate(sizes)]).to(lengths.device)
    features = None if level.features is None else level.features.flatten(0, 1)[rows]
    return Level(level.points.flatten(0, 1)[rows], features, offsets_of(sizes, lengths.device), sizes), real


def _unpack(level: Level) -> Level:
    """The padded level of packed clouds of equal size."""
    assert level.sizes is not None
    shape = (len(level.sizes), level.sizes[0], -1)
    features = None if level.features is None else level.features.reshape(shape)
    return Level(level.points.reshape(shape), features)
