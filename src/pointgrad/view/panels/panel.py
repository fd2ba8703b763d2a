"""What every panel has."""

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pointgrad.view.viewer import Viewer


class Panel:
    """One operator: its controls, and what it draws over the cloud.

    title: in the dropdown. needs_network: only there with a checkpoint.
    """

    title: ClassVar[str]
    needs_network: ClassVar[bool] = False

    def __init__(self, viewer: "Viewer") -> None:
        self.viewer = viewer

    def build(self, gui: Any) -> None:
        """Adds its controls; `self.viewer.shows(control)` for those that change what is drawn."""
        raise NotImplementedError

    def show(self) -> None:
        """Computes and draws, with `viewer.work`, `viewer.stage`, `viewer.picked` and `viewer.overlay`. Called in the
        viewer's thread when the panel is chosen, a control or the cloud has changed, or a point was clicked."""
        raise NotImplementedError
