"""vLLM's outputs: on objects of their shapes, sliced as vLLM slices them."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

import pytest
from adapters import (
    A0,
    BD,
    E4,
    END,
    GROUPS,
    PROMPT,
    TOKENIZER,
    A,
    B,
    C,
    Source,
    end_of,
    events_of,
    imports_no_engine,
    text_of,
    updates_of,
)
from detok import FinishReason, RequestError, TextDecodeOptions, TokenUsage
from detok.adapters import vllm


def test_the_adapter_imports_no_engine():
    imports_no_engine("vllm")


# As published in vLLM 0.33.0: vllm/sampling_params.py, vllm/logprobs.py, vllm/outputs.py. Types of fields that only
# other parts of vLLM know are Any.
class RequestOutputKind(Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class FlatLogprobs:
    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int | None] = field(default_factory=list)
    decoded_tokens: list[str | None] = field(default_factory=list)

    def append(self, position: dict[int, Logprob] | None) -> None:
        self.start_indices.append(len(self.token_ids))
        for token_id, one in (position or {}).items():
            self.token_ids.append(token_id)
            self.logprobs.append(one.logprob)
            self.ranks.append(one.rank)
            self.decoded_tokens.append(one.decoded_token)
        self.end_indices.append(len(self.token_ids))

    def __len__(self) -> int:
        return len(self.start_indices)

    def extend(self, positions: Any) -> None:
        for position in positions:
            self.append(position)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            # As there: an empty slice is an IndexError.
            self.start_indices[index][0]
            part = FlatLogprobs()
            for one in range(*index.indices(len(self))):
                part.append(self[one])
            return part
        span = range(self.start_indices[index], self.end_indices[index])
        return {self.token_ids[i]: Logprob(self.logprobs[i], self.ranks[i], self.decoded_tokens[i]) for i in span}


@dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None
    logprobs: FlatLogprobs | list[dict[int, Logprob]] | None
    routed_experts: Any = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: Any = None
    sampling_mask: Any = None
    spec_decode_metrics: Any = None
    weight_versions: list[Any] | None = None


@dataclass
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: FlatLogprobs | list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: Any = None
    lora_request: Any = None
    encoder_prompt: str | None = None
    encoder_prompt_token_ids: list[int] | None = None
    num_cached_tokens: int | None = None
    num_cache_creation_tokens: int | None = None
    prompt_token_id_logprobs: Any = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None


CUMULATIVE, DELTA, FINAL_ONLY = RequestOutputKind


@pytest.mark.extras
def test_the_shapes_are_those_of_vllm():
    from vllm import logprobs, outputs, sampling_params

    for ours, theirs in ((Logprob, logprobs.Logprob), (FlatLogprobs, logprobs.FlatLogprobs)):
        assert [one.name for one in fields(ours)] == [one.name for one in fields(theirs)]
    assert {one.name for one in fields(CompletionOutput)} == {one.name for one in fields(outputs.CompletionOutput)}
    arguments = inspect.signature(outputs.RequestOutput).parameters.keys() - {"kwargs"}
    assert {one.name for one in fields(RequestOutput)} == arguments
    assert {kind.name for kind in RequestOutputKind} == {kind.name for kind in sampling_params.RequestOutputKind}


def position(token_id: int) -> dict[int, Logprob]:
    """The sampled id first, then one alternative, as the engine puts them together."""
    return {token_id: Logprob(-1.5, 2), (token_id + 1) % 3: Logprob(-0.25, 1)}


def outputs_of(
    kind: RequestOutputKind,
    groups: Sequence[Sequence[int]] = GROUPS,
    finish: str | None = "length",
    stop: int | str | None = None,
    *,
    index: int = 0,
    logprobs: type | None = None,
    **of_request: Any,
) -> list[RequestOutput]:
    """What one request's outputs are, each made when all before it are; the last group finishes it."""
    outputs, so_far, positions = [], [], logprobs() if logprobs else None
    for number, group in enumerate(groups):
        last = number == len(groups) - 1
        so_far.extend(group)
        for token_id in group if positions is not None else ():
            positions.append(position(token_id))
        if kind is FINAL_ONLY and not last:
            continue
        # As `_new_completion_output` does it. A cumulative output holds the engine's own lists, which grow on; a delta
        # without ids has the logprobs of all that came before, for `-0` is where a list begins.
        ids, rows = (list(group), positions) if kind is DELTA else (so_far, positions)
        if kind is DELTA and positions:
            rows = positions[-len(ids) :]
        one = CompletionOutput(index, "", ids, None, rows, finish_reason=finish if last else None)
        one.stop_reason = stop if last else None
        outputs.append(RequestOutput("r", None, PROMPT, None, [one], last and finish is not None, **of_request))
    return outputs


