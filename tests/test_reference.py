"""The reference against oracles that nobody here wrote, and against its own laws."""

import codecs
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import reference
import sentencepiece
import strategies as own
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from reference import CRATE_RULES, DecodedText, DecodeStream, Record, Vocabulary, WindowVocabulary
from reference_events import (
    BatchDecoder,
    EngineUpdate,
    Finished,
    FinishReason,
    Generation,
    Options,
    PositionLogprobs,
    RequestDecoder,
    RequestError,
    SampledDelta,
    Start,
    StopMatch,
    TextDelta,
    TokenLogprob,
    TokenUsage,
    held_bytes,
)
from small_tokenizers import (
    BYTE_FALLBACK,
    BYTE_LEVEL,
    FUSE,
    METASPACE,
    METASPACE_NEVER,
    METASPACE_OLD,
    REPLACE,
    STRIP,
    WORDPIECE,
    WORDPIECE_PLAIN,
    bpe,
    sequence,
    shown_controls,
    spelled,
    spm_model,
    tokenizer_json,
)

INVALID_BYTES = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "invalid_bytes.jsonl").read_text(encoding="utf-8").splitlines()
]
LLAMA = sequence(REPLACE, BYTE_FALLBACK, FUSE, STRIP)
BYTES = Vocabulary.from_token_bytes([bytes([byte]) for byte in range(256)])
BYTE_PIECES = [(f"<0x{byte:02X}>", "byte") for byte in range(256)]


def plain_file(pieces: Sequence[str], decoder: dict | None, **parts) -> dict:
    return json.loads(tokenizer_json(bpe({text: n for n, text in enumerate(pieces)}), decoder, **parts))


def added(content: str, *, special: bool = False, normalized: bool = False, token_id: int = 0) -> dict:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    return {"id": token_id, "content": content, **flags, "normalized": normalized, "special": special}


def crate_decode(file: dict, token_ids: Sequence[int], skip: bool = False) -> str:
    return tokenizers.Tokenizer.from_str(json.dumps(file)).decode(list(token_ids), skip_special_tokens=skip)


def deltas(stream: DecodeStream, token_ids: Sequence[int]) -> list[str]:
    """The text shown after each step, the flushed rest last."""
    shown = [stream.step(token_id) or "" for token_id in token_ids]
    last, _ = stream.flush()
    return [*shown, last.text if last else ""]


# ---------------------------------------------------------------- tokenizers


@given(own.json_vocabularies().flatmap(lambda drawn: st.tuples(st.just(drawn), own.id_streams(drawn, unknown=True))))
def test_one_shot_is_the_crates_with_its_rules(run):
    drawn, token_ids = run
    oracle = drawn.oracle()
    vocabulary = drawn.read_by_reference(crate=CRATE_RULES)
    for skip in (True, False):
        expected = oracle.decode(token_ids, skip_special_tokens=skip)
        assert vocabulary.decode(token_ids, skip, unknown_ids="skip") == expected


@given(own.json_vocabularies())
def test_ids_are_the_crates(drawn):
    oracle = drawn.oracle()
    for token_id in range(100):
        token = drawn.reference.tokens.get(token_id)
        assert (token is not None) == (oracle.id_to_token(token_id) is not None)
    for name, token_id in drawn.reference.names.items():
        assert oracle.token_to_id(name) == token_id


ONE_SHOT = [
    pytest.param(BYTE_LEVEL, ["h", spelled("é".encode()[:1]), spelled("é".encode()[1:])], "hé", id="byte level"),
    pytest.param(BYTE_LEVEL, ["▁x", spelled(b" y")], "▁x y", id="byte level: a piece outside the alphabet is literal"),
    pytest.param(LLAMA, ["▁Hi", "▁", "<0xC3>", "<0xA9>"], "Hi é", id="replace, byte fallback, fuse, strip"),
    pytest.param(
        sequence(BYTE_FALLBACK, FUSE, REPLACE), ["<0xE2>", "<0x96>", "<0x81>", "x"], " x", id="marker spelled in bytes"
    ),
    pytest.param(LLAMA, ["<0xE2>", "<0x96>", "<0x81>", "x"], "▁x", id="marker spelled in bytes, replaced before"),
    pytest.param(sequence(BYTE_FALLBACK, FUSE), ["<0x+A>", "<0xc3>", "<0xA9>"], "\né", id="odd byte pieces"),
    pytest.param(
        sequence(BYTE_FALLBACK, FUSE), ["<0x-1>", "<0xé>", "<0X41>"], "<0x-1><0xé><0X41>", id="no byte pieces"
    ),
    pytest.param(METASPACE, ["▁Hi", "▁you", "▁"], "Hi you ", id="metaspace"),
    pytest.param(METASPACE_OLD, ["▁", "▁you"], " you", id="metaspace, old form: only the first piece loses its marker"),
    pytest.param(METASPACE_NEVER, ["▁Hi", "▁you"], " Hi you", id="metaspace, never"),
    pytest.param(WORDPIECE, ["##a", "##b", ".", "do not", "n't"], "##ab. don'tn't", id="wordpiece with clean-up"),
    pytest.param(WORDPIECE_PLAIN, ["a", "##b", ".", "c"], "ab . c", id="wordpiece"),
    pytest.param({"type": "BPEDecoder", "suffix": "</w>"}, ["a</w>", "b", "c</w>"], "a bc", id="end-of-word suffix"),
    pytest.param(None, ["a", "", "b"], "a  b", id="no decoder: joined with blanks"),
    pytest.param(sequence(REPLACE, STRIP, FUSE), ["▁a", "▁b"], "ab", id="strip before fuse acts on each piece"),
    pytest.param(sequence(FUSE, STRIP | {"start": 0, "stop": 2}), ["a  ", " "], "a ", id="strip on the right"),
]


