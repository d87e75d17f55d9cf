"""Hypothesis strategies: small nasty vocabularies of every family, id streams, groupings, options, prompts.

A vocabulary is drawn as the content of a file, so that the reference, the library and the oracle each read it for
themselves. The library and the oracles are imported on use only.
"""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import reference
import reference_events
from hypothesis import strategies as st
from small_tokenizers import (
    BPE_SUFFIX,
    BYTE,
    BYTE_FALLBACK,
    BYTE_LEVEL,
    CONTROL,
    FUSE,
    MARK,
    METASPACE,
    METASPACE_NEVER,
    METASPACE_OLD,
    NORMAL,
    REPLACE,
    STRIP,
    UNKNOWN,
    USER_DEFINED,
    WORDPIECE,
    WORDPIECE_PLAIN,
    sequence,
    spelled,
    spm_model,
)

UNMAPPED = 900  # an id that no drawn vocabulary maps
FAR_UNMAPPED = 2**32 - 1


@dataclass(frozen=True)
class Drawn:
    """One vocabulary as data. `strategy` is what the library must call it, None where that is left to it."""

    form: str  # "json", "bytes" or "pieces"
    strategy: str | None
    content: Any
    phrases: tuple[tuple[int, ...], ...] = ()  # ids that spell something together
    options: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def reference(self) -> reference.Vocabulary:
        return self.read_by_reference()

    def read_by_reference(self, *, strict: bool = False, crate: frozenset[str] | None = None) -> reference.Vocabulary:
        if self.form == "json":
            return reference.Vocabulary.from_json(self.content, strict=strict, crate=crate)
        if self.form == "bytes":
            return reference.Vocabulary.from_token_bytes(self.content, **self.options)
        return reference.Vocabulary.from_pieces(self.content, **self.options)

    @cached_property
    def tokenizer(self) -> Any:
        return self.read_by_library()

    def read_by_library(self, *, strict: bool = False) -> Any:
        import detok

        with warnings.catch_warnings():
            # Files whose added tokens do not follow on warn; that has a test of its own.
            warnings.simplefilter("ignore", detok.DetokWarning)
            if self.form == "json":
                return detok.Tokenizer.from_json(json.dumps(self.content), strict=strict)
            if self.form == "bytes":
                return detok.Tokenizer.from_token_bytes(self.content, **self.options)
            with TemporaryDirectory() as folder:
                path = Path(folder) / "tokenizer.model"
                path.write_bytes(self.model_bytes())
                return detok.Tokenizer.from_file(path, strict=strict)

    def model_bytes(self) -> bytes:
        kinds = {
            "normal": NORMAL,
            "unknown": UNKNOWN,
            "control": CONTROL,
            "user_defined": USER_DEFINED,
            "byte": BYTE,
        }
        return spm_model(
            [(text, kinds[kind]) for text, kind in self.content],
            dummy_prefix=self.options["add_dummy_prefix"],
            remove_extra=self.options["remove_extra_whitespaces"],
        )

    def oracle(self) -> Any:
        """The same file read by the `tokenizers` package."""
        import tokenizers

        return tokenizers.Tokenizer.from_str(json.dumps(self.content))

    def known_ids(self) -> list[int]:
        return sorted(self.reference.tokens)


# ---------------------------------------------------------------- members

# Characters of every length, a genuine U+FFFD, a combining mark, and letters that mean something to a decoder.
NASTY_TEXTS = (
    "a",
    "Hi there",
    "\u20ac",
    "\u0416\u4e16",
    "\U0001f3f3\ufe0f",
    "h\u00e9",
    "e\u0301",
    "\u4f60\u597d",
    "\U0001f600",
    "x\U0001f469\u200d\U0001f52cy",
    "\ufffd",
    "o\ufffd\u00e9",
    "\u00a0",
    "\u0120",
    MARK,
    "caf\u00e9",
    "\n\n",
    "  ",
)
NASTY_BYTES = (0x00, 0x20, 0x41, 0x80, 0x90, 0xA0, 0xBF, 0xC0, 0xC3, 0xE0, 0xE4, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF)

