"""What an engine's own stream becomes: a stream of updates that closes the engine's when it is closed."""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Generic, TypeVar

from detok import EngineUpdate
from detok.events import ClosesAll

__all__ = ["AsyncUpdates", "Updates"]

Output = TypeVar("Output")


class Updates(Iterator[EngineUpdate], Generic[Output]):
    """The updates in an iterable of outputs; outputs that `read` has no update for are passed over.

    A class and not a generator: closing a generator that was never started does nothing, and the engine's stream, on
    which a request may hang, would stay open.
    """

    def __init__(self, outputs: Iterable[Output], read: Callable[[Output], EngineUpdate | None]) -> None:
        self._source, self._outputs = outputs, iter(outputs)
        self._read = read

    def __next__(self) -> EngineUpdate:
        for output in self._outputs:
            if (update := self._read(output)) is not None:
                return update
        raise StopIteration

    def close(self) -> None:
        """Closes the engine's stream, if it can be closed."""
        with ClosesAll(self._outputs, self._source):
            pass


class AsyncUpdates(AsyncIterator[EngineUpdate], Generic[Output]):
    """`Updates` of an async iterable."""

    def __init__(self, outputs: AsyncIterable[Output], read: Callable[[Output], EngineUpdate | None]) -> None:
        self._source, self._outputs = outputs, aiter(outputs)
        self._read = read

    async def __anext__(self) -> EngineUpdate:
        async for output in self._outputs:
            if (update := self._read(output)) is not None:
                return update
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Closes the engine's stream, if it can be closed; most engines abort the request then."""
        async with ClosesAll(self._outputs, self._source):
            pass
