"""Every reported fault as a test: the rows of data/reported_faults.json, run on the families they name.

A row is replayed one token a call, all in one call and in random groupings. Where a row and the contract disagree the
contract wins, which is said beside the row: B33 and B41 (ids outside 32 bits raise under every policy).
"""

import itertools
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import detok
import pytest
import small_tokenizers as small
from assets import path as asset
from conftest import DATA, load_oracle, load_tokenizer
from detok.adapters.openai import ChatCompletionBuilder, CompletionBuilder, SseReader
from engine import Outcome, places, requested, serve, transcript, updates
from helpers import CountedId, CountingDecoder, bytewise, groupings, lossy, ones, replay, same
from openai_shapes import HEAD, choices_of, joined
from small_tokenizers import Piece

ROWS = {row["id"]: row for row in json.loads((DATA / "reported_faults.json").read_text(encoding="utf-8"))}

# Rows that wait for a part of the library: what they need, and the name that will bring it.
NOT_YET = {
    **dict.fromkeys(["B127", "B133"], ("a stream that pickles", "DecodeStream.snapshot")),
    "B129": ("a stream that forks", "DecodeStream.__copy__"),
}
# Rows with stops, logprobs or usage: run as requests.
AS_REQUESTS = [
    *("B42", "B46", "B56", "B59", "B61", "B63", "B64", "B66", "B68", "B69", "B71", "B73", "B74", "B76", "B78"),
    *("B79", "B81", "B83", "B84", "B86", "B88", "B89", "B91", "B93", "B101", "B103"),
]
# Rows of a server's API, or with markers of sections: run as chunks of it.
AS_CHUNKS = [
    *("B94", "B96", "B98", "B99", "B108", "B164", "B166", "B168", "B170", "B171", "B173", "B175", "B177"),
]
# Rows that a table of values cannot hold: a test below carries the id.
BY_HAND = ["B28", "B33", "B35", "B41", "B114", "B116", "B117", "B119", "B121", "B122", "B124", "B125", "B131"]
FROM_FILE = [name for name in ROWS if name not in {*NOT_YET, *BY_HAND, *AS_REQUESTS, *AS_CHUNKS}]


def test_every_row_is_covered_or_waits():
    assert len(ROWS) == 110
    ways = [FROM_FILE, AS_REQUESTS, AS_CHUNKS, BY_HAND, NOT_YET]
    assert sorted(name for way in ways for name in way) == sorted(ROWS)
    here = {name.split("_")[1].upper() for name in globals() if name.startswith("test_b")}
    assert set(BY_HAND) <= here
    assert len(FROM_FILE) > 50


# What the runner below reads of a row's options, and what only tells where a row came from.
CHECKED = {
    *("expect_text", "expect_text_any", "expect_deltas", "expect_max_lag_tokens", "expect_offsets", "expect_spans"),
    *("expect_byte_spans", "expect_query", "expect_token_events", "expect_token_count", "expect_usage"),
    *("expect_token_bytes", "expect_deltas_join", "expect_ids_preserved"),
}
READ = {
    *("pieces", "special", "added", "skip_special_tokens", "strip_leading_space", "decoder", "vocab_missing_bytes"),
    *("raw_ids", "unknown_ids", "context_pieces", "context_token_bytes", "emit_every", "query", "steps"),
}
# What the runner of requests does with theirs.
REQUEST_CHECKED = {
    *("expect_text", "expect_deltas", "expect_finish", "expect_matched_stop", "expect_consumed_tokens"),
    *("expect_token_bytes", "expect_tokens", "expect_entries_per_delta", "expect_equal_lengths", "expect_offsets"),
    *("expect_usage", "expect_continuous_usage"),
}
REQUEST_READ = {
    *("pieces", "special", "stop_token_ids", "eos", "min_tokens", "include_stop_str_in_output", "steps", "finish"),
    *("skip_special_tokens", "strip_leading_space", "context_pieces", "prompt_text", "prompt_token_bytes_repeat"),
    *("logprobs", "top_logprobs", "offset_base"),
}
# Names of tokens play no part in offsets, no text is echoed, usage is always there.
REQUEST_TOLD = {"return_tokens_as_token_ids", "echo", "continuous_usage"}
# What the runner of chunks does with theirs.
CHUNKS_CHECKED = {
    *("expect_text", "expect_reasoning", "expect_usage", "expect_chunks", "expect_content_chunks"),
    *("expect_finish_values", "expect_logprob_keys", "expect_entries_per_delta"),
}
CHUNKS_READ = {
    *("special", "added", "eos", "steps", "finish", "prompt_text", "reasoning", "skip_special_tokens", "logprobs"),
    *("stream", "transport_split"),
}
# Usage runs only where it is asked to; nothing is encoded.
CHUNKS_TOLD = {"continuous_usage", "canonical_ids_for_text"}
# `finish` has one way here (flush), clean-up and blanks between specials are never made, encoding is not the stream's.
TOLD = {
    *("reference", "finish", "spaces_between_special_tokens", "clean_up_tokenization_spaces", "byte_alphabet_hit"),
    *("canonical_split", "template_suffix", "max_tokens", "source_text", "ids_240911", "round_trips"),
}


def test_every_option_of_a_row_is_known():
    for name in FROM_FILE:
        keys = set(options(ROWS[name]))
        assert keys & CHECKED, name
        assert keys <= CHECKED | READ | TOLD, (name, keys - CHECKED - READ - TOLD)
    for name in AS_REQUESTS:
        keys = set(options(ROWS[name]))
        assert keys & REQUEST_CHECKED, name
        known = REQUEST_CHECKED | REQUEST_READ | REQUEST_TOLD
        assert keys <= known, (name, keys - known)
    for name in AS_CHUNKS:
        keys = set(options(ROWS[name]))
        assert keys & CHUNKS_CHECKED, name
        known = CHUNKS_CHECKED | CHUNKS_READ | CHUNKS_TOLD
        assert keys <= known, (name, keys - known)


def test_what_waits_needs_something_later():
    """Rows about text, ids and spans alone have nothing to wait for."""
    later = {"stop", "logprobs", "usage", "shape", "state"}
    for name in NOT_YET:
        row = ROWS[name]
        assert row["theme"] in later or row["stop"] or {"stop_token_ids", "reasoning"} & set(options(row)), name


