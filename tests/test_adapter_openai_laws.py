"""The laws of OpenAI's shapes, for any request of any family."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import detok
import strategies as own
from detok.adapters.openai import ChatCompletionBuilder, SseReader, sse
from engine import vocabulary
from hypothesis import given
from hypothesis import strategies as st
from openai_shapes import FORMS, HEAD, choices_of, joined
from test_laws_events import library_decoder, outcome, regrouped, update_of

forms = st.sampled_from(list(FORMS))


def events_of(request: own.Request) -> list[Any]:
    """The events of a request that ends; an update that raises gives none."""
    decoder, events = library_decoder(request), []
    for update in request.updates:
        got = outcome(decoder.push, update_of(detok, update))
        events += got if isinstance(got, list) else []
        if decoder.is_finished:
            return events
    return [*events, *decoder.push(detok.EngineUpdate(finish_reason="length"))]


def total(events: Sequence[Any]) -> tuple[detok.DecodedText, list[int]]:
    """Everything decoded, and everything sampled."""
    decoded, sampled = detok.DecodedText(), []
    for event in events[1:]:
        decoded.append(event.decoded)
        sampled += event.sampled.token_ids
    return decoded, sampled


@st.composite
def wishes(draw: st.DrawFn, form: str, *, plain: bool = False, **fixed: Any) -> dict[str, Any]:
    """Arguments of a builder; `plain` ones ask for nothing that rides on chunks."""
    names = ["include_usage", *([] if plain else ["continuous_usage", "return_token_ids", "attribution"])]
    how = {name: draw(st.booleans()) for name in names} | HEAD
    if form == "text_completion":
        how["echo_text"] = draw(st.none() | st.sampled_from(["", "né😀"]))
    if not plain:
        alternatives = draw(st.sampled_from([None, 0, 1, 2]))
        if form == "text_completion":
            how["logprobs"] = alternatives
        elif alternatives is not None:
            how |= {"logprobs": True, "top_logprobs": alternatives}
    return how | fixed


def without_prompt_logprobs(how: dict[str, Any]) -> dict[str, Any]:
    """No engine here scores prompts."""
    return how | ({"echo_text": None} if how.get("echo_text") is not None and how.get("logprobs") is not None else {})


@st.composite
def builders(draw: st.DrawFn, request: own.Request, **how: Any) -> Any:
    """How to make builders that are all the same."""
    form = draw(forms)
    arguments = without_prompt_logprobs(draw(wishes(form, **how)))
    return lambda: FORMS[form](request.drawn.tokenizer, **arguments)


with_logprobs = own.requests(with_logprobs=True)


@given(with_logprobs, st.data())
def test_wire(request_, data):
    """Events are the JSON of the chunks, whichever way they are made; a reader gets the chunks back, however cut."""
    events = events_of(request_)
    make = data.draw(builders(request_, plain=data.draw(st.booleans())))
    fast, slow, wire, chunks = make(), make(), b"", []
    for event in events:
        got = slow.push(event)
        chunks += got
        sent = fast.push_sse(event) if data.draw(st.integers(0, 4)) else b"".join(map(sse, fast.push(event)))
        assert sent == b"".join(map(sse, got))
        wire += sent
    assert wire.isascii()
    assert fast.body() == slow.body()
    reader, read = SseReader(), []
    wire += sse(None)
    cuts = data.draw(st.sets(st.integers(1, len(wire) - 1), max_size=6))
    for start, end in itertools.pairwise([0, *sorted(cuts), len(wire)]):
        assert not reader.is_done
        read += reader.push(wire[start:end])
    assert read == chunks
    assert reader.is_done


@given(with_logprobs, st.data())
def test_body(request_, data):
    """What a client joins is the body of one that does not stream."""
    make = data.draw(builders(request_, include_usage=True))
    builder = make()
    chunks = [chunk for event in events_of(request_) for chunk in builder.push(event)]
    (choice,) = builder.body()["choices"]
    choice.pop("attribution", None)
    assert joined(chunks) == choice
    assert builder.body()["usage"] == chunks[-1]["usage"]
    assert builder.body()["object"] == chunks[-1]["object"].removesuffix(".chunk")


@given(with_logprobs, st.data())
def test_cuts(request_, data):
    """However ids are grouped into updates, the body is the same."""
    make = data.draw(builders(request_))

    def body(request: own.Request) -> Any:
        builder = make()
        for event in events_of(request):
            builder.push(event)
        return builder.body()

    ids = [token_id for token_id in request_.token_ids if token_id in request_.drawn.reference.tokens]
    request_ = regrouped(request_, [request_.token_ids], unknown_ids="skip") if ids != request_.token_ids else request_
    one = regrouped(request_, [request_.token_ids])
    other = regrouped(request_, data.draw(own.groupings(request_.token_ids)))
    assert body(one) == body(other)


@given(with_logprobs)
def test_cover(request_):
    """One entry for each sampled id, in order, at the place of its record; what has no record is at the end."""
    events = events_of(request_)
    decoded, sampled = total(events)
    tokenizer = request_.drawn.tokenizer
    builders = [
        FORMS[form](tokenizer, **HEAD, logprobs=True, return_token_ids=True, attribution=True) for form in FORMS
    ]
    completion, chat = (joined(chunk for event in events for chunk in builder.push(event)) for builder in builders)
    assert completion["token_ids"] == chat["token_ids"] == sampled
    logprobs = completion["logprobs"] or {"text_offset": [], "tokens": []}
    places = decoded.offsets()
    assert logprobs["text_offset"] == places + [len(decoded.text)] * (len(sampled) - len(places))
    entries = chat["logprobs"]["content"] if chat["logprobs"] else []
    assert [bytes(entry["bytes"]) for entry in entries] == [tokenizer.token_bytes(i) or b"" for i in sampled]
    for builder in builders:
        attribution = builder.body()["choices"][0]["attribution"]
        if builder is builders[1]:
            attribution = attribution.get("content", {"token_ids": [], "spans": []})
        assert attribution["token_ids"] == decoded.token_ids
        assert [tuple(span) for span in attribution["spans"]] == decoded.spans()


@given(with_logprobs, forms)
def test_earliest(request_, form):
    """A chunk for every event that has text, with all of it, and one for the end."""
    start, *deltas = events_of(request_)
    builder = FORMS[form](request_.drawn.tokenizer, **HEAD)
    assert len(builder.push(start)) == (form == "chat.completion.chunk")
    for event in deltas:
        choices = choices_of(builder.push(event))
        text, finished = event.decoded.text, event.finished
        assert [choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices] == [
            *([text] if text else []),
            *([""] if finished else []),
        ]
        reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]
        assert reasons == ([finished.finish_reason.kind] if finished else [])


TOKENIZER, IDS = vocabulary(
    *("a", "你", b"\xe4", b"\xbd", b"\xa0", "<think>", "</think>", "<", "/think>", "think", ">", "<|x|>", "<a>", "</a>")
)
MARKERS = [
    detok.Marker("reasoning", "<think>", "</think>"),
    detok.Marker("call", "<a>", "</a>", reopen=True, keep_markers=True),
    detok.Marker("more", "<|x|>", "<|x|>", reopen=True),
]


def events_in(groups: Sequence[Sequence[int]], prompt: Sequence[int], skip: bool) -> list[Any]:
    decoder = detok.RequestDecoder(TOKENIZER, prompt, detok.TextDecodeOptions(skip_special_tokens=skip))
    updates = [detok.EngineUpdate(group, logprobs=[{i: -float(i)} for i in group]) for group in groups]
    return [e for update in [*updates, detok.EngineUpdate(finish_reason="length")] for e in decoder.push(update)]


@given(st.data())
def test_sections(data):
    """Fields, counts and logprobs of every token are the same for any grouping, and as a splitter has them."""
    token_ids, prompt = (data.draw(st.lists(st.sampled_from(IDS), max_size=size)) for size in (14, 3))
    skip = data.draw(st.booleans())
    everything = {"logprobs": True, "return_token_ids": True, "attribution": True}
    bodies = []
    for groups in ([token_ids], data.draw(own.groupings(token_ids))):
        builder, plain, fast = (
            ChatCompletionBuilder(TOKENIZER, **HEAD, reasoning=MARKERS, include_usage=True, **how)
            for how in (everything, {}, {})
        )
        chunks = []
        for event in events_in(groups, prompt, skip):
            chunks += builder.push(event)
            assert b"".join(map(sse, plain.push(event))) == fast.push_sse(event)
        assert plain.usage == fast.usage == builder.usage
        assert plain.body() == fast.body()
        bodies.append(builder.body())
        (choice,) = bodies[-1]["choices"]
        assert plain.body()["choices"][0]["message"] == choice["message"]
        client = joined(chunks)
        client["message"].setdefault("reasoning_content", None)
        assert client == {key: choice[key] for key in choice if key != "attribution"}
        assert choice["token_ids"] == token_ids
        entries = choice["logprobs"]["content"] if choice["logprobs"] else []
        assert [bytes(entry["bytes"]) for entry in entries] == [TOKENIZER.token_bytes(i) for i in token_ids]
    assert bodies[0] == bodies[1]

    splitter = detok.SectionSplitter(TOKENIZER, MARKERS, prompt_token_ids=prompt)
    decoded = TOKENIZER.decode_attributed(token_ids, prompt_token_ids=prompt, skip_special_tokens=skip)
    texts = {True: "", False: ""}
    for section, piece in [*splitter.push(decoded), *splitter.finish()]:
        texts[section in ("reasoning", "more")] += piece.text
    assert [choice["message"]["content"], choice["message"]["reasoning_content"] or ""] == [texts[False], texts[True]]
    counts = splitter.token_counts
    details = bodies[0]["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": counts["reasoning"] + counts["more"]}
