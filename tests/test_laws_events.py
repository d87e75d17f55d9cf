"""The laws of requests and batches, each under its name: the library against the reference, and against itself."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import detok
import pytest
import reference
import reference_events as twin
import strategies as own
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import bpe, tokenizer_json
from test_laws import LETTER_IDS, WINDOW_DECODERS, Letters, plain

# ---------------------------------------------------------------- both sides


def library_options(options: dict[str, Any]) -> detok.TextDecodeOptions:
    return detok.TextDecodeOptions(**options)


def twin_options(options: dict[str, Any]) -> twin.Options:
    return twin.Options(**options)


def written(position: Any, entry: Callable[..., Any]) -> Any:
    """A drawn position in the form in which an engine hands it over."""
    if position is None:
        return None
    form, candidates = position
    if form == "number":
        return candidates[0][1]
    if form == "one":
        return entry(*candidates[0])
    if form == "list":
        return [entry(*candidate) for candidate in candidates]
    if form == "numbers":
        return {token_id: logprob for token_id, logprob, _ in reversed(candidates)}
    return {token_id: SimpleNamespace(logprob=logprob, rank=rank) for token_id, logprob, rank in reversed(candidates)}


def update_of(module: Any, update: dict[str, Any]) -> Any:
    """An EngineUpdate of the library or of the twin."""
    lists = {
        name: [written(position, module.TokenLogprob) for position in update[name]]
        for name in ("logprobs", "prompt_logprobs")
        if update.get(name) is not None
    }
    return module.EngineUpdate(**(update | lists))


def going_on(update: dict[str, Any]) -> dict[str, Any]:
    """The update without what an engine says of an end."""
    return {name: value for name, value in update.items() if name in ("token_ids", "logprobs")}


def library_decoder(request: own.Request, **how: Any) -> detok.RequestDecoder:
    how = {"prompt_token_ids": request.prompt} | how
    return detok.RequestDecoder(request.drawn.tokenizer, options=library_options(request.options), **how)


def twin_decoder(request: own.Request, **how: Any) -> twin.RequestDecoder:
    how = {"prompt_token_ids": request.prompt} | how
    return twin.RequestDecoder(request.drawn.reference, options=twin_options(request.options), **how)


# ---------------------------------------------------------------- values of both sides as one


def flat_logprob(entry: Any) -> tuple[Any, ...]:
    number = "nan" if entry.logprob != entry.logprob else entry.logprob
    return entry.token_id, number, entry.rank, entry.token, entry.token_bytes


def flat_positions(positions: Any) -> Any:
    if positions is None:
        return None
    return [
        position and (flat_logprob(position.sampled), [flat_logprob(entry) for entry in position.top])
        for position in positions
    ]


def flat_match(match: Any) -> Any:
    return match and (match.stop, match.byte_offset, match.token_index, match.cut)


def flat_usage(usage: Any) -> tuple[int, int, int]:
    return usage.prompt_token_count, usage.output_token_count, usage.cached_token_count


def flat_finished(finished: Any) -> Any:
    return finished and {
        "usage": flat_usage(finished.usage),
        "reason": (finished.finish_reason.kind, finished.finish_reason.stop),
        "match": flat_match(finished.stop_match),
        "kv": finished.kv_transfer_params,
        "dropped": list(finished.dropped_token_ids),
        "first cut": finished.first_cut_token,
    }


def flat(event: Any) -> dict[str, Any]:
    if isinstance(event, (detok.Start, twin.Start)):
        return {"prompt": list(event.prompt_token_ids), "logprobs": flat_positions(event.prompt_logprobs)}
    if isinstance(event, detok.TextDelta):
        assert (event.text, event.token_texts) == (event.decoded.text, event.sampled.token_texts)
    return {
        "decoded": plain(event.decoded),
        "sampled": list(event.sampled.token_ids),
        "logprobs": flat_positions(event.sampled.logprobs),
        "texts": event.sampled.token_texts,
        "finished": flat_finished(event.finished),
    }


def outcome(call: Callable[..., Any], *args: Any) -> Any:
    """What a call gives, or the error's name and what it says about the place."""
    try:
        return call(*args)
    except (ValueError, RuntimeError, TypeError) as error:
        return (type(error).__name__, *(getattr(error, name, None) for name in ("token_id", "index", "request_id")))


