"""The laws of the stream, each under its name: the library against the reference and the oracles."""

import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import detok
import pytest
import reference
import strategies as own
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import (
    BYTE_FALLBACK,
    CTC,
    FUSE,
    REGEX_REPLACE,
    REPLACE,
    STRIP,
    added_token,
    bpe,
    sequence,
    tokenizer_json,
)

DECODE_OPTIONS = ("skip_special_tokens", "keep_special_tokens", "unknown_ids")


def plain(decoded: detok.DecodedText | None) -> reference.DecodedText | None:
    """The library's value as the reference's, so that both compare and print alike."""
    if decoded is None or isinstance(decoded, reference.DecodedText):
        return decoded
    records = [
        reference.Record(a.token_id, a.anchor.is_visible, a.anchor.byte_offset, a.continues_char, a.cut)
        for a in decoded.attributions
    ]
    return reference.DecodedText(decoded.text, records)


def outcome(call: Callable[..., Any], *args: Any) -> Any:
    """What a call gives, or the error's name and what it says about the place."""
    try:
        return call(*args)
    except (ValueError, RuntimeError, TypeError) as error:
        return type(error).__name__, getattr(error, "token_id", None), getattr(error, "index", None)


def library_stream(case: own.Case) -> detok.DecodeStream:
    return detok.DecodeStream(case.drawn.tokenizer, case.prompt, **case.options)


def reference_stream(case: own.Case) -> reference.DecodeStream:
    return reference.DecodeStream(case.drawn.reference, case.prompt, **case.options)


def look(stream: Any) -> tuple[Any, ...]:
    return stream.output, dict(stream.pending), stream.token_count


def run(stream: Any, groups: Sequence[Sequence[int]], takes: Sequence[bool], cut: int | None = None) -> list[Any]:
    """All that can be seen of a stream: after each call, and at its end."""
    seen: list[Any] = [look(stream)]
    for group, take in zip(groups, takes, strict=True):
        seen.append((outcome(stream.push_tokens, group), look(stream)))
        if take:
            seen.append((plain(stream.next_chunk()), look(stream)))
    flushed = outcome(stream.flush, cut)
    if isinstance(flushed[1], str | None):
        # The cut was refused: the stream goes on as if nothing had been asked.
        seen.append((flushed, look(stream)))
        flushed = stream.flush()
    seen.append((plain(flushed[0]), plain(flushed[1]), look(stream)))
    seen.append((outcome(stream.push_token, 0), stream.next_chunk(), outcome(stream.flush)[0], look(stream)))
    return seen


def joined(stream: Any, groups: Sequence[Sequence[int]]) -> reference.DecodedText:
    """Chunks joined, the flushed one too."""
    out = reference.DecodedText()
    for group in groups:
        stream.push_tokens(group)
        out.append(plain(stream.next_chunk()) or reference.DecodedText())
    out.append(plain(stream.flush()[0]) or reference.DecodedText())
    return out


@st.composite
def runs(draw: st.DrawFn, **fixed: Any) -> tuple[own.Case, list[bool], int | None]:
    """A case, after which calls chunks are taken, and where the text is cut."""
    case = draw(own.cases(**fixed))
    takes = draw(st.lists(st.booleans(), min_size=len(case.groups), max_size=len(case.groups)))
    return case, takes, draw(st.none() | st.integers(0, 24))


# ---------------------------------------------------------------- text


@given(own.cases())
def test_text(case):
    """Chunks joined are the one-shot text of the source."""
    drawn = case.drawn
    options = {name: case.options[name] for name in DECODE_OPTIONS}
    if drawn.strategy is not None:
        assert (drawn.tokenizer.strategy, drawn.tokenizer.strategy_reason) == (drawn.strategy, None)
    case = own.Case(drawn, case.options, [], case.groups)
    text = joined(library_stream(case), case.groups).text
    assert text == drawn.reference.decode(case.token_ids, **options)
    assert text == drawn.tokenizer.decode(case.token_ids, **options)
    if drawn.form == "json" and not options["keep_special_tokens"]:
        crate = drawn.read_by_reference(crate=reference.CRATE_RULES)
        if crate.decode(case.token_ids, **options) == text:  # none of D1, D2, D3 applies
            skip = options["skip_special_tokens"]
            assert text == drawn.oracle().decode(case.token_ids, skip_special_tokens=skip)