def decode(outputs: Sequence[Any], kind: Any = DELTA, **arguments: Any) -> list[Any]:
    arguments.setdefault("request_id", "r")
    return list(vllm.decode_outputs(outputs, TOKENIZER, arguments.pop("options", None), output_kind=kind, **arguments))


@pytest.mark.parametrize("kind", [DELTA, "delta"])
def test_deltas_are_updates(kind):
    events = decode(outputs_of(DELTA), kind)
    assert events == events_of(updates_of())
    assert [event.decoded.text for event in events[1:]] == ["a", "", "", "你b"]
    assert end_of(events).usage == TokenUsage(2, 5, 0)


@pytest.mark.parametrize("logprobs", [None, list, FlatLogprobs])
@pytest.mark.parametrize("late", [False, True])
def test_cumulative_outputs_give_the_events_of_deltas(logprobs, late):
    deltas = decode(outputs_of(DELTA, logprobs=logprobs))
    outputs: Any = outputs_of(CUMULATIVE, logprobs=logprobs)
    if not late:
        # Made as they are read, so that each is seen before its lists grow.
        parts = [outputs_of(CUMULATIVE, GROUPS[: n + 1], None, logprobs=logprobs)[-1] for n in range(len(GROUPS) - 1)]
        outputs = [*parts, outputs[-1]]
        assert decode(outputs, CUMULATIVE) == deltas
    else:
        # A reader that is behind sees all ids in the first of them, and misses none.
        events = decode(outputs, CUMULATIVE)
        assert text_of(events) == text_of(deltas) == "a你b"
        assert end_of(events) == end_of(deltas)


@pytest.mark.parametrize("logprobs", [list, FlatLogprobs])
def test_final_output_is_one_update(logprobs):
    (start, delta) = decode(outputs_of(FINAL_ONLY, logprobs=logprobs), FINAL_ONLY)
    assert list(start.prompt_token_ids) == PROMPT
    assert delta.decoded.text == "a你b"
    assert delta.sampled.token_ids == [A, E4, BD, A0, B]
    assert [one.sampled.rank for one in delta.sampled.logprobs] == [2] * 5


@pytest.mark.parametrize("logprobs", [list, FlatLogprobs])
def test_logprobs(logprobs):
    events = decode(outputs_of(DELTA, logprobs=logprobs))
    reported = [one for event in events[1:] for one in event.sampled.logprobs]
    assert [(one.sampled.token_id, one.sampled.logprob, one.sampled.rank) for one in reported] == [
        (token_id, -1.5, 2) for group in GROUPS for token_id in group
    ]
    assert [[(top.token_id, top.rank) for top in one.top] for one in reported] == [
        [(token_id, 2), ((token_id + 1) % 3, 1)] for group in GROUPS for token_id in group
    ]
    assert [one.sampled.token_bytes for one in reported] == [b"a", b"\xe4", b"\xbd", b"\xa0", b"b"]


def sampled(events: Sequence[Any]) -> list[tuple[int, float]] | None:
    """The ids of all deltas that have logprobs, with their logprobs; None if none has."""
    all_of_them = [event.sampled.logprobs for event in events[1:]]
    assert {one is None for one in all_of_them} in ({True}, {False})
    if all_of_them[0] is None:
        return None
    return [(one.sampled.token_id, one.sampled.logprob) for each in all_of_them for one in each]