@pytest.mark.parametrize(("decoder", "pieces", "text"), ONE_SHOT)
def test_one_shot(decoder, pieces, text):
    file = plain_file(pieces, decoder)
    ids = range(len(pieces))
    assert crate_decode(file, ids) == text
    assert Vocabulary.from_json(file).decode(ids) == text


ADDED = [
    pytest.param([added("new")], None, [3], "new", id="follows on from the vocabulary"),
    pytest.param([added("new", token_id=50)], None, [3], "new", id="the file's own number is not looked at"),
    pytest.param([added("b", token_id=9), added("new")], None, [1, 3], "bnew", id="content of the vocabulary"),
    pytest.param([added(""), added("new")], None, [3], "new", id="empty content is left out"),
    pytest.param([added("b", special=True)], None, [0, 1], "a", id="hidden by content"),
    pytest.param([added("b", special=True), added("b")], None, [0, 1], "a", id="once special, always hidden"),
    pytest.param([added("n"), added("n", special=True)], None, [0, 3], "a", id="a later entry makes it special"),
    pytest.param(
        [added("New", normalized=True)], {"type": "Lowercase"}, [3], "new", id="decodes to its normalized form"
    ),
    pytest.param(
        [added("New", normalized=True, special=True)],
        {"type": "Lowercase"},
        [3],
        "new",
        id="special, but its normalized form is not",
    ),
]


@pytest.mark.parametrize(("entries", "normalizer", "token_ids", "text"), ADDED)
def test_added_tokens(entries, normalizer, token_ids, text):
    file = plain_file(["a", "b", "c"], BYTE_LEVEL, added=entries, normalizer=normalizer)
    assert crate_decode(file, token_ids, skip=True) == text
    assert Vocabulary.from_json(file).decode(token_ids) == text


# ---------------------------------------------------------------- where the answers differ

D1 = [
    pytest.param([0xE4, 0xBD], "\ufffd" * 2, "\ufffd" * 2, id="half a character alone"),
    pytest.param([0xC2, 0xA0, 0xC2], "\ufffd" * 3, "\u00a0\ufffd", id="a complete character before a broken one"),
    pytest.param([0xFF, 0x41], "\ufffd" * 2, "\ufffdA", id="a letter behind a stray byte"),
    pytest.param([0xF0, 0x9F, 0x98, 0xC3, 0xA9], "\ufffd" * 5, "\ufffd\ufffd\ufffdé", id="broken, then complete"),
    pytest.param([0x41, 0x80, 0xE4, 0xBD, 0xA0], "\ufffd" * 5, "A\ufffd你", id="a stray byte in the middle"),
]


@pytest.mark.parametrize(("data", "crate", "ours"), D1)
def test_d1(data, crate, ours):
    pieces = [text for text, _ in BYTE_PIECES]
    file = plain_file(pieces, sequence(BYTE_FALLBACK, FUSE))
    assert crate_decode(file, data) == crate
    assert Vocabulary.from_json(file).decode(data) == ours
    assert Vocabulary.from_json(file, strict=True).decode(data) == crate
    # A stream cannot wait for the end of a run: it keeps to our answer.
    assert "".join(deltas(DecodeStream(Vocabulary.from_json(file, strict=True)), data)) == ours


D2 = [
    pytest.param("café", "caf\ufffd", "café", id="latin letters"),
    pytest.param("č", "\r", "č", id="a letter that stands for a control byte"),
    pytest.param("Ġx", " x", "Ġx", id="the letter of the blank"),
]


@pytest.mark.parametrize(("content", "crate", "ours"), D2)
def test_d2(content, crate, ours):
    file = plain_file(["a"], BYTE_LEVEL, added=[added(content)])
    assert crate_decode(file, [1]) == crate
    assert Vocabulary.from_json(file).decode([1]) == ours
    assert Vocabulary.from_json(file, strict=True).decode([1]) == crate


def test_d2_leaves_the_byte_level_normalizer_alone():
    file = plain_file(["a"], BYTE_LEVEL, added=[added("café au", normalized=True)], normalizer={"type": "ByteLevel"})
    assert crate_decode(file, [1]) == "café au"
    assert Vocabulary.from_json(file).decode([1]) == "café au"


D3 = [
    pytest.param(["▁in▁the", "▁house"], "inthe house", "in the house", id="inner markers of the first piece"),
    pytest.param(["▁▁x", "▁▁y"], "x  y", " x  y", id="two leading markers"),
    pytest.param(["x▁y"], "xy", "x y", id="no leading marker"),
]


@pytest.mark.parametrize(("pieces", "crate", "ours"), D3)
def test_d3(pieces, crate, ours):
    file = plain_file(pieces, METASPACE)
    ids = range(len(pieces))
    assert crate_decode(file, ids) == crate
    assert Vocabulary.from_json(file).decode(ids) == ours
    assert Vocabulary.from_json(file, strict=True).decode(ids) == crate


# ---------------------------------------------------------------- Python's codecs


@given(st.binary(max_size=24))
def test_bytes_decode_as_python_replaces(data):
    expected = data.decode("utf-8", "replace")
    assert BYTES.decode(list(data)) == expected
    file = plain_file([spelled(bytes([byte])) for byte in range(256)], BYTE_LEVEL)
    assert Vocabulary.from_json(file).decode(list(data)) == expected


# Python's decoder keeps half a surrogate back (ED A0) although nothing can complete it, so ED is left to a row below.
@given(st.lists(st.sampled_from([byte for byte in own.NASTY_BYTES if byte != 0xED]), max_size=10))
def test_each_step_shows_what_pythons_incremental_decoder_does(data):
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    expected = [decoder.decode(bytes([byte])) for byte in data] + [decoder.decode(b"", final=True)]
    assert deltas(DecodeStream(BYTES), data) == expected