@pytest.mark.parametrize("name", NOT_YET)
def test_what_waits_cannot_be_covered_yet(name):
    reason, needed = NOT_YET[name]
    found = detok
    for part in needed.split("."):
        found = vars(found).get(part)
    assert found is None, f"{name} waited for {needed} ({reason}): cover it now"


# ------------------------------------------------------------------ building


@dataclass
class Built:
    """A row on one tokenizer."""

    row: str
    name: str
    kind: str  # json, model, ranks, tekken, bytes
    data: Any  # the file, or the table
    ids: list[int]
    prompt: list[int]
    special: dict[str, int] = field(default_factory=dict)  # ranks only

    def __str__(self) -> str:
        return f"{self.row}-{self.name}"

    def load(self, folder: Path) -> detok.Tokenizer:
        if self.kind == "json":
            return detok.Tokenizer.from_json(self.data)
        if self.kind == "bytes":
            return detok.Tokenizer.from_token_bytes(self.data, special_token_ids=self.special.values())
        name = {"model": "tokenizer.model", "ranks": "vocab.tiktoken", "tekken": "tekken.json"}[self.kind]
        data = self.data.encode() if isinstance(self.data, str) else self.data
        (folder / name).write_bytes(data)
        if self.kind == "ranks":
            return detok.Tokenizer.from_tiktoken(folder / name, special_tokens=self.special)
        return detok.Tokenizer.load(folder / name)

    def oracle(self, ids: list[int], skip: bool) -> str:
        """The one-shot text by a library that is not ours."""
        if self.kind == "json":
            import tokenizers

            return tokenizers.Tokenizer.from_str(self.data).decode(ids, skip_special_tokens=skip)
        if self.kind == "model":
            import sentencepiece

            kinds = small.piece_kinds(self.data)
            hidden = {i for i, (_, kind) in enumerate(kinds) if kind in (small.CONTROL, small.UNKNOWN)} if skip else ()
            model = self.data if skip else small.shown_controls(self.data)
            return sentencepiece.SentencePieceProcessor(model_proto=model).decode([i for i in ids if i not in hidden])
        if self.kind == "ranks":
            import base64

            table = {int(r): base64.b64decode(t) for t, r in (line.split() for line in self.data.splitlines())}
        elif self.kind == "tekken":
            import base64

            data = json.loads(self.data)
            first = data["config"]["default_num_special_tokens"]
            table = {v["rank"] + first: base64.b64decode(v["token_bytes"]) for v in data["vocab"]}
        else:
            table = dict(enumerate(self.data))
        if skip:
            table |= dict.fromkeys(self.special.values(), b"")
        else:
            table |= {i: name.encode() for name, i in self.special.items()}
        return lossy(b"".join(table.get(i) or b"" for i in ids))


def options(row: dict) -> dict:
    return row["options"]


def tokens(row: dict) -> list[bytes]:
    """The generated tokens, cycled if the row repeats them."""
    once = [bytes.fromhex(h) for h in row.get("token_bytes", [])]
    count = options(row).get("repeat_tokens", len(once))
    return [once[i % len(once)] for i in range(count)]


def kinds(row: dict) -> dict[int, str]:
    return {int(i): kind for kind in ("special", "added") for i in options(row).get(kind, {})}


def byte_pieces(row: dict) -> tuple[list[Piece], list[Piece]]:
    """Generated and prompt tokens as bytes."""
    kind, count = kinds(row), len(row.get("token_bytes", [])) or 1
    generated = [Piece(t, kind.get(i % count, "normal")) for i, t in enumerate(tokens(row))]
    repeated, times = options(row).get("prompt_token_bytes_repeat", ("", 0))
    prompt = [Piece(bytes.fromhex(h)) for h in [*options(row).get("context_token_bytes", []), *[repeated] * times]]
    return generated, prompt


def text_pieces(row: dict) -> tuple[list[Piece], list[Piece]]:
    """Generated and prompt tokens as pieces of the vocabulary."""
    pieces, kind, bytes_of = options(row)["pieces"], kinds(row), row["token_bytes"]
    if len(pieces) != len(bytes_of):
        # The row lists its vocabulary once each: its tokens are spelled by bytes, blanks as markers.
        spell = {small.MARK.encode(): small.MARK}
        for piece in pieces:
            raw = (
                bytes([int(piece[3:5], 16)]) if piece in small.BYTE_PIECES else piece.replace(small.MARK, " ").encode()
            )
            spell[raw] = piece
        pieces = [spell[bytes.fromhex(h)] for h in bytes_of]
    generated = [Piece(p, kind.get(i, "normal")) for i, p in enumerate(pieces)]
    count = options(row).get("repeat_tokens", len(generated))
    generated = [generated[i % len(generated)] for i in range(count)]
    prompt = [*options(row).get("context_pieces", []), *(small.BYTE_PIECES[b] for b in prompt_text(row))]
    return generated, [Piece(p) for p in prompt]


def prompt_text(row: dict) -> bytes:
    return options(row).get("prompt_text", "").encode()


def json_ids(data: str, pieces: list[Piece], spell: Callable[[Piece], str] = lambda p: p.text) -> list[int]:
    parsed = json.loads(data)
    vocab = parsed["model"]["vocab"]
    ids = dict(vocab) if isinstance(vocab, dict) else {text: i for i, (text, _) in enumerate(vocab)}
    ids |= {a["content"]: a["id"] for a in parsed["added_tokens"]}
    return [ids[spell(p)] for p in pieces]


def build_byte_level(row: dict) -> list[Built]:
    generated, prompt = byte_pieces(row)
    missing = [int(h, 16) for h in options(row).get("vocab_missing_bytes", [])]
    filler = [Piece(b"<added_%d>" % i, "added") for i in range(options(row).get("added_vocab_size", 0))]
    data = small.byte_level_json([*generated, *prompt, *filler], missing=missing)

    def spell(p: Piece) -> str:
        return small.spelled(p.text) if p.kind == "normal" else p.text.decode()

    ids = json_ids(data, generated, spell)
    return [Built(row["id"], "byte_level", "json", data, ids, json_ids(data, prompt, spell))]