ADDED_CONTENTS = (
    "<s>",
    "</s>",
    "<|im_end|>",
    "caf\u00e9",
    "\u010d",
    "\u0120word",
    "Stra\u00dfe",
    MARK + "in" + MARK + "the",
    "end" + MARK + "of",
    "<0x41>",
    "<0xE4>",
    "\u4f60",
    "\ufffd",
    "##s",
    ".",
    " ",
    "  two",
    "x</w>",
    "\r\n",
    "e\u0301",
)

BYTE_PIECES = tuple(f"<0x{byte:02X}>" for byte in NASTY_BYTES)
ODD_BYTE_PIECES = (
    "<0x+1>",
    "<0x+A>",
    "<0xe4>",
    "<0xfF>",
    "<0x-1>",
    "<0x4>",
    "<0x041>",
    "<0xG1>",
    "<0x\u00e9>",
    "<0X41>",
)

PIECES = {
    "byte_fallback": (
        "a",
        "\u4f60",
        "\ufffd",
        "",
        MARK,
        MARK * 3,
        MARK + "x",
        MARK + "in" + MARK + "the",
        "ce" + MARK,
        " ",
        " b",
        "<unk>",
        *ODD_BYTE_PIECES,
    ),
    "metaspace": (
        "a",
        "\U0001f600",
        "",
        MARK,
        MARK * 2,
        MARK + "x",
        MARK + "in" + MARK + "the",
        "x" + MARK,
        "_",
        "_y",
        " ",
        "<0x41>",
    ),
    "wordpiece": (
        "a",
        "bl\u00e5",
        "##b\u00e6r",
        "##",
        "##ing",
        "####",
        "",
        ".",
        "?",
        ",",
        "'",
        "' ",
        "n't",
        "'s",
        "'re",
        "do not",
        "do",
        "not",
        " .",
        "[UNK]",
        "x . y",
        "\u4f60",
        "'m.",
    ),
    "bpe_suffix": ("a", "foo</w>", "</w>", "", "\u4f60</w>", ".", "</w", "w>", " ", "\U0001f600"),
    "plain": ("a", "", " ", "\u4f60", "foo", "\ufffd", MARK, "</w>", "<0x41>", "\U0001f600"),
}

# What the library must call each, and decoders that mean it. Orders and nestings are those found in files, and more.
DECODERS: dict[str, tuple[dict[str, Any] | None, ...]] = {
    "byte_level": (
        BYTE_LEVEL,
        sequence(BYTE_LEVEL),
        sequence(sequence(BYTE_LEVEL), FUSE),
        sequence(sequence(), sequence(sequence(BYTE_LEVEL))),
    ),
    "byte_fallback": (
        sequence(REPLACE, BYTE_FALLBACK, FUSE),
        sequence(REPLACE, BYTE_FALLBACK, FUSE, STRIP),
        sequence(BYTE_FALLBACK, FUSE, REPLACE, STRIP),
        sequence(BYTE_FALLBACK, FUSE, REPLACE),
        sequence(BYTE_FALLBACK, REPLACE, FUSE, STRIP),
        sequence(REPLACE, BYTE_FALLBACK, FUSE, STRIP | {"start": 2}),
        sequence(sequence(REPLACE, BYTE_FALLBACK), sequence(FUSE, STRIP)),
    ),
    "metaspace": (
        METASPACE,
        METASPACE_OLD,
        METASPACE_NEVER,
        METASPACE | {"prepend_scheme": "first"},
        METASPACE_OLD | {"add_prefix_space": False, "prepend_scheme": "never"},
        METASPACE | {"replacement": "_"},
        sequence(METASPACE),
        sequence(sequence(METASPACE), FUSE),
    ),
    "wordpiece": (WORDPIECE, WORDPIECE_PLAIN, sequence(WORDPIECE), WORDPIECE | {"prefix": "#"}),
    "bpe_suffix": (BPE_SUFFIX, sequence(BPE_SUFFIX)),
    "plain": (None,),
}

