"""Events of one request around an engine's updates: iterables, and asynchronous ones."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable, Iterator
from typing import Any, TypeAlias

from detok._core import EngineUpdate, RequestDecoder, Start, TextDecodeOptions, TextDelta, Tokenizer
from detok.errors import RequestError

DecodedTextEvent: TypeAlias = Start | TextDelta


def decode_events(
    updates: Iterable[EngineUpdate],
    tokenizer: Tokenizer,
    options: TextDecodeOptions | None = None,
    *,
    request_id: str = "",
    intermediate: bool = True,
) -> Generator[DecodedTextEvent]:
    """The events of a request, from its start to its end.

    No update is read behind the end, be it the engine's or a stop of the request's own. Then, and when the generator
    is closed, the source is closed if it has a `close`.

    Args:
        updates: What the engine reports; the first update has the prompt.
        tokenizer: Whose ids these are.
        options: What is shown, and where the text ends.
        request_id: Named by errors.
        intermediate: One `TextDelta` per update; otherwise one at the end, with everything.

    Raises:
        RequestError: The source raised (`__cause__`) or ended before the request did, or the engine failed.
        UnknownTokenError: An unknown id, unless such ids are skipped; `index` counts in its update.
    """
    decoder = RequestDecoder(tokenizer, None, options, request_id=request_id, intermediate=intermediate)
    return _events(updates, iter(updates), decoder)


def adecode_events(
    updates: AsyncIterable[EngineUpdate],
    tokenizer: Tokenizer,
    options: TextDecodeOptions | None = None,
    *,
    request_id: str = "",
    intermediate: bool = True,
) -> AsyncGenerator[DecodedTextEvent]:
    """The same for an asynchronous source, closed with its `aclose`, after a cancellation too; see `decode_events`."""
    decoder = RequestDecoder(tokenizer, None, options, request_id=request_id, intermediate=intermediate)
    return _aevents(updates, aiter(updates), decoder)


def _events(
    source: Iterable[EngineUpdate], updates: Iterator[EngineUpdate], decoder: RequestDecoder
) -> Generator[DecodedTextEvent]:
    try:
        while not decoder.is_finished:
            try:
                update = next(updates)
            except StopIteration:
                decoder.close()
                return
            except Exception as error:
                raise _failed(decoder, error) from error
            yield from decoder.push(update)
    finally:
        for closed in _parts(source, updates, "close"):
            closed.close()


async def _aevents(
    source: AsyncIterable[EngineUpdate], updates: AsyncIterator[EngineUpdate], decoder: RequestDecoder
) -> AsyncGenerator[DecodedTextEvent]:
    try:
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
    finally:
        for closed in _parts(source, updates, "aclose"):
            await closed.aclose()


def _failed(decoder: RequestDecoder, error: Exception) -> RequestError:
    kind, request_id = type(error).__name__, decoder.request_id
    return RequestError(f"request {request_id!r} failed: its source raised {kind}: {error}", request_id)


def _parts(source: Any, updates: Any, method: str) -> list[Any]:
    """Those of an iterable and its iterator, often one object, that can be closed."""
    parts = [updates] if updates is source else [updates, source]
    return [part for part in parts if callable(getattr(part, method, None))]