def build_ranks(row: dict) -> list[Built]:
    generated, prompt = byte_pieces(row)
    ranks = {bytes([b]): b for b in range(256)}
    for text, kind in [*generated, *prompt]:
        if kind != "special":
            ranks.setdefault(text, len(ranks))
    # Ten reserved slots lie between the ranks and the specials, as in real vocabularies.
    special = {}
    for text, kind in generated:
        if kind == "special":
            special.setdefault(text.decode(), len(ranks) + 10 + len(special))
    special.setdefault("<|end|>", len(ranks) + 10 + len(special))

    def ids(pieces: list[Piece]) -> list[int]:
        return [special[p.text.decode()] if p.kind == "special" else ranks[p.text] for p in pieces]

    data = small.rank_file(ranks)
    return [Built(row["id"], "ranks", "ranks", data, ids(generated), ids(prompt), special)]


def build_tekken(row: dict) -> list[Built]:
    generated, prompt = byte_pieces(row)
    table = list(dict.fromkeys([bytes([b]) for b in range(256)] + [p.text for p in [*generated, *prompt]]))
    data = small.tekken_json(table, special_slots=32)
    ids = [table.index(p.text) + 32 for p in generated]
    return [Built(row["id"], "tekken", "tekken", data, ids, [table.index(p.text) + 32 for p in prompt])]


def build_token_bytes(row: dict) -> list[Built]:
    generated, prompt = byte_pieces(row)
    table = list(dict.fromkeys(p.text for p in [*generated, *prompt]))
    special = {p.text.decode(): table.index(p.text) for p in generated if p.kind == "special"}
    ids = [table.index(p.text) for p in generated]
    return [Built(row["id"], "token_bytes", "bytes", table, ids, [table.index(p.text) for p in prompt], special)]


def build_any(row: dict) -> list[Built]:
    return build_byte_level(row) + build_ranks(row) + build_token_bytes(row)


def build_tiktoken(row: dict) -> list[Built]:
    return build_ranks(row)


def build_model(row: dict, model: int) -> Built:
    generated, prompt = text_pieces(row)
    data = small.spm_model_of(
        [*generated, *prompt], model=model, dummy_prefix=bool(options(row).get("strip_leading_space"))
    )
    ids = {text: i for i, (text, _) in enumerate(small.piece_kinds(data))}
    return Built(row["id"], "model", "model", data, [ids[p.text] for p in generated], [ids[p.text] for p in prompt])


def build_spm(row: dict) -> list[Built]:
    generated, prompt = text_pieces(row)
    strip = [small.STRIP] if options(row).get("strip_leading_space") else []
    decoders = {
        "llama": small.sequence(small.REPLACE, small.BYTE_FALLBACK, small.FUSE, *strip),
        "late_replace": small.sequence(small.BYTE_FALLBACK, small.FUSE, small.REPLACE, *strip),
    }
    if options(row).get("decoder") == "Metaspace":
        decoders = {"metaspace": small.METASPACE, "metaspace_old": small.METASPACE_OLD}
    built = []
    for name, decoder in decoders.items():
        data = small.spm_json([*generated, *prompt], decoder)
        built.append(Built(row["id"], name, "json", data, json_ids(data, generated), json_ids(data, prompt)))
    return [*built, build_model(row, small.BPE_MODEL)]


def build_unigram(row: dict) -> list[Built]:
    generated, prompt = text_pieces(row)
    data = small.unigram_json([*generated, *prompt], small.METASPACE)
    built = Built(row["id"], "metaspace", "json", data, json_ids(data, generated), json_ids(data, prompt))
    return [built, build_model(row, small.UNIGRAM_MODEL)]


def build_wordpiece(row: dict) -> list[Built]:
    generated, prompt = text_pieces(row)
    built = []
    for name, decoder in {"cleanup": small.WORDPIECE, "plain": small.WORDPIECE_PLAIN}.items():
        data = small.wordpiece_json([*generated, *prompt], decoder)
        built.append(Built(row["id"], name, "json", data, json_ids(data, generated), json_ids(data, prompt)))
    return built


BUILDERS = {
    "any": build_any,
    "byte_bpe": build_byte_level,
    "spm_bpe_bytefallback": build_spm,
    "unigram": build_unigram,
    "wordpiece": build_wordpiece,
    "tiktoken": build_tiktoken,
    "tekken": build_tekken,
}


def build(name: str) -> list[Built]:
    return BUILDERS[ROWS[name]["family"]](ROWS[name])


CASES = [built for name in FROM_FILE for built in build(name)]


# ------------------------------------------------------------------ running


def expected_text(built: Built) -> str | None:
    """The row's text; of several accepted policies the contract's (D1: one U+FFFD for each byte left over)."""
    given = options(ROWS[built.row])
    if "expect_text_any" in given:
        data = b"".join(bytes.fromhex(h) for h in ROWS[built.row]["token_bytes"])
        assert bytewise(data) in given["expect_text_any"]
        return bytewise(data)
    return given.get("expect_text")


def with_raw_ids(built: Built, tokenizer: detok.Tokenizer) -> list[int]:
    """The generated ids with the row's bare ids among them."""
    names = {"gap": tokenizer.vocab_size - 2, "reserved_unregistered": tokenizer.vocab_size - 2}
    ids = list(built.ids)
    for raw in reversed(options(ROWS[built.row]).get("raw_ids", [])):
        value = raw["id"]
        if isinstance(value, str):
            value = names[value] if value in names else tokenizer.vocab_size + int(value.removeprefix("vocab_size+"))
        ids.insert(raw["at"], value)
    return ids


