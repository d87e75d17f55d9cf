"""How long a client is waited for that neither reads nor leaves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

__all__ = ["IdleClientError", "patience"]

Write: TypeAlias = Callable[[Any], Awaitable[None]]


class IdleClientError(ConnectionError):
    """A client is waited for no longer."""


@asynccontextmanager
async def patience(seconds: float, write: Write) -> AsyncIterator[Write]:
    """Cancels what is within when a write of it waits for so long; 0: never.

        async with patience(60, send) as send:
            await send(message)

    One write at a time may wait. A timer looks at it now and then: one for each write would cost more than the write.

    Raises:
        IdleClientError: At the end, when it was cancelled.
    """
    if not seconds:
        yield write
        return
    loop = asyncio.get_running_loop()
    waits_since: float | None = None

    async def watched(message: Any) -> None:
        nonlocal waits_since
        waits_since = loop.time()
        try:
            await write(message)
        finally:
            waits_since = None

    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer
        now = loop.time()
        end = seconds + (now if waits_since is None else waits_since)
        if end <= now:
            limit.reschedule(now)
        else:
            timer = loop.call_at(end, look)

    timer = loop.call_later(seconds, look)
    try:
        async with asyncio.timeout(None) as limit:
            yield watched
    except TimeoutError:
        if not limit.expired():
            raise
        raise IdleClientError(f"the client read nothing for {seconds:g} seconds") from None
    finally:
        timer.cancel()
