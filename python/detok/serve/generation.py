"""One choice, from an engine's updates to decoded events. Knows of no protocol."""

from asyncio import CancelledError
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import nullcontext

from detok import DecodedTextEvent, EngineUpdate, RequestDecoder, RequestError, TextDecodeOptions, TextDelta
from detok.events import ClosesAll
from detok.serve.engine import AbortCause, Engine, SamplingParams
from detok.serve.metrics import Tally

__all__ = ["generate_events"]


def _client_gone() -> AbortCause:
    return "client_gone"


async def generate_events(
    engine: Engine,
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    options: TextDecodeOptions | None = None,
    *,
    why_early: Callable[[], AbortCause] = _client_gone,
    tally: Tally | None = None,
) -> AsyncGenerator[DecodedTextEvent]:
    """The events of one choice. The engine is told when nobody wants the rest of what it samples.

    That is: a stop of `options` matched (told before the last event is given, so that no reader of it is waited for);
    the generator was closed or cancelled before its end; or an update could not be decoded.

    Args:
        engine: Generates, and has the tokenizer.
        prompt_token_ids: The prompt.
        params: How it is sampled.
        options: What is shown, and where the text ends.
        why_early: Asked when the generator is closed or cancelled before its end.
        tally: Counts the tokens.

    Raises:
        RequestError: The engine failed (`__cause__`), or ended without a last update.
        UnknownTokenError: The engine sampled an id that its tokenizer does not have.
    """
    request_id = params.request_id
    decoder = RequestDecoder(engine.tokenizer, prompt_token_ids, options, request_id=request_id)
    updates = engine.generate(prompt_token_ids, params)
    with tally or nullcontext():
        async with ClosesAll(updates):
            try:
                while not decoder.is_finished:
                    try:
                        update = await anext(updates)
                    except StopAsyncIteration:
                        decoder.close()
                        return
                    except Exception as error:
                        told = f"the engine failed: {type(error).__name__}: {error}"
                        raise RequestError(told, request_id) from error
                    if not isinstance(update, EngineUpdate):
                        told = f"the engine failed: it gave a {type(update).__name__}, which is no EngineUpdate"
                        raise RequestError(told, request_id)
                    events = decoder.push(update)
                    if decoder.abort_cause is not None:
                        await engine.abort(request_id, decoder.abort_cause)
                    for event in events:
                        if tally is not None and isinstance(event, TextDelta):
                            tally.add(event)
                        yield event
            except (CancelledError, GeneratorExit):
                if not decoder.is_finished:
                    await engine.abort(request_id, why_early())
                raise
            except Exception:
                await engine.abort(request_id, "error")
                raise