@pytest.mark.parametrize("built", CASES, ids=str)
def test_row(built, tmp_path):
    row, given = ROWS[built.row], options(ROWS[built.row])
    tokenizer = built.load(tmp_path)
    skip, unknown = given.get("skip_special_tokens", True), given.get("unknown_ids", "error")
    ids = with_raw_ids(built, tokenizer)
    expect = expected_text(built)

    def stream() -> detok.DecodeStream:
        return detok.DecodeStream(tokenizer, built.prompt, skip_special_tokens=skip, unknown_ids=unknown)

    calls = ones(ids)
    if "emit_every" in given:
        every = given["emit_every"]
        calls = [ids[i : i + every] for i in range(0, len(ids), every)]
    assert given.get("steps") in (None, [len(call) for call in calls])
    shown = replay(stream(), calls)

    if expect is not None:
        assert shown.text == expect
    if "expect_deltas" in given:
        assert shown.deltas == [*given["expect_deltas"], ""]
    if given.get("expect_max_lag_tokens") == 0:
        assert shown.deltas == [*(bytes.fromhex(h).decode() for h in row["token_bytes"]), ""]
    check_records(given, tokenizer, ids, shown.joined, skip)
    for wanted in [given.get("expect_token_count"), given.get("expect_usage", {}).get("completion_tokens")]:
        assert wanted is None or shown.token_count == wanted
    for i, wanted in enumerate(given.get("expect_token_bytes", [])):
        assert tokenizer.token_bytes(ids[i]) == bytes(wanted)

    assert same(shown.joined, shown.everything)
    for groups in groupings(ids, built):
        other = replay(stream(), groups)
        assert same(other.joined, shown.joined)
        assert same(other.everything, shown.joined)
        assert other.token_count == shown.token_count == len(ids)

    whole = tokenizer.decode([*built.prompt, *ids], skip_special_tokens=skip, unknown_ids=unknown)
    assert whole == tokenizer.decode(built.prompt, skip_special_tokens=skip) + shown.text
    again = tokenizer.decode_attributed(
        ids, prompt_token_ids=built.prompt, skip_special_tokens=skip, unknown_ids=unknown
    )
    assert same(again, shown.joined)


def check_records(given: dict, tokenizer: detok.Tokenizer, ids: list[int], got: detok.DecodedText, skip: bool) -> None:
    """One record per id, and what the row says about places."""
    assert got.token_ids == ids
    records = list(got.attributions)
    if "expect_offsets" in given:
        assert got.offsets() == given["expect_offsets"]
    if "expect_spans" in given:
        spans = [tuple(span) for span in given["expect_spans"]]
        assert got.spans() == spans
        # A token that begins inside a character says so.
        assert [r.continues_char for r in records] == [
            r.anchor.is_visible and i > 0 and records[i - 1].anchor.is_visible and spans[i][0] < spans[i - 1][1]
            for i, r in enumerate(records)
        ]
    if "expect_byte_spans" in given:
        assert got.spans(unit="byte") == [tuple(span) for span in given["expect_byte_spans"]]
    if "expect_query" in given:
        assert given["query"] == "token_at_char(0)"
        assert list(got.tokens_at(0, 1)) == given["expect_query"]
    for event in given.get("expect_token_events", []):
        record = records[event["index"]]
        assert record.token_id == ids[event["index"]]
        assert tokenizer.is_special(record.token_id) is event["special"]
        assert record.anchor.is_visible is not (event["special"] and skip)


@pytest.mark.parametrize("built", CASES, ids=str)
def test_row_as_a_request(built, tmp_path):
    """The same text and records out of a request, and out of a batch that runs all groupings at once."""
    given = options(ROWS[built.row])
    tokenizer = built.load(tmp_path)
    ids = with_raw_ids(built, tokenizer)
    read = {key: given[key] for key in ("skip_special_tokens", "unknown_ids") if key in given}
    at_once = tokenizer.decode_attributed(ids, prompt_token_ids=built.prompt, **read)
    choice = detok.TextDecodeOptions(**read)
    plans = list(groupings(ids, built))
    for groups in plans:
        outcome = serve(tokenizer, updates(groups), choice, built.prompt)
        assert same(outcome.joined, at_once)
        assert outcome.sampled == ids
        assert outcome.finished.usage == detok.TokenUsage(len(built.prompt), len(ids))
    batch = detok.BatchDecoder(tokenizer, choice)
    slots = [batch.add(built.prompt) for _ in plans]
    assert transcript(batch, plans, slots) == [requested(tokenizer, groups, choice, built.prompt) for groups in plans]


# ------------------------------------------------------------------ requests


REQUESTS = [built for name in AS_REQUESTS for built in build(name)]
ENDS = {"eos": "stop"}  # an engine's word for it


def in_steps(built: Built) -> list[list[int]]:
    """The row's updates: one token each, or all at once where it says how many that is."""
    steps = options(ROWS[built.row]).get("steps")
    if steps is None:
        return ones(built.ids)
    assert steps == [len(built.ids)]
    return [built.ids]


def scores(built: Built, group: list[int]) -> list[dict[int, float]] | None:
    """A logprob for each id, and the row's number of alternatives; None is off, 0 is the sampled one alone."""
    given = options(ROWS[built.row])
    if given.get("logprobs") is None or given["logprobs"] is False:
        return None
    others = given.get("top_logprobs", 0)
    return [{i: -1.0} | dict.fromkeys([o for o in built.ids if o != i][:others], -2.0) for i in group]


def lines(built: Built, groups: list[list[int]], finish: str = "length") -> list[detok.EngineUpdate]:
    finish = options(ROWS[built.row]).get("finish", finish)
    last = detok.EngineUpdate(finish_reason=ENDS.get(finish, finish))
    return [*(detok.EngineUpdate(group, logprobs=scores(built, group)) for group in groups), last]


@pytest.mark.parametrize("built", REQUESTS, ids=str)
def test_request(built, tmp_path):
    row, given = ROWS[built.row], options(ROWS[built.row])
    tokenizer = built.load(tmp_path)
    read = ("skip_special_tokens", "include_stop_str_in_output", "min_tokens")
    stop_ids = [built.ids[int(at)] for key in ("stop_token_ids", "eos") for at in given.get(key, [])]
    choice = detok.TextDecodeOptions(
        stop=row["stop"], stop_token_ids=stop_ids, **{key: given[key] for key in read if key in given}
    )
    shown = serve(tokenizer, lines(built, in_steps(built)), choice, built.prompt)
    check_request(built, shown)

    # Whatever the updates, it is the same request.
    plans = list(groupings(built.ids, built))
    for groups in plans:
        other = serve(tokenizer, lines(built, groups), choice, built.prompt)
        assert (other.text, places(other.joined)) == (shown.text, places(shown.joined))
        assert (other.sampled, other.logprobs, other.stop) == (shown.sampled, shown.logprobs, shown.stop)
        assert other.finished.usage == shown.finished.usage
    batch = detok.BatchDecoder(tokenizer, choice)
    slots = [batch.add(built.prompt) for _ in plans]
    assert transcript(batch, plans, slots) == [requested(tokenizer, groups, choice, built.prompt) for groups in plans]
    assert [batch.usage(slot) for slot in slots] == [shown.finished.usage] * len(slots)