def pushed(decoder: Any, update: Any) -> Any:
    """What can be seen of a push."""
    events = outcome(decoder.push, update)
    seen = [flat(event) for event in events] if isinstance(events, list) else events
    return seen, decoder.is_finished, decoder.abort_cause


def folded(request: own.Request, **how: Any) -> dict[str, Any]:
    """All deltas of a request as one, by the library."""
    decoder = library_decoder(request, token_texts=True, **how)
    decoded, token_ids, logprobs, texts, last = detok.DecodedText(), [], [], [], None
    for update in request.updates:
        if decoder.is_finished:
            break
        for event in decoder.push(update_of(detok, update)):
            if isinstance(event, detok.TextDelta):
                decoded.append(event.decoded)
                token_ids += event.sampled.token_ids
                logprobs += flat_positions(event.sampled.logprobs) or []
                texts += event.token_texts
                last = event.finished or last
    finished = flat_finished(last)
    dropped = finished.pop("dropped")
    # The last update has the largest count only if it came: it is not what the law is about.
    finished["usage"], finished["kv"] = finished["usage"][:2], None
    assert token_ids + dropped == request.token_ids[: len(token_ids) + len(dropped)]
    decoded = plain(decoded)
    records = [replace(record, cut=False) for record in decoded.records]
    sent = [(record.token_id, record.visible, record.byte_offset, record.continues_char) for record in records]
    return {
        "text": decoded.text,
        "records": sent,
        "ids": token_ids,
        "logprobs": logprobs,
        "texts": texts,
        "finished": finished,
    }


def regrouped(request: own.Request, groups: Sequence[Sequence[int]], **options: Any) -> own.Request:
    """The same ids and logprobs in other updates; the engine says length with the last."""
    positions = [position for update in request.updates for position in update.get("logprobs", ())]
    updates, at = [], 0
    for group in groups:
        updates.append({"token_ids": list(group)})
        if positions:
            updates[-1]["logprobs"] = positions[at : at + len(group)]
        at += len(group)
    updates[-1]["finish_reason"] = "length"
    return replace(request, updates=updates, options=request.options | options)


# ---------------------------------------------------------------- twin


@given(own.requests(), st.booleans(), st.booleans())
def test_twin(request_, intermediate, token_texts):
    """Every event, every error, and what is left behind them."""
    how = {"request_id": "r", "intermediate": intermediate, "token_texts": token_texts}
    theirs, ours = library_decoder(request_, **how), twin_decoder(request_, **how)
    assert_twin(theirs, ours, [*request_.updates, {"token_ids": [0]}])


def assert_twin(theirs: detok.RequestDecoder, ours: twin.RequestDecoder, updates: Sequence[dict[str, Any]]) -> None:
    for update in updates:
        assert pushed(theirs, update_of(detok, update)) == pushed(ours, update_of(twin, update))
    assert outcome(theirs.close) == outcome(ours.close)


@given(own.requests(with_logprobs=True))
def test_twin_with_logprobs(request_):
    how = {"token_texts": True}
    assert_twin(library_decoder(request_, **how), twin_decoder(request_, **how), request_.updates)


@given(own.requests(with_logprobs=True), st.data())
def test_twin_with_all_candidates(request_, data):
    """Every token of the vocabulary as an alternative at one place, and behind the prompt's ids too."""
    known = [token_id for token_id in request_.drawn.known_ids() if token_id < 64]
    places = [(update, n) for update in request_.updates for n in range(len(update["token_ids"]))]
    if places:
        update, n = data.draw(st.sampled_from(places))
        ids = dict.fromkeys([update["token_ids"][n], *known, own.UNMAPPED])
        update["logprobs"][n] = ("list", [(token_id, -1.0, None) for token_id in ids])
    assert_twin(library_decoder(request_), twin_decoder(request_), request_.updates)


PROMPTS = ("decoder", "update", "both", "neither", "different")


@given(own.requests(), st.sampled_from(PROMPTS), st.data())
def test_twin_with_prompts(request_, where, data):
    """Whoever brings the prompt; its logprobs are those of each id behind the ones before it."""
    given = request_.prompt if where in ("decoder", "both", "different") else None
    theirs = library_decoder(request_, prompt_token_ids=given, request_id="r")
    ours = twin_decoder(request_, prompt_token_ids=given, request_id="r")
    first, *rest = request_.updates
    if where in ("update", "both"):
        first["prompt_token_ids"] = request_.prompt
    elif where == "different":
        first["prompt_token_ids"] = [*request_.prompt, 0]
    elif where == "decoder" and data.draw(st.booleans()):
        first["prompt_logprobs"] = data.draw(own.logprobs(request_.drawn, request_.prompt, gaps=True))
    if where in ("update", "both"):
        first["prompt_logprobs"] = data.draw(st.none() | own.logprobs(request_.drawn, request_.prompt, gaps=True))
    assert_twin(theirs, ours, [first, *rest])