@pytest.mark.parametrize("kind", RequestOutputKind)
@pytest.mark.parametrize("logprobs", [None, list, FlatLogprobs])
@pytest.mark.parametrize("stop", [None, "bc"])
@pytest.mark.parametrize("groups", [[[A], [B], []], [[A], [], [B], []], [[A, B], []], [[]]], ids=str)
def test_an_abort_has_no_ids_and_no_logprobs(kind, logprobs, stop, groups):
    outputs = outputs_of(kind, groups, "abort", logprobs=logprobs)
    if kind is CUMULATIVE:
        # Made as they are read, so that each is seen before its lists grow.
        outputs = [outputs_of(kind, groups[:n], None, logprobs=logprobs)[-1] for n in range(1, len(groups))]
        outputs += outputs_of(kind, groups, "abort", logprobs=logprobs)[-1:]
    events = decode(outputs, kind, options=TextDecodeOptions(stop=stop))
    ids = [token_id for group in groups for token_id in group]
    # What a stop held back when the request was aborted is text after all.
    assert text_of(events) == "ab"[: len(ids)]
    assert events[-1].decoded.text == ("ab"[: len(ids)] if kind is FINAL_ONLY else "b" if stop and ids else "")
    assert end_of(events).finish_reason == FinishReason("abort")
    assert end_of(events).usage.output_token_count == len(ids)
    assert sampled(events) == ([(token_id, -1.5) for token_id in ids] if logprobs else None)


@pytest.mark.parametrize("logprobs", [None, list, FlatLogprobs])
def test_an_abort_that_was_joined_to_a_delta_adds_no_logprobs(logprobs):
    first, second, last = outputs_of(DELTA, [[A], [B], []], "abort", logprobs=logprobs)
    # What `RequestOutput.add` makes of outputs that nobody has fetched yet.
    one, other = second.outputs[0], last.outputs[0]
    one.token_ids = [*one.token_ids, *other.token_ids]
    if other.logprobs:
        one.logprobs.extend(other.logprobs)
    one.finish_reason = other.finish_reason
    events = decode([first, second])
    assert text_of(events) == "ab"
    assert sampled(events) == ([(A, -1.5), (B, -1.5)] if logprobs else None)


@pytest.mark.parametrize("logprobs", [list, FlatLogprobs])
def test_logprobs_that_are_not_those_of_the_ids_are_an_error(logprobs):
    first, second, last = outputs_of(DELTA, [[A], [B], [C]], logprobs=logprobs)
    second.outputs[0].logprobs.append(position(B))
    with pytest.raises(RequestError, match="one entry per token id: 2 for 1"):
        decode([first, second, last])


@pytest.mark.parametrize("make", [list, FlatLogprobs])
def test_prompt_logprobs_come_with_the_first_output(make):
    reported = make()
    reported.append(None)
    reported.append(position(C))
    first, *rest = outputs_of(DELTA)
    first.prompt_logprobs = reported
    for output in rest:
        output.prompt_logprobs = []  # what vLLM gives once they were taken
    start = decode([first, *rest])[0]
    assert start.prompt_logprobs[0] is None
    assert start.prompt_logprobs[1].sampled.token_id == C
    assert start.prompt_logprobs[1].sampled.logprob == -1.5


@pytest.mark.parametrize(
    ("ids", "finish", "stop", "text", "expected"),
    [
        pytest.param([A, END], "stop", None, "a", FinishReason("stop"), id="end of sequence"),
        pytest.param([A, B], "stop", B, "a", FinishReason("stop", B), id="stop token"),
        pytest.param([A, B], "stop", "b", "ab", FinishReason("stop", "b"), id="stop string of the engine"),
        pytest.param([A, B], "length", None, "ab", FinishReason("length"), id="length"),
        pytest.param([A], "abort", None, "a", FinishReason("abort"), id="abort"),
        pytest.param([A, A], "repetition", "repetition_detected", "aa", FinishReason("repetition"), id="repetition"),
    ],
)
@pytest.mark.parametrize("kind", RequestOutputKind)
def test_finish_reasons(kind, ids, finish, stop, text, expected):
    events = decode(outputs_of(kind, [ids], finish, stop), kind)
    assert text_of(events) == text
    assert end_of(events).finish_reason == expected
    assert end_of(events).usage.output_token_count == len(ids)


def test_errors_name_the_request():
    with pytest.raises(RequestError) as caught:
        decode(outputs_of(DELTA, [[A], []], "error"))
    assert caught.value.request_id == "r"
    with pytest.raises(RequestError):
        decode(outputs_of(DELTA, finish=None))


