"""A viser server that accepts only requests and messages of the viewer's own pages."""

import contextlib
import http
import io
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import viser
from viser._messages import GuiUpdateMessage, RunJavascriptMessage, ScenePointerMessage, ViewerCameraMessage
from websockets.asyncio import server as websockets_server

from pointgrad.view import incoming
from pointgrad.view.access import Access

_QUIET = threading.RLock()  # standard output and websockets' `serve` are replaced while a server starts or stops


class GuardedServer(viser.ViserServer):
    """A server that rejects requests of other websites, and messages and values that its pages do not send.

    Args:
        host: Address to listen on.
        port: Port to listen on.
        label: Title of the page.
        access: Requests that are accepted.
    """

    def __init__(self, host: str, port: int, label: str, access: Access) -> None:
        self.access = access
        self._guards = 0
        with self._without_banner(), self._checked_requests():
            super().__init__(host=host, port=port, label=label, verbose=False)
        if not self._guards:
            self.stop()
            raise RuntimeError(f"viser {viser.__version__} starts its web server in an unknown way: install viser 1.1")
        self._check_messages()

    def request_share_url(self, verbose: bool = True) -> str | None:
        """Do nothing: a request for it would make the server public on the internet."""
        return None

    def run_script(self, source: str) -> None:
        """Run a script in all browsers, including those that connect later."""
        self._websock_server.queue_message(RunJavascriptMessage(source))

    def stop(self) -> None:
        """Stop the server without viser's messages."""
        with self._without_banner():
            super().stop()

    @contextlib.contextmanager
    def _without_banner(self) -> Iterator[None]:
        with _QUIET, contextlib.redirect_stdout(io.StringIO()):
            yield

    @contextlib.contextmanager
    def _checked_requests(self) -> Iterator[None]:
        """Check the requests of this server, which must start in this context. viser has no option for this."""
        serve = websockets_server.serve

        def guarded(*arguments: Any, process_request: Any = None, **options: Any) -> Any:
            if threading.current_thread() is not self._websock_server._server_thread:  # a server of another library
                return serve(*arguments, process_request=process_request, **options)
            self._guards += 1

            def process(connection: Any, request: Any) -> Any:
                headers = request.headers
                reason = self.access.refusal(request.path, headers.get_all("Host"), headers.get("Origin"))
                if reason is not None:
                    return connection.respond(http.HTTPStatus.FORBIDDEN, f"{reason}\n")
                return process_request(connection, replace(request, path=self.access.inner_path(request.path)))

            return serve(*arguments, process_request=process, **options)

        websockets_server.serve = guarded  # type: ignore[assignment,misc]
        try:
            yield
        finally:
            websockets_server.serve = serve  # type: ignore[misc]

    def _check_messages(self) -> None:
        """Handle clicks, cameras and changes of controls only, after a check of their values."""
        click = self._websock_server._incoming_handlers[ScenePointerMessage]

        async def update(client: Any, message: Any) -> None:
            control = self.gui._gui_input_handle_from_uuid.get(message.uuid)
            value = None if control is None else incoming.control_value(control, message.updates)
            if value is not None:
                await self.gui._handle_gui_updates(client, replace(message, updates={"value": value}))

        self._websock_server._incoming_handlers = {
            GuiUpdateMessage: [update],
            ScenePointerMessage: [_checked(incoming.is_valid_click, handler) for handler in click],
        }

        async def connected(connection: Any) -> None:
            moved = connection._incoming_handlers[ViewerCameraMessage]
            connection._incoming_handlers = {
                ViewerCameraMessage: [_checked(incoming.is_valid_camera, handler) for handler in moved]
            }

        self._websock_server.on_client_connect(connected)


def _checked(is_valid: Any, handler: Any) -> Any:
    async def handle(client: Any, message: Any) -> None:
        if is_valid(message):
            await handler(client, message)

    return handle