@given(own.requests(), st.data())
def test_twin_with_an_engine_that_fails(request_, data):
    """The engine's error changes nothing: the twin goes on behind it too."""
    failure = {"finish_reason": "error", "token_ids": data.draw(own.id_streams(request_.drawn, max_size=2))}
    updates = list(request_.updates)
    updates.insert(data.draw(st.integers(0, len(updates))), failure)
    assert_twin(library_decoder(request_, request_id="r"), twin_decoder(request_, request_id="r"), updates)


@given(own.requests(), st.booleans())
def test_twin_without_a_terminal_update(request_, intermediate):
    """What was not said to end has not ended, unless a stop came."""
    theirs = library_decoder(request_, request_id="r", intermediate=intermediate)
    ours = twin_decoder(request_, request_id="r", intermediate=intermediate)
    assert_twin(theirs, ours, [going_on(update) for update in request_.updates])


# ---------------------------------------------------------------- cuts


@given(own.requests(unknown_ids="skip"), st.data())
def test_cuts(request_, data):
    """Any grouping into updates: the same text, records, stop decision, kept ids, logprobs and usage."""
    first = regrouped(request_, data.draw(own.groupings(request_.token_ids)))
    one_by_one = regrouped(request_, [[token_id] for token_id in request_.token_ids] or [[]])
    expected = folded(one_by_one)
    assert folded(first) == expected
    assert folded(regrouped(request_, [request_.token_ids])) == expected
    assert folded(first, intermediate=False) == expected


@given(own.requests(unknown_ids="skip"), st.data())
def test_cuts_with_a_hundred_stops(request_, data):
    """Stops that never complete change when text leaves, and nothing else."""
    groups = data.draw(own.groupings(request_.token_ids))
    stops = list(twin_options(request_.options).stops)
    alone = folded(regrouped(request_, groups, stop=stops))
    crowded = regrouped(request_, groups, stop=own.crowd(request_.text) + stops)
    assert folded(crowded) == alone
    assert_twin(library_decoder(crowded), twin_decoder(crowded), crowded.updates)


# ---------------------------------------------------------------- earliest


@given(own.requests(unknown_ids="skip", stop_token_ids=()))
def test_earliest(request_):
    """What has left after each id is what is certain, less what may become a stop or was asked to be buffered."""
    options = twin_options(request_.options)
    stops = () if options.include_stop_str_in_output else options.stops
    decoder, text = library_decoder(request_), ""
    for n, token_id in enumerate(request_.token_ids, start=1):
        text += decoder.push(detok.EngineUpdate([token_id]))[-1].decoded.text
        if decoder.is_finished:
            break
        certain = own.visible_text(request_.drawn, request_.options, request_.prompt, request_.token_ids[:n])
        held = max(twin.held_bytes(certain, stops), options.min_bytes_to_buffer)
        limit = max(0, reference.byte_len(certain) - held)
        assert reference.byte_len(text) == max(edge for edge in reference.boundaries(certain) if edge <= limit)
        assert certain.startswith(text)


# ---------------------------------------------------------------- bounded


@given(own.requests(unknown_ids="skip"), st.integers(1, 100))
def test_bounded(request_, times):
    """At most three bytes are pending, and less is held than the longest stop has."""
    options = twin_options(request_.options)
    longest = max((reference.byte_len(stop) for stop in options.stops), default=1)
    buffer = options.min_bytes_to_buffer
    batch = detok.BatchDecoder(request_.drawn.tokenizer, library_options(request_.options))
    slot = batch.add(request_.prompt)
    for update in request_.updates:
        token_ids = update["token_ids"] * times
        batch.step([slot], token_ids, [len(token_ids)])
        pending = batch.pending(slot)
        assert pending["incomplete_bytes"] <= 3
        assert pending["held_bytes"] <= max(longest - 1, buffer + 3 if buffer else 0)  # a character is not cut


# ---------------------------------------------------------------- atomic


