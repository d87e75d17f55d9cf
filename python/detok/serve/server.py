"""uvicorn, which also tells an application that it is about to be stopped."""

from socket import socket

import uvicorn
from starlette.applications import Starlette

__all__ = ["Server"]

# Seconds for the errors that requests end with; uvicorn cuts off who does not read them.
LAST = 1


class Server(uvicorn.Server):
    """Serves an application of `create_app`.

    Args:
        app: What is served.
        grace: Seconds that open requests may go on when the server is to stop. Then they end with an error.
    """

    def __init__(self, app: Starlette, *, grace: int = 5) -> None:
        super().__init__(
            uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=grace + LAST)
        )
        self._service, self._grace = app.state.service, grace

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._service.stop(self._grace)
        await super().shutdown(sockets)