@pytest.mark.parametrize("merged", [False, True])
def test_choices_are_told_apart_by_index(merged):
    ones = outputs_of(DELTA, [[A], [A]], index=0)
    twos = outputs_of(DELTA, [[B], [END]], "stop", index=1)
    if merged:
        # What a collector makes of outputs that nobody has fetched yet.
        outputs = ones
        for one, two in zip(ones, twos, strict=True):
            one.outputs.extend(two.outputs)
    else:
        outputs = [output for pair in zip(twos, ones, strict=True) for output in pair]
    assert text_of(decode(outputs, index=0)) == "aa"
    assert text_of(decode(outputs, index=1)) == "b"
    reader = vllm.OutputReader(output_kind=DELTA, index=2)
    assert [reader.read(output) for output in outputs] == [None] * len(outputs)


def test_cached_tokens_and_transfer_params():
    outputs = outputs_of(DELTA)
    for output, cached in zip(outputs, [None, -1, 2, 1], strict=True):
        output.num_cached_tokens = cached
    outputs[-1].kv_transfer_params = {"of": "request"}
    finished = end_of(decode(outputs))
    assert finished.usage.cached_token_count == 2
    assert finished.kv_transfer_params == {"of": "request"}
    # Older and newer versions keep them with the choice.
    outputs[-1].outputs[0].kv_transfer_params = {"of": "choice"}
    assert end_of(decode(outputs)).kv_transfer_params == {"of": "choice"}


def test_kinds_cannot_be_mixed_up_in_silence():
    with pytest.raises(ValueError, match="cumulative, delta or final_only"):
        vllm.OutputReader(output_kind="both")
    with pytest.raises(TypeError):
        vllm.OutputReader()
    with pytest.raises(RequestError) as caught:
        decode(outputs_of(DELTA, [[A, B], [A]]), CUMULATIVE)
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_closing_the_events_closes_the_outputs(taken):
    source = Source(outputs_of(DELTA))
    events = vllm.decode_outputs(source, TOKENIZER, output_kind=DELTA)
    for _ in range(taken):
        next(events)
    events.close()
    assert source.closed == 1

    class AsyncSource(Source):
        def __aiter__(self) -> AsyncIterator[Any]:
            return self

        async def __anext__(self) -> Any:
            return next(self)

        async def aclose(self) -> None:
            self.close()

    later = AsyncSource(outputs_of(DELTA))

    async def work() -> None:
        events = vllm.adecode_outputs(later, TOKENIZER, output_kind=DELTA)
        for _ in range(taken):
            await anext(events)
        await events.aclose()

    asyncio.run(work())
    assert later.closed == 1


@pytest.mark.parametrize("bad", [False, True])
def test_outputs_and_their_iterator_are_both_closed(bad):
    class Request:
        """A handle of a request: outputs are read from what it gives."""

        def __init__(self) -> None:
            self.outputs, self.closed = Source(outputs_of(DELTA), OSError("outputs") if bad else None), 0

        def __iter__(self) -> Iterator[Any]:
            return self.outputs

        def close(self) -> None:
            self.closed += 1

    request = Request()
    with pytest.raises(OSError, match="outputs") if bad else nullcontext():
        vllm.decode_outputs(request, TOKENIZER, output_kind=DELTA).close()
    assert (request.outputs.closed, request.closed) == (1, 1)


def test_a_stop_of_ours_ends_the_outputs():
    source = Source(outputs_of(DELTA, [[A], [B, A], [A], [A]]))
    events = decode(source, options=TextDecodeOptions(stop="b"))
    assert text_of(events) == "a"
    assert end_of(events).finish_reason == FinishReason("stop", "b")
    assert end_of(events).dropped_token_ids == [A]
    assert source.closed == 1
    assert len(source.left) == 2


def test_async_outputs():
    closed = []

    async def generate(outputs: Sequence[Any]) -> AsyncIterator[Any]:
        try:
            for output in outputs:
                await asyncio.sleep(0)
                yield output
        finally:
            closed.append(True)

    async def events(outputs: Sequence[Any], options: TextDecodeOptions | None = None) -> list[Any]:
        decoded = vllm.adecode_outputs(generate(outputs), TOKENIZER, options, output_kind=DELTA, request_id="r")
        return [event async for event in decoded]

    assert asyncio.run(events(outputs_of(DELTA))) == decode(outputs_of(DELTA))
    assert closed == [True]
    # At a stop of ours vLLM's generator is closed before the events end, so that it aborts the request.
    assert text_of(asyncio.run(events(outputs_of(DELTA), TextDecodeOptions(stop="你")))) == "a"
    assert closed == [True, True]
