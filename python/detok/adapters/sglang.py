"""SGLang: the dictionaries of an engine that was started with `skip_tokenizer_init=True`.

    engine = sglang.Engine(model_path=..., skip_tokenizer_init=True)
    outputs = await engine.async_generate(input_ids=ids, sampling_params=params, stream=True)
    async for event in adecode_outputs(outputs, tokenizer, options, prompt_token_ids=ids, request_id="..."):
        ...

An output is `{"output_ids": [...], "meta_info": {...}}`. Cumulative streams (SGLang's default) and incremental ones
(`incremental_streaming_output`) are told apart by `meta_info["completion_tokens"]`. SGLang itself is never imported.
Written against SGLang 0.5.23.
"""

from collections.abc import AsyncGenerator, AsyncIterable, Generator, Iterable, Mapping, Sequence
from typing import Any

from detok import (
    DecodedTextEvent,
    EngineUpdate,
    TextDecodeOptions,
    Tokenizer,
    TokenLogprob,
    adecode_events,
    decode_events,
)
from detok.adapters._updates import AsyncUpdates, Updates

__all__ = ["OutputReader", "SGLangError", "adecode_outputs", "decode_outputs"]


class SGLangError(RuntimeError):
    """SGLang ended a request with an error of its own; the events raise `RequestError` from it."""


class OutputReader:
    """Reads one request's outputs, in the order in which they come.

    Args:
        prompt_token_ids: The prompt, which outputs hold only if asked to (`return_prompt_token_ids`).
        index: Which request of a batch, or which of `n` choices; None where a stream has only one.
    """

    def __init__(self, prompt_token_ids: Sequence[int] | None = None, *, index: int | None = None) -> None:
        self.index = index
        self._prompt = prompt_token_ids
        self._seen = 0
        self._started = False

    def read(self, output: Mapping[str, Any]) -> EngineUpdate | None:
        """The update in an output; None if it belongs to another request of the batch."""
        if self.index is not None and output.get("index", self.index) != self.index:
            return None
        meta = output["meta_info"]
        reason, by_id, by_string = _finish(meta)
        seen, self._seen = self._seen, meta["completion_tokens"]
        first, self._started = not self._started, True
        prompt = (output.get("prompt_token_ids") or self._prompt) if first else None
        return EngineUpdate(
            _new(output["output_ids"], "ids", seen, self._seen),
            logprobs=_logprobs(meta, seen, self._seen),
            finish_reason=reason,
            stop_token_id=by_id,
            stop_string=by_string,
            prompt_token_ids=prompt,
            prompt_logprobs=_prompt_logprobs(meta) if first else None,
            cached_token_count=meta.get("cached_tokens") or 0,
        )


def decode_outputs(
    outputs: Iterable[Mapping[str, Any]],
    tokenizer: Tokenizer,
    options: TextDecodeOptions | None = None,
    *,
    prompt_token_ids: Sequence[int] | None = None,
    index: int | None = None,
    request_id: str = "",
    intermediate: bool = True,
    token_texts: bool = False,
) -> Generator[DecodedTextEvent]:
    """`decode_events` for the outputs of one request; arguments as there and for `OutputReader`."""
    reader = OutputReader(prompt_token_ids, index=index)
    updates = Updates(outputs, reader.read)
    return decode_events(
        updates, tokenizer, options, request_id=request_id, intermediate=intermediate, token_texts=token_texts
    )


def adecode_outputs(
    outputs: AsyncIterable[Mapping[str, Any]],
    tokenizer: Tokenizer,
    options: TextDecodeOptions | None = None,
    *,
    prompt_token_ids: Sequence[int] | None = None,
    index: int | None = None,
    request_id: str = "",
    intermediate: bool = True,
    token_texts: bool = False,
) -> AsyncGenerator[DecodedTextEvent]:
    """`adecode_events` for the outputs of one request, such as `Engine.async_generate` gives.

    The stream of outputs is closed with the events, and where the request has not ended by itself, SGLang aborts it.
    """
    reader = OutputReader(prompt_token_ids, index=index)
    updates = AsyncUpdates(outputs, reader.read)
    return adecode_events(
        updates, tokenizer, options, request_id=request_id, intermediate=intermediate, token_texts=token_texts
    )


def _finish(meta: Mapping[str, Any]) -> tuple[str | None, int | None, str | None]:
    reported = meta["finish_reason"]
    if reported is None:
        return None, None, None
    kind = reported["type"]
    # An abort with a status is a failure inside the engine; one without is what the caller asked for.
    if kind == "abort" and (status := reported.get("status_code")) is not None:
        raise SGLangError(f"{reported.get('message') or 'aborted'} (status {int(status)})")
    matched = reported.get("matched") if kind == "stop" else None
    if isinstance(matched, str):
        return kind, None, matched
    if isinstance(matched, Sequence):
        matched = matched[-1] if matched else None
    return kind, matched, None


def _new(held: Sequence[Any], what: str, seen: int, total: int) -> Sequence[Any]:
    """What is new in a list, cumulative or not, of an output with which there are `total` where there were `seen`.

    Each list is judged by its own length: with some versions the ids are only the new ones, and the logprobs are all.
    """
    if len(held) == total - seen:
        return held
    # A cumulative list is the engine's own until the last output and may already be longer than it says.
    if len(held) >= total >= seen:
        return held[seen:total]
    raise ValueError(
        f"an output holds {len(held)} {what} of {total} after one that ended at {seen}: outputs are missing"
    )


def _logprobs(meta: Mapping[str, Any], seen: int, total: int) -> list[list[TokenLogprob]] | None:
    sampled, top = meta.get("output_token_logprobs"), meta.get("output_top_logprobs")
    if sampled is None:
        return None
    total = meta.get("output_token_logprobs_length", total)
    return _positions(_new(sampled, "logprobs", seen, total), _new(top, "top logprobs", seen, total) if top else [])


def _prompt_logprobs(meta: Mapping[str, Any]) -> list[list[TokenLogprob] | None] | None:
    rows = meta.get("input_token_logprobs")
    if not rows or all(logprob is None for logprob, *_ in rows):
        return None
    # They begin at logprob_start_len; a position without a number, the first of the prompt, has none here either.
    positions = _positions(rows, meta.get("input_top_logprobs") or [])
    known = [position if row[0] is not None else None for row, position in zip(rows, positions, strict=True)]
    return [None] * (meta["prompt_tokens"] - len(known)) + known


def _positions(sampled: Sequence[Any], top: Sequence[Any]) -> list[list[TokenLogprob]]:
    """One list a position: the token there, then the alternatives in SGLang's order."""
    padded = [*top, *[None] * (len(sampled) - len(top))]
    return [[_entry(one), *map(_entry, others or ())] for one, others in zip(sampled, padded, strict=True)]


def _entry(row: Sequence[Any]) -> TokenLogprob:
    logprob, token_id, *_ = row
    return TokenLogprob(token_id, float("nan") if logprob is None else logprob)