def check_request(built: Built, shown: Outcome) -> None:
    """Everything that the row expects."""
    given = options(ROWS[built.row])
    kept = built.ids[: len(shown.sampled)]
    assert shown.sampled == kept
    if "expect_text" in given:
        assert shown.text == given["expect_text"]
    if "expect_deltas" in given:
        assert shown.shown == [*given["expect_deltas"], *[""] * (shown.stop is None)]
    finish = given.get("finish", "length")
    if "expect_finish" in given:
        assert shown.reason[0] == given["expect_finish"]
    elif shown.stop is None:
        assert shown.reason[0] == ENDS.get(finish, finish)
    if "expect_matched_stop" in given:
        assert shown.stop == given["expect_matched_stop"]
        assert shown.abort_cause == "stop_string"
    if "expect_consumed_tokens" in given:
        assert len(kept) == given["expect_consumed_tokens"]
    if "expect_offsets" in given:
        base = len(given["prompt_text"]) if given.get("offset_base") == "prompt" else 0
        assert [base + offset for offset in shown.joined.offsets()] == given["expect_offsets"]
    if "expect_usage" in given:
        assert shown.finished.usage.output_token_count == given["expect_usage"]["completion_tokens"]
        assert shown.finished.usage.prompt_token_count == len(built.prompt)
    if scores(built, []) is not None:
        check_logprobs(built, shown, kept)
    if "expect_continuous_usage" in given:
        # An id counts with the update that brings it, however late its text is.
        running = list(itertools.accumulate(shown.counts))
        assert running == [*given["expect_continuous_usage"], len(kept)]


def check_logprobs(built: Built, shown: Outcome, kept: list[int]) -> None:
    """Names and bytes are filled, for the sampled token and for its alternatives."""
    row, given = ROWS[built.row], options(ROWS[built.row])
    raw = {i: bytes.fromhex(h) for i, h in zip(built.ids, row["token_bytes"], strict=True)}
    entries = [t for position in shown.logprobs for t in (position.sampled, *position.top)]
    assert [p.sampled.token_id for p in shown.logprobs] == kept
    assert {len(p.top) for p in shown.logprobs} == {1 + given.get("top_logprobs", 0)}
    for entry in entries:
        assert entry.token_bytes == raw[entry.token_id]
        assert named(entry.token) == entry.token_bytes
        assert entry.logprob < 0
    if "expect_token_bytes" in given:
        assert [list(p.sampled.token_bytes) for p in shown.logprobs] == given["expect_token_bytes"]
        assert shown.text == b"".join(p.sampled.token_bytes for p in shown.logprobs).decode()
    if "expect_tokens" in given:
        assert [p.sampled.token for p in shown.logprobs] == given["expect_tokens"]
    if "expect_entries_per_delta" in given:
        # `serve` has seen that ids and logprobs of each delta are as many.
        assert [count for count in shown.counts if count] == given["expect_entries_per_delta"]
    if given.get("expect_equal_lengths"):
        # A stop id has no record; lists of one clock are of one length.
        records = len(shown.joined.token_ids)
        assert len(shown.sampled) == len(shown.logprobs) == shown.finished.usage.output_token_count
        assert len(shown.joined.spans()) == len(shown.joined.offsets()) == records
        assert records == len(kept) - (shown.abort_cause == "stop_token_id")


def named(token: str) -> bytes:
    """The bytes of a token's text: what is no character is spelled `\\xNN`."""
    parts = re.split(r"\\x([0-9a-f]{2})", token)
    return b"".join(bytes([int(part, 16)]) if n % 2 else part.encode() for n, part in enumerate(parts))


def test_b71_the_order_of_tokens_decides(tmp_path):
    """With the end token before the stop string, the end token wins."""
    for built in build("B71"):
        one, stop, two, end = built.ids
        choice = detok.TextDecodeOptions(stop=ROWS["B71"]["stop"], stop_token_ids=[end])
        outcome = serve(built.load(tmp_path), updates([[one, end, two, stop]]), choice)
        assert (outcome.text, outcome.stop) == (options(ROWS["B71"])["expect_text"], end)


# ------------------------------------------------------------------ chunks


def build_behind_markers(name: str) -> list[Built]:
    """The row behind its prompt, which may have opened a section."""
    row, given = ROWS[name], options(ROWS[name])
    prompt = given.get("prompt_text", "")
    if not prompt and given.get("reasoning", {}).get("open_in_prompt"):
        prompt = given["reasoning"]["start"]
    if prompt:
        row = row | {"options": given | {"context_token_bytes": [prompt.encode().hex()]}}
    return BUILDERS[row["family"]](row)


CHUNKED = [built for name in AS_CHUNKS for built in build_behind_markers(name)]


def markers(given: dict) -> list[detok.Marker]:
    if "reasoning" not in given:
        return []
    told = given["reasoning"]
    return [detok.Marker("reasoning", told["start"], told["end"], reopen=told.get("reopen", False))]


def builder_of(built: Built, tokenizer: detok.Tokenizer) -> CompletionBuilder | ChatCompletionBuilder:
    given = options(ROWS[built.row])
    if given.get("stream") == "completions":
        return CompletionBuilder(tokenizer, **HEAD, logprobs=given["logprobs"])
    return ChatCompletionBuilder(tokenizer, **HEAD, logprobs="logprobs" in given, reasoning=markers(given))


@pytest.mark.parametrize("built", CHUNKED, ids=str)
def test_row_as_chunks(built, tmp_path):
    row, given = ROWS[built.row], options(ROWS[built.row])
    tokenizer = built.load(tmp_path)
    eos = [built.ids[int(at)] for at in given.get("eos", [])]
    skip = given.get("skip_special_tokens", True)
    choice = detok.TextDecodeOptions(stop=row["stop"], stop_token_ids=eos, skip_special_tokens=skip)
    bodies = []
    for groups in [in_steps(built), *groupings(built.ids, built)]:
        request, builder = detok.RequestDecoder(tokenizer, built.prompt, choice), builder_of(built, tokenizer)
        wire = b""
        for update in lines(built, groups, finish="stop"):
            for event in request.push(update):
                wire += builder.push_sse(event)
            if request.is_finished:
                break
        # However the bytes are cut on their way.
        reader = SseReader()
        chunks = [chunk for byte in wire for chunk in reader.push(bytes([byte]))]
        if not bodies:
            check_chunks(built, choices_of(chunks))
        bodies.append(builder.body())
        (answer,) = bodies[-1]["choices"]
        assert joined(chunks)["logprobs"] == answer["logprobs"]
        assert bodies[-1] == bodies[0]
    message = answer.get("message")
    if "expect_text" in given:
        assert message["content"] == given["expect_text"]
    if "expect_reasoning" in given:
        assert message["reasoning_content"] == given["expect_reasoning"]
    if "expect_usage" in given:
        usage = bodies[0]["usage"]
        details = usage["completion_tokens_details"]
        assert {"completion_tokens": usage["completion_tokens"], **details} == given["expect_usage"]


