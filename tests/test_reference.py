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
