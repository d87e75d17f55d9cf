"""OpenAI's shapes: what each event of a request becomes, and that OpenAI's own client reads it."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import detok
import openai
import pytest
from adapters import A0, BD, E4, END, GROUPS, PROMPT, TOKENIZER, A, B, C, imports_no_engine
from conftest import load_tokenizer, read_jsonl
from detok import (
    DecodedText,
    EngineUpdate,
    Marker,
    RequestDecoder,
    Start,
    TextDecodeOptions,
    TokenLogprob,
)
from detok.adapters.openai import (
    ChatCompletionBuilder,
    CompletionBuilder,
    SseReader,
    join_bodies,
    sse,
    usage_chunk,
)
from engine import vocabulary
from helpers import ones
from openai_shapes import HEAD, body_of, choices_of, chunks_of, events_of, joined, text_of, validated

LOGPROBS = {"completion": {"logprobs": 0}, "chat": {"logprobs": True}}
BUILDERS = {"completion": CompletionBuilder, "chat": ChatCompletionBuilder}
both = pytest.mark.parametrize("form", BUILDERS)


def make(form: str, tokenizer: detok.Tokenizer = TOKENIZER, **how: Any) -> Any:
    return BUILDERS[form](tokenizer, **HEAD | how)


def usage(prompt: int, completion: int, cached: int = 0, reasoning: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def test_the_adapter_imports_no_engine():
    imports_no_engine("openai")


# ------------------------------------------------------------------ chunks


def test_a_completion_in_chunks():
    builder = make("completion")
    shown = [builder.push(event) for event in events_of(TOKENIZER, GROUPS, prompt=PROMPT, finish="stop")]

    def chunk(text: str, **end: Any) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None, **end}
        return {"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "small", "choices": [choice]}

    # The start and the events without text send nothing; half a character waits.
    assert shown == [
        [],
        [chunk("a")],
        [],
        [],
        [chunk("你b")],
        [chunk("", finish_reason="stop", stop_reason=None)],
    ]
    assert [list(one) for one in shown[1]] == [["id", "object", "created", "model", "choices"]]
    assert list(shown[1][0]["choices"][0]) == ["index", "text", "logprobs", "finish_reason"]


def test_a_chat_in_chunks():
    builder = make("chat")
    shown = [builder.push(event) for event in events_of(TOKENIZER, GROUPS, prompt=PROMPT)]

    def chunk(finish_reason: str | None = None, delta: Any = None, **end: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta or {}, "logprobs": None, "finish_reason": finish_reason, **end}
        return {"id": "cmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "small", "choices": [choice]}

    assert shown == [
        [chunk(delta={"role": "assistant", "content": ""})],
        [chunk(delta={"content": "a"})],
        [],
        [],
        [chunk(delta={"content": "你b"})],
        [chunk("length", stop_reason=None)],
    ]


@both
def test_text_of_the_last_event_comes_before_the_last_chunk(form):
    """Held text, and half a character, leave at the end in a chunk of their own."""
    events = events_of(TOKENIZER, ones([A, B, E4]), TextDecodeOptions(stop="bc"))
    chunks = chunks_of(make(form), events)
    assert [text_of(chunk) for chunk in chunks[-3:]] == ["a", "b\ufffd", ""]
    assert [choice["finish_reason"] for choice in choices_of(chunks)][-2:] == [None, "length"]


@both
@pytest.mark.parametrize(
    ("options", "ending", "finish", "stop"),
    [
        ({}, {"finish": "length"}, "length", None),
        ({}, {"finish": "stop"}, "stop", None),
        ({}, {"finish": "stop", "token_ids": [END], "stop_token_id": END}, "stop", END),
        ({}, {"finish": "stop", "stop_string": "b"}, "stop", "b"),
        ({"stop": "bc"}, {}, "stop", "bc"),
        ({"stop_token_ids": [C]}, {}, "stop", C),
        ({}, {"finish": "abort"}, "abort", None),
        ({}, {"finish": "repetition"}, "repetition", None),
    ],
)
def test_reasons(form, options, ending, finish, stop):
    events = events_of(TOKENIZER, ones([A, B, C]), TextDecodeOptions(**options), **ending)
    builder = make(form)
    *before, last = choices_of(chunk for event in events for chunk in builder.push(event))
    (choice,) = builder.body()["choices"]
    for one in (last, choice):
        assert (one["finish_reason"], one["stop_reason"]) == (finish, stop)
    assert all(one["finish_reason"] is None and "stop_reason" not in one for one in before)


# ------------------------------------------------------------------ usage


@both
def test_usage_only_where_it_is_wanted(form):
    events = events_of(TOKENIZER, GROUPS, prompt=PROMPT, cached_token_count=1)
    assert all("usage" not in chunk for chunk in chunks_of(make(form), events))
    *chunks, last = chunks_of(make(form, include_usage=True), events)
    assert {json.dumps(chunk["usage"]) for chunk in chunks} == {"null"}
    assert (last["choices"], last["usage"]) == ([], usage(2, 5, cached=1))
    assert body_of(make(form), events)["usage"] == usage(2, 5, cached=1)


@both
def test_continuous_usage_counts_what_was_sampled(form):
    """Every event has a chunk then, and an id counts where it was sampled, however late its text comes."""
    events = events_of(TOKENIZER, GROUPS, prompt=PROMPT, cached_token_count=1)
    builder = make(form, continuous_usage=True)
    shown = [[(text_of(chunk), chunk["usage"]) for chunk in builder.push(event)] for event in events]
    first = [("", usage(2, 0))] if form == "chat" else []
    assert shown == [
        first,
        [("a", usage(2, 1))],
        [("", usage(2, 3))],
        [("", usage(2, 3))],
        [("你b", usage(2, 5))],
        [("", usage(2, 5, cached=1))],
    ]
    with_last = chunks_of(make(form, continuous_usage=True, include_usage=True), events)
    assert [len(chunk["choices"]) for chunk in with_last[-2:]] == [1, 0]
    assert all(chunk["usage"] for chunk in with_last)


@both
def test_several_choices_have_one_usage(form):
    """Chunks of choices leave in any order; a prompt counts once, and as cached only if no choice computed it."""
    how = [{"token_ids": [A], "cached_token_count": 0}, {"cached_token_count": 2}, {"cached_token_count": 2}]
    requests = [events_of(TOKENIZER, GROUPS, prompt=PROMPT, **last) for last in how]
    builders = [make(form, index=i, n=3, include_usage=True) for i in range(3)]
    for at, of_one_step in enumerate(zip(*requests, strict=True)):
        for builder, event in zip(builders, of_one_step, strict=True):
            if at == 1:
                with pytest.raises(detok.StateError, match="choice 0"):
                    usage_chunk(builders)
            chunks = builder.push(event)
            assert {choice["index"] for choice in choices_of(chunks)} <= {builder.index}
            assert all(chunk["usage"] is None for chunk in chunks)
    last = validated(usage_chunk(builders))
    assert (last["choices"], last["usage"]) == ([], usage(2, 16))
    assert last | {"choices": 0, "usage": 0} == builders[0].head | {"choices": 0, "usage": 0}

    body = join_bodies([builders[i].body() for i in (2, 0, 1)])
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"] == last["usage"]
    assert list(body) == list(builders[0].body())


def test_choices_of_several_prompts():
    """Two prompts with two choices each: both prompts count."""
    builders = [make("completion", index=i, n=2) for i in range(4)]
    for builder in builders:
        prompt = PROMPT if builder.index < 2 else [A]
        chunks_of(builder, events_of(TOKENIZER, [[A]], prompt=prompt))
    assert usage_chunk(builders, prompts=2)["usage"] == usage(3, 4)
    assert join_bodies([builder.body() for builder in builders], prompts=2)["usage"] == usage(3, 4)
    with pytest.raises(ValueError, match="4 choices cannot be those of 3 prompts"):
        usage_chunk(builders, prompts=3)


# ------------------------------------------------------------------ what rides


@both
def test_ids_are_those_that_were_sampled(form):
    """With the chunk that comes next, whether their text is certain or not; the prompt's with the first."""
    events = events_of(TOKENIZER, GROUPS, prompt=PROMPT, finish="stop", token_ids=[END])
    chunks = chunks_of(make(form, return_token_ids=True), events)
    shown = [(text_of(c), c["choices"][0]["token_ids"]) for c in chunks]
    assert shown == [("", []), ("a", [A]), ("你b", [E4, BD, A0, B]), ("", [END])]
    assert [choice.get("prompt_token_ids") for choice in choices_of(chunks)] == [PROMPT, None, None, None]
    (choice,) = body_of(make(form, return_token_ids=True), events)["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == (PROMPT, [A, E4, BD, A0, B, END])


def test_attribution_of_a_completion():
    """Ids with their spans in the whole text so far, in code points; an id that ends the request has no place."""
    tokenizer, (smile, hidden, ab) = vocabulary("😀", "<|x|>", "ab")
    events = events_of(tokenizer, [[smile], [hidden], [ab, smile]], finish="stop", token_ids=[hidden])
    chunks = chunks_of(make("completion", tokenizer, attribution=True, echo_text="né"), events)
    assert [choice["attribution"] for choice in choices_of(chunks)] == [
        {"token_ids": [], "spans": []},
        {"token_ids": [smile], "spans": [[2, 3]]},
        {"token_ids": [hidden, ab, smile], "spans": [[3, 3], [3, 5], [5, 6]]},
        {"token_ids": [], "spans": []},
    ]
    (choice,) = body_of(make("completion", tokenizer, attribution=True, echo_text="né"), events)["choices"]
    spans = [[2, 3], [3, 3], [3, 5], [5, 6]]
    assert choice["attribution"] == {"token_ids": [smile, hidden, ab, smile], "spans": spans}
    assert choice["text"] == "né😀ab😀"


def test_attribution_of_a_chat():
    events = events_of(TOKENIZER, GROUPS)
    builder = make("chat", attribution=True)
    shown = [choice["attribution"] for choice in choices_of(chunks_of(builder, events))]
    rest = {"token_ids": [E4, BD, A0, B], "spans": [[1, 2], [1, 2], [1, 2], [2, 3]]}
    assert shown == [{}, {"content": {"token_ids": [A], "spans": [[0, 1]]}}, {"content": rest}, {}]
    whole = {"token_ids": [A, E4, BD, A0, B], "spans": [[0, 1], [1, 2], [1, 2], [1, 2], [2, 3]]}
    assert builder.body()["choices"][0]["attribution"] == {"content": whole}


def test_a_token_that_is_held_in_part():
    """Its record leaves with its first byte, and so do its logprobs; in the body its span has all of it."""
    tokenizer, (abx, y) = vocabulary("abx", "y")
    events = events_of(tokenizer, [[abx], [y]], TextDecodeOptions(stop="xz"), alternatives={})
    builder = make("completion", tokenizer, logprobs=0, attribution=True)
    shown = [
        (c["text"], c["attribution"]["spans"], (c["logprobs"] or {}).get("text_offset"))
        for c in choices_of(chunks_of(builder, events))
    ]
    assert shown == [("ab", [[0, 2]], [0]), ("xy", [[3, 4]], [3]), ("", [], None)]
    assert builder.body()["choices"][0]["attribution"]["spans"] == [[0, 3], [3, 4]]


# ------------------------------------------------------------------ logprobs


def positions(*given: Any, prompt: Any = None, tokenizer: detok.Tokenizer = TOKENIZER) -> list[Any]:
    """A request that samples an id for each entry, all in one update, and ends; an entry has the sampled one first."""
    decoder = RequestDecoder(tokenizer)
    entries = [[TokenLogprob(*one) for one in entry] for entry in given]
    ids = [entry[0].token_id for entry in entries]
    how = {"prompt_token_ids": []} if prompt is None else prompt
    return decoder.push(EngineUpdate(ids, logprobs=entries, finish_reason="length", **how))


def test_logprobs_of_a_completion():
    """The likeliest, and the sampled token in any case; parts of characters by their bytes."""
    events = positions([(A, -3.0), (B, -1.0), (C, -2.0), (END, -4.0)], [(E4, -1.0)], [(BD, -0.25), (A0, -math.inf)])
    builder = make("completion", logprobs=2)
    first, last = choices_of(chunks_of(builder, events))
    assert (first["text"], last["logprobs"]) == ("a\ufffd", None)
    assert first["logprobs"] == {
        "tokens": ["a", "bytes:\\xe4", "bytes:\\xbd"],
        "token_logprobs": [-3.0, -1.0, -0.25],
        "top_logprobs": [
            {"b": -1.0, "c": -2.0, "a": -3.0},
            {"bytes:\\xe4": -1.0},
            {"bytes:\\xbd": -0.25, "bytes:\\xa0": -9999.0},
        ],
        "text_offset": [0, 1, 1],
    }
    none = body_of(make("completion", logprobs=0), events)["choices"][0]["logprobs"]
    assert none["top_logprobs"] == [{"a": -3.0}, {"bytes:\\xe4": -1.0}, {"bytes:\\xbd": -0.25}]


def test_logprobs_of_a_chat():
    events = positions([(A, -3.0), (B, -1.0), (C, -2.0), (END, -4.0)], [(E4, math.nan)])
    builder = make("chat", logprobs=True, top_logprobs=2)
    chunks_of(builder, events)
    (choice,) = builder.body()["choices"]

    def token(token: str, logprob: float, *own: int) -> dict[str, Any]:
        return {"token": token, "logprob": logprob, "bytes": list(own)}

    tops = [token("b", -1.0, 98), token("c", -2.0, 99)]
    assert choice["logprobs"] == {
        "content": [
            {**token("a", -3.0, 97), "top_logprobs": tops},
            {**token("\\xe4", -9999.0, 0xE4), "top_logprobs": [token("\\xe4", -9999.0, 0xE4)]},
        ],
        "refusal": None,
    }
    none = body_of(make("chat", logprobs=True), events)["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in none] == [[], []]


def test_numbers_that_json_does_not_have():
    given = [-math.inf, math.nan, math.inf, -1e300, -9998.5, 0.0]
    events = positions(*([(A, number)] for number in given))
    (choice,) = body_of(make("completion", logprobs=1), events)["choices"]
    assert choice["logprobs"]["token_logprobs"] == [-9999.0] * 4 + [-9998.5, 0.0]
    assert json.loads(sse(choice)[6:]) == choice


def test_candidates_of_one_text_are_told_apart():
    """By their ids, the later ones; the sampled one too."""
    table = [b"a", b"<|a|>", b"\xe4", b"\xe4", b"b", b"a", b"a"]
    tokenizer = detok.Tokenizer.from_token_bytes(table, special_token_ids=[1])
    events = positions([(6, -3.0), (0, -1.0), (5, -2.0), (4, -0.5)], [(3, -2.0), (2, -1.0)], tokenizer=tokenizer)
    (choice,) = body_of(make("completion", tokenizer, logprobs=3), events)["choices"]
    assert choice["logprobs"]["top_logprobs"] == [
        {"b": -0.5, "a": -1.0, "token_id:5": -2.0, "token_id:6": -3.0},
        {"bytes:\\xe4": -1.0, "token_id:3": -2.0},
    ]
    assert choice["logprobs"]["tokens"] == ["a", "bytes:\\xe4"]


@pytest.mark.parametrize("fragments", ["empty", "replacement"])
def test_texts_of_tokens_are_the_requests(fragments):
    """A backslash that a model wrote is no byte."""
    tokenizer, (e4, bd, a0, slash) = vocabulary(b"\xe4", b"\xbd", b"\xa0", "\\xe4")
    events = events_of(tokenizer, [[e4, bd, a0, slash]], TextDecodeOptions(fragments=fragments), alternatives={})
    (choice,) = body_of(make("completion", tokenizer, logprobs=0), events)["choices"]
    parts = {"empty": ["", "", "你"], "replacement": ["\ufffd"] * 3}[fragments]
    assert choice["logprobs"]["tokens"] == [*parts, "\\xe4"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 0, 1]


@both
def test_logprobs_of_what_a_stop_dropped_are_not_there(form):
    """The token that completed the stop is there, the one behind it is not."""
    events = events_of(TOKENIZER, [[A, B, C, A]], TextDecodeOptions(stop="bc"), alternatives={})
    chunks = chunks_of(make(form, return_token_ids=True, **LOGPROBS[form]), events)
    whole = joined(chunks)
    entries = whole["logprobs"]["tokens" if form == "completion" else "content"]
    assert whole["token_ids"] == [A, B, C]
    assert len(entries) == 3
    if form == "completion":
        assert whole["logprobs"]["text_offset"] == [0, 1, 1]


@both
def test_logprobs_that_an_engine_does_not_give(form):
    """Nothing has changed then, and the next event is taken."""
    builder = make(form, **LOGPROBS[form])
    with_logprobs, without = (events_of(TOKENIZER, [[A], [A, B]], alternatives=one) for one in ({}, None))
    chunks_of(builder, with_logprobs[:2])
    with pytest.raises(detok.DetokError, match="tokens 1 to 2"):
        builder.push(without[2])
    with pytest.raises(detok.DetokError, match="tokens 1 to 2"):
        builder.push_sse(without[2])
    chunks_of(builder, with_logprobs[2:])
    assert entry_count(builder.body()) == 3


def entry_count(body: dict[str, Any]) -> int:
    logprobs = body["choices"][0]["logprobs"]
    return len(logprobs["tokens"] if "tokens" in logprobs else logprobs["content"])


# ------------------------------------------------------------------ echo


def echoed(tokenizer: detok.Tokenizer, prompt: list[int], text: str, generated: list[int]) -> dict[str, Any]:
    decoder = RequestDecoder(tokenizer)
    scores = [None, *([TokenLogprob(i, -1.0), TokenLogprob(prompt[0], -2.0)] for i in prompt[1:])]
    first = EngineUpdate(prompt_token_ids=prompt, prompt_logprobs=scores)
    update = EngineUpdate(generated, logprobs=[TokenLogprob(i, -0.5) for i in generated], finish_reason="length")
    builder = make("completion", tokenizer, echo_text=text, logprobs=1)
    chunks = chunks_of(builder, [*decoder.push(first), *decoder.push(update)])
    whole = joined(chunks)
    assert chunks[0]["choices"][0]["text"] == text
    assert {key: builder.body()["choices"][0][key] for key in whole} == whole
    return whole


def test_echo_with_logprobs():
    whole = echoed(TOKENIZER, [A, E4, BD, A0, B], "a你b", [C])
    assert whole["text"] == "a你bc"
    assert whole["logprobs"] == {
        "tokens": ["a", "bytes:\\xe4", "bytes:\\xbd", "bytes:\\xa0", "b", "c"],
        "token_logprobs": [None, -1.0, -1.0, -1.0, -1.0, -0.5],
        "top_logprobs": [
            None,
            *({f"bytes:\\x{own:x}": -1.0} for own in (0xE4, 0xBD, 0xA0)),
            {"b": -1.0},
            {"c": -0.5},
        ],
        "text_offset": [0, 1, 1, 1, 2, 3],
    }


@pytest.mark.parametrize(
    ("prompt", "text", "offsets"),
    [
        ([END, A, B], "ab", [0, 0, 1, 2]),
        ([END, A, B], "<|end|>ab", [0, 7, 8, 9]),
        ([A, END, B], "?", [0, 1, 1, 1]),
        ([A, 99, B], "ab", [0, 1, 1, 2]),
        ([E4], "", [0, 0]),
    ],
    ids=["hidden", "shown", "another text", "an unknown id", "half a character"],
)
def test_places_in_an_echoed_text(prompt, text, offsets):
    whole = echoed(TOKENIZER, prompt, text, [C])
    assert whole["logprobs"]["text_offset"] == offsets
    assert whole["text"] == f"{text}c"


def test_the_first_token_of_an_echo_is_named_as_its_place_has_it():
    tokenizer = load_tokenizer("mistral-v3")
    bos, *ids = tokenizer.encode("Hello there, 你", add_special_tokens=True)
    assert tokenizer.is_special(bos)
    assert echoed(tokenizer, [bos, *ids], "Hello there, 你", ids[:1])["logprobs"]["tokens"][0] == "<s>"
    assert echoed(tokenizer, ids, "Hello there, 你", ids[:1])["logprobs"]["tokens"][0] == "Hello"
    assert echoed(TOKENIZER, [E4, BD], "\ufffd", [A])["logprobs"]["tokens"][0] == "bytes:\\xe4"


def test_echo_without_logprobs():
    events = events_of(TOKENIZER, [[C]], prompt=[A, B])
    chunks = chunks_of(make("completion", echo_text="ab"), events)
    assert [(text_of(chunk), chunk["choices"][0]["logprobs"]) for chunk in chunks] == [
        ("ab", None),
        ("c", None),
        ("", None),
    ]
    builder = make("completion", echo_text="ab", logprobs=1)
    with pytest.raises(detok.DetokError, match="echoed prompt"):
        builder.push(events[0])
    assert builder.push(Start([])) == chunks_of(make("completion", echo_text="ab", logprobs=1), [Start([])])


# ------------------------------------------------------------------ reasoning

THINK = [Marker("reasoning", "<think>", "</think>")]
SPOKEN, (WHY, OPEN, CLOSE, YES, CALL, CALLED, HIDDEN) = vocabulary(
    "why", "<think>", "</think>", "yes", "<|call|>", "<|called|>", "<|x|>"
)


def shown(builder: Any, events: list[Any]) -> list[list[dict[str, Any]]]:
    """The deltas of each event."""
    return [[choice["delta"] for choice in choices_of(map(validated, builder.push(event)))] for event in events]


@pytest.mark.parametrize("marked", [vocabulary("<think>", "</think>", "why", "yes"), None], ids=["tokens", "texts"])
def test_reasoning_has_a_field_of_its_own(marked):
    """A chunk for each part of an event; markers are in none, be they tokens or texts over several tokens."""
    if marked:
        tokenizer, (begin, end, why, yes) = marked
        opened, closed = [begin], [end]
    else:
        tokenizer, (*parts, why, yes) = vocabulary("<thi", "nk>", "</", "think>", "why", "yes")
        opened, closed = parts[:2], parts[2:]
    builder = make("chat", tokenizer, reasoning=THINK, include_usage=True)
    events = events_of(tokenizer, [opened, [why, *closed, yes], [yes]])
    assert shown(builder, events) == [
        [{"role": "assistant", "content": ""}],
        [],
        [{"reasoning_content": "why"}, {"content": "yes"}],
        [{"content": "yes"}],
        [{}],
    ]
    message = {"role": "assistant", "content": "yesyes", "reasoning_content": "why"}
    assert builder.body()["choices"][0]["message"] == message
    assert builder.body()["usage"] == usage(0, len(opened) + len(closed) + 3, reasoning=1)


@pytest.mark.parametrize("given", [True, False])
def test_the_prompt_may_have_opened_the_section(given):
    """Be it the prompt of the events, or another one."""
    prompt = [YES, OPEN]
    builder = make("chat", SPOKEN, reasoning=THINK, prompt_token_ids=prompt if given else ())
    events = events_of(SPOKEN, [[WHY, CLOSE, YES]], prompt=[] if given else prompt)
    assert shown(builder, events)[1:] == [[{"reasoning_content": "why"}, {"content": "yes"}], [{}]]
    assert builder.usage == usage(0 if given else 2, 3, reasoning=1)


def test_what_is_held_is_no_marker_at_the_end():
    tokenizer, (see, less) = vocabulary("see ", "<")
    events = events_of(tokenizer, [[see, less]])
    builder = make("chat", tokenizer, reasoning=THINK)
    assert shown(builder, events)[1:] == [[{"content": "see "}], [{"content": "<"}, {}]]
    assert builder.body()["choices"][0]["message"]["reasoning_content"] is None
    assert "reasoning_content" not in body_of(make("chat", tokenizer), events)["choices"][0]["message"]


def test_sections_of_the_answer_go_with_the_answer():
    """Those that keep their markers, and those that have the name of what is outside."""
    kept = [*THINK, Marker("tool_call", "<|call|>", "<|called|>", keep_markers=True, reopen=True)]
    groups = [[OPEN, WHY, CLOSE], [YES, CALL, WHY], [CALLED]]
    events = events_of(SPOKEN, groups, TextDecodeOptions(skip_special_tokens=False))
    builder = make("chat", SPOKEN, reasoning=kept)
    deltas = [delta for deltas in shown(builder, events)[1:] for delta in deltas]
    assert deltas[0] == {"reasoning_content": "why"}
    assert "".join(delta.get("content", "") for delta in deltas) == "yes<|call|>why<|called|>"
    assert builder.usage == usage(0, 7, reasoning=1)

    named = [*THINK, Marker("content", "<|call|>", "<|called|>")]
    builder = make("chat", SPOKEN, reasoning=named)
    assert shown(builder, events)[2:] == [[{"content": "yes"}, {"content": "why"}], [], [{}]]
    assert builder.usage == usage(0, 7, reasoning=1)


def test_usage_of_reasoning_runs():
    """Tokens of markers are no reasoning, those without text are."""
    builder = make("chat", SPOKEN, reasoning=THINK, continuous_usage=True)
    groups = [[OPEN], [WHY, HIDDEN], [], [CLOSE], [YES]]
    counts = []
    for event in events_of(SPOKEN, groups):
        (chunk,) = builder.push(event)
        counts.append((chunk["choices"][0]["delta"], chunk["usage"]["completion_tokens_details"]["reasoning_tokens"]))
    assert counts == [
        ({"role": "assistant", "content": ""}, 0),
        ({"reasoning_content": ""}, 0),
        ({"reasoning_content": "why"}, 2),
        ({"reasoning_content": ""}, 2),
        ({"content": ""}, 2),
        ({"content": "yes"}, 2),
        ({}, 2),
    ]


def test_every_sampled_token_has_logprobs_wherever_its_text_goes():
    """Those of markers and of tokens without text ride on the next chunk."""
    groups = [[OPEN, WHY, HIDDEN], [CLOSE, YES, YES], [HIDDEN]]
    last = {"finish": "stop", "token_ids": [HIDDEN], "logprobs": [{HIDDEN: -0.5}]}
    events = events_of(SPOKEN, groups, alternatives={}, **last)
    builder = make("chat", SPOKEN, reasoning=THINK, logprobs=True, return_token_ids=True, attribution=True)
    choices = choices_of(chunks_of(builder, events))
    entries = [[entry["token"] for entry in (choice["logprobs"] or {"content": []})["content"]] for choice in choices]
    assert entries == [
        [],
        ["<think>", "why", "<|x|>"],
        ["</think>", "yes", "yes"],
        ["<|x|>", "<|x|>"],
    ]
    assert [choice["token_ids"] for choice in choices] == [[], *groups[:2], [HIDDEN, HIDDEN]]
    (whole,) = builder.body()["choices"]
    assert [entry["token"] for entry in whole["logprobs"]["content"]] == [
        token for tokens in entries for token in tokens
    ]
    assert whole["attribution"] == {
        "reasoning_content": {"token_ids": [WHY, HIDDEN], "spans": [[0, 3], [3, 3]]},
        "content": {"token_ids": [YES, YES, HIDDEN], "spans": [[0, 3], [3, 6], [6, 6]]},
    }


def test_markers_are_checked_when_a_builder_is_made():
    with pytest.raises(ValueError, match="start"):
        make("chat", SPOKEN, reasoning=[*THINK, Marker("thought", "<think>", "</thought>")])


class Alternating:
    """A splitter whose section changes with every push; the first one depends on the prompt."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.names = ["reasoning", "aside", "tool_call"]
        self.at = len(prompt) - 1
        self.token_counts = {"reasoning": 0, "aside": 0, "tool_call": 0, "markers": 0}

    @property
    def section(self) -> str:
        return self.names[self.at % 3]

    def push(self, decoded: DecodedText) -> list[tuple[str, DecodedText]]:
        self.at += 1
        self.token_counts[self.section] += len(decoded.attributions)
        return [(self.section, decoded)]

    def finish(self) -> list[tuple[str, DecodedText]]:
        return [("reasoning", DecodedText("!"))]


@pytest.mark.parametrize("given", [True, False])
def test_another_splitter(given):
    """It is made behind the prompt. What it calls reasoning is reasoning, and everything else is content."""
    prompt = [YES]
    builder = make("chat", SPOKEN, splitter=Alternating, prompt_token_ids=prompt if given else ())
    events = events_of(SPOKEN, ones([WHY, YES, WHY, YES, WHY]), prompt=[] if given else prompt)
    assert shown(builder, events)[1:] == [
        [{"content": "why"}],
        [{"content": "yes"}],
        [{"reasoning_content": "why"}],
        [{"content": "yes"}],
        [{"content": "why"}],
        [{"reasoning_content": "!"}, {}],
    ]
    message = {"role": "assistant", "content": "whyyesyeswhy", "reasoning_content": "why!"}
    assert builder.body()["choices"][0]["message"] == message
    assert builder.usage == usage(0 if given else 1, 5, reasoning=1)


def test_there_is_one_splitter():
    with pytest.raises(ValueError, match="give one of them"):
        make("chat", SPOKEN, reasoning=THINK, splitter=Alternating)


# ------------------------------------------------------------------ errors


@both
def test_events_in_the_wrong_order(form):
    start, delta, last = events_of(TOKENIZER, [[A]])
    builder = make(form)
    for push in (builder.push, builder.push_sse):
        with pytest.raises(detok.StateError, match="no start"):
            push(delta)
    builder.push(start)
    with pytest.raises(detok.StateError, match="two starts"):
        builder.push(start)
    builder.push(delta)
    with pytest.raises(detok.StateError, match="before its last event"):
        builder.body()
    assert not builder.is_finished
    builder.push(last)
    assert builder.is_finished
    for event in (start, delta, last):
        for push in (builder.push, builder.push_sse):
            with pytest.raises(detok.StreamFinishedError, match="choice 0"):
                push(event)
    assert builder.body() == builder.body()


@both
def test_output_that_is_not_kept_has_no_body(form):
    builder = make(form, keep_output=False, return_token_ids=True)
    events = events_of(TOKENIZER, GROUPS)
    assert chunks_of(builder, events) == chunks_of(make(form, return_token_ids=True), events)
    with pytest.raises(detok.StateError, match="keep"):
        builder.body()
    assert builder.usage == usage(0, 5)


@pytest.mark.parametrize(
    ("form", "how", "problem"),
    [
        ("completion", {"logprobs": -1}, "-1"),
        ("completion", {"index": -1}, "-1"),
        ("completion", {"n": 0}, "0"),
        ("completion", {"echo_text": "\ud800"}, "surrogates"),
        ("chat", {"logprobs": True, "top_logprobs": -1}, "-1"),
        ("chat", {"top_logprobs": 2}, "needs logprobs"),
    ],
)
def test_arguments_that_are_refused(form, how, problem):
    with pytest.raises(ValueError, match=problem):
        make(form, **how)


@both
def test_created_is_now(form):
    builder = BUILDERS[form](TOKENIZER, id="x", model="y")
    assert isinstance(builder.head["created"], int)
    assert builder.head["created"] > 1_700_000_000


# ------------------------------------------------------------------ the wire


def test_events_are_ascii():
    assert sse(None) == b"data: [DONE]\n\n"
    assert sse({"é": "\u2028\n😀", "n": [1.5, None]}) == (
        b'data: {"\\u00e9":"\\u2028\\n\\ud83d\\ude00","n":[1.5,null]}\n\n'
    )
    with pytest.raises(ValueError, match="not JSON compliant"):
        sse({"n": math.nan})


def test_a_reader_of_what_others_send():
    """A mark of byte order, line ends of all kinds, comments, other fields, data over several lines, or none of it."""
    wire = b'\xef\xbb\xbf: hello\r\n\r\nevent: x\r\ndata: {"a":\r\ndata: 1}\r\n\r\nid: 3\n\n'
    wire += b'data:{"b": "\xe4\xbd\xa0"}\r\rdata:\n\ndata: [DONE]\n\ndata: {"late": 1}\n\n'
    for cut in range(len(wire) + 1):
        reader = SseReader()
        assert reader.push(wire[:cut]) + reader.push(wire[cut:]) == [{"a": 1}, {"b": "你"}]
        assert reader.is_done
    reader = SseReader()
    assert [chunk for byte in wire for chunk in reader.push(bytes([byte]))] == [{"a": 1}, {"b": "你"}]
    reader = SseReader()
    end = wire.index(b"[DONE]") + len(b"[DONE]\n")
    assert reader.push(wire[:end]) == [{"a": 1}, {"b": "你"}]
    assert not reader.is_done


def test_a_reader_of_what_is_no_chunk():
    """What is wrong raises, and nothing is kept of it or lost by it."""
    reader = SseReader()
    assert reader.push(b'data: {"a":') == []
    for wrong, words in ((b" 1}\n\ndata: {x\n\n", "Expecting"), (b" 1}\n\ndata: 5\n\n", "object.*5")):
        with pytest.raises(ValueError, match=words):
            reader.push(wrong)
    with pytest.raises(TypeError, match="str"):
        reader.push("1}")
    assert reader.push(b" 1}\n\n") == [{"a": 1}]


@contextmanager
def serving(answer: bytes, kind: str) -> Iterator[str]:
    """A server on loopback that has this answer to everything; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", kind)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


@both
def test_the_client_of_openai(form):
    """It reads streams and bodies, and sees what was sent."""
    how = {"include_usage": True, **LOGPROBS[form]}
    events = events_of(TOKENIZER, GROUPS, prompt=PROMPT, alternatives={})
    builder = make(form, **how)
    wire = b"".join([*(builder.push_sse(event) for event in events), sse(None)])
    chunks = chunks_of(make(form, **how), events)

    def ask(address: str, **how: Any) -> Any:
        with openai.OpenAI(api_key="none", base_url=address, max_retries=0) as client:
            if form == "completion":
                answer = client.completions.create(model="small", prompt="cc", **how)
            else:
                messages: Any = [{"role": "user", "content": "cc"}]
                answer = client.chat.completions.create(model="small", messages=messages, **how)
            return list(answer) if how else answer

    with serving(wire, "text/event-stream") as address:
        got = ask(address, stream=True)
    assert [chunk.to_dict() for chunk in got] == chunks
    with serving(json.dumps(builder.body()).encode(), "application/json") as address:
        body = ask(address)
    assert body.to_dict() == builder.body()
    text = body.choices[0].text if form == "completion" else body.choices[0].message.content
    assert text == "a你b"


# ------------------------------------------------------------------ recorded streams

RECORDED = [
    *(("smollm2", row) for row in read_jsonl("smollm2_streams.jsonl")),
    *((row["tokenizer"], row) for row in read_jsonl("server_streams.jsonl") if row["tokenizer"] != "llama3"),
]


def test_there_is_something_to_replay():
    assert len(RECORDED) > 60
    assert {name for name, _ in RECORDED} == {"smollm2", "gpt-oss", "qwen3", "mistral-v3"}


@pytest.mark.parametrize(("name", "row"), RECORDED, ids=lambda one: one if isinstance(one, str) else one["id"])
@pytest.mark.parametrize(
    "options", [{}, {"skip_special_tokens": False}, {"stop": [" the\x01", "\n\x01", "的\x01"]}], ids=str
)
def test_recorded_streams(name, row, options):
    """Deltas joined are the text; offsets are those of the ids decoded at once; an entry for each sampled id."""
    tokenizer, ids = load_tokenizer(name), row["ids"]
    choice = TextDecodeOptions(**options)
    echo = "né😀"
    prompt = tokenizer.encode(echo)
    shown = choice.skip_special_tokens
    decoded = tokenizer.decode_attributed(ids, prompt_token_ids=prompt, skip_special_tokens=shown)
    decoder = RequestDecoder(tokenizer, prompt, choice)
    scores = [TokenLogprob(i, -1.0) for i in prompt]
    events = [
        event
        for n, i in enumerate(ids)
        for event in decoder.push(EngineUpdate([i], logprobs=[{i: -0.5}], prompt_logprobs=None if n else scores))
    ]
    events += decoder.push(EngineUpdate(finish_reason="length"))

    whole = joined(chunks_of(make("completion", tokenizer, echo_text=echo, logprobs=1, return_token_ids=True), events))
    assert whole["text"] == echo + decoded.text
    assert whole["token_ids"] == ids
    logprobs = whole["logprobs"]
    assert {len(column) for column in logprobs.values()} == {len(prompt) + len(ids)}
    assert logprobs["text_offset"][len(prompt) :] == [len(echo) + offset for offset in decoded.offsets()]
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        if "\ufffd" not in token and "\\x" not in token and not tokenizer.is_special(tokenizer.token_to_id(token) or 0):
            assert whole["text"].startswith(token, offset)

    chat = joined(chunks_of(make("chat", tokenizer, logprobs=True), events))
    assert chat["message"] == {"role": "assistant", "content": decoded.text}
    assert len(chat["logprobs"]["content"]) == len(ids)
    data = bytes(byte for entry in chat["logprobs"]["content"] for byte in entry["bytes"])
    assert data == b"".join(tokenizer.token_bytes(i) for i in ids)
