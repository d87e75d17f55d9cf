"""Answers on their way to a client, and the client on its way out."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Send

__all__ = ["EventStream", "send_json", "while_connected"]

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # Proxies that collect answers would undo the streaming.
    (b"x-accel-buffering", b"no"),
]
# Bytes.
PIECE = 1 << 16


class EventStream:
    """A response of server-sent events; its headers leave with the first of them.

    `write` waits while the reader lags: when more bytes wait for the socket than the server lets wait (64 KiB in
    uvicorn). Whoever writes then fetches nothing from the engine, where updates of a lagging reader are joined to one:
    so its next chunk is a large one, and no queue here has to be bounded.

    Attributes:
        is_open: The headers left.
        is_torn: A write of several pieces was cancelled. Whatever followed would be read as the rest of its events.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_open = False
        self.is_torn = False

    async def write(self, events: bytes, *, is_last: bool = False) -> None:
        """Sends events, when those that were written before are on their way; one task at a time may write."""
        if not self.is_open:
            self.is_open = True
            await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        self.is_torn = len(events) > PIECE
        await _send_pieces(self._send, events, is_last)
        self.is_torn = False


async def send_json(send: Send, value: Any) -> None:
    """Answers with a JSON body; waits while the reader lags, as `EventStream.write` does."""
    response = JSONResponse(value)
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await _send_pieces(send, bytes(response.body), is_last=True)


async def _send_pieces(send: Send, body: bytes, is_last: bool) -> None:
    """Sends what may be large in pieces, so that a reader who takes its time for it is seen to read."""
    for start in range(0, len(body), PIECE):
        more = not is_last or start + PIECE < len(body)
        await send({"type": "http.response.body", "body": body[start : start + PIECE], "more_body": more})


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Does work for a client whose request is read, and cancels it if the client goes away."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        # Here too if this task is cancelled itself, because the server stops. The engine hears of it in any case.
        gone.cancel()
        if not task.done():
            task.cancel()
        await asyncio.wait((task, gone))
    with suppress(asyncio.CancelledError):
        task.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
