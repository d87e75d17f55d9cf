"""The laws of sections, each under its name: the library against the reference, and against itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import detok
import reference
import reference_events as twin
import reference_sections
import strategies as own
from hypothesis import assume, given
from hypothesis import strategies as st
from test_laws import outcome, plain
from test_laws_events import (
    assert_same_as_request,
    assert_twin,
    flat_finished,
    flat_step,
    going_on,
    update_of,
)

NAMES = ("reasoning", "call", "content")
Pieces = list[tuple[str, reference.DecodedText]]


# ---------------------------------------------------------------- markers for a stream


def whole_text(drawn: own.Drawn, token_id: int) -> str | None:
    """The token's text; None if that is parts of characters."""
    try:
        return reference.token_bytes(drawn.reference, token_id).decode()
    except UnicodeDecodeError:
        return None


@st.composite
def patterns(draw: st.DrawFn, drawn: own.Drawn, token_ids: Sequence[int], text: str) -> Any:
    """What comes in the stream: a run of its ids, some as text, or a part of its text; now and then of something else.

    No id of a part of a character: such a token has no text of its own.
    """
    whole = [i for i in drawn.known_ids() if whole_text(drawn, i) is not None]
    hidden = [i for i in whole if drawn.reference.tokens[i].special]
    if text and draw(st.integers(0, 2)) == 0:
        start = draw(st.integers(0, len(text) - 1))
        part = text[start : start + draw(st.integers(1, 4))]
        # Tokens that are parts of characters all have that name.
        return part.replace("\ufffd", "x") if drawn.form == "bytes" else part
    run = list(token_ids)
    if run:
        start = draw(st.integers(0, len(run) - 1))
        run = run[start : start + draw(st.sampled_from([1, 1, 1, 2, 3]))]
    if not run or draw(st.integers(0, 4)) == 0:
        run.append(draw(st.sampled_from([*hidden, *whole] or [0])))
    parts: list[Any] = []
    for token_id in run:
        spelled = whole_text(drawn, token_id)
        if token_id in hidden or (spelled and draw(st.booleans())):
            parts.append(token_id)
        elif spelled:
            parts.append(spelled)
    assume(parts and not (drawn.form == "bytes" and "\ufffd" in parts))
    assume(all(isinstance(part, str) or part in drawn.reference.tokens for part in parts))
    # One part is also taken by itself.
    return parts[0] if len(parts) == 1 and draw(st.booleans()) else parts


@st.composite
def markers(draw: st.DrawFn, drawn: own.Drawn, token_ids: Sequence[int], text: str, **fixed: Any) -> list[dict]:
    out: list[dict[str, Any]] = []
    pattern = patterns(drawn, token_ids, text)
    for _ in range(draw(st.integers(1, 3))):
        # An end that starts another section is nothing that comes by chance.
        starts = [marker["start"] for marker in out]
        ends = st.one_of(pattern, st.sampled_from(starts)) if starts else pattern
        marker = {
            "name": draw(st.sampled_from(NAMES)),
            "start": draw(pattern),
            "end": draw(ends),
            "also_end": draw(st.lists(ends, max_size=1)),
            "reopen": draw(st.booleans()),
            "keep_markers": draw(st.booleans()),
        }
        out.append(marker | fixed)
    return out


def shown_text(drawn: own.Drawn, options: dict[str, Any], token_ids: Sequence[int]) -> str:
    return own.visible_text(drawn, options, [], token_ids)


@dataclass(frozen=True)
class Sectioned:
    """A stream, its markers, and how they begin."""

    case: own.Case
    markers: list[dict[str, Any]]
    initial: str | None


@st.composite
def sectioned(draw: st.DrawFn, source: st.SearchStrategy[own.Drawn] | None = None, **fixed: Any) -> Sectioned:
    case = draw(own.cases(source, unknown_ids="skip"))
    ids = [*case.prompt, *case.token_ids]
    drawn = draw(markers(case.drawn, ids, shown_text(case.drawn, case.options, ids), **fixed))
    names = [marker["name"] for marker in drawn]
    return Sectioned(case, drawn, draw(st.sampled_from([None, None, None, "content", *names])))