EARLIEST = [
    pytest.param([0xED, 0xA0, 0x80], ["", "\ufffd\ufffd", "\ufffd", ""], id="half a surrogate"),
    pytest.param([0xE0, 0x80], ["", "\ufffd\ufffd", ""], id="overlong"),
    pytest.param([0xF4, 0x90], ["", "\ufffd\ufffd", ""], id="past the last code point"),
    pytest.param([0xF0, 0x9F, 0x98, 0x41], ["", "", "", "\ufffdA", ""], id="one U+FFFD for the part that was legal"),
    pytest.param([0xEF, 0xBF, 0xBD], ["", "", "\ufffd", ""], id="a genuine U+FFFD"),
    pytest.param([0xC3, 0xC3, 0xA9], ["", "\ufffd", "é", ""], id="the byte that breaks one opens the next"),
]


@pytest.mark.parametrize(("data", "shown"), EARLIEST)
def test_bytes_leave_with_the_token_that_decides(data, shown):
    assert deltas(DecodeStream(BYTES), data) == shown


@pytest.mark.parametrize("row", INVALID_BYTES, ids=lambda row: f"{row['cat']} {row['hex'][:16]}")
def test_invalid_bytes(row):
    data = bytes.fromhex(row["hex"])
    assert BYTES.decode(list(data)) == row["expect"]
    pieces = Vocabulary.from_pieces(BYTE_PIECES, add_dummy_prefix=False, remove_extra_whitespaces=False)
    assert pieces.decode(list(data)) == row["expect_bytewise"]


# ---------------------------------------------------------------- sentencepiece


@given(own.sentencepiece().flatmap(lambda drawn: st.tuples(st.just(drawn), own.id_streams(drawn))))
def test_pieces_decode_as_sentencepiece_does(run):
    drawn, token_ids = run
    vocabulary = drawn.reference
    # SentencePiece ends a run of bytes at a hidden piece; here it is as if the piece had not come.
    shown = [token_id for token_id in token_ids if not vocabulary.tokens[token_id].special]
    processor = sentencepiece.SentencePieceProcessor(model_proto=drawn.model_bytes())
    assert vocabulary.decode(token_ids) == processor.decode(shown)


@given(own.sentencepiece().flatmap(lambda drawn: st.tuples(st.just(drawn), own.id_streams(drawn))))
def test_shown_pieces_decode_by_name(run):
    drawn, token_ids = run
    processor = sentencepiece.SentencePieceProcessor(model_proto=shown_controls(drawn.model_bytes()))
    assert drawn.reference.decode(token_ids, False) == processor.decode(token_ids)


LEADING = [
    pytest.param(True, True, ["▁", "▁▁x", "▁y"], " x y", id="every piece before the first text"),
    pytest.param(True, False, ["▁", "▁▁x", "▁y"], "  x y", id="one marker"),
    pytest.param(False, True, ["▁▁x", "▁y"], " x y", id="no dummy prefix, but extra blanks go"),
    pytest.param(False, False, ["▁▁x", "▁y"], "  x y", id="neither"),
    pytest.param(True, True, ["<0x41>", "▁y"], "A y", id="a byte is text"),
]


@pytest.mark.parametrize(("dummy_prefix", "remove_extra", "shown", "text"), LEADING)
def test_leading_blanks_of_pieces(dummy_prefix, remove_extra, shown, text):
    pieces = [("<unk>", "unknown"), *BYTE_PIECES, *((piece, "normal") for piece in ("▁", "▁▁x", "▁y"))]
    drawn = own.Drawn(
        "pieces", None, pieces, options={"add_dummy_prefix": dummy_prefix, "remove_extra_whitespaces": remove_extra}
    )
    token_ids = [drawn.reference.names[piece] for piece in shown]
    processor = sentencepiece.SentencePieceProcessor(model_proto=drawn.model_bytes())
    assert processor.decode(token_ids) == text
    assert drawn.reference.decode(token_ids) == text


@given(st.lists(st.sampled_from(own.NASTY_BYTES), max_size=12))
def test_d1_is_sentencepieces_answer(data):
    pieces = [("<unk>", "unknown"), *BYTE_PIECES]
    kinds = {"unknown": 2, "byte": 6}
    model = spm_model([(text, kinds[kind]) for text, kind in pieces], dummy_prefix=False)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    file = plain_file([text for text, _ in pieces], LLAMA | {"decoders": [REPLACE, BYTE_FALLBACK, FUSE]})
    token_ids = [byte + 1 for byte in data]
    assert Vocabulary.from_json(file).decode(token_ids) == processor.decode(token_ids)


# ---------------------------------------------------------------- the reference's own laws


def replay(case: own.Case, groups: Sequence[Sequence[int]]) -> tuple[DecodedText, DecodedText]:
    """Chunks joined, and everything."""
    stream = DecodeStream(case.drawn.reference, case.prompt, **case.options)
    joined = DecodedText()
    for group in groups:
        stream.push_tokens(group)
        joined.append(stream.next_chunk() or DecodedText())
    last, everything = stream.flush()
    joined.append(last or DecodedText())
    return joined, everything


@given(own.cases())
def test_chunks_joined_are_everything_for_every_grouping(case):
    joined, everything = replay(case, case.groups)
    assert joined == everything
    assert replay(case, [[token_id] for token_id in case.token_ids]) == (joined, everything)
    assert everything.token_ids == case.token_ids


@given(own.cases())
def test_streamed_text_is_one_shot_text(case):
    case = own.Case(case.drawn, case.options, [], case.groups)
    options = {name: case.options[name] for name in ("skip_special_tokens", "keep_special_tokens", "unknown_ids")}
    assert replay(case, case.groups)[0].text == case.drawn.reference.decode(case.token_ids, **options)


