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
        self._retries: dict[int, int] = {}  # number of retries for each other browser
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
        distance = SAME * np.linalg.norm(pose.position - pose.target)
        moved = np.linalg.norm(camera.position - pose.position) + np.linalg.norm(camera.look_at - pose.target)
        if moved >= distance:
            retries = self._retries.get(client.client_id, 0)
            if client.client_id not in self._started and retries < RETRIES:
                self._retries[client.client_id] = retries + 1
                self._worker.submit(f"retry {client.client_id}", lambda: self._retry(client), RETRY_SECONDS)
            return
        self._arrived.add(client.client_id)
        self._started.add(client.client_id)
        aspect = self._pane_aspect(camera.aspect)
        if abs(aspect - pose.aspect) > SAME * aspect:
            self._worker.submit(f"frame {client.client_id}", lambda: self.show(client, pose.view))

    def _retry(self, client: Any) -> None:
        """Send the last pose again if the browser has not reported any."""
        if client.client_id not in self._started:
            self.show(client, self._poses[client.client_id].view)


def _rotate(wxyz: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Rotate a vector (3,) by a unit quaternion (4,)."""
    w, axis = wxyz[0], wxyz[1:]
    return vector + 2 * np.cross(axis, np.cross(axis, vector) + w * vector)