NORMALIZERS: tuple[dict[str, Any] | None, ...] = (
    None,
    None,
    {"type": "NFC"},
    {"type": "Lowercase"},
    {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]},
    {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": MARK},
            {"type": "Replace", "pattern": {"String": " "}, "content": MARK},
        ],
    },
)


@st.composite
def split(draw: st.DrawFn, data: bytes) -> tuple[bytes, ...]:
    """`data` cut at random places, inside characters too."""
    inside = st.integers(1, max(1, len(data) - 1))
    cuts = sorted(draw(st.sets(inside, min_size=min(1, len(data) - 1), max_size=6)))
    edges = [0, *cuts, len(data)]
    return tuple(data[start:end] for start, end in itertools.pairwise(edges) if start < end)


@st.composite
def byte_members(draw: st.DrawFn) -> tuple[list[bytes], list[list[bytes]]]:
    """Byte strings for a vocabulary, and which of them spell something together."""
    phrases = [
        list(draw(split(text.encode())))
        for text in draw(st.lists(st.sampled_from(NASTY_TEXTS), min_size=1, max_size=4, unique=True))
    ]
    loose = draw(st.lists(st.sampled_from(NASTY_BYTES), max_size=6, unique=True))
    odd = draw(st.lists(st.binary(max_size=4), max_size=3))
    members = [part for phrase in phrases for part in phrase] + [bytes([byte]) for byte in loose] + odd
    return list(dict.fromkeys(members)), phrases