def check_chunks(built: Built, choices: list[dict[str, Any]]) -> None:
    """What the row says of single chunks."""
    given = options(ROWS[built.row])
    deltas = [choice["delta"] for choice in choices if "delta" in choice]
    texts = [delta["content"] for delta in deltas if delta.get("content")]
    if "expect_chunks" in given:
        *words, end = given["expect_chunks"]
        reason = end.removeprefix("finish:").removesuffix(",delta={}")
        assert ["role" if "role" in delta else delta["content"] for delta in deltas[:-1]] == words
        assert (deltas[-1], choices[-1]["finish_reason"]) == ({}, reason)
    if "expect_content_chunks" in given:
        assert len(texts) == given["expect_content_chunks"]
    if "expect_finish_values" in given:
        reasons = [choice["finish_reason"] for choice in choices]
        assert list(dict.fromkeys(reasons)) == given["expect_finish_values"]
    entries = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    if "expect_logprob_keys" in given:
        assert entries
        assert all(list(entry) == given["expect_logprob_keys"] for entry in entries)
    if "expect_entries_per_delta" in given:
        assert [len(entry["content"]) for entry in entries] == given["expect_entries_per_delta"]
        assert len(texts) == len(entries)


# Rows whose expectation is not that of `tokenizers`, by deviation. (B32 is under D1 too: there both say the same.)
OURS = {"B26": "D1", "B54": "D2", "B17": "D3"}
WITH_TEXT = [b for b in CASES if expected_text(b) is not None and "raw_ids" not in options(ROWS[b.row])]


@pytest.mark.parametrize("built", WITH_TEXT, ids=str)
def test_expectation_is_the_oracles(built):
    """The rows themselves are right: the source's own one-shot decode gives their text."""
    skip = options(ROWS[built.row]).get("skip_special_tokens", True)
    expect = expected_text(built)
    whole = built.oracle([*built.prompt, *built.ids], skip)
    prompt = built.oracle(built.prompt, skip) if built.prompt else ""
    if built.row in OURS and built.kind == "json":
        assert whole != prompt + expect
    else:
        assert whole == prompt + expect


def test_b149_every_byte_piece_is_its_byte(tmp_path):
    """B144 and B149 for all 256 of them, valid or not."""
    (built, *_) = build("B149")
    tokenizer = built.load(tmp_path)
    for byte in range(256):
        piece = tokenizer.token_to_id(f"<0x{byte:02X}>")
        assert tokenizer.token_bytes(piece) == bytes([byte])
    assert tokenizer.strategy == "byte_fallback"


def test_b134_the_public_file_gives_the_rows_bytes():
    """Rows B10 and B134 on the vocabulary they were reported on."""
    tokenizer = detok.Tokenizer.load(asset("tekken_240911/tekken.json"))
    ids = options(ROWS["B134"])["ids_240911"]
    assert [tokenizer.token_bytes(i).hex() for i in ids] == ROWS["B134"]["token_bytes"]
    assert replay(detok.DecodeStream(tokenizer), ones(ids)).text == options(ROWS["B134"])["expect_text"]


def test_b141_the_unknown_token_is_a_special_with_a_name(tmp_path):
    """The second half of B141: shown by name when specials are; id and place are reported either way."""
    for built in build("B141"):
        tokenizer = built.load(tmp_path)
        shown = tokenizer.decode_attributed(built.ids, skip_special_tokens=False)
        assert shown.text == "<unk></s>" == built.oracle(built.ids, skip=False)
        assert shown.spans() == [(0, 5), (5, 9)]
        hidden = tokenizer.decode_attributed(built.ids)
        assert hidden.token_ids == built.ids
        assert [a.anchor.kind for a in hidden.attributions] == ["zero_width"] * 2


def test_b184_round_trips_change_nothing(tmp_path):
    """Text goes round through ids three times; what comes back is what went in."""
    for built in build("B184"):
        if built.kind != "json":
            continue  # a .model's encoder is not built here
        tokenizer = built.load(tmp_path)
        text = tokenizer.decode(built.ids)
        for _ in range(options(ROWS["B184"])["round_trips"]):
            assert tokenizer.decode(built.ids) == text
            assert tokenizer.decode(tokenizer.encode(text)) == text == options(ROWS["B184"])["expect_text"]


def test_b23_a_continuation_after_a_prompt_loses_its_sign(tmp_path):
    """The second half of B23: with `play` before it, `##ing` continues that word."""
    pieces = [Piece("play"), Piece("##ing"), Piece("foo")]
    data = small.wordpiece_json(pieces)
    tokenizer = detok.Tokenizer.from_json(data)
    play, ing, foo = json_ids(data, pieces)
    assert replay(detok.DecodeStream(tokenizer, [play]), ones([ing, foo])).text == "ing foo"


# ------------------------------------------------------------------ by hand


@pytest.mark.parametrize("name", ["smollm2", "gpt-oss"])
def test_b28_text_with_blank_lines_streams_as_it_is(name):
    text = ROWS["B28"]["text"]
    tokenizer = load_tokenizer(name)
    ids = tokenizer.encode(text)
    assert ids == load_oracle(name).encode(text, add_special_tokens=False).ids
    for groups in groupings(ids, name):
        assert replay(detok.DecodeStream(tokenizer), groups).text == text


def raw_ids_raise(name: str, tmp_path: Path) -> None:
    """The contract wins over B33 and B41: ids outside 32 bits are an error under both policies."""
    given = options(ROWS[name])
    at = given["raw_ids"][0]["at"]
    for built in build(name):
        for policy in ("error", "skip"):
            stream = detok.DecodeStream(built.load(tmp_path), unknown_ids=policy)
            stream.push_tokens(built.ids[:at])
            for raw in given["raw_ids"]:
                rest = [*built.ids[at:], raw["id"]]
                assert_raises(stream.push_tokens, rest, raw["id"], len(rest) - 1)
                assert_raises(stream.push_token, raw["id"], raw["id"], 0)
                assert_raises(stream.step, raw["id"], raw["id"], 0)
                assert stream.token_count == at
            stream.push_tokens(built.ids[at:])
            _, everything = stream.flush()
            assert everything.text == given["expect_text"]
            assert everything.token_ids == built.ids