@given(own.requests(unknown_ids="error"), st.data())
def test_atomic(request_, data):
    """An update that raises gives no event and changes nothing."""
    theirs, ours, untouched = library_decoder(request_), twin_decoder(request_), library_decoder(request_)
    failing = data.draw(st.integers(0, len(request_.updates) - 1))
    for index, update in enumerate(request_.updates):
        if index == failing:
            at = data.draw(st.integers(0, len(update["token_ids"])))
            ids = [*update["token_ids"][:at], own.UNMAPPED, *update["token_ids"][at:]]
            bad = {"token_ids": ids, "cached_token_count": 99, "kv_transfer_params": "lost"}
            trial = outcome(twin_fork(ours).push, update_of(twin, bad))
            if not isinstance(trial, list):  # else a stop came before it
                assert pushed(theirs, update_of(detok, bad)) == pushed(ours, update_of(twin, bad))
        seen = pushed(theirs, update_of(detok, update))
        assert seen == pushed(ours, update_of(twin, update))
        assert seen == pushed(untouched, update_of(detok, update))


def twin_fork(decoder: twin.RequestDecoder) -> twin.RequestDecoder:
    """Pushing to it leaves the original as it was: state is replaced, but for the generation's."""
    other = copy.copy(decoder)
    other.generation = decoder.generation and decoder.generation.fork()
    return other


# ---------------------------------------------------------------- batch


@st.composite
def batches(draw: st.DrawFn) -> list[own.Request]:
    """A few requests on one vocabulary, each with options of its own."""
    first = draw(own.requests(with_logprobs=True))
    out = [first]
    for _ in range(draw(st.integers(1, 2))):
        unknown = first.options["unknown_ids"] == "skip"
        token_ids = draw(own.id_streams(first.drawn, unknown=unknown, max_size=8))
        end = draw(st.integers(0, len(token_ids)))
        prompt, token_ids = token_ids[:end], token_ids[end:]
        options = draw(own.request_options(first.drawn, prompt, token_ids, unknown_ids=first.options["unknown_ids"]))
        updates = draw(own.engine_updates(first.drawn, draw(own.groupings(token_ids)), with_logprobs=True))
        out.append(own.Request(first.drawn, options, prompt, updates))
    return out


@given(batches(), st.booleans(), st.booleans(), st.data())
def test_batch_is_request(requests, with_texts, with_logprobs, data):
    """The same updates: the same text, records, stops, kept counts, token texts and errors."""
    batch = detok.BatchDecoder(requests[0].drawn.tokenizer, library_options(requests[0].options))
    slots = [batch.add(request.prompt, library_options(request.options)) for request in requests]
    alone = {
        slot: library_decoder(request, token_texts=with_texts) for slot, request in zip(slots, requests, strict=True)
    }
    left_out = None if with_logprobs else "logprobs"
    for turn in range(max(len(request.updates) for request in requests)):
        going = [
            (slot, {name: value for name, value in going_on(request.updates[turn]).items() if name != left_out})
            for slot, request in zip(slots, requests, strict=True)
            if turn < len(request.updates)
        ]
        going = data.draw(st.permutations(going))
        ids = [token_id for _, update in going for token_id in update["token_ids"]]
        counts = [len(update["token_ids"]) for _, update in going]
        out = batch.step([slot for slot, _ in going], ids, counts, token_texts=with_texts)
        assert len(out.texts) == len(out.kept_tokens) == len(going)
        for position, (slot, update) in enumerate(going):
            assert_same_as_request(out, position, slot, outcome(alone[slot].push, update_of(detok, update)))
    for slot in slots:
        out = batch.finish([slot])
        end = outcome(alone[slot].push, detok.EngineUpdate(finish_reason="length"))
        assert_same_as_request(out, 0, slot, end)
        if isinstance(end, list):
            assert flat_usage(batch.usage(slot)) == flat_usage(end[-1].finished.usage)


def assert_same_as_request(out: Any, position: int, slot: int, events: Any) -> None:
    if not isinstance(events, list):
        error = out.errors[slot]
        assert (type(error).__name__, getattr(error, "token_id", None), getattr(error, "index", None)) == events[:3]
        assert (out.texts[position], out.kept_tokens[position]) == ("", 0)
        assert not out.decoded(position)
        return
    delta = events[-1]
    assert slot not in out.errors
    assert plain(out.decoded(position)) == plain(delta.decoded)
    assert out.texts[position] == delta.decoded.text
    assert out.kept_tokens[position] == len(delta.sampled.token_ids)
    if out.token_texts is not None:
        assert tuple(out.token_texts[position]) == delta.token_texts
        if delta.sampled.logprobs is not None:
            assert out.token_texts[position] == [entry.sampled.token for entry in delta.sampled.logprobs]
    match = delta.finished and delta.finished.stop_match
    assert flat_match(out.stopped.get(slot)) == flat_match(match)