# ---------------------------------------------------------------- both sides


class Side:
    """A splitter behind a stream."""

    def __init__(self, run: Sectioned, ours: bool, **options: Any) -> None:
        case, module = run.case, reference_sections if ours else detok
        source = case.drawn.reference if ours else case.drawn.tokenizer
        kinds: Any = reference if ours else detok
        self.empty = kinds.DecodedText()
        self.stream = kinds.DecodeStream(source, case.prompt, **(case.options | options))
        self.splitter: Any = module.SectionSplitter(
            source,
            [module.Marker(**marker) for marker in run.markers],
            prompt_token_ids=case.prompt,
            initial=run.initial,
        )
        self.pushed = reference.DecodedText()

    def pieces(self, decoded: Any) -> Pieces:
        self.pushed.append(plain(decoded))
        return [(name, plain(piece)) for name, piece in self.splitter.push(decoded)]

    def push(self, group: Sequence[int]) -> Pieces:
        self.stream.push_tokens(group)
        return self.pieces(self.stream.next_chunk() or self.empty)

    def end(self) -> Pieces:
        last = self.pieces(self.stream.flush()[0] or self.empty)
        return last + [(name, plain(piece)) for name, piece in self.splitter.finish()]

    @property
    def look(self) -> tuple[dict[str, int], str]:
        return dict(self.splitter.token_counts), self.splitter.section

    def all(self, groups: Sequence[Sequence[int]]) -> Pieces:
        return [piece for group in groups for piece in self.push(group)] + self.end()


def stays(pieces: Pieces) -> Pieces:
    """Neighbours of one name joined: what a stay in a section gave, in however many pieces it came."""
    out: Pieces = []
    for name, piece in pieces:
        if out and out[-1][0] == name:
            out[-1] = (name, out[-1][1] + piece)
        else:
            out.append((name, piece))
    return out


def sides(run: Sectioned) -> list[Any]:
    """The library's and the reference's, or what each raises."""
    return [outcome(lambda ours=ours: Side(run, ours)) for ours in (False, True)]


def accepted(run: Sectioned) -> bool:
    return isinstance(outcome(lambda: Side(run, True)), Side)


# ---------------------------------------------------------------- twin


@given(sectioned())
def test_twin(run):
    """Every piece of every push, the counts behind it and the section."""
    theirs, ours = sides(run)
    if not isinstance(ours, Side):
        assert theirs == ours
        return
    assert theirs.look == ours.look
    for group in run.case.groups:
        assert theirs.push(group) == ours.push(group)
        assert theirs.look == ours.look
    assert theirs.end() == ours.end()
    assert theirs.look == ours.look
    for call in ("finish", "push"):
        gone = [outcome(getattr(side.splitter, call), *([side.empty] * (call == "push"))) for side in (theirs, ours)]
        assert gone[0] == gone[1]


# ---------------------------------------------------------------- cuts


@given(sectioned(), st.data())
def test_cuts(run, data):
    """Any grouping and any chunks: the same text, records and counts of every stay in a section."""
    assume(accepted(run))
    token_ids = run.case.token_ids
    first = Side(run, False)
    expected = stays(first.all([[token_id] for token_id in token_ids]))
    for groups in (data.draw(own.groupings(token_ids)), [token_ids]):
        other = Side(run, False, min_bytes_to_buffer=data.draw(st.sampled_from([0, 1, 2, 5, 32])))
        assert stays(other.all(groups)) == expected
        assert other.look == first.look


@given(sectioned(), st.data())
def test_cuts_of_the_text(run, data):
    """The same for chunks that are cut at any character."""
    assume(accepted(run))
    first, other = Side(run, False), Side(run, False)
    expected = stays(first.all(run.case.groups))
    whole = detok.DecodedText()
    for group in run.case.groups:
        other.stream.push_tokens(group)
        whole.append(other.stream.next_chunk() or other.empty)
    whole.append(other.stream.flush()[0] or other.empty)
    pieces: Pieces = []
    while whole:
        edges = reference.boundaries(whole.text)
        part = whole.drain_prefix(data.draw(st.sampled_from(edges)))
        pieces += other.pieces(part)
        if not part:
            pieces += other.pieces(whole.take())
    pieces += [(name, plain(piece)) for name, piece in other.splitter.finish()]
    assert stays(pieces) == expected
    assert other.look == first.look