def assert_raises(push: Callable, argument: Any, value: int, index: int) -> None:
    with pytest.raises(detok.UnknownTokenError) as caught:
        push(argument)
    assert (caught.value.token_id, caught.value.index) == (value, index)
    assert str(value) in str(caught.value)
    assert str(index) in str(caught.value)


def test_b33_ids_outside_32_bits_raise_and_change_nothing(tmp_path):
    raw_ids_raise("B33", tmp_path)


def test_b41_negative_ids_raise_and_change_nothing(tmp_path):
    raw_ids_raise("B41", tmp_path)


def test_b35_a_negative_prompt_id_is_refused():
    (bad,) = options(ROWS["B35"])["prompt_ids"]
    tokenizer = detok.Tokenizer.from_token_bytes([b"a", b"b"])
    stream = detok.DecodeStream(tokenizer)
    stream.push_token(0)
    for call in [
        lambda: detok.DecodeStream(tokenizer, [bad]),
        lambda: tokenizer.decode_attributed([0], prompt_token_ids=[bad]),
        lambda: stream.reset([bad]),
    ]:
        with pytest.raises(detok.UnknownTokenError) as caught:
            call()
        assert isinstance(caught.value, ValueError)
        assert (caught.value.token_id, caught.value.index) == (bad, 0)
        assert "-1" in str(caught.value)
    assert (stream.token_count, stream.output) == (1, "a")


# Growth is counted, never timed: what a token gives and holds does not depend on the tokens before it, and an object
# that does the decoding is asked for lists of bounded length.
WINDOW_BOUND = 64


def counted(name: str) -> tuple[CountingDecoder, list[int], bool]:
    """The row on an object that counts its calls."""
    row = ROWS[name]
    once = list(dict.fromkeys(tokens(row)))
    special = frozenset(once.index(text.encode()) for text in options(row).get("special", {}).values())
    skip = options(row).get("skip_special_tokens", True)
    return CountingDecoder(once, special), [once.index(token) for token in tokens(row)], skip


def assert_no_growth(name: str) -> None:
    """The work of the last tokens equals that of the ones after the first window."""
    decoder, ids, skip = counted(name)
    ids = ids[:2000]
    stream = detok.DecodeStream(detok.Tokenizer.load(decoder), skip_special_tokens=skip)
    work = []
    for token_id in ids:
        decoder.asked.clear()
        stream.push_token(token_id)
        stream.next_chunk()
        work.append(sum(decoder.asked))
        assert max(decoder.asked, default=0) <= WINDOW_BOUND
    quarter = len(work) // 4
    assert sum(work[-quarter:]) <= 1.1 * sum(work[quarter : 2 * quarter]) + WINDOW_BOUND


def steady(name: str, tmp_path: Path, deltas: list[str | None]) -> None:
    """After `deltas[i % n]` comes the same again, and nothing is ever held, on every family of the row."""
    row = ROWS[name]
    skip = options(row).get("skip_special_tokens", True)
    for built in build(name):
        stream = detok.DecodeStream(built.load(tmp_path), skip_special_tokens=skip, keep_output=False)
        for i, token_id in enumerate(built.ids):
            assert stream.step(token_id) == deltas[i % len(deltas)]
        assert dict(stream.pending) == {"incomplete_bytes": 0, "held_bytes": 0, "waiting_tokens": 0}
        assert stream.token_count == len(built.ids) == options(row)["repeat_tokens"]
        last, rest = stream.flush()
        assert not last
        assert not rest
        steady_as_a_slot(built.load(tmp_path), built.ids, skip, [delta or "" for delta in deltas])


def steady_as_a_slot(tokenizer: detok.Tokenizer, ids: list[int], skip: bool, deltas: list[str]) -> None:
    """The same in a batch, beside a slot that does it in another order; and as a request."""
    batch = detok.BatchDecoder(tokenizer, detok.TextDecodeOptions(skip_special_tokens=skip, stop="never"))
    slots = [batch.add(), batch.add()]
    request = detok.RequestDecoder(tokenizer, [], detok.TextDecodeOptions(skip_special_tokens=skip, stop="never"))
    for i, (token_id, next_id) in enumerate(itertools.pairwise(ids[:2_001])):
        out = batch.step(slots, [token_id, next_id])
        assert out.texts == [deltas[i % len(deltas)], deltas[(i + 1) % len(deltas)]]
        assert request.push(detok.EngineUpdate([token_id]))[-1].decoded.text == out.texts[0]
    assert dict(batch.pending(slots[0])) == {"incomplete_bytes": 0, "held_bytes": 0, "waiting_tokens": 0}
    assert batch.usage(slots[0]).output_token_count == 2_000
    assert batch.finish(slots).texts == ["", ""]


def test_b114_work_per_token_does_not_grow(tmp_path):
    steady("B114", tmp_path, ["word "])
    assert_no_growth("B114")


def test_b116_hidden_tokens_hold_nothing(tmp_path):
    steady("B116", tmp_path, [None])
    assert_no_growth("B116")


def test_b117_a_byte_that_cannot_be_completed_is_replaced_at_once(tmp_path):
    for built in build("B117"):
        stream = detok.DecodeStream(built.load(tmp_path))
        for i, token_id in enumerate(built.ids):
            assert stream.step(token_id) == (None if i == 0 else "\ufffd")
            assert stream.pending["incomplete_bytes"] == 1 <= options(ROWS["B117"])["expect_pending_bytes_max"]
        last, everything = stream.flush()
        assert last.text == "\ufffd"
        assert everything.text == "\ufffd" * len(built.ids)

        batch = detok.BatchDecoder(built.load(tmp_path), detok.TextDecodeOptions(stop="never"))
        slot = batch.add()
        for i, token_id in enumerate(built.ids):
            assert batch.step([slot], [token_id]).texts == ["" if i == 0 else "\ufffd"]
            assert batch.pending(slot)["incomplete_bytes"] == 1
        assert batch.finish([slot]).texts == ["\ufffd"]


