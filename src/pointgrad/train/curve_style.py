"""Colors and notes of curves, the same in `curves.png` and on the run page of the viewer."""

from collections.abc import Iterable, Mapping

TRAIN = "#e07b39"  # the first training metric of a chart
OTHERS = ("#1f5fa8", "#3a8f5c", "#8e5aa8", "#8c603a", "#26b0c4")  # all other metrics, in this order


def line_colors(names: Iterable[str]) -> dict[str, str]:
    """Return a color for each metric of one chart.

    Example:
        >>> line_colors(["train_loss", "val_loss"])
        {'train_loss': '#e07b39', 'val_loss': '#1f5fa8'}
    """
    colors: dict[str, str] = {}
    for name in names:
        used = sum(color != TRAIN for color in colors.values())
        first = name.startswith("train_") and TRAIN not in colors.values()
        colors[name] = TRAIN if first else OTHERS[used % len(OTHERS)]
    return colors


def loss_note(config: Mapping[str, object]) -> str:
    """Explain why training and validation losses of a run are not comparable; empty if they are.

    Args:
        config: Training configuration, as in `config.yaml`.

    Example:
        >>> loss_note({"smoothing": 0.2, "class_weights": "none"})
        'not comparable: only the train loss has smoothed labels (0.2)'
        >>> loss_note({"smoothing": 0.0, "class_weights": "none"})
        ''
    """
    smoothing, weights = config.get("smoothing"), config.get("class_weights")
    reasons = []
    if isinstance(smoothing, (int, float)) and smoothing > 0:
        reasons.append(f"smoothed labels ({smoothing:g})")
    if weights in ("sqrt", "inverse"):
        reasons.append("class weights")
    return f"not comparable: only the train loss has {' and '.join(reasons)}" if reasons else ""
