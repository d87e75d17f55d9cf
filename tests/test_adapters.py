"""Streams as vLLM, SGLang and transformers give them, on objects of their shapes and, where installed, on their own."""

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cache
from queue import Empty
from typing import Any

import detok
import numpy as np
import pytest
from conftest import load_tokenizer, tokenizer_text
from detok import (
    EngineUpdate,
    Finished,
    FinishReason,
    RequestDecoder,
    RequestError,
    TextDecodeOptions,
    TextDelta,
    TokenUsage,
)
from detok.adapters import sglang, vllm
from detok.data import demo_streams, demo_tokenizer
from engine import vocabulary

TOKENIZER, (A, B, C, E4, BD, A0, END) = vocabulary("a", "b", "c", b"\xe4", b"\xbd", b"\xa0", "<|end|>")
PROMPT = [C, C]
GROUPS = [[A], [E4, BD], [], [A0, B]]  # a你b, with a step that samples nothing


def events_of(updates: Sequence[EngineUpdate], options: TextDecodeOptions | None = None) -> list[Any]:
    decoder = RequestDecoder(TOKENIZER, options=options, request_id="r")
    return [event for update in updates for event in decoder.push(update)]


def text_of(events: Sequence[Any]) -> str:
    return "".join(event.decoded.text for event in events if isinstance(event, TextDelta))


def end_of(events: Sequence[Any]) -> Finished:
    assert isinstance(events[-1], TextDelta)
    assert events[-1].finished is not None
    return events[-1].finished


class Source:
    """Outputs, and whether their reader closed them."""

    def __init__(self, outputs: Sequence[Any]) -> None:
        self.left = list(outputs)
        self.closed = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.closed or not self.left:
            raise StopIteration
        return self.left.pop(0)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("name", ["vllm", "sglang", "llamacpp"])