@given(own.cases())
def test_spans_from_records_are_where_the_bytes_are(case):
    """`spans` sees records only; the cells know where each byte went."""
    _, everything = replay(case, case.groups)
    vocabulary = case.drawn.reference
    hidden = vocabulary.hidden(case.options["skip_special_tokens"], case.options["keep_special_tokens"])
    decoder = reference.ExactDecoder(vocabulary, case.prompt, hidden)
    cells = decoder.generated(vocabulary.run(decoder.prompt + decoder.shown(case.token_ids)))
    for n, (record, (start, end)) in enumerate(zip(everything.records, everything.spans(), strict=True)):
        held = [at for at, cell in enumerate(cells) if n in cell.sources]
        assert bool(held) == record.visible
        if held:
            assert (start, end) == (held[0], held[-1] + 1)
    owners = [None] * len(cells)
    for n, (start, end) in enumerate(everything.spans(shared="own")):
        owners[start:end] = [n] * (end - start)
    generated = [[source for source in cell.sources if source != reference.PROMPT] for cell in cells]
    assert owners == [sources[0] for sources in generated]


@given(own.cases())
def test_no_prompt_text_escapes(case):
    vocabulary = case.drawn.reference
    hidden = vocabulary.hidden(case.options["skip_special_tokens"], case.options["keep_special_tokens"])
    shown = [i for i in case.prompt if i in vocabulary.tokens and i not in hidden]
    whole = vocabulary.decode([*shown, *(i for i in case.token_ids if i not in hidden)], False, unknown_ids="skip")
    before = vocabulary.decode(shown, False)
    text = replay(case, case.groups)[0].text
    assert whole.endswith(text)
    kept = whole.removesuffix(text)
    # What is not the output's is the prompt's, but for the U+FFFD of a character that the output completes.
    assert before.startswith(kept)
    assert not before.removeprefix(kept).strip("\ufffd")


# ---------------------------------------------------------------- the window

LETTERS = WindowVocabulary(
    decode=lambda ids, skip: (
        bytes(i for i in ids if i < 256).decode("utf-8", "replace")
        + ("" if skip else "<special>" * sum(i == 300 for i in ids))
    ),
    id_to_token=lambda i: str(i) if i < 256 or i == 300 else None,
    is_special=lambda i: i == 300,
)
UNKNOWN = 10_000

WINDOW = [
    pytest.param([], [0xE4, 0xBD, 0xA0], ["", "", "你", ""], id="split character"),
    pytest.param([], [0x61], ["a", ""], id="one letter"),
    pytest.param([], [0xE4, 0xBD], ["", "", "\ufffd"], id="flush with half a character"),
    pytest.param([], [300], ["", ""], id="special, skipped"),
    pytest.param(list(b"Hi"), [0x21], ["!", ""], id="seeded prompt"),
    pytest.param([*b"abc", UNKNOWN, *b"Hi"], [0x21], ["!", ""], id="unknown id in the prompt"),
    pytest.param([UNKNOWN], [0x21], ["!", ""], id="only unknown ids in the prompt"),
    pytest.param([UNKNOWN, 0xE4, 0xBD], [0xA0], ["你", ""], id="unknown id before half a character"),
    pytest.param([0xE4, 0xBD, *[UNKNOWN] * 6], [0xA0], ["你", ""], id="unknown ids after half a character"),
    pytest.param([0x61, 0xE4, 0xBD], [0xA0], ["你", ""], id="the completed character, not the prompt before it"),
    pytest.param([0x61, 0xE4], [0x62], ["b", ""], id="a character that stays broken is the prompt's"),
    pytest.param([0x61] * 7001, [], [""], id="flush, no push, long prompt"),
    pytest.param([0xE4, 0xBD], [], [""], id="flush, no push, half a character in the prompt"),
]


@pytest.mark.parametrize(("prompt", "token_ids", "shown"), WINDOW)
def test_window_deltas(prompt, token_ids, shown):
    assert deltas(DecodeStream(LETTERS, prompt), token_ids) == shown


def test_window_names_the_unknown_id():
    with pytest.raises(reference.UnknownTokenError) as caught:
        DecodeStream(LETTERS).push_tokens([0x61, UNKNOWN])
    assert (caught.value.token_id, caught.value.index) == (UNKNOWN, 1)


def test_window_anchors_all_that_waited_at_the_piece():
    stream = DecodeStream(LETTERS)
    stream.push_tokens([0x61, 0xE4, 300, 0xBD, 0xA0])
    records = [
        (0x61, True, 0),
        (0xE4, True, 1),
        (300, False, 1),
        (0xBD, True, 1),
        (0xA0, True, 1),
    ]
    assert stream.next_chunk() == DecodedText("a你", [Record(*record) for record in records])


def test_window_forces_out_what_does_not_end():
    stream = DecodeStream(LETTERS, window_limit=4)
    assert deltas(stream, [0x80] * 5) == ["", "", "", "\ufffd" * 4, "", "\ufffd"]


# ---------------------------------------------------------------- stops

END = 256  # hidden special
TEXTS = ("abcd", "ab", "!!", "", "x y z", "lo wo", b"b\xe4", b"\xbd\xa0!")
OF_TEXT = {text: 257 + n for n, text in enumerate(TEXTS)}
NOT_MAPPED = 999
WORDS = Vocabulary.from_token_bytes(
    [
        *(bytes([byte]) for byte in range(256)),
        b"<|end|>",
        *(text if isinstance(text, bytes) else text.encode() for text in TEXTS),
    ],
    special_token_ids=[END],
)


def places(decoded: DecodedText) -> str:
    """Records as the contract rows write them: V0, Z1, a star where text was cut."""
    return " ".join(
        f"{'V' if record.visible else 'Z'}{record.byte_offset}{'*' * record.cut}" for record in decoded.records
    )


def shown_by(updates: Sequence[EngineUpdate], options: Options, *, prompt: Sequence[int] = ()) -> list[TextDelta]:
    decoder = RequestDecoder(WORDS, prompt, options)
    events = [event for update in updates for event in decoder.push(update)]
    assert isinstance(events[0], Start)
    return events[1:]


