"""SGLang's outputs: dictionaries as it streams them, in all their forms."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
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
    end_of,
    events_of,
    imports_no_engine,
    text_of,
    updates_of,
)
from detok import FinishReason, RequestError, TokenUsage
from detok.adapters import sglang


def test_the_adapter_imports_no_engine():
    imports_no_engine("sglang")


def outputs_of(
    groups: Sequence[Sequence[int]] = GROUPS,
    finish: Mapping[str, Any] | None = {"type": "length", "length": 5},
    *,
    incremental: bool = False,
    all_logprobs: bool = False,
    logprobs: bool = False,
    live: bool = False,
    **meta: Any,
) -> list[dict[str, Any]]:
    """What SGLang 0.5.23 streams (srt/managers/tokenizer_manager.py) with `skip_tokenizer_init`.

    Args:
        all_logprobs: Whether an incremental stream has the logprobs of all tokens with each output, as in versions that
            shorten only the ids.
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
            grown = live and not last and (all_logprobs or not incremental)
            part = slice(None) if all_logprobs else part
            about["output_token_logprobs"] = rows if grown else rows[part]
            about["output_token_logprobs_length"] = len(rows)
            about["output_top_logprobs"] = top if grown else top[part]
        outputs.append({"output_ids": held, "meta_info": about})
    return outputs


def decode(outputs: Sequence[Any], **arguments: Any) -> list[Any]:
    arguments = {"prompt_token_ids": PROMPT, "request_id": "r", **arguments}
    return list(sglang.decode_outputs(outputs, TOKENIZER, arguments.pop("options", None), **arguments))