def flat_step(out: Any) -> Any:
    if isinstance(out, tuple):
        return out
    return {
        "texts": list(out.texts),
        "decoded": [plain(out.decoded(n)) for n in range(len(out.texts))],
        "kept": list(out.kept_tokens),
        "token texts": out.token_texts and [list(texts) for texts in out.token_texts],
        "stopped": {slot: flat_match(match) for slot, match in out.stopped.items()},
        "errors": {
            slot: (type(error).__name__, getattr(error, "token_id", None), getattr(error, "index", None))
            for slot, error in out.errors.items()
        },
    }


@st.composite
def batch_calls(draw: st.DrawFn, requests: list[own.Request]) -> tuple[Any, ...]:
    """One call of a batch: mostly steps, on slots that are there and on some that are not."""
    kind = draw(st.sampled_from(["add", "step", "step", "step", "step", "finish", "remove"]))
    if kind == "add":
        return kind, draw(st.sampled_from(requests))
    slots = draw(st.lists(st.integers(0, 4), max_size=4, unique=kind != "step" or draw(st.integers(0, 9)) > 0))
    if kind != "step":
        return kind, slots
    groups = [draw(st.sampled_from(draw(st.sampled_from(requests)).updates))["token_ids"] for _ in slots]
    ids = [token_id for group in groups for token_id in group]
    counts: list[int] | None = [len(group) for group in groups]
    if counts == [1] * len(slots) and draw(st.booleans()):
        counts = None
    elif counts and draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(counts) - 1))
        counts[at] = max(0, counts[at] + draw(st.sampled_from([-1, 1])))
    elif ids and draw(st.integers(0, 9)) == 0:
        ids[draw(st.integers(0, len(ids) - 1))] = draw(st.sampled_from([own.UNMAPPED, -1, 2**32, True]))
    return kind, slots, ids, counts, draw(st.booleans())


def called(batch: Any, call: tuple[Any, ...], options: Callable[[dict[str, Any]], Any]) -> Any:
    kind, *rest = call
    if kind == "add":
        (request,) = rest
        return batch.add(request.prompt, options(request.options))
    if kind == "step":
        slots, ids, counts, token_texts = rest
        return flat_step(outcome(lambda: batch.step(slots, ids, counts, token_texts=token_texts)))
    if kind == "finish":
        return flat_step(outcome(batch.finish, *rest))
    return outcome(batch.remove, *rest)


@given(batches(), st.data())
def test_batch(requests, data):
    """Any calls in any order: the library's answers are the twin's."""
    first = requests[0]
    how = {
        "threads": data.draw(st.sampled_from([1, 2])),
        "release_gil": data.draw(st.sampled_from([None, True, False])),
    }
    theirs = detok.BatchDecoder(first.drawn.tokenizer, library_options(first.options), **how)
    ours = twin.BatchDecoder(first.drawn.reference, twin_options(first.options))
    for request in requests:
        call = ("add", request)
        assert called(theirs, call, library_options) == called(ours, call, twin_options)
    for _ in range(data.draw(st.integers(1, 8))):
        call = data.draw(batch_calls(requests))
        expected = called(ours, call, twin_options)
        assert called(theirs, call, library_options) == expected
        assert len(theirs) == len(ours)
        for slot in range(5):
            assert outcome(lambda n: dict(theirs.pending(n)), slot) == outcome(ours.pending, slot)
            usage = [outcome(lambda n, side=side: flat_usage(side.usage(n)), slot) for side in (theirs, ours)]
            assert usage[0] == usage[1]


# ---------------------------------------------------------------- the window


class LettersWithBytes(Letters):
    """What the twin asks of a foreign tokenizer's token is what the library says of it."""

    @property
    def vocabulary(self) -> reference.WindowVocabulary:
        vocabulary = reference.WindowVocabulary(self.decode, self.id_to_token, self.is_special)
        vocabulary.token_bytes = lambda token_id: detok.Tokenizer.load(self).token_bytes(token_id) or b""
        return vocabulary