def ends(text: str, *, grouped: bool, **options) -> TextDelta:
    """The deltas of a whole request as one: all ids in one update, or one a time. The engine says length."""
    token_ids = list(text.encode())
    groups = [token_ids] if grouped else [[token_id] for token_id in token_ids]
    decoder = RequestDecoder(WORDS, [], Options(**options))
    decoded, kept = DecodedText(), []
    for n, group in enumerate(groups):
        reason = "length" if n == len(groups) - 1 else None
        delta = decoder.push(EngineUpdate(group, finish_reason=reason))[-1]
        decoded.append(delta.decoded)
        kept += delta.sampled.token_ids
        if decoder.is_finished:
            break
    return TextDelta(decoded, SampledDelta(kept), delta.finished)


# text, stops, options -> text, stop (None: the engine's length), where the text ends, the token that completed it
STOPS = [
    ("hello", ["e"], {}, "h", "e", 1, 1),
    ("abcxyz", ["xyz"], {}, "abc", "xyz", 3, 5),
    ("xhello", ["x"], {}, "", "x", 0, 0),
    ("hello", ["z"], {}, "hello", None, None, None),
    ("hello", [], {}, "hello", None, None, None),
    ("say hello world", ["lo"], {}, "say hel", "lo", 7, 8),
    ("hello", ["ll", "lo"], {}, "he", "ll", 2, 3),
    ("hello", ["ll"], {"include_stop_str_in_output": True}, "hell", "ll", 4, 3),
    ("hello", ["e"], {"min_tokens": 3}, "hello", None, None, None),
    ("hello", ["e"], {"min_tokens": 0}, "h", "e", 1, 1),
    ("greet", ["e"], {"min_tokens": 2}, "gr", "e", 2, 2),
    (" The user is a", ["a", "is"], {}, " The user ", "is", 10, 11),
    (" The user is a", ["is", "a"], {}, " The user ", "is", 10, 11),
    ("ab", ["ab", "b"], {}, "", "ab", 0, 1),
    ("ab", ["b", "ab"], {}, "a", "b", 1, 1),
    ("abc", ["abc", "b"], {}, "a", "b", 1, 1),
    ("Answer\n\n", ["\n"], {}, "Answer", "\n", 6, 6),
    ("你好世界", ["世界"], {}, "你好", "世界", 6, 11),
    ("aab", ["ab"], {"min_tokens": 2}, "a", "ab", 1, 2),
    ("aabab", ["ab"], {"min_tokens": 3}, "aab", "ab", 3, 4),
    ("ababc", ["abc"], {"min_tokens": 4}, "ab", "abc", 2, 4),
]


@pytest.mark.parametrize("grouped", [True, False], ids=["at once", "one by one"])
@pytest.mark.parametrize(("text", "stops", "options", "shown", "stop", "offset", "index"), STOPS)
def test_stops(text, stops, options, shown, stop, offset, index, grouped):
    result = ends(text, grouped=grouped, stop=stops, **options)
    assert result.decoded.text == shown
    token_ids = list(text.encode())
    if stop is None:
        assert (result.finished.finish_reason, result.finished.stop_match) == (FinishReason("length"), None)
        assert result.sampled.token_ids == token_ids
        return
    match = result.finished.stop_match
    assert result.finished.finish_reason == FinishReason("stop", stop)
    assert (match.stop, match.byte_offset, match.token_index) == (stop, offset, index)
    assert result.sampled.token_ids == token_ids[: index + 1]
    assert result.finished.dropped_token_ids == (token_ids[index + 1 :] if grouped else [])
    assert result.finished.usage == TokenUsage(0, index + 1)


# Each is one update a token. Options, ids -> chunks "text[records]", first token that lost text, whether the last did.
CUTS = [
    ({"stop": "b"}, [OF_TEXT["abcd"]], ["a[V0*]"], 0, True),
    ({"stop": "b", "include_stop_str_in_output": True}, [OF_TEXT["abcd"]], ["ab[V0*]"], 0, True),
    ({"stop": "cd", "include_stop_str_in_output": True}, [OF_TEXT["abcd"]], ["abcd[V0]"], None, False),
    ({"stop": "!!"}, [OF_TEXT["ab"], OF_TEXT["!!"]], ["ab[V0]", "[Z0*]"], 1, True),
    # The head of a token has left when its tail turns out to be part of a stop.
    ({"stop": "b!"}, [OF_TEXT["ab"], ord("!")], ["a[V0]", "[Z0*]"], 0, True),
    ({"stop": "b!", "include_stop_str_in_output": True}, [OF_TEXT["ab"], ord("!")], ["ab[V0]", "![V0]"], None, False),
    (
        {"stop": "d"},
        [OF_TEXT["ab"], END, ord("c"), END, ord("d")],
        ["ab[V0]", "[Z0]", "c[V0]", "[Z0]", "[Z0*]"],
        4,
        True,
    ),
    # Across a hidden token: it stands behind text that is cut.
    ({"stop": "cd"}, [ord("c"), END, ord("d")], ["[]", "[]", "[Z0* Z0* Z0*]"], 0, True),
    ({"stop": "cd"}, [ord("a"), END, ord("c"), END, ord("d")], ["a[V0]", "[Z0]", "[]", "[]", "[Z0* Z0* Z0*]"], 2, True),
    # A token of which the first half of a character is left of the stop.
    ({"stop": "你"}, [OF_TEXT[b"b\xe4"], OF_TEXT[b"\xbd\xa0!"]], ["b[V0]", "[Z0*]"], 0, True),
    ({"stop": "!"}, [OF_TEXT[b"b\xe4"], OF_TEXT[b"\xbd\xa0!"]], ["b[V0]", "你[V0*]"], 1, True),
    # Half a character behind the stop is cut with it.
    ({"stop": "b"}, [OF_TEXT[b"b\xe4"]], ["[Z0*]"], 0, True),
    ({"stop": "b", "include_stop_str_in_output": True}, [OF_TEXT[b"b\xe4"]], ["b[V0*]"], 0, True),
    # A token that only proves its forerunner broken completes a stop, and loses nothing where all is included.
    ({"stop": "\ufffd"}, [0xE4, END, 0xE4], ["[]", "[]", "[Z0* Z0 Z0*]"], 0, True),
    (
        {"stop": "\ufffd", "include_stop_str_in_output": True},
        [0xE4, END, 0xE4],
        ["[]", "[]", "\ufffd[V0 Z0 Z3*]"],
        2,
        True,
    ),
    ({"stop_token_ids": [END]}, [ord("a"), END], ["a[V0]", "[]"], None, False),
    ({"stop_token_ids": [ord("b")]}, [ord("a"), ord("b")], ["a[V0]", "[]"], None, False),
    ({"stop_token_ids": [END], "include_stop_str_in_output": True}, [ord("a"), END], ["a[V0]", "[Z0]"], None, False),
    ({"stop_token_ids": [ord("b")], "include_stop_str_in_output": True}, [ord("b")], ["b[V0]"], None, False),
    ({"stop_token_ids": [NOT_MAPPED]}, [ord("a"), NOT_MAPPED], ["a[V0]", "[]"], None, False),
    (
        {"stop_token_ids": [ord("c")], "stop": "bd"},
        [ord("b"), 0xE4, ord("c")],
        ["[]", "[]", "b\ufffd[V0 V1]"],
        None,
        False,
    ),
    ({"stop": "!", "min_bytes_to_buffer": 2}, [OF_TEXT["abcd"], ord("!")], ["ab[V0]", "cd[Z2*]"], 1, True),
]