# ---------------------------------------------------------------- counts


@given(sectioned())
def test_counts(run):
    """After each push: one for each record that was pushed, under a name that there is."""
    assume(accepted(run))
    side = Side(run, False)
    names = {"content", "markers", *(marker["name"] for marker in run.markers)}
    for group in [*run.case.groups, None]:
        _ = side.end() if group is None else side.push(group)
        assert set(side.look[0]) == names
        assert sum(side.look[0].values()) == len(side.pushed.records)
    assert len(side.pushed.records) == len(run.case.token_ids)


# ---------------------------------------------------------------- whole


@given(sectioned(keep_markers=True))
def test_whole(run):
    """Pieces whose markers are kept are all of the text and all of the records, in order."""
    assume(accepted(run))
    side = Side(run, False)
    pieces = [piece for _, piece in side.all(run.case.groups)]
    assert "".join(piece.text for piece in pieces) == side.pushed.text
    assert [token_id for piece in pieces for token_id in piece.token_ids] == run.case.token_ids
    assert all(piece for piece in pieces)


@given(sectioned(keep_markers=False))
def test_whole_without_markers(run):
    """What is dropped is what the markers count."""
    assume(accepted(run))
    side = Side(run, False)
    pieces = side.all(run.case.groups)
    counts = side.look[0]
    for name in set(counts) - {"markers"}:
        assert counts[name] == sum(len(piece.records) for other, piece in pieces if other == name)
    kept = iter(run.case.token_ids)
    assert all(token_id in kept for _, piece in pieces for token_id in piece.token_ids)
    text = iter(side.pushed.text)
    assert all(char in text for _, piece in pieces for char in piece.text)


# ---------------------------------------------------------------- held


@given(sectioned())
def test_held(run):
    """With all that is decided handed out, less is left than the longest pattern."""
    assume(accepted(run))
    run = Sectioned(run.case, [marker | {"keep_markers": True} for marker in run.markers], run.initial)
    side, out = Side(run, False), 0
    ends = [end for marker in run.markers for end in (marker["start"], marker["end"], *marker["also_end"])]
    longest = max(sum(len(part.encode()) for part in parts_of(end) if isinstance(part, str)) for end in ends)
    ids = max(sum(isinstance(part, int) for part in parts_of(end)) for end in ends)
    widest = max([len(reference.token_bytes(run.case.drawn.reference, i)) + 1 for i in run.case.token_ids], default=0)
    for group in run.case.groups:
        out += sum(len(piece.text.encode()) for _, piece in side.push(group))
        # A name may stand for a shown token; that is no longer than its text.
        assert len(side.pushed.text.encode()) - out <= longest + ids * widest


def parts_of(pattern: Any) -> Sequence[Any]:
    return pattern if isinstance(pattern, list) else [pattern]


# ---------------------------------------------------------------- stops of a section


@st.composite
def scoped(draw: st.DrawFn) -> own.Request:
    """A request whose stops are looked for in one section."""
    case = draw(own.cases(unknown_ids="skip"))
    options = draw(own.request_options(case.drawn, case.prompt, case.token_ids, unknown_ids="skip"))
    updates = draw(own.engine_updates(case.drawn, case.groups))
    ids = [*case.prompt, *case.token_ids]
    sections = draw(markers(case.drawn, ids, shown_text(case.drawn, options, ids)))
    scope = draw(st.sampled_from(["content", "content", *(marker["name"] for marker in sections), None]))
    options |= {"sections": sections, "stop_scope": scope}
    assume(accepted(Sectioned(case, sections, None)))
    return own.Request(case.drawn, options, case.prompt, updates)