FORMS = {
    "copies": {},
    "live": {"live": True},
    "incremental": {"incremental": True},
    "incremental but for logprobs": {"incremental": True, "all_logprobs": True},
    "incremental but for live logprobs": {"incremental": True, "all_logprobs": True, "live": True},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("logprobs", [False, True])
def test_streams_of_every_form_are_the_same_updates(form, logprobs):
    events = decode(outputs_of(logprobs=logprobs, **form))
    assert [event.decoded.text for event in events[1:]] == ["a", "", "", "你b"]
    assert end_of(events) == end_of(events_of(updates_of()))
    if not logprobs:
        assert events == events_of(updates_of())
        return
    reported = [one for event in events[1:] for one in event.sampled.logprobs]
    assert [(one.sampled.token_id, one.sampled.logprob) for one in reported] == [
        (token_id, -1.5) for group in GROUPS for token_id in group
    ]
    assert [[top.token_id for top in one.top] for one in reported] == [
        [] if token_id == A else [(token_id + 1) % 3, token_id] for group in GROUPS for token_id in group
    ]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("length", [True, False])
def test_every_token_has_its_own_logprob(form, length):
    # All of one id: nothing but the numbers tells them apart.
    outputs = outputs_of([[A], [A, A], [], [A]], {"type": "length", "length": 4}, logprobs=True, **form)
    for output in outputs:
        meta = output["meta_info"]
        for name in ("output_token_logprobs", "output_top_logprobs"):
            reported = meta[name]
            first = 0 if len(reported) >= meta["completion_tokens"] else meta["completion_tokens"] - len(reported)
            numbers = range(first, first + len(reported))
            meta[name] = [(-n, A, None) if name == "output_token_logprobs" else [(-n - 0.5, A, None)] for n in numbers]
        if not length:
            del meta["output_token_logprobs_length"]
    events = decode(outputs)
    reported = [one for event in events[1:] for one in event.sampled.logprobs]
    assert [one.sampled.logprob for one in reported] == [0, -1, -2, -3]
    assert [[top.logprob for top in one.top] for one in reported] == [[-0.5], [-1.5], [-2.5], [-3.5]]


@pytest.mark.parametrize("name", ["output_token_logprobs", "output_top_logprobs"])
def test_logprobs_of_other_tokens_are_an_error(name):
    outputs = outputs_of([[A], [A, A], [A, A]], logprobs=True)
    outputs[2]["meta_info"][name] = outputs[2]["meta_info"][name][:3]
    with pytest.raises(RequestError, match=r"an output holds 3 (top )?logprobs of 5 after one that ended at 3"):
        decode(outputs)
    outputs = outputs_of([[A], [A, A]], logprobs=True, incremental=True)
    outputs[1]["meta_info"]["output_token_logprobs_length"] = 2
    outputs[1]["meta_info"].pop("output_top_logprobs")
    outputs[1]["meta_info"]["output_token_logprobs"] = outputs[1]["meta_info"]["output_token_logprobs"][:1]
    with pytest.raises(RequestError, match="one entry per token id: 1 for 2"):
        decode(outputs)


def test_output_without_a_stream_is_one_update():
    (output,) = outputs_of([[A, E4, BD, A0]], {"type": "length", "length": 4})
    assert text_of(decode([output])) == "a你"


def test_chunks_that_were_put_together():
    # What waits in an incremental stream is joined, in a cumulative one only the newest is given.
    first, *rest = outputs_of(incremental=True)
    joined = dict(rest[-1], output_ids=[token_id for output in rest for token_id in output["output_ids"]])
    assert text_of(decode([first, joined])) == "a你b"
    cumulative = outputs_of()
    assert text_of(decode([cumulative[0], cumulative[-1]])) == "a你b"


def test_outputs_that_are_missing_are_noticed():
    outputs = outputs_of(incremental=True)
    del outputs[1]
    with pytest.raises(RequestError) as caught:
        decode(outputs)
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
def test_finish_reasons(ids, finish, text, expected, incremental):
    events = decode(outputs_of([ids], finish, incremental=incremental))
    assert text_of(events) == text
    assert end_of(events).finish_reason == expected


def test_errors_keep_their_words():
    finish = {"type": "abort", "message": "no room left", "status_code": 503, "err_type": "ServiceUnavailable"}
    with pytest.raises(RequestError) as caught:
        decode(outputs_of(finish=finish))
    assert caught.value.request_id == "r"
    assert isinstance(caught.value.__cause__, sglang.SGLangError)
    assert "no room left (status 503)" in str(caught.value.__cause__)


def test_prompt_logprobs():
    rows, top = [(None, C, None), (-2.0, C, None)], [None, [(-0.5, A, None), (-2.0, C, None)]]
    start = decode(outputs_of(input_token_logprobs=rows, input_top_logprobs=top))[0]
    assert start.prompt_logprobs[0] is None
    assert start.prompt_logprobs[1].sampled.logprob == -2.0
    assert [one.token_id for one in start.prompt_logprobs[1].top] == [A, C]
    # From logprob_start_len on: the positions before it have none.
    start = decode(outputs_of(input_token_logprobs=[(-2.0, C, None)]))[0]
    assert [one and one.sampled.logprob for one in start.prompt_logprobs] == [None, -2.0]
    # What SGLang reports when none were asked for.
    assert decode(outputs_of(input_token_logprobs=[(None, C, None)]))[0].prompt_logprobs is None


def test_prompt_and_usage():
    outputs = outputs_of(cached_tokens=1)
    for output in outputs:
        output["prompt_token_ids"] = PROMPT
    events = decode(outputs, prompt_token_ids=None)
    assert list(events[0].prompt_token_ids) == PROMPT
    assert end_of(events).usage == TokenUsage(2, 5, 1)
    with pytest.raises(RequestError):
        decode(outputs_of(), prompt_token_ids=None)


def test_requests_of_a_batch_are_told_apart_by_index():
    ones = [dict(output, index=0) for output in outputs_of([[A], [A]])]
    twos = [dict(output, index=1) for output in outputs_of([[B], [B]])]
    outputs = [output for pair in zip(twos, ones, strict=True) for output in pair]
    assert text_of(decode(outputs, index=0)) == "aa"
    assert text_of(decode(outputs, index=1)) == "bb"


def test_async_outputs():
    async def generate() -> AsyncIterator[Any]:
        for output in outputs_of():
            await asyncio.sleep(0)
            yield output

    async def events() -> list[Any]:
        decoded = sglang.adecode_outputs(generate(), TOKENIZER, prompt_token_ids=PROMPT, request_id="r")
        return [event async for event in decoded]

    assert asyncio.run(events()) == decode(outputs_of())
