"""Recorded model output: every stream decodes exactly, in every grouping; deltas are those that servers sent."""

import detok
import pytest
from assets import path as asset
from conftest import load_oracle, load_tokenizer, read_jsonl
from helpers import bytewise, groupings, lossy, ones, replay, same

SMOLLM2 = read_jsonl("smollm2_streams.jsonl")
SERVER = read_jsonl("server_streams.jsonl")
INVALID = read_jsonl("invalid_bytes.jsonl")

# These servers hold a whole token that ends inside a character. An earliest decoder lets the complete characters of
# such a token go at once, which is a step earlier at the blank of these emoji; the joined text is the same.
EARLIER = [" 🌆", " 😊"]


def server_tokenizer(name: str) -> detok.Tokenizer:
    if name == "llama3":
        return detok.Tokenizer.load(asset("llama3/tokenizer.model"))
    return load_tokenizer(name)


def test_there_is_something_to_replay():
    assert (len(SMOLLM2), len(SERVER), len(INVALID)) == (54, 22, 189)
    assert sum(len(row["ids"]) for row in SMOLLM2) == 7_908
    assert sum(len(row["ids"]) for row in SERVER) == 2_559


@pytest.mark.parametrize("row", SMOLLM2, ids=lambda row: row["id"])
def test_smollm2(row):
    tokenizer, ids = load_tokenizer("smollm2"), row["ids"]
    data = bytes.fromhex(row["bytes_hex"])
    assert row["text"] == lossy(data)
    assert b"".join(tokenizer.token_bytes(i) for i in ids) == data
    assert tokenizer.decode(ids, skip_special_tokens=False) == row["text"]

    first = replay(detok.DecodeStream(tokenizer, skip_special_tokens=False), ones(ids))
    assert first.text == row["text"]
    assert first.everything.token_ids == ids
    for groups in groupings(ids, row["id"]):
        other = replay(detok.DecodeStream(tokenizer, skip_special_tokens=False), groups)
        assert same(other.joined, first.joined)
        assert same(other.everything, first.joined)

    hidden = load_oracle("smollm2").decode(ids, skip_special_tokens=True)
    assert replay(detok.DecodeStream(tokenizer), ones(ids)).text == hidden


@pytest.mark.parametrize("row", SMOLLM2, ids=lambda row: row["id"])
def test_smollm2_after_its_prompt(row):
    """The prompt never shows, and byte-level text is not shaped by it, unless its end leaves a character open."""
    tokenizer = load_tokenizer("smollm2")
    prompt = b"".join(tokenizer.token_bytes(i) for i in row["prompt_ids"])
    assert prompt == prompt.decode().encode()
    stream = detok.DecodeStream(tokenizer, row["prompt_ids"], skip_special_tokens=False)
    got = replay(stream, ones(row["ids"]))
    assert got.text == row["text"]
    assert got.everything.token_ids == row["ids"]


@pytest.mark.parametrize("row", SERVER, ids=lambda row: row["id"])
def test_server(row):
    tokenizer, ids = server_tokenizer(row["tokenizer"]), row["ids"]
    first = replay(detok.DecodeStream(tokenizer, skip_special_tokens=False), ones(ids))
    assert first.text == row["text"]
    assert first.deltas == [*earliest(row["deltas"]), ""]
    for groups in groupings(ids, row["id"]):
        other = replay(detok.DecodeStream(tokenizer, skip_special_tokens=False), groups)
        assert same(other.joined, first.joined)


def earliest(deltas: list[str]) -> list[str]:
    """The recorded deltas with the blank before a split emoji one step earlier."""
    out = list(deltas)
    for i, delta in enumerate(out):
        for late in EARLIER:
            if delta.startswith(late) and i and out[i - 1] == "":
                out[i - 1], out[i] = delta[0], delta[1:]
    return out


@pytest.mark.parametrize("row", read_jsonl("harmony.jsonl"), ids=lambda row: row["name"])
def test_harmony(row):
    """Whole conversations with their channel markers, shown and hidden; one row is ids already."""
    tokenizer, oracle = load_tokenizer("gpt-oss"), load_oracle("gpt-oss")
    ids = row.get("ids") or oracle.encode(row["text"], add_special_tokens=False).ids
    for skip in (False, True):
        got = replay(detok.DecodeStream(tokenizer, skip_special_tokens=skip), ones(ids))
        assert got.text == oracle.decode(ids, skip_special_tokens=skip)
        assert got.everything.token_ids == ids
        hidden = [not a.anchor.is_visible for a in got.everything.attributions]
        assert hidden == [skip and tokenizer.is_special(i) for i in ids]
    if "text" in row:
        assert tokenizer.decode(ids, skip_special_tokens=False) == row["text"]


def test_only_two_places_are_earlier():
    moved = [row["id"] for row in SERVER if earliest(row["deltas"]) != row["deltas"]]
    places = sum(a != b for row in SERVER for a, b in zip(earliest(row["deltas"]), row["deltas"], strict=True))
    assert places == 2 * len(EARLIER), moved


@pytest.mark.parametrize("index", range(len(INVALID)))
def test_invalid_bytes_by_byte_tokens(index):
    """Any byte string, one byte a token: the WHATWG text, for raw tables and for ranks."""
    row = INVALID[index]
    data = bytes.fromhex(row["hex"])
    tokenizer = detok.Tokenizer.from_token_bytes([bytes([b]) for b in range(256)])
    assert tokenizer.decode(data_ids(data)) == row["expect"] == lossy(data)
    for groups in groupings(data_ids(data), index):
        got = replay(detok.DecodeStream(tokenizer), groups)
        assert got.text == row["expect"]
        assert got.everything.token_ids == data_ids(data)


@pytest.mark.parametrize("index", range(len(INVALID)))
def test_invalid_bytes_by_byte_pieces(index):
    """The same as SentencePiece byte pieces (D1): complete characters stay, each other byte is one U+FFFD."""
    row = INVALID[index]
    data = bytes.fromhex(row["hex"])
    tokenizer = load_tokenizer("mistral-v3")
    ids = [tokenizer.token_to_id(f"<0x{b:02X}>") for b in data]
    # The decoder of the file takes one leading blank away, also when a byte piece spells it.
    expect = row["expect_bytewise"].removeprefix(" ") if data[:1] == b" " else row["expect_bytewise"]
    assert row["expect_bytewise"] == bytewise(data)
    assert tokenizer.decode(ids) == expect
    for groups in groupings(ids, index):
        got = replay(detok.DecodeStream(tokenizer), groups)
        assert got.text == expect
        assert got.everything.token_ids == ids


def test_invalid_bytes_that_smollm2_can_spell():
    """21 byte values have no token there: the rows without them, against the source's own decode."""
    tokenizer, oracle = load_tokenizer("smollm2"), load_oracle("smollm2")
    single = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    spelled = 0
    for row in INVALID:
        ids = [single.get(bytes([b])) for b in bytes.fromhex(row["hex"])]
        if None in ids:
            continue
        spelled += 1
        assert replay(detok.DecodeStream(tokenizer), ones(ids)).text == oracle.decode(ids) == row["expect"]
    assert spelled == 152


def data_ids(data: bytes) -> list[int]:
    return list(data)