@given(own.cases(own.json_vocabularies(), keep_special_tokens=(), unknown_ids="skip"))
def test_text_of_strict_one_shot(case):
    """`strict` is the crate's answer in all cases; a stream still cannot wait for a whole run of bytes."""
    tokenizer = case.drawn.read_by_library(strict=True)
    skip = case.options["skip_special_tokens"]
    text = tokenizer.decode(case.token_ids, skip_special_tokens=skip, unknown_ids="skip")
    assert text == case.drawn.oracle().decode(case.token_ids, skip_special_tokens=skip)
    ours = reference.DecodeStream(case.drawn.read_by_reference(strict=True), case.prompt, **case.options)
    theirs = detok.DecodeStream(tokenizer, case.prompt, **case.options)
    assert joined(theirs, case.groups) == joined(ours, case.groups)


ODD_ORDERS = (
    sequence(own.REPLACE, own.BYTE_FALLBACK),
    sequence(own.BYTE_FALLBACK, own.REPLACE),
    sequence(own.BYTE_FALLBACK),
    sequence(own.REPLACE, own.STRIP, own.FUSE),
    sequence(own.REPLACE, own.FUSE, own.STRIP),
    sequence(own.REPLACE, own.BYTE_FALLBACK, own.STRIP, own.FUSE),
    sequence(own.REPLACE, own.BYTE_FALLBACK, own.FUSE, own.STRIP | {"start": 1, "stop": 1}),
    sequence(own.BYTE_FALLBACK, own.FUSE, own.STRIP, own.REPLACE),
    sequence(own.FUSE, own.REPLACE),
    own.REPLACE,
    own.FUSE,
)


@given(own.cases(own.string_vocabulary("byte_fallback")), st.sampled_from(ODD_ORDERS))
def test_text_of_odd_orders(case, decoder):
    """Orders no file was seen to have: exact, or openly on the window."""
    drawn = own.Drawn("json", None, case.drawn.content | {"decoder": decoder}, case.drawn.phrases)
    case = own.Case(drawn, case.options, [], case.groups)
    if drawn.tokenizer.strategy == "window":
        assert drawn.tokenizer.strategy_reason
    else:
        assert joined(library_stream(case), case.groups) == joined(reference_stream(case), case.groups)


