"""Events of one request around an engine's updates: iterables, and asynchronous ones."""

import sys
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine, Generator, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeAlias

from detok._core import EngineUpdate, RequestDecoder, Start, TextDecodeOptions, TextDelta, Tokenizer
from detok.errors import RequestError

__all__ = ["DecodedTextEvent", "adecode_events", "decode_events"]

DecodedTextEvent: TypeAlias = Start | TextDelta


def decode_events(
    updates: Iterable[EngineUpdate],
    tokenizer: Tokenizer,
    options: TextDecodeOptions | None = None,
    *,
    request_id: str = "",
    intermediate: bool = True,
    token_texts: bool = False,
) -> Generator[DecodedTextEvent]:
    """The events of a request, from its start to its end.

    No update is read behind the end, be it the engine's or a stop of the request's own. Then, and when the generator
    is closed, started or not, the source is closed if it has a `close`. An error of that `close` is raised if there is
    no other; otherwise it is a note of the other.

    Args:
        updates: What the engine reports; the first update has the prompt.
        tokenizer: Whose ids these are.
        options: What is shown, and where the text ends.
        request_id: Named by errors.
        intermediate: One `TextDelta` per update; otherwise one at the end, with everything.
        token_texts: Each sampled token comes with its text, logprobs or not.

    Raises:
        RequestError: The source raised (`__cause__`) or ended before the request did, or the engine failed.
        UnknownTokenError: An unknown id, unless such ids are skipped; `index` counts in its update.
    """
    decoder = RequestDecoder(
        tokenizer, None, options, request_id=request_id, intermediate=intermediate, token_texts=token_texts
    )
    events = _events(updates, iter(updates), decoder)
    # To the place before the first update. Closing a generator that was never there runs nothing, and leaves its source
    # open.
    next(events)
    return events


def adecode_events(
    updates: AsyncIterable[EngineUpdate],
    tokenizer: Tokenizer,
    options: TextDecodeOptions | None = None,
    *,
    request_id: str = "",
    intermediate: bool = True,
    token_texts: bool = False,
) -> AsyncGenerator[DecodedTextEvent]:
    """The same for an asynchronous source, closed with its `aclose`, after a cancellation too; see `decode_events`."""
    decoder = RequestDecoder(
        tokenizer, None, options, request_id=request_id, intermediate=intermediate, token_texts=token_texts
    )
    return _AsyncEvents(_aevents(updates, aiter(updates), decoder))


class ClosesAll:
    """Closes what it was made of at the end of a `with`; an iterable and its iterator are often one object.

    All of it is closed, whatever happens. The first error is raised, and later ones are notes of it. But being closed
    is no error, and who cancels or interrupts the closing is not put off with an error of the engine.
    """

    def __init__(self, *parts: Any) -> None:
        self._parts = {id(part): part for part in parts}.values()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        first = error
        for part in self._parts:
            if callable(close := getattr(part, "close", None)):
                try:
                    close()
                except BaseException as closing:
                    first = _first(first, closing)
        if first is not None and first is not error:
            raise first

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        first = error
        for part in self._parts:
            if callable(aclose := getattr(part, "aclose", None)):
                try:
                    await aclose()
                except BaseException as closing:
                    first = _first(first, closing)
        if first is not None and first is not error:
            raise first


def _first(error: BaseException | None, closing: BaseException) -> BaseException:
    if error is None or isinstance(error, GeneratorExit):
        return closing
    if isinstance(error, Exception) and not isinstance(closing, Exception):
        return closing
    error.add_note(f"and closing its source raised {type(closing).__name__}: {closing}")
    return error


def _events(source: Iterable[EngineUpdate], updates: Iterator[EngineUpdate], decoder: RequestDecoder) -> Generator[Any]:
    with ClosesAll(updates, source):
        yield None
        while not decoder.is_finished:
            try:
                update = next(updates)
            except StopIteration:
                decoder.close()
                return
            except Exception as error:
                raise _failed(decoder, error) from error
            yield from decoder.push(update)


async def _aevents(
    source: AsyncIterable[EngineUpdate], updates: AsyncIterator[EngineUpdate], decoder: RequestDecoder
) -> AsyncGenerator[Any]:
    async with ClosesAll(updates, source):
        yield None
        while not decoder.is_finished:
            try:
                update = await anext(updates)
            except StopAsyncIteration:
                decoder.close()
                return
            except Exception as error:
                raise _failed(decoder, error) from error
            for event in decoder.push(update):
                yield event


class _AsyncEvents(AsyncGenerator[DecodedTextEvent]):
    """Generated events, brought to the place before the first update: on the loop where they were made or, if they
    were made outside of one, where they are first used. That loop also closes what nobody closes."""

    def __init__(self, events: AsyncGenerator[Any]) -> None:
        self._events = events
        self._is_ready = False
        if sys.get_asyncgen_hooks().finalizer is not None:
            self._ready()

    def _ready(self) -> AsyncGenerator[Any]:
        if not self._is_ready:
            self._is_ready = True
            # Nothing is awaited up to there, so that one step is all of them.
            with suppress(StopIteration):
                self._events.asend(None).send(None)
        return self._events

    def __anext__(self) -> Coroutine[Any, Any, DecodedTextEvent]:
        return self._ready().__anext__()

    def asend(self, value: None) -> Coroutine[Any, Any, DecodedTextEvent]:
        return self._ready().asend(value)

    def athrow(self, *error: Any) -> Coroutine[Any, Any, DecodedTextEvent]:
        return self._ready().athrow(*error)

    def aclose(self) -> Coroutine[Any, Any, None]:
        return self._ready().aclose()


def _failed(decoder: RequestDecoder, error: Exception) -> RequestError:
    kind, request_id = type(error).__name__, decoder.request_id
    return RequestError(f"request {request_id!r} failed: its source raised {kind}: {error}", request_id)