@pytest.mark.parametrize(("options", "token_ids", "chunks", "first_cut", "last_cut"), CUTS)
def test_cut_records(options, token_ids, chunks, first_cut, last_cut):
    deltas = shown_by([EngineUpdate([token_id]) for token_id in token_ids[: len(chunks)]], Options(**options))
    assert [f"{delta.decoded.text}[{places(delta.decoded)}]" for delta in deltas] == chunks
    finished = deltas[-1].finished
    assert (finished.first_cut_token, finished.stop_match.cut) == (first_cut, last_cut)


# Text so far, stops -> what is held back.
HELD = [
    ("say wor", ["word"], "wor"),
    ("say wor", ["wor"], ""),
    ("say wor", ["xyz"], ""),
    ("say wor", ["world", "or not"], "wor"),
    ("abab", ["abac"], "ab"),
    ("aaa", ["aaaa", "a"], "aaa"),
    ("a你", ["你好"], "你"),
    ("a你", ["好"], ""),
]


@pytest.mark.parametrize(("text", "stops", "held"), HELD)
def test_held_back(text, stops, held):
    assert held_bytes(text, stops) == len(held.encode())


@pytest.mark.parametrize(
    "stop",
    [
        pytest.param("", id="empty"),
        pytest.param("\ud800", id="a lone surrogate"),
        pytest.param(["a", ""], id="in a list"),
    ],
)
def test_stops_that_are_refused(stop):
    with pytest.raises(ValueError, match="a stop"):
        Options(stop=stop)
    with pytest.raises(TypeError):
        Options(stop=[b"a"])


# ---------------------------------------------------------------- events


def test_the_two_clocks():
    first, second = shown_by([EngineUpdate([0xE4]), EngineUpdate([0xBD, 0xA0], finish_reason="length")], Options())
    assert first == TextDelta(DecodedText(), SampledDelta([0xE4]))
    assert (second.decoded.text, places(second.decoded)) == ("你", "V0 V0 V0")
    assert second.sampled == SampledDelta([0xBD, 0xA0])
    assert second.finished == Finished(TokenUsage(0, 3), FinishReason("length"), dropped_token_ids=[])


# The last update of `a`, `!` -> text, records, finish reason.
TERMINAL = [
    pytest.param({"stop_token_id": ord("!")}, {}, "a[V0]", ord("!"), id="the stop token is counted, not decoded"),
    pytest.param({}, {}, "a[V0]", None, id="end of sequence"),
    pytest.param({"stop_token_id": END}, {}, "a![V0 V1]", END, id="a stop token that is not the last id"),
    pytest.param({"stop_string": "!"}, {}, "a![V0 V1]", "!", id="the engine's stop string"),
    pytest.param({}, {"include_stop_str_in_output": True}, "a![V0 V1]", None, id="included"),
    pytest.param({}, {"stop": "!"}, "a[V0]", None, id="what is not decoded completes nothing"),
    pytest.param({"stop_string": "!"}, {"stop": "!"}, "a[V0 Z1*]", "!", id="the engine's and ours"),
    pytest.param({}, {"stop": "a"}, "[Z0*]", "a", id="ours comes first"),
]


@pytest.mark.parametrize(("cause", "options", "shown", "stop"), TERMINAL)
def test_terminal_token(cause, options, shown, stop):
    update = EngineUpdate([ord("a"), ord("!")], finish_reason="stop", **cause)
    (delta,) = shown_by([update], Options(**options))
    assert f"{delta.decoded.text}[{places(delta.decoded)}]" == shown
    assert delta.finished.finish_reason == FinishReason("stop", stop)
    kept = 1 if stop == "a" else 2
    assert (delta.sampled.token_ids, delta.finished.usage.output_token_count) == ([*b"a!"][:kept], kept)


