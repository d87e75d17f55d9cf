"""vLLM: streams of `RequestOutput` whose requests were made with `detokenize=False`.

    params = SamplingParams(detokenize=False, output_kind=RequestOutputKind.DELTA, logprobs=2)
    outputs = engine.generate({"prompt_token_ids": ids}, params, request_id)
    async for event in adecode_outputs(
        outputs, tokenizer, options, output_kind=params.output_kind, request_id=request_id
    ):
        ...

Stop strings belong in `TextDecodeOptions`: without its own detokenizer vLLM refuses them. When one matches, the events
end and the stream of outputs is closed, at which `AsyncLLM.generate` aborts the request.

Outputs are read by their attributes (those of vLLM 0.33), vLLM itself is never imported. Requests with several choices
(`n` > 1) need an `OutputReader` for each, and a `RequestDecoder` to push its updates to: closing the stream at the end
of one choice would abort the others.
"""

from collections.abc import AsyncGenerator, AsyncIterable, Generator, Iterable, Sequence
from typing import Any, Literal, TypeAlias

from detok import DecodedTextEvent, EngineUpdate, TextDecodeOptions, Tokenizer, adecode_events, decode_events
from detok.adapters._updates import AsyncUpdates, Updates

__all__ = ["OutputKind", "OutputReader", "adecode_outputs", "decode_outputs"]

OutputKind: TypeAlias = Literal["cumulative", "delta", "final_only"]


class OutputReader:
    """Reads one choice of a request's outputs, in the order in which they come.

    Args:
        output_kind: What `SamplingParams.output_kind` was, as vLLM's `RequestOutputKind` or its name. An output does
            not say of which kind it is.
        index: Which choice.
    """

    def __init__(self, *, output_kind: OutputKind | Any, index: int = 0) -> None:
        name = str(getattr(output_kind, "name", output_kind)).lower()
        if name not in ("cumulative", "delta", "final_only"):
            raise ValueError(f"output_kind must be cumulative, delta or final_only, not {output_kind!r}")
        self.index = index
        self._cumulative = name != "delta"
        self._seen = 0
        self._started = False

    def read(self, output: Any) -> EngineUpdate | None:
        """The update in a `RequestOutput`; None if it says nothing of this choice."""
        completion = next((one for one in output.outputs if one.index == self.index), None)
        if completion is None:
            return None
        first_new = 0
        if self._cumulative:
            first_new, self._seen = self._seen, len(completion.token_ids)
            if self._seen < first_new:
                raise ValueError(f"a cumulative output has {self._seen} ids after one with {first_new}: is it a delta?")
        # The lists may be the engine's own, which go on growing: what is taken is taken now.
        token_ids = completion.token_ids[first_new:]
        first, self._started = not self._started, True
        by_id, by_string = _stop(completion)
        return EngineUpdate(
            token_ids,
            logprobs=_logprobs(completion, first_new, len(token_ids)),
            finish_reason=completion.finish_reason,
            stop_token_id=by_id,
            stop_string=by_string,
            prompt_token_ids=output.prompt_token_ids if first else None,
            prompt_logprobs=_prompt_logprobs(output.prompt_logprobs) if first else None,
            # Unknown is None, and in some versions -1.
            cached_token_count=max(0, getattr(output, "num_cached_tokens", None) or 0),
            kv_transfer_params=_kv_transfer_params(output, completion),
        )


def decode_outputs(
    outputs: Iterable[Any],
    tokenizer: Tokenizer,
    options: TextDecodeOptions | None = None,
    *,
    output_kind: OutputKind | Any,
    index: int = 0,
    request_id: str = "",
    intermediate: bool = True,
    token_texts: bool = False,
) -> Generator[DecodedTextEvent]:
    """`decode_events` for the outputs of one request; arguments as there and for `OutputReader`."""
    reader = OutputReader(output_kind=output_kind, index=index)
    updates = Updates(outputs, reader.read)
    return decode_events(
        updates, tokenizer, options, request_id=request_id, intermediate=intermediate, token_texts=token_texts
    )


def adecode_outputs(
    outputs: AsyncIterable[Any],
    tokenizer: Tokenizer,
    options: TextDecodeOptions | None = None,
    *,
    output_kind: OutputKind | Any,
    index: int = 0,
    request_id: str = "",
    intermediate: bool = True,
    token_texts: bool = False,
) -> AsyncGenerator[DecodedTextEvent]:
    """`adecode_events` for the outputs of one request, such as `AsyncLLM.generate` gives."""
    reader = OutputReader(output_kind=output_kind, index=index)
    updates = AsyncUpdates(outputs, reader.read)
    return adecode_events(
        updates, tokenizer, options, request_id=request_id, intermediate=intermediate, token_texts=token_texts
    )


def _logprobs(completion: Any, first: int, count: int) -> list[Any] | None:
    reported = completion.logprobs
    if reported is None:
        return None
    # Before any slice. Where a delta has no new ids, as one that only says that the request was aborted, vLLM reports
    # the logprobs of all that came before; and its FlatLogprobs have no empty slices.
    if count == 0:
        return []
    # Where such a delta was joined to one that nobody had fetched yet, they are behind the logprobs of the new ids.
    end = first + count if completion.finish_reason is not None else None
    return list(reported[first:end])


def _stop(completion: Any) -> tuple[int | None, str | None]:
    # Other reasons use stop_reason for words of their own, such as how a repetition was found.
    reason = completion.stop_reason if completion.finish_reason == "stop" else None
    return (None, reason) if isinstance(reason, str) else (reason, None)


def _prompt_logprobs(reported: Sequence[Any] | None) -> list[Any] | None:
    # Where nothing was asked for, or it was reported before, there is an empty list. A position without logprobs (the
    # first) is None in a list of dicts and {} in FlatLogprobs.
    return [position or None for position in reported] if reported else None


def _kv_transfer_params(output: Any, completion: Any) -> Any:
    # With the choice in some versions, with the request in others.
    own = getattr(completion, "kv_transfer_params", None)
    return own if own is not None else getattr(output, "kv_transfer_params", None)