def test_an_adapter_imports_no_engine(name):
    code = (
        "import sys, detok; assert not [m for m in sys.modules if m.startswith('detok.adapters')]\n"
        f"import detok.adapters.{name}\n"
        "assert not {'vllm', 'sglang', 'cyllama', 'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# ---------------------------------------------------------------- vLLM


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

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
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


def vllm_outputs(
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
        new = len(so_far) - len(group)
        # A cumulative output holds the engine's own lists, which grow on.
        ids, rows = (list(group), positions and positions[new:]) if kind is DELTA else (so_far, positions)
        if kind is DELTA and positions is not None and not rows:
            rows = positions[:0]
        one = CompletionOutput(index, "", ids, None, rows, finish_reason=finish if last else None)
        one.stop_reason = stop if last else None
        outputs.append(RequestOutput("r", None, PROMPT, None, [one], last and finish is not None, **of_request))
    return outputs


def vllm_updates(groups: Sequence[Sequence[int]] = GROUPS, **last: Any) -> list[EngineUpdate]:
    updates = [EngineUpdate(group, prompt_token_ids=PROMPT) for group in groups[:-1]]
    return [*updates, EngineUpdate(groups[-1], prompt_token_ids=PROMPT, **{"finish_reason": "length", **last})]


def decode_vllm(outputs: Sequence[Any], kind: Any = DELTA, **arguments: Any) -> list[Any]:
    arguments.setdefault("request_id", "r")
    return list(vllm.decode_outputs(outputs, TOKENIZER, arguments.pop("options", None), output_kind=kind, **arguments))


@pytest.mark.parametrize("kind", [DELTA, "delta"])
def test_vllm_deltas_are_updates(kind):
    events = decode_vllm(vllm_outputs(DELTA), kind)
    assert events == events_of(vllm_updates())
    assert [event.decoded.text for event in events[1:]] == ["a", "", "", "你b"]
    assert end_of(events).usage == TokenUsage(2, 5, 0)


@pytest.mark.parametrize("logprobs", [None, list, FlatLogprobs])
@pytest.mark.parametrize("late", [False, True])
def test_vllm_cumulative_outputs_give_the_events_of_deltas(logprobs, late):
    deltas = decode_vllm(vllm_outputs(DELTA, logprobs=logprobs))
    outputs: Any = vllm_outputs(CUMULATIVE, logprobs=logprobs)
    if not late:
        # Made as they are read, so that each is seen before its lists grow.
        parts = [vllm_outputs(CUMULATIVE, GROUPS[: n + 1], None, logprobs=logprobs)[-1] for n in range(len(GROUPS) - 1)]
        outputs = [*parts, outputs[-1]]
        assert decode_vllm(outputs, CUMULATIVE) == deltas
    else:
        # A reader that is behind sees all ids in the first of them, and misses none.
        events = decode_vllm(outputs, CUMULATIVE)
        assert text_of(events) == text_of(deltas) == "a你b"
        assert end_of(events) == end_of(deltas)


@pytest.mark.parametrize("logprobs", [list, FlatLogprobs])
def test_vllm_final_output_is_one_update(logprobs):
    (start, delta) = decode_vllm(vllm_outputs(FINAL_ONLY, logprobs=logprobs), FINAL_ONLY)
    assert list(start.prompt_token_ids) == PROMPT
    assert delta.decoded.text == "a你b"
    assert delta.sampled.token_ids == [A, E4, BD, A0, B]
    assert [one.sampled.rank for one in delta.sampled.logprobs] == [2] * 5


@pytest.mark.parametrize("logprobs", [list, FlatLogprobs])
def test_vllm_logprobs(logprobs):
    events = decode_vllm(vllm_outputs(DELTA, logprobs=logprobs))
    reported = [one for event in events[1:] for one in event.sampled.logprobs]
    assert [(one.sampled.token_id, one.sampled.logprob, one.sampled.rank) for one in reported] == [
        (token_id, -1.5, 2) for group in GROUPS for token_id in group
    ]
    assert [[(top.token_id, top.rank) for top in one.top] for one in reported] == [
        [(token_id, 2), ((token_id + 1) % 3, 1)] for group in GROUPS for token_id in group
    ]
    assert [one.sampled.token_bytes for one in reported] == [b"a", b"\xe4", b"\xbd", b"\xa0", b"b"]


@pytest.mark.parametrize("make", [list, FlatLogprobs])
def test_vllm_prompt_logprobs_come_with_the_first_output(make):
    reported = make()
    reported.append(None)
    reported.append(position(C))
    first, *rest = vllm_outputs(DELTA)
    first.prompt_logprobs = reported
    for output in rest:
        output.prompt_logprobs = []  # what vLLM gives once they were taken
    start = decode_vllm([first, *rest])[0]
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
def test_vllm_finish_reasons(kind, ids, finish, stop, text, expected):
    events = decode_vllm(vllm_outputs(kind, [ids], finish, stop), kind)
    assert text_of(events) == text
    assert end_of(events).finish_reason == expected
    assert end_of(events).usage.output_token_count == len(ids)


def test_vllm_errors_name_the_request():
    with pytest.raises(RequestError) as caught:
        decode_vllm(vllm_outputs(DELTA, [[A], []], "error"))
    assert caught.value.request_id == "r"
    with pytest.raises(RequestError):
        decode_vllm(vllm_outputs(DELTA, finish=None))


@pytest.mark.parametrize("merged", [False, True])
def test_vllm_choices_are_told_apart_by_index(merged):
    ones = vllm_outputs(DELTA, [[A], [A]], index=0)
    twos = vllm_outputs(DELTA, [[B], [END]], "stop", index=1)
    if merged:
        # What a collector makes of outputs that nobody has fetched yet.
        outputs = ones
        for one, two in zip(ones, twos, strict=True):
            one.outputs.extend(two.outputs)
    else:
        outputs = [output for pair in zip(twos, ones, strict=True) for output in pair]
    assert text_of(decode_vllm(outputs, index=0)) == "aa"
    assert text_of(decode_vllm(outputs, index=1)) == "b"
    reader = vllm.OutputReader(output_kind=DELTA, index=2)
    assert [reader.read(output) for output in outputs] == [None] * len(outputs)


def test_vllm_cached_tokens_and_transfer_params():
    outputs = vllm_outputs(DELTA)
    for output, cached in zip(outputs, [None, -1, 2, 1], strict=True):
        output.num_cached_tokens = cached
    outputs[-1].kv_transfer_params = {"of": "request"}
    finished = end_of(decode_vllm(outputs))
    assert finished.usage.cached_token_count == 2
    assert finished.kv_transfer_params == {"of": "request"}
    # Older and newer versions keep them with the choice.
    outputs[-1].outputs[0].kv_transfer_params = {"of": "choice"}
    assert end_of(decode_vllm(outputs)).kv_transfer_params == {"of": "choice"}


def test_vllm_kinds_cannot_be_mixed_up_in_silence():
    with pytest.raises(ValueError, match="cumulative, delta or final_only"):
        vllm.OutputReader(output_kind="both")
    with pytest.raises(TypeError):
        vllm.OutputReader()
    with pytest.raises(RequestError) as caught:
        decode_vllm(vllm_outputs(DELTA, [[A, B], [A]]), CUMULATIVE)
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("started", [False, True])
def test_closing_the_events_closes_the_outputs(started):
    source = Source(vllm_outputs(DELTA))
    events = vllm.decode_outputs(source, TOKENIZER, output_kind=DELTA)
    if started:
        next(events)
        events.close()
        assert source.closed
    else:
        vllm.Updates(source, vllm.OutputReader(output_kind=DELTA).read).close()
        assert source.closed


def test_a_stop_of_ours_ends_the_outputs():
    source = Source(vllm_outputs(DELTA, [[A], [B, A], [A], [A]]))
    events = decode_vllm(source, options=TextDecodeOptions(stop="b"))
    assert text_of(events) == "a"
    assert end_of(events).finish_reason == FinishReason("stop", "b")
    assert end_of(events).dropped_token_ids == [A]
    assert source.closed
    assert len(source.left) == 2


def test_vllm_async_outputs():
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

    assert asyncio.run(events(vllm_outputs(DELTA))) == decode_vllm(vllm_outputs(DELTA))
    assert closed == [True]
    # At a stop of ours vLLM's generator is closed before the events end, so that it aborts the request.
    assert text_of(asyncio.run(events(vllm_outputs(DELTA), TextDecodeOptions(stop="你")))) == "a"
    assert closed == [True, True]


# ---------------------------------------------------------------- SGLang


def sglang_outputs(
    groups: Sequence[Sequence[int]] = GROUPS,
    finish: Mapping[str, Any] | None = {"type": "length", "length": 5},
    *,
    incremental: bool = False,
    logprobs: bool = False,
    live: bool = False,
    **meta: Any,
) -> list[dict[str, Any]]:
    """What SGLang 0.5.23 streams (srt/managers/tokenizer_manager.py) with `skip_tokenizer_init`.

    Args:
        live: Whether the lists of a cumulative stream are one list that has grown by the time it is read.
    """
    outputs, ids, rows, top = [], [], [], []
    for number, group in enumerate(groups):
        last = number == len(groups) - 1
        new = len(ids)
        ids.extend(group)
        rows.extend((-1.5, token_id, None) for token_id in group)
        top.extend(
            [(-0.25, (token_id + 1) % 3, None), (-1.5, token_id, None)] if token_id != A else None for token_id in group
        )
        about = {
            "id": "r",
            "finish_reason": dict(finish) if last and finish else None,
            "prompt_tokens": len(PROMPT),
            "weight_version": "default",
            "num_retractions": 0,
            "reasoning_tokens": 0,
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            **meta,
        }
        part = slice(new, None) if incremental else slice(None)
        held = ids if live and not (incremental or last) else ids[part]
        if logprobs:
            grown = live and not (incremental or last)
            about["output_token_logprobs"] = rows if grown else rows[part]
            about["output_token_logprobs_length"] = len(rows)
            about["output_top_logprobs"] = top if grown else top[part]
        outputs.append({"output_ids": held, "meta_info": about})
    return outputs


def decode_sglang(outputs: Sequence[Any], **arguments: Any) -> list[Any]:
    arguments = {"prompt_token_ids": PROMPT, "request_id": "r", **arguments}
    return list(sglang.decode_outputs(outputs, TOKENIZER, arguments.pop("options", None), **arguments))


@pytest.mark.parametrize("form", [{}, {"live": True}, {"incremental": True}], ids=["copies", "live", "incremental"])
@pytest.mark.parametrize("logprobs", [False, True])
def test_sglang_streams_of_every_form_are_the_same_updates(form, logprobs):
    events = decode_sglang(sglang_outputs(logprobs=logprobs, **form))
    assert [event.decoded.text for event in events[1:]] == ["a", "", "", "你b"]
    assert end_of(events) == end_of(events_of(vllm_updates()))
    if not logprobs:
        assert events == events_of(vllm_updates())
        return
    reported = [one for event in events[1:] for one in event.sampled.logprobs]
    assert [(one.sampled.token_id, one.sampled.logprob) for one in reported] == [
        (token_id, -1.5) for group in GROUPS for token_id in group
    ]
    assert [[top.token_id for top in one.top] for one in reported] == [
        [] if token_id == A else [(token_id + 1) % 3, token_id] for group in GROUPS for token_id in group
    ]


def test_sglang_output_without_a_stream_is_one_update():
    (output,) = sglang_outputs([[A, E4, BD, A0]], {"type": "length", "length": 4})
    assert text_of(decode_sglang([output])) == "a你"


def test_sglang_chunks_that_were_put_together():
    # What waits in an incremental stream is joined, in a cumulative one only the newest is given.
    first, *rest = sglang_outputs(incremental=True)
    joined = dict(rest[-1], output_ids=[token_id for output in rest for token_id in output["output_ids"]])
    assert text_of(decode_sglang([first, joined])) == "a你b"
    cumulative = sglang_outputs()
    assert text_of(decode_sglang([cumulative[0], cumulative[-1]])) == "a你b"


def test_sglang_outputs_that_are_missing_are_noticed():
    outputs = sglang_outputs(incremental=True)
    del outputs[1]
    with pytest.raises(RequestError) as caught:
        decode_sglang(outputs)
    assert "outputs are missing" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("ids", "finish", "text", "expected"),
    [
        pytest.param([A, END], {"type": "stop", "matched": END}, "a", FinishReason("stop", END), id="stop token"),
        pytest.param([A, B], {"type": "stop", "matched": [A, B]}, "a", FinishReason("stop", B), id="stop tokens"),
        pytest.param([A, B], {"type": "stop", "matched": "b"}, "ab", FinishReason("stop", "b"), id="stop string"),
        pytest.param([A], {"type": "length", "length": 1}, "a", FinishReason("length"), id="length"),
        pytest.param(
            [A],
            {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None},
            "a",
            FinishReason("abort"),
            id="abort",
        ),
    ],
)
@pytest.mark.parametrize("incremental", [False, True])
def test_sglang_finish_reasons(ids, finish, text, expected, incremental):
    events = decode_sglang(sglang_outputs([ids], finish, incremental=incremental))
    assert text_of(events) == text
    assert end_of(events).finish_reason == expected


def test_sglang_errors_keep_their_words():
    finish = {"type": "abort", "message": "no room left", "status_code": 503, "err_type": "ServiceUnavailable"}
    with pytest.raises(RequestError) as caught:
        decode_sglang(sglang_outputs(finish=finish))
    assert caught.value.request_id == "r"
    assert isinstance(caught.value.__cause__, sglang.SGLangError)
    assert "no room left (status 503)" in str(caught.value.__cause__)


def test_sglang_prompt_logprobs():
    rows, top = [(None, C, None), (-2.0, C, None)], [None, [(-0.5, A, None), (-2.0, C, None)]]
    start = decode_sglang(sglang_outputs(input_token_logprobs=rows, input_top_logprobs=top))[0]
    assert start.prompt_logprobs[0] is None
    assert start.prompt_logprobs[1].sampled.logprob == -2.0
    assert [one.token_id for one in start.prompt_logprobs[1].top] == [A, C]
    # From logprob_start_len on: the positions before it have none.
    start = decode_sglang(sglang_outputs(input_token_logprobs=[(-2.0, C, None)]))[0]
    assert [one and one.sampled.logprob for one in start.prompt_logprobs] == [None, -2.0]
    # What SGLang reports when none were asked for.
    assert decode_sglang(sglang_outputs(input_token_logprobs=[(None, C, None)]))[0].prompt_logprobs is None


def test_sglang_prompt_and_usage():
    outputs = sglang_outputs(cached_tokens=1)
    for output in outputs:
        output["prompt_token_ids"] = PROMPT
    events = decode_sglang(outputs, prompt_token_ids=None)
    assert list(events[0].prompt_token_ids) == PROMPT
    assert end_of(events).usage == TokenUsage(2, 5, 1)
    with pytest.raises(RequestError):
        decode_sglang(sglang_outputs(), prompt_token_ids=None)


def test_sglang_requests_of_a_batch_are_told_apart_by_index():
    ones = [dict(output, index=0) for output in sglang_outputs([[A], [A]])]
    twos = [dict(output, index=1) for output in sglang_outputs([[B], [B]])]
    outputs = [output for pair in zip(twos, ones, strict=True) for output in pair]
    assert text_of(decode_sglang(outputs, index=0)) == "aa"
    assert text_of(decode_sglang(outputs, index=1)) == "bb"


def test_sglang_async_outputs():
    async def generate() -> AsyncIterator[Any]:
        for output in sglang_outputs():
            await asyncio.sleep(0)
            yield output

    async def events() -> list[Any]:
        decoded = sglang.adecode_outputs(generate(), TOKENIZER, prompt_token_ids=PROMPT, request_id="r")
        return [event async for event in decoded]

    assert asyncio.run(events()) == decode_sglang(sglang_outputs())


# ---------------------------------------------------------------- transformers


@pytest.fixture(scope="module")
def hf():
    """name -> a transformers tokenizer over the file in tests/data/tokenizers."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    @cache
    def load(name: str) -> Any:
        backend = tokenizers.Tokenizer.from_str(tokenizer_text(name))
        return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False)

    return load


@pytest.fixture
def streamers():
    from detok.adapters import transformers

    return transformers


class Tensor:
    """What `generate` puts, as far as a streamer looks: a torch tensor on the CPU."""

    def __init__(self, data: list[Any]) -> None:
        self._data = data
        self.shape = np.array(data).shape

    def tolist(self) -> list[Any]:
        return self._data


def generate(
    streamer: Any, prompts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], make: Any = Tensor
) -> None:
    """What `generate` does with a streamer: the prompts, one id a row at each step, the end."""
    streamer.put(make([list(prompt) for prompt in prompts]))
    for step in zip(*rows, strict=True):
        streamer.put(make(list(step)))
    streamer.end()


def test_streamers_are_base_streamers_with_the_arguments_of_transformers(streamers):
    from transformers import generation

    for name in ("TextStreamer", "TextIteratorStreamer"):
        ours, theirs = getattr(streamers, name), getattr(generation, name)
        assert issubclass(ours, generation.BaseStreamer)
        signatures = [inspect.signature(one).parameters.values() for one in (ours, theirs)]
        ours_has, theirs_has = ([(p.name, p.kind, p.default) for p in s] for s in signatures)
        assert ours_has == theirs_has
        for method in ("put", "end", "on_finalized_text"):
            ours_has, theirs_has = (list(inspect.signature(getattr(o, method)).parameters) for o in (ours, theirs))
            assert ours_has == theirs_has


FORMS = [("korean", make) for make in (Tensor, np.array, list)] + [
    (name, np.array) for name in list(demo_streams())[1:]
]


@pytest.mark.parametrize(("name", "make"), FORMS, ids=[f"{name}-{make.__name__}" for name, make in FORMS])
def test_printed_text_is_the_one_shot_decode(streamers, hf, capsys, name, make):
    recorded, tokenizer = demo_streams()[name], hf("smollm2")
    generate(streamers.TextStreamer(tokenizer), [recorded.prompt_ids], [recorded.ids], make)
    assert capsys.readouterr().out == tokenizer.decode([*recorded.prompt_ids, *recorded.ids]) + "\n"
    streamer = streamers.TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    generate(streamer, [recorded.prompt_ids], [recorded.ids], make)
    assert capsys.readouterr().out == tokenizer.decode(recorded.ids, skip_special_tokens=True) + "\n"


@pytest.mark.parametrize("name", demo_streams())
def test_all_text_is_that_of_transformers_and_no_later(streamers, hf, name):
    from transformers import generation

    recorded, tokenizer = demo_streams()[name], hf("smollm2")
    shown: dict[type, str] = {}
    lengths: dict[type, list[int]] = {}
    for base in (streamers.TextStreamer, generation.TextStreamer):

        class Kept(base):
            def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
                key = type(self).__base__
                shown[key] = shown.get(key, "") + text

        streamer = Kept(tokenizer, skip_prompt=True)
        streamer.put(np.array([recorded.prompt_ids]))
        lengths[base] = []
        for token_id in recorded.ids:
            streamer.put(np.array([token_id]))
            lengths[base].append(len(shown.get(base, "")))
        streamer.end()
    ours, theirs = shown[streamers.TextStreamer], shown[generation.TextStreamer]
    assert ours == tokenizer.decode(recorded.ids)
    if "\ufffd" not in ours:
        assert ours == theirs
        assert all(
            a >= b for a, b in zip(lengths[streamers.TextStreamer], lengths[generation.TextStreamer], strict=True)
        )


def test_the_blank_between_prompt_and_text_is_kept(streamers, capsys):
    # transformers decodes what follows a skipped prompt as if it began a text, and loses the blank.
    tokenizer = load_tokenizer("mistral-v3")
    prompt, ids = tokenizer.encode("The sea"), tokenizer.encode("is blue")
    generate(streamers.TextStreamer(tokenizer, skip_prompt=True), [prompt], [ids])
    assert capsys.readouterr().out == " is blue\n"


def test_several_tokens_a_step(streamers, capsys):
    # Assisted generation puts what was accepted as a row of a batch of one.
    recorded = demo_streams()["korean"]
    streamer = streamers.TextStreamer(demo_tokenizer(), skip_prompt=True, skip_special_tokens=True)
    streamer.put(np.array([recorded.prompt_ids]))
    streamer.put(np.array([recorded.ids[:5]]))
    streamer.put(np.array(recorded.ids[5:]))
    streamer.end()
    assert capsys.readouterr().out == demo_tokenizer().decode(recorded.ids) + "\n"


def test_a_streamer_serves_again(streamers, capsys):
    streamer = streamers.TextStreamer(TOKENIZER, skip_prompt=True)
    for _ in range(2):
        generate(streamer, [PROMPT], [[A, E4]])
        assert capsys.readouterr().out == "a\ufffd\n"
    streamer.end()
    assert capsys.readouterr().out == "\n"


def test_ids_that_only_the_model_has_are_no_text(streamers, capsys):
    generate(streamers.TextStreamer(TOKENIZER, skip_prompt=True), [PROMPT], [[A, 50_000, B]])
    assert capsys.readouterr().out == "ab\n"
    with pytest.raises(detok.UnknownTokenError):
        generate(streamers.TextStreamer(TOKENIZER, unknown_ids="error"), [PROMPT], [[50_000]])


def test_special_tokens_are_shown_unless_told_otherwise(streamers, capsys):
    for options, text in (({}, "a<|end|>"), ({"skip_special_tokens": True}, "a")):
        generate(streamers.TextStreamer(TOKENIZER, True, **options), [PROMPT], [[A, END]])
        assert capsys.readouterr().out == text + "\n"


def test_rows_of_a_batch_are_printed_by_line(streamers, capsys):
    tokenizer, (word, line, han, rest) = vocabulary("word ", "\n", b"\xe4", b"\xbd\xa0")
    streamer = streamers.TextStreamer(tokenizer, skip_prompt=True)
    streamer.put(np.array([[word, word], [line, word]]))
    shown = []
    for step in ([word, han], [line, rest], [word, line], [han, word], [line, line]):
        streamer.put(np.array(step))
        shown.append(capsys.readouterr().out)
    streamer.end()
    shown.append(capsys.readouterr().out)
    assert shown == ["", "[0] word \n", "[1] 你\n", "", "[0] word \ufffd\n[1] word \n", ""]


def test_a_batch_can_be_had_by_row(streamers):
    class Kept(streamers.TextStreamer):
        def on_finalized_texts(self, texts: list[str], stream_end: bool = False) -> None:
            kept.append((texts, stream_end))

    kept: list[tuple[list[str], bool]] = []
    generate(Kept(TOKENIZER, skip_prompt=True), [PROMPT, PROMPT], [[A, E4, BD], [E4, BD, A0]])
    assert kept == [(["a", ""], False), (["", "你"], False), (["\ufffd", ""], True)]


@pytest.mark.parametrize("step", [[[A]], [A, A, A], [[A], [A], [A]]])
def test_rows_must_be_as_many_as_prompts(streamers, step):
    streamer = streamers.TextStreamer(TOKENIZER)
    streamer.put(np.array([PROMPT, PROMPT]))
    with pytest.raises(ValueError, match="rows"):
        streamer.put(np.array(step))


def test_options_that_a_stream_cannot_have(streamers):
    with pytest.raises(TypeError, match="use_source_tokenizer"):
        streamers.TextStreamer(TOKENIZER, use_source_tokenizer=True)
    with pytest.warns(detok.DetokWarning, match="clean_up"):
        streamers.TextStreamer(TOKENIZER, clean_up_tokenization_spaces=True)
    streamers.TextStreamer(TOKENIZER, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("rows", [[[A, E4, BD, A0, B]], [[A, E4, BD, A0], [B, B, A, END]]], ids=["one row", "two rows"])
def test_text_can_be_iterated_over_while_it_is_made(streamers, rows):
    streamer = streamers.TextIteratorStreamer(TOKENIZER, skip_prompt=True, timeout=60, skip_special_tokens=True)
    producer = threading.Thread(target=generate, args=(streamer, [PROMPT] * len(rows), rows))
    producer.start()
    items = list(streamer)
    producer.join()
    if len(rows) == 1:
        assert items == ["a", "你", "b"]
    else:
        assert items == [["a", "b"], ["", "b"], ["", "a"], ["你", ""]]
    with pytest.raises(Empty):
        next(streamers.TextIteratorStreamer(TOKENIZER, timeout=0.01))


@pytest.mark.extras
@pytest.mark.parametrize("rows", [1, 3])
def test_generate_streams_what_it_returns(streamers, hf, rows):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = hf("smollm2")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = LlamaForCausalLM(config).eval()
    inputs = torch.randint(0, len(tokenizer), (rows, 5))

    class Kept(streamers.TextStreamer):
        texts = [""] * rows

        def on_finalized_texts(self, texts: list[str], stream_end: bool = False) -> None:
            self.texts = [old + new for old, new in zip(self.texts, texts, strict=True)]

    for skip_prompt in (True, False):
        streamer = Kept(tokenizer, skip_prompt=skip_prompt)
        output = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            streamer=streamer,
            max_new_tokens=40,
            do_sample=True,
            pad_token_id=2,
            eos_token_id=2,
        )
        for text, prompt, row in zip(streamer.texts, inputs.tolist(), output.tolist(), strict=True):
            whole = demo_tokenizer().decode(row, skip_special_tokens=False)
            shown = demo_tokenizer().decode_attributed(row[5:], prompt_token_ids=prompt, skip_special_tokens=False).text
            assert text == (shown if skip_prompt else whole)


def test_without_transformers_a_streamer_still_streams():
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "from detok.adapters.transformers import TextStreamer\n"
        "from detok.data import demo_tokenizer\n"
        "s = TextStreamer(demo_tokenizer(), skip_prompt=True)\n"
        "s.put([[1]]); s.put([19556]); s.put([905]); s.end()"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)
    assert ended.stdout.decode().split() == ["Hello", "world"]