def test_our_stop_wins_over_the_engines_reason():
    decoder = RequestDecoder(WORDS, list(b"Hi"), Options(stop="ll"))
    update = EngineUpdate(list(b"hello"), finish_reason="length", cached_token_count=2, kv_transfer_params="kv")
    _, delta = decoder.push(update)
    assert delta.finished == Finished(
        TokenUsage(2, 4, 2), FinishReason("stop", "ll"), StopMatch("ll", 2, 3, True), "kv", [ord("o")], 2
    )
    assert decoder.abort_cause == "stop_string"
    with pytest.raises(reference.StreamFinishedError):
        decoder.push(EngineUpdate())
    decoder.close()


def test_one_delta_at_the_end():
    decoder = RequestDecoder(WORDS, options=Options(stop="lo", fragments="empty"), intermediate=False)
    logprobs = [TokenLogprob(ord("h"), -1.0)]
    assert decoder.push(EngineUpdate([ord("h")], prompt_token_ids=[1, 2], logprobs=logprobs)) == [Start([1, 2])]
    assert decoder.push(EngineUpdate(list(b"el"), cached_token_count=2)) == []
    (delta,) = decoder.push(EngineUpdate(list(b"lo!"), cached_token_count=1))
    assert (delta.decoded.text, places(delta.decoded)) == ("hel", "V0 V1 V2 Z3* Z3*")
    assert delta.sampled == SampledDelta(list(b"hello"), None)
    assert delta.finished.usage == TokenUsage(2, 5, 2)
    assert delta.finished.dropped_token_ids == [ord("!")]


def test_an_update_that_raises_changes_nothing():
    decoder = RequestDecoder(WORDS, options=Options(stop="b"), request_id="r")
    with pytest.raises(RequestError):
        decoder.push(EngineUpdate([ord("a")]))
    with pytest.raises(reference.UnknownTokenError) as caught:
        decoder.push(EngineUpdate([ord("a"), NOT_MAPPED], prompt_token_ids=[]))
    assert (caught.value.token_id, caught.value.index) == (NOT_MAPPED, 1)
    with pytest.raises(RequestError, match="'r'"):
        decoder.push(EngineUpdate(finish_reason="error", prompt_token_ids=[]))
    with pytest.raises(RequestError):
        decoder.close()
    start, delta = decoder.push(EngineUpdate([*b"ab", NOT_MAPPED], prompt_token_ids=[]))
    assert start == Start([])
    assert (delta.decoded.text, delta.finished.dropped_token_ids) == ("a", [NOT_MAPPED])
    with pytest.raises(ValueError, match="two prompts"):
        RequestDecoder(WORDS, [1]).push(EngineUpdate(prompt_token_ids=[2]))


# ---------------------------------------------------------------- logprobs

FAMILIES = {
    "bytes": WORDS,
    "pieces": Vocabulary.from_json(plain_file(["▁a", "▁", "b", "<0xE4>", "<0xBD>", "<0xA0>"], LLAMA)),
    "suffix": Vocabulary.from_json(plain_file(["a</w>", "b"], {"type": "BPEDecoder", "suffix": "</w>"})),
    "joined": Vocabulary.from_json(
        plain_file(["a", "<s>"], None, added_tokens=[added("<s>", special=True, token_id=1)])
    ),
}

# Family, prompt, ids, the candidate behind them -> its own bytes, its text by "openai", "empty", "replacement".
TOKEN_TEXTS = [
    pytest.param("bytes", [], [], ord("a"), b"a", ["a", "a", "a"], id="text"),
    pytest.param("bytes", [], [], 0xE4, b"\xe4", ["\\xe4", "", "\ufffd"], id="the first part of a character"),
    pytest.param("bytes", [], [0xE4], 0xBD, b"\xbd", ["\\xbd", "", "\ufffd"], id="a middle part"),
    pytest.param("bytes", [], [0xE4, 0xBD], 0xA0, b"\xa0", ["\\xa0", "你", "\ufffd"], id="the last part"),
    pytest.param("bytes", [0xE4, 0xBD], [], 0xA0, b"\xa0", ["\\xa0", "你", "\ufffd"], id="the rest of the prompt's"),
    pytest.param("bytes", [0xE4], [END, 0xBD, END], 0xA0, b"\xa0", ["\\xa0", "你", "\ufffd"], id="hidden in between"),
    pytest.param("bytes", [], [], 0xA0, b"\xa0", ["\\xa0", "", "\ufffd"], id="a stray byte"),
    pytest.param("bytes", [], [0xE4], ord("a"), b"a", ["a", "a", "a"], id="text behind a broken character"),
    pytest.param(
        "bytes",
        [0xE4],
        [],
        OF_TEXT[b"\xbd\xa0!"],
        b"\xbd\xa0!",
        ["\\xbd\\xa0!", "你!", "\ufffd\ufffd!"],
        id="the rest and more",
    ),
    pytest.param("bytes", [], [], OF_TEXT[b"b\xe4"], b"b\xe4", ["b\\xe4", "b", "b\ufffd"], id="text, then a part"),
    pytest.param("bytes", [], [], END, b"<|end|>", ["<|end|>"] * 3, id="a hidden special by its name"),
    pytest.param("bytes", [], [], NOT_MAPPED, b"", ["", "", ""], id="an id the tokenizer does not map"),
    pytest.param("pieces", [], [], 0, b" a", ["a", "a", "a"], id="stripped at the start of text"),
    pytest.param("pieces", [], [2], 0, b" a", [" a", " a", " a"], id="not stripped in the middle"),
    pytest.param("pieces", [2], [], 0, b" a", [" a", " a", " a"], id="nor behind a prompt"),
    pytest.param("pieces", [], [3, 4], 5, b"\xa0", ["\\xa0", "你", "\ufffd"], id="byte pieces"),
    pytest.param("pieces", [], [3, 4], 2, b"b", ["b", "b", "b"], id="a piece ends a run of bytes"),
    pytest.param("suffix", [], [0], 1, b"b", [" b", " b", " b"], id="a blank owed by the token before"),
    pytest.param("suffix", [0], [], 0, b"a", [" a", " a", " a"], id="owed by the prompt, its own is the next one's"),
    pytest.param("joined", [], [], 0, b" a", ["a", "a", "a"], id="the first has no blank"),
    pytest.param("joined", [], [1], 0, b" a", ["a", "a", "a"], id="nor behind a hidden one"),
    pytest.param("joined", [0], [], 1, b" <s>", [" <s>"] * 3, id="a hidden one as it would be shown"),
]