def added_tokens(members: Sequence[str]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Special and plain ones; some are in the vocabulary, some come twice with other flags."""
    flags = {name: st.just(False) for name in ("single_word", "lstrip", "rstrip")}
    contents = st.sampled_from(ADDED_CONTENTS)
    if members:
        contents |= st.sampled_from(list(members))
    entry = st.fixed_dictionaries(
        {
            "id": st.integers(0, 60),
            "content": contents,
            **flags,
            "normalized": st.booleans(),
            "special": st.booleans(),
        }
    )
    return st.lists(entry, max_size=5)


@st.composite
def models(draw: st.DrawFn, strings: Sequence[str], kinds: Sequence[str]) -> tuple[dict[str, Any], dict[str, int]]:
    """A model section with these strings, and their ids. Gaps where the layout has room for them."""
    kind = draw(st.sampled_from(kinds))
    gap = st.just(1) if kind == "Unigram" else st.sampled_from([1, 1, 1, 1, 2, 3])
    ids, at = {}, 0 if kind == "Unigram" else draw(st.sampled_from([0, 0, 1]))
    for text in strings:
        ids[text] = at
        at += draw(gap)
    model: dict[str, Any] = {"type": kind, "vocab": ids}
    if kind == "BPE":
        model["merges"] = []
    elif kind == "Unigram":
        model |= {"vocab": [[text, -1.0] for text in strings], "unk_id": None}
    else:
        model["unk_token"] = "[UNK]"
        if kind == "WordPiece":
            model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    if draw(st.booleans()):
        del model["type"]  # files of before 2021
    return model, ids


def document(model: dict[str, Any], decoder: Any, added: list[dict[str, Any]], normalizer: Any) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def phrase_ids(phrases: Sequence[Sequence[str]], ids: dict[str, int]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(ids[part] for part in phrase) for phrase in phrases)


@st.composite
def byte_level(draw: st.DrawFn) -> Drawn:
    members, phrases = draw(byte_members())
    strings = [spelled(part) for part in members]
    # Pieces that are not in the byte alphabet come out as they are.
    strings += draw(st.lists(st.sampled_from((MARK + "x", "\u4f60", " ", "a b")), max_size=2, unique=True))
    strings = list(dict.fromkeys(strings))
    model, ids = draw(models(strings, ["BPE", "BPE", "WordLevel"]))
    decoder = draw(st.sampled_from(DECODERS["byte_level"]))
    normalizer = draw(st.sampled_from((*NORMALIZERS, {"type": "ByteLevel"})))
    added = draw(added_tokens(strings))
    spelled_phrases = [[spelled(part) for part in phrase] for phrase in phrases]
    return Drawn("json", "byte_level", document(model, decoder, added, normalizer), phrase_ids(spelled_phrases, ids))


def without_suffixes(text: str) -> str:
    while text.endswith("</w>"):
        text = text.removesuffix("</w>")
    return text


@st.composite
def string_vocabulary(draw: st.DrawFn, family: str) -> Drawn:
    """The families whose decoders work on strings."""
    strings = draw(st.lists(st.sampled_from(PIECES[family]), min_size=1, max_size=8, unique=True))
    phrases: list[list[str]] = []
    if family == "byte_fallback":
        for text in draw(st.lists(st.sampled_from(NASTY_TEXTS), min_size=1, max_size=3)):
            phrases.append([f"<0x{byte:02X}>" for byte in text.encode()[:8]])
        strings += [part for phrase in phrases for part in phrase]
        strings += draw(st.lists(st.sampled_from(BYTE_PIECES), max_size=5))
    strings = list(dict.fromkeys(strings))
    model, ids = draw(models(strings, ["BPE", "WordLevel", "WordPiece", "Unigram"]))
    decoder = draw(st.sampled_from(DECODERS[family]))
    added = draw(added_tokens(strings))
    if family == "bpe_suffix":
        # A suffix inside a token would keep the rest of it back until the next token comes.
        added = [entry for entry in added if "</w>" not in without_suffixes(entry["content"])]
    content = document(model, decoder, added, draw(st.sampled_from(NORMALIZERS)))
    return Drawn("json", family, content, phrase_ids(phrases, ids))


@st.composite
def token_bytes(draw: st.DrawFn) -> Drawn:
    members, phrases = draw(byte_members())
    table: list[bytes | None] = [*members]
    for at in draw(st.lists(st.integers(0, len(table)), max_size=2)):
        table.insert(at, None)
    special = draw(st.sets(st.sampled_from([n for n, data in enumerate(table) if data is not None]), max_size=2))
    ids = {data: n for n, data in enumerate(table) if data is not None}
    spelled_phrases = tuple(tuple(ids[part] for part in phrase) for phrase in phrases)
    return Drawn("bytes", None, table, spelled_phrases, {"special_token_ids": sorted(special)})


@st.composite
def sentencepiece(draw: st.DrawFn) -> Drawn:
    """A .model: normal, user-defined, control, unknown and byte pieces. No piece is empty there."""
    normal = draw(st.lists(st.sampled_from([p for p in PIECES["byte_fallback"] if p and "<" not in p]), unique=True))
    kinds = {"<unk>": "unknown"} | {text: "normal" for text in normal if text != " " and text != " b"}
    for text in draw(st.lists(st.sampled_from(("<s>", "</s>", "[INST]")), unique=True)):
        kinds[text] = "control"
    for text in draw(st.lists(st.sampled_from(("<|u|>", MARK + "two" + MARK + "words", "\n")), unique=True)):
        kinds[text] = "user_defined"
    phrases = []
    if draw(st.booleans()):
        # SentencePiece takes all 256 byte pieces or none.
        kinds |= {f"<0x{byte:02X}>": "byte" for byte in range(256)}
        phrases = [
            [f"<0x{byte:02X}>" for byte in text.encode()[:8]]
            for text in draw(st.lists(st.sampled_from(NASTY_TEXTS), min_size=1, max_size=3))
        ]
    pieces = list(kinds.items())
    ids = {text: n for n, text in enumerate(kinds)}
    flags = {"add_dummy_prefix": draw(st.booleans()), "remove_extra_whitespaces": draw(st.booleans())}
    return Drawn("pieces", None, pieces, phrase_ids(phrases, ids), flags)


def json_vocabularies() -> st.SearchStrategy[Drawn]:
    return st.one_of(byte_level(), *(string_vocabulary(family) for family in PIECES))


def vocabularies() -> st.SearchStrategy[Drawn]:
    """Every compiled family; those with parts of characters twice, for they have most to get wrong."""
    in_bytes = [byte_level(), token_bytes(), string_vocabulary("byte_fallback"), sentencepiece()]
    return st.one_of(*in_bytes, *in_bytes, *(string_vocabulary(family) for family in PIECES))


# ---------------------------------------------------------------- streams


@st.composite
def id_streams(draw: st.DrawFn, drawn: Drawn, *, unknown: bool = False, max_size: int = 14) -> list[int]:
    """Ids of the vocabulary, whole phrases and special tokens among them, now and then one it does not map."""
    known = drawn.known_ids()
    if drawn.form == "pieces" and len(known) > 256:
        # Otherwise byte pieces would be nearly all there is.
        lead = [n for n, (_, kind) in enumerate(drawn.content) if kind != "byte"]
        known = lead + [n for n, (text, _) in enumerate(drawn.content) if text in BYTE_PIECES]
    parts = [st.sampled_from(known).map(lambda token_id: (token_id,))]
    if drawn.phrases:
        parts += [st.sampled_from(drawn.phrases)] * 2
    specials = [token_id for token_id in known if drawn.reference.tokens[token_id].special]
    if specials:
        parts.append(st.sampled_from(specials).map(lambda token_id: (token_id,)))
    if unknown:
        gaps = sorted(set(range(max(known))) - set(drawn.known_ids()))
        parts.append(st.sampled_from([UNMAPPED, FAR_UNMAPPED, *gaps]).map(lambda token_id: (token_id,)))
    size = draw(st.integers(0, max_size))
    token_ids = [token_id for ids in draw(st.lists(st.one_of(parts), min_size=size, max_size=size)) for token_id in ids]
    if specials and len(token_ids) > 1 and draw(st.integers(0, 3)) == 0:
        # A special token between the parts of a character.
        token_ids.insert(draw(st.integers(1, len(token_ids) - 1)), draw(st.sampled_from(specials)))
    return token_ids


@st.composite
def groupings(draw: st.DrawFn, token_ids: Sequence[int]) -> list[list[int]]:
    """The ids cut into calls, some of them empty."""
    cuts = sorted(draw(st.lists(st.integers(0, len(token_ids)), max_size=6)))
    edges = [0, *cuts, len(token_ids)]
    return [list(token_ids[start:end]) for start, end in itertools.pairwise(edges)]


@st.composite
def stream_options(draw: st.DrawFn, drawn: Drawn, **fixed: Any) -> dict[str, Any]:
    specials = [token_id for token_id, token in drawn.reference.tokens.items() if token.special]
    keep: list[int | str] = draw(st.lists(st.sampled_from(specials), max_size=2, unique=True)) if specials else []
    # By name too, where the name leads to that id.
    names = {token_id: name for name, token_id in drawn.reference.names.items()}
    if draw(st.booleans()):
        keep = [names.get(token_id, token_id) for token_id in keep]
    options = {
        "skip_special_tokens": draw(st.sampled_from([True, True, False])),
        "keep_special_tokens": keep,
        "min_bytes_to_buffer": draw(st.sampled_from([0, 0, 0, 1, 2, 3, 5, 32])),
        "unknown_ids": draw(st.sampled_from(["error", "skip"])),
    }
    return options | fixed


@dataclass(frozen=True)
class Case:
    """A whole run: vocabulary, options, prompt, ids and how they come."""

    drawn: Drawn
    options: dict[str, Any]
    prompt: list[int]
    groups: list[list[int]]

    @property
    def token_ids(self) -> list[int]:
        return [token_id for group in self.groups for token_id in group]


@st.composite
def cases(draw: st.DrawFn, source: st.SearchStrategy[Drawn] | None = None, **fixed: Any) -> Case:
    drawn = draw(source if source is not None else vocabularies())
    options = draw(stream_options(drawn, **fixed))
    token_ids = draw(id_streams(drawn, unknown=options["unknown_ids"] == "skip"))
    prompt: list[int] = []
    if draw(st.sampled_from([True, True, False])):
        # The prompt ends where it ends, often inside a character, and may hold ids that the tokenizer does not map.
        end = draw(st.integers(0, len(token_ids)))
        prompt, token_ids = token_ids[:end], token_ids[end:]
        for token_id in draw(st.lists(st.sampled_from([UNMAPPED, FAR_UNMAPPED]), max_size=2)):
            prompt.insert(draw(st.integers(0, len(prompt))), token_id)
    return Case(drawn, options, prompt, draw(groupings(token_ids)))


# ---------------------------------------------------------------- values


@st.composite
def decoded_texts(draw: st.DrawFn) -> reference.DecodedText:
    """Any text with any legal records, as a constructor takes them."""
    text = "".join(draw(st.lists(st.sampled_from("a \u00e9\u4f60\U0001f600\ufffd"), max_size=8)))
    edges = reference.boundaries(text)
    places = sorted(draw(st.lists(st.sampled_from(edges), max_size=8)))
    records: list[reference.Record] = []
    for place in places:
        visible = draw(st.booleans())
        shared = any(record.visible and record.byte_offset == place for record in records)
        # Two tokens cannot both hold the first byte of one character, and at the end of text there is none.
        continues = visible and (shared or place == edges[-1] or draw(st.booleans()))
        token_id = draw(st.integers(0, 2**32 - 1))
        records.append(reference.Record(token_id, visible, place, continues, draw(st.booleans())))
    return reference.DecodedText(text, records)


# ---------------------------------------------------------------- requests

NEVER = "\x01"  # a character that hardly any drawn vocabulary spells


@dataclass(frozen=True)
class Request:
    """A whole request: what its decoder is made with, and what the engine reports, as keyword arguments.

    A position of `logprobs` and `prompt_logprobs` is (form, [(id, logprob, rank)], the sampled one first) or None.
    """

    drawn: Drawn
    options: dict[str, Any]
    prompt: list[int]
    updates: list[dict[str, Any]]

    @property
    def token_ids(self) -> list[int]:
        return [token_id for update in self.updates for token_id in update["token_ids"]]

    @property
    def text(self) -> str:
        return visible_text(self.drawn, self.options, self.prompt, self.token_ids)


def visible_text(drawn: Drawn, options: dict[str, Any], prompt: Sequence[int], token_ids: Sequence[int]) -> str:
    """All that is certain behind these ids; none of them stops anything."""
    hidden = drawn.reference.hidden(options["skip_special_tokens"], options["keep_special_tokens"])
    return reference.ExactDecoder(drawn.reference, prompt, hidden).certain(token_ids).text


@st.composite
def stop_lists(draw: st.DrawFn, text: str, max_size: int = 4) -> list[str]:
    """Parts of the text, and beginnings of parts that go on otherwise, so that there is often something to hold."""
    stops = []
    for _ in range(draw(st.integers(0, max_size))):
        start = draw(st.integers(0, max(0, len(text) - 1)))
        stop = text[start : start + draw(st.integers(1, 5))]
        stop += draw(st.sampled_from(["", "", NEVER, NEVER * 3]))
        stops.append(stop or draw(st.sampled_from(NASTY_TEXTS)))
    return stops


def crowd(text: str, size: int = 100) -> list[str]:
    """Many stops of which none can complete; each part of the text begins one."""
    parts = {text[start:end] for start in range(len(text)) for end in range(start + 1, min(len(text), start + 9) + 1)}
    never = next(char for char in map(chr, range(1, 0x250)) if char not in text)
    stops = [part + never for part in sorted(parts)][:size]
    return stops + [never + str(n) for n in range(size - len(stops))]


@st.composite
def request_options(
    draw: st.DrawFn, drawn: Drawn, prompt: Sequence[int], token_ids: Sequence[int], **fixed: Any
) -> dict[str, Any]:
    options = draw(stream_options(drawn))
    options |= {name: value for name, value in fixed.items() if name in options}
    stops: Any = draw(stop_lists(visible_text(drawn, options, prompt, token_ids)))
    if len(stops) < 2:
        # One stop is also taken by itself, none also as None.
        stops = draw(st.sampled_from([stops, stops[0] if stops else None]))
    stop_ids = []
    if draw(st.integers(0, 2)) == 0:
        stop_ids = draw(st.lists(st.sampled_from([*token_ids, *drawn.known_ids(), UNMAPPED]), max_size=2))
    options |= {
        "stop": stops,
        "stop_token_ids": stop_ids,
        "include_stop_str_in_output": draw(st.sampled_from([False, False, True])),
        "min_tokens": draw(st.sampled_from([0, 0, 0, 1, 2, 3, 5, len(token_ids)])),
        "fragments": draw(st.sampled_from(reference_events.FRAGMENTS)),
    }
    return options | fixed


@st.composite
def logprobs(draw: st.DrawFn, drawn: Drawn, token_ids: Sequence[int], *, gaps: bool = False) -> list[Any]:
    """One position for each id; with `gaps` some are missing, as of a prompt's first id."""
    others = st.sampled_from([*drawn.known_ids(), UNMAPPED])
    numbers = st.sampled_from([-0.5, 0.0, -1e300, float("-inf"), float("nan")])
    ranks = st.sampled_from([None, 1, 7])
    positions: list[Any] = []
    for token_id in token_ids:
        form = draw(st.sampled_from(["number", "one", "list", "numbers", "objects", *(["none"] if gaps else [])]))
        ids = [token_id, *(draw(st.lists(others, max_size=2)) if form != "one" else [])]
        candidates = [(candidate, draw(numbers), draw(ranks)) for candidate in dict.fromkeys(ids)]
        positions.append(None if form == "none" else (form, candidates))
    return positions


@st.composite
def endings(draw: st.DrawFn, drawn: Drawn, last: int | None) -> dict[str, Any]:
    """What the engine says with the last update."""
    reason = draw(st.sampled_from(["length", "stop", "stop", "stop", "abort", "repetition"]))
    if reason != "stop":
        return {"finish_reason": reason}
    ids = [*drawn.known_ids(), *([] if last is None else [last, last, last])]
    causes = [{}, {"stop_string": "the engine's"}, {"stop_token_id": draw(st.sampled_from(ids))}]
    return {"finish_reason": "stop"} | draw(st.sampled_from(causes))


@st.composite
def engine_updates(
    draw: st.DrawFn, drawn: Drawn, groups: Sequence[Sequence[int]], *, with_logprobs: bool | None = None
) -> list[dict[str, Any]]:
    """The ids in these groups, the last of them with an end, and what comes beside the ids."""
    with_logprobs = draw(st.booleans()) if with_logprobs is None else with_logprobs
    updates: list[dict[str, Any]] = []
    for group in groups:
        update: dict[str, Any] = {"token_ids": list(group)}
        if with_logprobs:
            update["logprobs"] = draw(logprobs(drawn, group))
        if draw(st.integers(0, 3)) == 0:
            update |= {
                "cached_token_count": draw(st.integers(0, 9)),
                "kv_transfer_params": draw(st.none() | st.just({"a": 1})),
            }
        updates.append(update)
    last = updates[-1]["token_ids"]
    updates[-1] |= draw(endings(drawn, last[-1] if last else None))
    return updates


@st.composite
def requests(
    draw: st.DrawFn,
    source: st.SearchStrategy[Drawn] | None = None,
    *,
    with_logprobs: bool | None = None,
    **fixed: Any,
) -> Request:
    case = draw(cases(source, unknown_ids="skip"))
    options = draw(request_options(case.drawn, case.prompt, case.token_ids, **fixed))
    groups = case.groups
    if options["unknown_ids"] == "error" and draw(st.integers(0, 3)) > 0:
        # Now and then they stay: an update of them raises, the others go on.
        groups = [[token_id for token_id in group if token_id in case.drawn.reference.tokens] for group in groups]
    updates = draw(engine_updates(case.drawn, groups, with_logprobs=with_logprobs))
    return Request(case.drawn, options, case.prompt, updates)
