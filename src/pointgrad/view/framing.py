"""Cameras of all browsers: the whole cloud in a window of any size, and the ray of a click."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pointgrad.render.camera import View
from pointgrad.view.stage import HOME, MARGIN, Stage
from pointgrad.view.worker import Worker

if TYPE_CHECKING:
    import viser

FOV = math.radians(45.0)  # vertical field of view
ASPECT = 1.4  # assumed aspect of a window until it connects
LINKED_MARGIN = 0.09  # MARGIN of linked views, which have titles
RETRIES, RETRY_SECONDS = 5, 0.5  # a pose is sent again, because a starting browser may lose it
SAME = 1e-3  # relative difference of positions and aspects that counts as no change


@dataclass(frozen=True)
class Pose:
    """Pose of a camera.

    Attributes:
        view: Viewing direction.
        position, target: (3,) position of the camera, and the point that it looks at.
        aspect: Width of the view, relative to its height.
    """

    view: View
    position: np.ndarray
    target: np.ndarray
    aspect: float


class Framing:
    """Moves the cameras of all browsers so that they show the whole cloud.

    A camera that has not been moved since keeps showing the whole cloud when its window changes its size.

    Args:
        server: The server of the page.
        worker: Thread that computes poses.
        stage: Returns the open cloud, None if there is none.
        linked: Whether two linked views are shown.
    """

    def __init__(
        self,
        server: "viser.ViserServer",
        worker: Worker,
        stage: Callable[[], Stage | None],
        linked: Callable[[], bool],
    ) -> None:
        self._server, self._worker, self._stage, self._linked = server, worker, stage, linked
        self._poses: dict[int, Pose] = {}  # last pose of each browser
        self._arrived: set[int] = set()  # browsers that have reported the pose; older cameras may be on their way
        self._started: set[int] = set()  # browsers that have reported any pose
        self._lost: set[int] = set()  # browsers with another camera, which no user has chosen
        self._retries: dict[int, int] = {}  # number of poses that were sent again to each browser
        server.initial_camera.fov = FOV
        server.on_client_connect(self._connected)

    def show_all(self, view: View | None = None) -> None:
        """Show the whole cloud in all browsers, from a direction; None keeps the direction of each."""
        stage = self._stage()
        if stage is None:
            return
        camera = self._server.initial_camera
        camera.position, camera.look_at = stage.camera_pose(
            view or HOME, FOV, self._pane_aspect(ASPECT), self._margin()
        )
        for client in self._server.get_clients().values():
            self.show(client, view or self._direction(client))

    def show(self, client: Any, view: View) -> None:
        """Show the whole cloud in one browser, from a direction."""
        stage = self._stage()
        if client is None or stage is None:
            return
        aspect = self._pane_aspect(client.camera.aspect)
        position, target = stage.camera_pose(view, FOV, aspect, self._margin())
        self._poses[client.client_id] = Pose(view, position, target, aspect)
        self._arrived.discard(client.client_id)
        with client.atomic():
            client.camera.up_direction, client.camera.fov = (0.0, 0.0, 1.0), FOV
            client.camera.position, client.camera.look_at = position, target

    def ray(self, event: Any) -> tuple[np.ndarray, np.ndarray]:
        """Origin and direction of the ray through a click, in the view that was clicked."""
        origin, direction = np.array(event.ray_origin), np.array(event.ray_direction)
        if not self._linked():
            return origin, direction
        camera = event.client.camera
        across, down = event.screen_pos
        if camera.aspect >= 1:
            across = 2 * across % 1
        else:
            down = 2 * down % 1
        half = np.tan(camera.fov / 2)
        in_camera = ((2 * across - 1) * half * self._pane_aspect(camera.aspect), (2 * down - 1) * half, 1.0)
        return origin, _rotate(np.asarray(camera.wxyz), np.array(in_camera))

    def _pane_aspect(self, aspect: float) -> float:
        """Aspect of one view: linked views divide the longer side of the window, as in display.js."""
        if not self._linked():
            return aspect
        return aspect / 2 if aspect >= 1 else aspect * 2

    def _margin(self) -> float:
        return LINKED_MARGIN if self._linked() else MARGIN

    def _direction(self, client: Any) -> View:
        """Direction from which a browser shows the cloud."""
        pose = self._poses.get(client.client_id)
        if client.client_id not in self._arrived:
            return HOME if pose is None else pose.view
        x, y, z = np.asarray(client.camera.position) - np.asarray(client.camera.look_at)
        flat = np.hypot(x, y)
        azimuth = HOME.azimuth if flat == 0 else float(np.degrees(np.arctan2(y, x)))
        return View(azimuth, float(np.clip(np.degrees(np.arctan2(z, flat)), -89.9, 89.9)))

    async def _connected(self, client: Any) -> None:
        client.camera.on_update(self._moved)
        self._worker.submit(f"frame {client.client_id}", lambda: self.show(client, HOME))

    async def _moved(self, camera: Any) -> None:
        client = camera.client
        pose = self._poses.get(client.client_id)
        if pose is None:
            return
        if not _is_at(camera, pose.position, pose.target):
            initial = self._server.initial_camera
            # viser may apply the initial camera, whose window is a guess, after the pose of this window.
            lost = client.client_id not in self._started or _is_at(camera, initial.position, initial.look_at)
            if lost and self._retries.get(client.client_id, 0) < RETRIES:
                self._lost.add(client.client_id)
                self._worker.submit(f"retry {client.client_id}", lambda: self._retry(client), RETRY_SECONDS)
            else:
                self._lost.discard(client.client_id)
            return
        self._arrived.add(client.client_id)
        self._started.add(client.client_id)
        self._lost.discard(client.client_id)
        aspect = self._pane_aspect(camera.aspect)
        if abs(aspect - pose.aspect) > SAME * aspect:
            self._worker.submit(f"frame {client.client_id}", lambda: self.show(client, pose.view))

    def _retry(self, client: Any) -> None:
        """Send the last pose again if it is still lost."""
        if client.client_id in self._lost:
            self._lost.discard(client.client_id)
            self._retries[client.client_id] = self._retries.get(client.client_id, 0) + 1
            self.show(client, self._poses[client.client_id].view)


def _is_at(camera: Any, position: np.ndarray, target: np.ndarray) -> bool:
    """Whether a camera is at a position and looks at a target."""
    moved = np.linalg.norm(camera.position - position) + np.linalg.norm(camera.look_at - target)
    return bool(moved < SAME * np.linalg.norm(position - target))


def _rotate(wxyz: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Rotate a vector (3,) by a unit quaternion (4,)."""
    w, axis = wxyz[0], wxyz[1:]
    return vector + 2 * np.cross(axis, np.cross(axis, vector) + w * vector)