@pytest.mark.parametrize(("family", "prompt", "token_ids", "candidate", "data", "texts"), TOKEN_TEXTS)
def test_token_texts(family, prompt, token_ids, candidate, data, texts):
    vocabulary = FAMILIES[family]
    for fragments, text in zip(("openai", "empty", "replacement"), texts, strict=True):
        generation = Generation(vocabulary, prompt, Options(fragments=fragments))
        generation.take(token_ids)
        position = PositionLogprobs(TokenLogprob(candidate, -1.0), (TokenLogprob(candidate, -1.0, 7),))
        filled = TokenLogprob(candidate, -1.0, None, text, data)
        expected = PositionLogprobs(filled, (TokenLogprob(candidate, -1.0, 7, text, data),))
        assert generation.filled(len(token_ids), position) == expected


def test_prompt_logprobs():
    entries = [None, {ord("b"): -3.0, 0xE4: -1.0}, [TokenLogprob(0xBD, -1.0, 1)], TokenLogprob(0xA0, 0.0)]
    update = EngineUpdate(prompt_token_ids=[ord("a"), 0xE4, 0xBD, 0xA0], prompt_logprobs=entries)
    start, _ = RequestDecoder(WORDS, options=Options(fragments="empty")).push(update)
    assert [p and (p.sampled.token, [other.token for other in p.top]) for p in start.prompt_logprobs] == [
        None,
        ("", ["b", ""]),
        ("", []),
        ("你", []),
    ]


LOGPROB_FORMS = [
    pytest.param(TokenLogprob(7, -1.0), PositionLogprobs(TokenLogprob(7, -1.0)), id="one"),
    pytest.param(
        [TokenLogprob(7, -1.0, 2), TokenLogprob(8, 0.0, 1)],
        PositionLogprobs(TokenLogprob(7, -1.0, 2), (TokenLogprob(8, 0.0, 1),)),
        id="the sampled one first",
    ),
    pytest.param(
        {8: 0.0, 7: -1.0},
        PositionLogprobs(TokenLogprob(7, -1.0), (TokenLogprob(8, 0.0), TokenLogprob(7, -1.0))),
        id="by id",
    ),
]


@pytest.mark.parametrize(("entry", "position"), LOGPROB_FORMS)
def test_logprob_forms(entry, position):
    assert EngineUpdate([7], logprobs=[entry]).positions == [position]
    with pytest.raises(ValueError, match=r"another id|missing"):
        EngineUpdate([9], logprobs=[entry])
    with pytest.raises(ValueError, match="one logprobs entry"):
        EngineUpdate([7, 7], logprobs=[entry])


# ---------------------------------------------------------------- batches


def test_batch():
    batch = BatchDecoder(WORDS, Options(stop="ll"))
    assert [batch.add(list(b"Hi")), batch.add(options=Options(fragments="empty")), batch.add()] == [0, 1, 2]
    out = batch.step([2, 0, 9], [*b"hello", *b"hel", 1], [5, 3, 1], token_texts=True)
    assert (out.texts, out.kept_tokens) == (["he", "he", ""], [4, 3, 0])
    assert out.token_texts == [list("hell"), list("hel"), []]
    assert out.stopped == {2: StopMatch("ll", 2, 3, True)}
    assert [type(out.errors[slot]).__name__ for slot in out.errors] == ["StateError"]
    assert batch.pending(0) == {"incomplete_bytes": 0, "held_bytes": 1, "waiting_tokens": 0}
    assert batch.usage(0) == TokenUsage(2, 3)

    out = batch.step([2, 1, 0], [1, 2, NOT_MAPPED, ord("l")], [1, 2, 1])
    assert (out.texts, out.kept_tokens, set(out.errors)) == (["", "", ""], [0, 0, 1], {1, 2})
    assert out.errors[1].index == 1
    assert out.stopped == {0: StopMatch("ll", 2, 3, True)}

    batch.remove([0])
    assert (batch.add(), len(batch)) == (0, 3)
    with pytest.raises(reference.StateError):
        batch.remove([1, 9])
    batch.step([1], [0xE4])
    out = batch.finish([1, 2])
    assert (out.texts, places(out.decoded(0)), set(out.errors)) == (["\ufffd", ""], "V0", {2})


BAD_STEPS = [
    pytest.param([0, 0], [1, 1], None, ValueError, id="a slot twice"),
    pytest.param([9, 9], [1, 1], None, ValueError, id="an unknown slot twice"),
    pytest.param([0], [1, 1], None, ValueError, id="more ids than slots"),
    pytest.param([0], [1], [2], ValueError, id="counts that do not add up"),
    pytest.param([0], [1], [1, 0], ValueError, id="more counts than slots"),
    pytest.param([0, 1], [ord("a"), -1], None, reference.UnknownTokenError, id="no id"),
    pytest.param([0, 1], [ord("a"), True], None, TypeError, id="a bool"),
]


@pytest.mark.parametrize(("slots", "token_ids", "counts", "error"), BAD_STEPS)
def test_steps_that_are_refused(slots, token_ids, counts, error):
    batch = BatchDecoder(WORDS)
    batch.add()
    batch.add()
    with pytest.raises(error):
        batch.step(slots, token_ids, counts)
    assert batch.usage(0) == TokenUsage(0, 0)