def test_b119_added_tokens_cost_nothing(tmp_path):
    steady("B119", tmp_path, ["a", "<x>"])
    (few,) = build_byte_level(ROWS["B119"] | {"options": options(ROWS["B119"]) | {"added_vocab_size": 0}})
    (many,) = build_byte_level(ROWS["B119"])
    assert few.load(tmp_path).strategy == many.load(tmp_path).strategy == "byte_level"
    assert_no_growth("B119")


def test_b121_skipping_specials_is_a_look_up(tmp_path):
    steady("B121", tmp_path, ["ab", None])
    assert_no_growth("B121")


def test_b122_markers_are_searched_for_in_new_text_only(tmp_path):
    """Nothing is held, and each token's text leaves at once, wherever in a section of 40,000 tokens it is."""
    given = options(ROWS["B122"])
    for built in build_behind_markers("B122"):
        tokenizer = built.load(tmp_path)
        splitter = detok.SectionSplitter(tokenizer, markers(given), prompt_token_ids=built.prompt)
        stream = detok.DecodeStream(tokenizer, built.prompt, keep_output=False)
        for count, token_id in enumerate(built.ids, 1):
            stream.push_token(token_id)
            ((section, piece),) = splitter.push(stream.next_chunk())
            assert (section, piece.text, len(piece.attributions)) == ("reasoning", "think ", 1)
            assert splitter.token_counts["reasoning"] == count
        assert splitter.finish() == []
        assert len(built.ids) == given["repeat_tokens"]


def test_b124_only_the_tail_of_a_prompt_is_read(tmp_path):
    """Reads of ids are counted: a prompt of 50,000 costs what one of 50 does."""
    for built in build("B124"):
        tokenizer = built.load(tmp_path)
        reads = []
        for length in (50, options(ROWS["B124"])["prompt_tokens_len"]):
            prompt = [CountedId(built.ids[0]) for _ in range(length)]
            CountedId.reads = 0
            stream = detok.DecodeStream(tokenizer, prompt)
            assert stream.step(built.ids[0]) == "Hi"
            reads.append(CountedId.reads)
        assert reads[0] == reads[1] <= 8


def test_b125_threads_share_a_tokenizer(tmp_path):
    """One stream a thread: no borrow errors, no state shared (test_threads.py shares a stream)."""
    from concurrent.futures import ThreadPoolExecutor

    given = options(ROWS["B125"])
    for built in build("B125"):
        tokenizer = built.load(tmp_path)

        def run(_: int, tokenizer: detok.Tokenizer = tokenizer, ids: list[int] = built.ids) -> set[str]:
            return {replay(detok.DecodeStream(tokenizer), ones(ids)).text for _ in range(given["iterations"] // 4)}

        with ThreadPoolExecutor(given["threads"]) as pool:
            assert list(pool.map(run, range(given["threads"]))) == [{"a b c"}] * given["threads"]

        def request(_: int, tokenizer: detok.Tokenizer = tokenizer, ids: list[int] = built.ids) -> set[str]:
            return {serve(tokenizer, updates(ones(ids))).text for _ in range(given["iterations"] // 20)}

        # One batch for all, a slot a thread.
        batch = detok.BatchDecoder(tokenizer)

        def slot(_: int, batch: detok.BatchDecoder = batch, ids: list[int] = built.ids) -> set[str]:
            texts = set()
            for _ in range(given["iterations"] // 20):
                mine = batch.add()
                texts.add("".join(batch.step([mine], [i]).texts[0] for i in ids))
                batch.remove([mine])
            return texts

        with ThreadPoolExecutor(given["threads"]) as pool:
            assert list(pool.map(request, range(given["threads"]))) == [{"a b c"}] * given["threads"]
            assert list(pool.map(slot, range(given["threads"]))) == [{"a b c"}] * given["threads"]
        assert len(batch) == 0


def test_b131_reset_clears_everything(tmp_path):
    """A stream that is used again remembers neither bytes nor context nor records, finished or not."""
    given = options(ROWS["B131"])
    rng = random.Random(131)
    for built in build("B131"):
        if built.kind == "bytes":
            continue  # has no bytes to leave half a character with
        tokenizer = built.load(tmp_path)
        half = next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == b"\xe4")
        prompt = [i for b in given["prompt_text"].encode() for i in [byte_id(tokenizer, b)]]
        stream = detok.DecodeStream(tokenizer, [half])
        for _ in range(4):
            stream.push_tokens([half, *built.ids, half])
            if rng.random() < 0.5:
                stream.flush()
            stream.reset(prompt)
            assert (stream.token_count, stream.output, stream.pending["incomplete_bytes"]) == (0, "", 0)
            stream.push_tokens(built.ids)
            chunk = stream.next_chunk()
            assert (chunk.text, chunk.token_ids) == (given["expect_text"], built.ids)


def test_b131_a_slot_that_is_used_again_remembers_nothing(tmp_path):
    """Nor does a slot, whose number is the name of a request: bytes, context, held text and stops are gone."""
    given = options(ROWS["B131"])
    for built in build("B131"):
        if built.kind == "bytes":
            continue
        tokenizer = built.load(tmp_path)
        half = byte_id(tokenizer, 0xE4)
        prompt = [byte_id(tokenizer, b) for b in given["prompt_text"].encode()]
        batch = detok.BatchDecoder(tokenizer, detok.TextDecodeOptions(stop=["newt", "wn"]))
        slot = batch.add([half])
        for end in (None, batch.finish, None):
            batch.step([slot], [half, *built.ids, half], [len(built.ids) + 2])
            batch.step([slot], built.ids)  # held: it may become a stop
            if end is not None:
                end([slot])
            batch.remove([slot])
            assert batch.add(prompt) == slot
            assert batch.usage(slot) == detok.TokenUsage(len(prompt), 0)
            out = batch.step([slot], built.ids)
            rest = batch.finish([slot])
            assert out.texts[0] + rest.texts[0] == given["expect_text"]
            assert (out.decoded(0) + rest.decoded(0)).token_ids == built.ids
            batch.remove([slot])
            assert batch.add([half]) == slot


def byte_id(tokenizer: detok.Tokenizer, byte: int) -> int:
    """The id of a single byte."""
    return next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == bytes([byte]))