@given(own.json_vocabularies())
def test_ids_and_their_warning(drawn):
    """The crate's numbering of added tokens holds; a file that names other ids loads with a warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tokenizer = detok.Tokenizer.from_json(json.dumps(drawn.content))
    warned = any(issubclass(warning.category, detok.DetokWarning) for warning in caught)
    assert warned == drawn.reference.numbering_differs
    oracle = drawn.oracle()
    for token_id in range(100):
        assert (tokenizer.id_to_token(token_id) is None) == (oracle.id_to_token(token_id) is None)
    for name, token_id in drawn.reference.names.items():
        assert tokenizer.token_to_id(name) == oracle.token_to_id(name) == token_id
    assert tokenizer.vocab_size == max(drawn.reference.tokens) + 1


# ---------------------------------------------------------------- cuts


@given(runs())
def test_cuts(drawn_run):
    """Any grouping and any points at which chunks are taken: what is seen is what the reference shows."""
    case, takes, cut = drawn_run
    ours = run(reference_stream(case), case.groups, takes, cut)
    assert run(library_stream(case), case.groups, takes, cut) == ours


@given(own.cases(), st.data())
def test_cuts_give_one_result(case, data):
    other = data.draw(own.groupings(case.token_ids))
    first = joined(library_stream(case), case.groups)
    assert joined(library_stream(case), other) == first
    assert joined(library_stream(case), [[token_id] for token_id in case.token_ids]) == first
    attributed = case.drawn.tokenizer.decode_attributed(
        case.token_ids, prompt_token_ids=case.prompt, **{name: case.options[name] for name in DECODE_OPTIONS}
    )
    assert plain(attributed) == first


@given(own.cases(keep_output=False))
def test_cuts_without_output(case):
    theirs, ours = library_stream(case), reference_stream(case)
    for group in case.groups:
        assert theirs.push_tokens(group) == ours.push_tokens(group)
        assert plain(theirs.next_chunk()) == ours.next_chunk()
        assert dict(theirs.pending) == ours.pending
    assert outcome(lambda: theirs.output) == ("StateError", None, None)
    assert [plain(part) for part in theirs.flush()] == list(ours.flush())


@given(own.cases(), own.cases())
def test_cuts_after_reset(case, other):
    """A stream that was used and reset is a new one."""
    stream = library_stream(case)
    joined(stream, case.groups)
    stream.reset(other.prompt)
    fresh = own.Case(case.drawn, case.options, other.prompt, case.groups)
    takes = [True] * len(case.groups)
    assert run(stream, case.groups, takes) == run(library_stream(fresh), case.groups, takes)


# ---------------------------------------------------------------- cover


@given(own.cases())
def test_cover(case):
    """Visible `own` spans partition the text, and every id has one record."""
    stream = library_stream(case)
    for group in case.groups:
        stream.push_tokens(group)
    everything = stream.flush()[1]
    assert everything.token_ids == case.token_ids
    ours = plain(everything)
    for unit, length in (
        ("byte", len(everything.text.encode())),
        ("codepoint", len(everything.text)),
        ("utf16", len(everything.text.encode("utf-16-le")) // 2),
    ):
        spans = everything.spans(unit=unit, shared="own")
        owning = [span for span in spans if span[0] < span[1]]
        assert [start for start, _ in owning] + [length] == [0] + [end for _, end in owning]
        assert spans == ours.spans(unit=unit, shared="own")
        assert everything.spans(unit=unit) == ours.spans(unit=unit)


# ---------------------------------------------------------------- earliest


@given(own.cases())
def test_earliest(case):
    """Nothing is withheld that all ways to go on have in common: the reference tries them."""
    theirs, ours = library_stream(case), reference_stream(case)
    for token_id in case.token_ids:
        assert theirs.push_token(token_id) == ours.push_token(token_id)
        assert theirs.output == ours.output


@given(own.cases())
def test_earliest_by_step(case):
    theirs, ours = library_stream(case), reference_stream(case)
    for token_id in case.token_ids:
        assert theirs.step(token_id) == ours.step(token_id)
        assert dict(theirs.pending) == ours.pending
    assert [plain(part) for part in theirs.flush()] == list(ours.flush())


# ---------------------------------------------------------------- bounded


@given(own.cases(), st.integers(1, 200))
def test_bounded(case, times):
    """At most three bytes are pending, and no more is held than was asked for, whatever comes and however often."""
    stream = library_stream(case)
    buffer = case.options["min_bytes_to_buffer"]
    for group in case.groups:
        stream.push_tokens(group * times)
        stream.next_chunk()
        pending = stream.pending
        assert pending["incomplete_bytes"] <= 3
        assert pending["held_bytes"] <= (buffer + 3 if buffer else 0)  # a character is not cut


# ---------------------------------------------------------------- atomic

BAD_IDS = (-1, 2**32, 2**64, -(2**63), own.UNMAPPED, True, False, 1.0, None, "1", b"1")


@given(own.cases(unknown_ids="error"), st.sampled_from(BAD_IDS), st.data())
def test_atomic(case, bad, data):
    """A call that raises changes nothing, and the error names the position in the call and the value."""
    theirs, ours = library_stream(case), reference_stream(case)
    failing = data.draw(st.integers(0, len(case.groups) - 1))
    for index, group in enumerate(case.groups):
        if index == failing:
            at = data.draw(st.integers(0, len(group)))
            call = [*group[:at], bad, *group[at:]]
            expected = outcome(ours.push_tokens, call)
            before = look(theirs)
            assert outcome(theirs.push_tokens, call) == expected
            assert expected[0] in ("UnknownTokenError", "TypeError")
            assert outcome(theirs.push_token, bad) == outcome(ours.push_token, bad)
            assert outcome(theirs.step, bad) == outcome(ours.step, bad)
            assert look(theirs) == before == look(ours)
        assert theirs.push_tokens(group) == ours.push_tokens(group)
        assert plain(theirs.next_chunk()) == ours.next_chunk()
    assert [plain(part) for part in theirs.flush()] == list(ours.flush())


@pytest.mark.parametrize("bad", [-1, 2**32, 2**64], ids=str)
def test_atomic_ids_outside_32_bits_are_errors_under_every_policy(bad):
    tokenizer = detok.Tokenizer.from_token_bytes([b"a"])
    stream = detok.DecodeStream(tokenizer, unknown_ids="skip")
    with pytest.raises(detok.UnknownTokenError) as caught:
        stream.push_tokens([0, 5, bad])
    assert (caught.value.token_id, caught.value.index) == (bad, 2)
    assert (stream.token_count, stream.output) == (0, "")


@given(own.cases(), st.data())
def test_atomic_flush(case, data):
    """A cut inside a character or before text that has left is refused, and the stream can still be flushed."""
    theirs, ours = library_stream(case), reference_stream(case)
    for group in case.groups:
        assert theirs.push_tokens(group) == ours.push_tokens(group)
    taken = plain(theirs.next_chunk())
    assert taken == ours.next_chunk()
    text = joined(reference_stream(case), case.groups).text
    left = reference.byte_len(taken.text) if taken else 0
    edges = reference.boundaries(text)
    for cut in [place for place in range(edges[-1]) if place < left or place not in edges][:20]:
        assert outcome(theirs.flush, cut) == outcome(ours.flush, cut) == ("ValueError", None, None)
        assert look(theirs) == look(ours)
    cut = data.draw(st.none() | st.sampled_from([place for place in edges if place >= left]))
    assert [plain(part) for part in theirs.flush(cut)] == list(ours.flush(cut))


# ---------------------------------------------------------------- seed


@given(own.cases())
def test_seed(case):
    """The prompt shapes the first text and never appears in it."""
    text = joined(library_stream(case), case.groups)
    assert text == joined(reference_stream(case), case.groups)
    drawn, options = case.drawn, {name: case.options[name] for name in DECODE_OPTIONS}
    prompt = [token_id for token_id in case.prompt if token_id in drawn.reference.tokens]
    before = drawn.tokenizer.decode(prompt, **options)
    whole = drawn.tokenizer.decode([*prompt, *case.token_ids], **options)
    kept = whole.removesuffix(text.text)
    assert whole == kept + text.text
    assert before.startswith(kept)
    assert not before.removeprefix(kept).strip("\ufffd")


def test_keep_special_tokens_is_checked():
    tokenizer = detok.Tokenizer.from_json(tokenizer_json(bpe({"a": 0}), None, [added_token(1, "<s>", True)]))
    assert tokenizer.decode([1, 0], keep_special_tokens=["<s>"]) == "<s> a"
    assert tokenizer.decode([1, 0], keep_special_tokens=[1]) == "<s> a"
    for call in (tokenizer.decode, lambda ids, **options: detok.DecodeStream(tokenizer, ids, **options)):
        with pytest.raises(TypeError):
            call([1], keep_special_tokens="<s>")
        with pytest.raises(ValueError, match="<t>"):
            call([1], keep_special_tokens=["<t>"])


def test_seed_of_a_character_that_vanishes():
    """A marker of which the prompt has the first byte is stripped; the same byte behind it is another's."""
    decoder = sequence(BYTE_FALLBACK, FUSE, REPLACE, STRIP)
    file = tokenizer_json(bpe({"a": 0, "<0xE2>": 1, "<0x96>": 2, "<0x81>": 3}), decoder, [])
    ids = [2, 3, 1, 0]
    stream = detok.DecodeStream(detok.Tokenizer.from_json(file), [1])
    assert [stream.step(token_id) for token_id in ids] == [None, None, None, "\ufffda"]
    ours = reference.DecodeStream(reference.Vocabulary.from_json(json.loads(file)), [1])
    assert [ours.step(token_id) for token_id in ids] == [None, None, None, "\ufffda"]