@st.composite
def window_updates(draw: st.DrawFn, ids: st.SearchStrategy[int]) -> list[dict[str, Any]]:
    updates: list[dict[str, Any]] = []
    for group in draw(own.groupings(draw(st.lists(ids, max_size=14)))):
        positions = [("list", [(i, -1.0, None) for i in dict.fromkeys([n, draw(ids)])]) for n in group]
        updates.append({"token_ids": group, "logprobs": positions})
    updates[-1]["finish_reason"] = draw(st.sampled_from(["length", "stop"]))
    return updates


def window_options(texts: Sequence[str]) -> st.SearchStrategy[dict[str, Any]]:
    stops = st.lists(st.lists(st.sampled_from(texts), min_size=1, max_size=3).map("".join), max_size=3)
    return st.fixed_dictionaries(
        {
            "stop": stops,
            "include_stop_str_in_output": st.booleans(),
            "min_tokens": st.sampled_from([0, 0, 2]),
            "fragments": st.sampled_from(twin.FRAGMENTS),
        }
    )


def assert_window(tokenizer: Any, vocabulary: Any, prompt: list[int], updates: list[Any], options: Any) -> None:
    theirs = detok.RequestDecoder(tokenizer, prompt, library_options(options))
    assert_twin(theirs, twin.RequestDecoder(vocabulary, prompt, twin_options(options)), updates)


@given(
    st.lists(LETTER_IDS | st.just(own.UNMAPPED), max_size=9),
    window_updates(LETTER_IDS),
    window_options(["a", "é", "\u4f60", "\ufffd", " ", "A"]),
)
def test_window(prompt, updates, options):
    """A Python object as tokenizer."""
    letters = LettersWithBytes()
    assert_window(detok.Tokenizer.load(letters), letters.vocabulary, prompt, updates, options)


WINDOW_PIECES = ("a", "__", "_", "|", "<pad>", "é", "b_", "x y")


@given(
    st.sampled_from(WINDOW_DECODERS),
    window_updates(st.integers(0, len(WINDOW_PIECES) - 1)),
    window_options(["a", " ", "é", "b", "x"]),
)
def test_window_of_what_cannot_be_compiled(decoder, updates, options):
    file = tokenizer_json(bpe({text: n for n, text in enumerate(WINDOW_PIECES)}), decoder)
    oracle, tokenizer = tokenizers.Tokenizer.from_str(file), detok.Tokenizer.from_json(file)
    vocabulary = reference.WindowVocabulary(
        lambda ids, skip: oracle.decode(ids, skip_special_tokens=skip), oracle.id_to_token, lambda token_id: False
    )
    vocabulary.token_bytes = lambda token_id: tokenizer.token_bytes(token_id) or b""
    assert_window(tokenizer, vocabulary, [], updates, options)


# ---------------------------------------------------------------- arguments

BAD_ARGUMENTS = [
    ({"stop": ""}, {}),
    ({"stop": ["a", ""]}, {}),
    ({"stop": "\ud800"}, {}),
    ({"stop": [b"a"]}, {}),
    ({"min_tokens": -1}, {}),
    ({"min_bytes_to_buffer": -1}, {}),
    ({"fragments": "latin-1"}, {}),
    ({}, {"finish_reason": "eos"}),
    ({}, {"finish_reason": "length", "stop_token_id": 1}),
    ({}, {"stop_string": "a"}),
    ({}, {"finish_reason": "stop", "stop_token_id": 1, "stop_string": "a"}),
    ({}, {"token_ids": [1], "logprobs": []}),
    ({}, {"token_ids": [1], "logprobs": [("numbers", [(2, 0.0, None)])]}),
    ({}, {"token_ids": [1], "logprobs": [("list", [(2, 0.0, None)])]}),
    ({}, {"cached_token_count": -1}),
    ({}, {"token_ids": [1, -1]}),
    ({}, {"token_ids": [1, True]}),
]


@pytest.mark.parametrize(("options", "update"), BAD_ARGUMENTS)
def test_arguments_that_are_refused(options, update):
    theirs = outcome(lambda: (library_options(options), update_of(detok, {"token_ids": []} | update)))
    ours = outcome(lambda: (twin_options(options), update_of(twin, {"token_ids": []} | update)))
    assert theirs == ours
    assert isinstance(ours[0], str)
