"""Classes with the codes that --classes gives them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pointgrad.data import ClassMap, FileError
from pointgrad.data.classes import Other
from pointgrad.data.names import declared_classes
from pointgrad.predict.report import map_of
from pointgrad.train import Trained


def parse_classes(texts: Sequence[str], other: Other) -> ClassMap | None:
    """Parse the values of --classes and --other-classes; None without values.

    Raises:
        ValueError: The values are malformed.
    """
    try:
        return ClassMap.parse(texts, other) if texts else None
    except FileError:
        raise
    except ValueError as error:
        raise ValueError(f"--classes: {error}") from None


def shown_classes(texts: Sequence[str], other: Other) -> ClassMap | None:
    """Parse the values of --classes and --other-classes of a command that shows files; see `parse_classes`."""
    if other == "refuse" and not texts:
        raise ValueError("--other-classes refuse requires --classes")
    return parse_classes(texts, other)


def with_classes(trained: Trained, texts: Sequence[str], other: Other | None) -> Trained:
    """Return the network with different codes for its classes in files.

    Args:
        trained: The network.
        texts: Values of --classes; empty: the codes of the training.
        other: Value of --other-classes; None: as in training.

    Raises:
        ValueError: The texts are malformed, or do not name the classes of the network.
    """
    known = trained.class_map
    given = parse_classes(texts, "ignore")
    if given is not None:
        known = given.ordered(trained.classes)
        if known is None:
            raise ValueError(
                f"--classes must name the classes of the network, {', '.join(trained.classes)}, "
                f"got {', '.join(given.names)}"
            )
    if known is None and other is None:
        return trained
    known = known or map_of(trained)
    return replace(trained, class_map=replace(known, other=other or known.other))


def check_declared(trained: Trained, source: Path) -> None:
    """Raise ValueError if names next to a file give other codes to the classes of the network than the training."""
    own, known = declared_classes(source.parent), trained.class_map
    if known is not None and own is not None and set(own.names) == set(known.names) and own.known() != known.known():
        raise ValueError(
            f"{source}: expected the codes of the training, {' '.join(known.texts())}, "
            f"found {' '.join(own.texts())} in its folder; choose with --classes"
        )