@given(own.cases(), st.data())
def test_seed_looks_back_only_as_far_as_it_must(case, data):
    """Unmapped and hidden ids in the prompt change nothing, wherever they stand."""
    options = case.options | {"skip_special_tokens": True, "keep_special_tokens": ()}
    nothing = [own.UNMAPPED] + [i for i, token in case.drawn.reference.tokens.items() if token.special]
    prompt = list(case.prompt)
    for token_id in data.draw(st.lists(st.sampled_from(nothing), max_size=8)):
        prompt.insert(data.draw(st.integers(0, len(prompt))), token_id)
    padded = own.Case(case.drawn, options, prompt, case.groups)
    bare = own.Case(case.drawn, options, case.prompt, case.groups)
    assert joined(library_stream(padded), case.groups) == joined(library_stream(bare), case.groups)


# ---------------------------------------------------------------- the window


class Letters:
    """A Python object as tokenizer: an id is a byte, 256 a special token, 257 empty, the rest unknown."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        text = bytes(token_id for token_id in token_ids if token_id < 256).decode("utf-8", "replace")
        return text + ("" if skip_special_tokens else "<s>" * token_ids.count(256))

    def id_to_token(self, token_id: int) -> str | None:
        return {256: "<s>", 257: ""}.get(token_id, chr(token_id) if token_id < 256 else None)

    def is_special(self, token_id: int) -> bool:
        return token_id == 256


LETTER_IDS = st.sampled_from([*own.NASTY_BYTES, *"aé你😀".encode(), 256, 257])


@given(
    st.lists(LETTER_IDS | st.just(own.UNMAPPED), max_size=9),
    st.lists(LETTER_IDS, max_size=14),
    st.data(),
)
def test_window(prompt, token_ids, data):
    """A Python object runs on the window, record by record."""
    letters = Letters()
    vocabulary = reference.WindowVocabulary(letters.decode, letters.id_to_token, letters.is_special)
    groups = data.draw(own.groupings(token_ids))
    theirs = detok.DecodeStream(detok.Tokenizer.load(letters), prompt)
    ours = reference.DecodeStream(vocabulary, prompt)
    for group in groups:
        assert theirs.push_tokens(group) == ours.push_tokens(group)
        assert plain(theirs.next_chunk()) == ours.next_chunk()
    assert [plain(part) for part in theirs.flush()] == list(ours.flush())


WINDOW_SEEDS = [
    pytest.param([0x61, 0xE4, 0xBD], [0xA0], "\u4f60", id="the completed character, not the prompt before it"),
    pytest.param([0x80], [0x00], "\0", id="a U+FFFD that the prompt's decode has is the prompt's"),
    pytest.param([0x61, 0xE4], [0x62], "b", id="half a character of the prompt that stays broken"),
    pytest.param(list(b"Hi there"), [0x21], "!", id="a suffix is enough"),
]


@pytest.mark.parametrize(("prompt", "token_ids", "text"), WINDOW_SEEDS)
def test_window_seed(prompt, token_ids, text):
    stream = detok.DecodeStream(detok.Tokenizer.load(Letters()), prompt)
    stream.push_tokens(token_ids)
    assert stream.flush()[1].text == text


def test_window_of_stray_bytes_is_forced_out():
    stream = detok.DecodeStream(detok.Tokenizer.load(Letters()))
    reached = [stream.push_token(0x80) for _ in range(100)]
    assert sum(reached) > 0
    assert stream.flush()[1].text == "\ufffd" * 100


WINDOW_DECODERS = (
    CTC,
    sequence(REGEX_REPLACE, FUSE),
    sequence(CTC, FUSE),
)


@given(st.sampled_from(WINDOW_DECODERS), st.lists(st.integers(0, 7), max_size=14))
def test_window_of_what_cannot_be_compiled(decoder, token_ids):
    pieces = ["a", "__", "_", "|", "<pad>", "é", "b_", "x y"]
    file = tokenizer_json(bpe({text: n for n, text in enumerate(pieces)}), decoder)
    oracle = tokenizers.Tokenizer.from_str(file)
    vocabulary = reference.WindowVocabulary(
        lambda ids, skip: oracle.decode(ids, skip_special_tokens=skip), oracle.id_to_token, lambda token_id: False
    )
    tokenizer = detok.Tokenizer.from_json(file)
    assert tokenizer.strategy == "window"
    assert tokenizer.strategy_reason
    theirs, ours = detok.DecodeStream(tokenizer), reference.DecodeStream(vocabulary)
    for token_id in token_ids:
        assert theirs.step(token_id) == ours.step(token_id)
    assert [plain(part) for part in theirs.flush()] == list(ours.flush())


# ---------------------------------------------------------------- single cases, spelled out


def spelled_case(
    decoder: Any, pieces: Sequence[str], token_ids: Sequence[int], *, prompt: Sequence[int] = (), **options: Any
) -> own.Case:
    """Pieces get their places as ids."""
    file = json.loads(tokenizer_json(bpe({text: n for n, text in enumerate(pieces)}), decoder))
    return own.Case(own.Drawn("json", None, file), options, list(prompt), [[token_id] for token_id in token_ids])


BYTES_ONLY = sequence(own.BYTE_FALLBACK, own.FUSE)

SPELLED = [
    pytest.param(
        spelled_case(BYTES_ONLY, ["<0xE4>", ""], [0, 1]),
        ("\ufffd", [(0, True, 0), (1, False, 3)]),
        id="an empty piece ends a run of bytes and stands behind it",
    ),
    pytest.param(
        spelled_case(BYTES_ONLY, ["<0xE4>", "<0xBD>", "x"], [0, 1, own.UNMAPPED, 2], unknown_ids="skip"),
        ("\ufffd\ufffdx", [(0, True, 0), (1, True, 3), (own.UNMAPPED, False, 3), (2, True, 6)]),
        id="a zero-width token never stands before the one that waited in front of it",
    ),
    pytest.param(
        spelled_case(BYTES_ONLY, ["<0xE4>", "<0xBD>"], [1], prompt=[0]),
        ("\ufffd", [(1, True, 0)]),
        id="a byte piece behind half a character of the prompt has a replacement of its own",
    ),
    pytest.param(
        spelled_case(own.BYTE_LEVEL, ["\u00e4", "\u00bd", "x"], [1, 2], prompt=[0]),
        ("x", [(1, False, 0), (2, True, 0)]),
        id="a byte that became the prompt's leaves its token without width",
    ),
    pytest.param(
        spelled_case(own.BYTE_LEVEL, ["\u00e4", "\u00bdx"], [1], prompt=[0]),
        ("x", [(1, True, 0)]),
        id="a token whose first byte became the prompt's stands where its next one is",
    ),
    pytest.param(
        spelled_case(own.BPE_SUFFIX, ["a</w>", "</w>", "b"], [0, 1, 2]),
        ("a  b", [(0, True, 0), (1, True, 1), (2, True, 2)]),
        id="the blank of a suffix belongs to the token behind it",
    ),
    pytest.param(
        spelled_case(own.BPE_SUFFIX, ["</w>"], [0, 0]),
        (" ", [(0, False, 0), (0, True, 0)]),
        id="a suffix alone gives nothing of its own",
    ),
    pytest.param(
        spelled_case(None, ["a", ""], [0, 1, 0]),
        ("a  a", [(0, True, 0), (1, True, 1), (0, True, 2)]),
        id="an empty piece that is joined with a blank has that blank",
    ),
]


@pytest.mark.parametrize(("case", "expected"), SPELLED)
def test_spelled_out(case, expected):
    for stream in (library_stream(case), reference_stream(case)):
        result = joined(stream, case.groups)
        assert (result.text, [(r.token_id, r.visible, r.byte_offset) for r in result.records]) == expected


# Files that no one writes by hand, but that a merge of vocabularies leaves behind: what each id is called.
FILES = [
    pytest.param(
        {"a": 0, "b": 2, "c": 5},
        [added_token(5, "c", False), added_token(6, "<s>", True)],
        None,
        {3: "<s>", 5: "c", 6: None},
        id="numbers begin at the size of the vocabulary, whatever stands before in the list",
    ),
    pytest.param(
        {"a": 0, "b": 1, "c": 3},
        [added_token(3, "<s>", True)],
        None,
        {1: "b", 2: None, 3: "<s>"},
        id="an added token can take the id of another",
    ),
    pytest.param(
        {"a": 0},
        [added_token(1, "New", False) | {"normalized": True}, added_token(1, "New", False)],
        {"type": "Lowercase"},
        {1: "new"},
        id="a normalized form stays when the token comes again without",
    ),
]


@pytest.mark.parametrize(("vocab", "added", "normalizer", "names"), FILES)
def test_files_found(vocab, added, normalizer, names):
    file = tokenizer_json(bpe(vocab), own.BYTE_LEVEL, added, normalizer=normalizer)
    oracle = tokenizers.Tokenizer.from_str(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", detok.DetokWarning)
        tokenizer = detok.Tokenizer.from_json(file)
    for token_id, name in names.items():
        assert oracle.decode([token_id], skip_special_tokens=False) == (name or "")
        assert tokenizer.decode([token_id], skip_special_tokens=False, unknown_ids="skip") == (name or "")


def test_strict_sends_an_added_token_through_normalizer_and_byte_map():
    added = added_token(0, "i\u0120there", False) | {"normalized": True}
    vocabulary = bpe({"i\u0120there": 0})
    file = tokenizer_json(vocabulary, own.BYTE_LEVEL, [added], normalizer={"type": "ByteLevel"})
    expected = tokenizers.Tokenizer.from_str(file).decode([0])
    assert expected == "i\u0120there"
    assert detok.Tokenizer.from_json(file, strict=True).decode([0]) == expected
    assert detok.Tokenizer.from_json(file).decode([0]) == expected


def test_a_special_token_is_hidden_by_the_string_it_decodes_to():
    """Its normalized form is no special content, so it is shown, as the crate does."""
    special = added_token(1, "New", True) | {"normalized": True}
    file = tokenizer_json(bpe({"a": 0}), own.BYTE_LEVEL, [special], normalizer={"type": "Lowercase"})
    expected = tokenizers.Tokenizer.from_str(file).decode([1, 0], skip_special_tokens=True)
    assert expected == "newa"
    assert detok.Tokenizer.from_json(file).decode([1, 0]) == expected