def options_of(ours: bool, options: dict[str, Any]) -> Any:
    module: Any = reference_sections if ours else detok
    kind: Any = twin.Options if ours else detok.TextDecodeOptions
    return kind(**(options | {"sections": [module.Marker(**marker) for marker in options["sections"]]}))


def decoder_of(ours: bool, request: own.Request, **how: Any) -> Any:
    kind: Any = twin.RequestDecoder if ours else detok.RequestDecoder
    source = request.drawn.reference if ours else request.drawn.tokenizer
    return kind(source, request.prompt, options_of(ours, request.options), request_id="r", **how)


@given(scoped(), st.booleans())
def test_scoped_twin(request_, intermediate):
    """Every event, every error, and what is left behind them."""
    theirs, ours = (decoder_of(side, request_, intermediate=intermediate) for side in (False, True))
    assert_twin(theirs, ours, [*request_.updates, {"token_ids": [0]}])


@given(scoped())
def test_scoped_batch_twin(request_):
    """The same of a slot."""
    theirs: Any = detok.BatchDecoder(request_.drawn.tokenizer, options_of(False, request_.options))
    ours: Any = twin.BatchDecoder(request_.drawn.reference, options_of(True, request_.options))
    assert theirs.add(request_.prompt) == ours.add(request_.prompt) == 0
    for update in request_.updates:
        ids = update["token_ids"]
        step = [flat_step(outcome(lambda s=s, ids=ids: s.step([0], ids, [len(ids)]))) for s in (theirs, ours)]
        assert step[0] == step[1]
        assert outcome(lambda: dict(theirs.pending(0))) == outcome(ours.pending, 0)
    assert flat_step(theirs.finish([0])) == flat_step(ours.finish([0]))


@given(scoped())
def test_scoped_batch_is_request(request_):
    """The same updates: the same text, records, stops and counts."""
    batch = detok.BatchDecoder(request_.drawn.tokenizer, options_of(False, request_.options))
    alone, slot = decoder_of(False, request_), batch.add(request_.prompt)
    for update in request_.updates:
        ids = update["token_ids"]
        events = outcome(alone.push, update_of(detok, going_on(update)))
        assert_same_as_request(batch.step([slot], ids, [len(ids)]), 0, slot, with_id(events))


def with_id(events: Any) -> Any:
    return events if isinstance(events, list) else (events[0], None, None)


def told(request: own.Request, groups: Sequence[Sequence[int]]) -> dict[str, Any]:
    """What a request gave in the end."""
    decoder, decoded, last = decoder_of(False, request), reference.DecodedText(), None
    for group in [*groups, None]:
        if decoder.is_finished:
            break
        update = detok.EngineUpdate(finish_reason="length") if group is None else detok.EngineUpdate(group)
        for event in decoder.push(update):
            if isinstance(event, detok.TextDelta):
                decoded.append(plain(event.decoded))
                last = event.finished
    records = [(record.token_id, record.visible, record.byte_offset) for record in decoded.records]
    finished = flat_finished(last)
    return {
        "text": decoded.text,
        "records": records,
        "reason": finished["reason"],
        "match": finished["match"],
        "usage": finished["usage"][:2],
        "first cut": finished["first cut"],
    }


@given(scoped(), st.data())
def test_scoped_cuts(request_, data):
    """Any grouping into updates: the same text, records, stop decision and usage."""
    expected = told(request_, [[token_id] for token_id in request_.token_ids])
    assert told(request_, data.draw(own.groupings(request_.token_ids))) == expected
    assert told(request_, [request_.token_ids]) == expected


@given(scoped(), st.data())
def test_without_a_scope_sections_do_nothing(request_, data):
    """Sections alone say only where a stop might be looked for."""
    groups = data.draw(own.groupings(request_.token_ids))
    plain_options = request_.options | {"stop_scope": None}
    named = own.Request(request_.drawn, plain_options, request_.prompt, request_.updates)
    bare = own.Request(request_.drawn, plain_options | {"sections": []}, request_.prompt, request_.updates)
    assert told(named, groups) == told(bare, groups)
