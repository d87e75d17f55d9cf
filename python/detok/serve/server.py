"""uvicorn, which also tells an application that it is about to be stopped."""

from socket import socket

import uvicorn
from starlette.applications import Starlette

__all__ = ["Server"]


class Server(uvicorn.Server):
    """Serves an application of `create_app`.

    Args:
        app: What is served.
        grace: Seconds that open streams may go on when the server is to stop.
    """

    def __init__(self, app: Starlette, *, grace: int = 5) -> None:
        super().__init__(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=grace))
        self._service = app.state.service

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        # What ends from here on was not ended by its client.
        self._service.is_stopping = True
        await super().shutdown(sockets)
