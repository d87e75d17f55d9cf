"""The slow, obvious twin of the library: one-shot decoding, streams and attribution in plain Python.

It keeps every id and works everything out again after each one. What is *certain* is taken by its definition: the
text that all ways to go on have in common, tried out with a handful of probes. Nothing here is fast, nothing is
shared with the library, so that two mistakes would have to agree to go unseen.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

MARKER = "\u2581"
PROMPT = -1  # the source of every byte of the prompt
WINDOW_LIMIT = 32
SAFE_SUFFIX_MIN = 4
SAFE_SUFFIX_MAX = 6


class DetokError(Exception):
    """Base, named as in the library so that tests compare errors by name."""


class UnknownTokenError(DetokError, ValueError):
    def __init__(self, token_id: int, index: int) -> None:
        super().__init__(f"unknown token id {token_id} at index {index}")
        self.token_id = token_id
        self.index = index


class StreamFinishedError(DetokError, RuntimeError):
    pass


class StateError(DetokError, ValueError):
    pass


# ---------------------------------------------------------------- bytes -> characters


@dataclass(frozen=True)
class Cell:
    """One character of output and the token of each byte that made it, in order."""

    char: str
    sources: tuple[int, ...]
    broken: bool = False  # U+FFFD that stands for bytes which are no character
    raw: bytes | None = field(default=None, compare=False)  # what the tokens gave, where it is not the character

    @property
    def data(self) -> bytes:
        return self.char.encode() if self.raw is None else self.raw

    def bytes_from(self, source: int) -> bytes:
        """The bytes that one token gave. A character put in the place of others counts, if it is all that token's."""
        if set(self.sources) == {source}:
            return self.data
        return bytes(byte for byte, giver in zip(self.data, self.sources, strict=True) if giver == source)


def second_byte_range(lead: int) -> tuple[int, int]:
    """The legal second bytes after a lead; narrower than 80..BF where overlong forms and surrogates hide."""
    return {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}.get(lead, (0x80, 0xBF))


def char_length(lead: int) -> int:
    """How long the character is that this byte opens; 0 if it opens none."""
    if lead < 0x80:
        return 1
    if 0xC2 <= lead <= 0xDF:
        return 2
    if 0xE0 <= lead <= 0xEF:
        return 3
    return 4 if 0xF0 <= lead <= 0xF4 else 0


def utf8_cells(data: Sequence[tuple[int, int]], *, bytewise: bool) -> list[Cell]:
    """Decodes (byte, source) pairs. A broken part gives one U+FFFD, or one for each of its bytes if `bytewise`."""
    cells = []
    at = 0
    while at < len(data):
        lead = data[at][0]
        want = char_length(lead)
        have = 1
        while have < want and at + have < len(data):
            low, high = second_byte_range(lead) if have == 1 else (0x80, 0xBF)
            if not low <= data[at + have][0] <= high:
                break
            have += 1
        part = data[at : at + have]
        if have == want:
            char = bytes(byte for byte, _ in part).decode("utf-8")
            cells.append(Cell(char, tuple(source for _, source in part)))
        elif bytewise:
            cells.extend(Cell("\ufffd", (source,), broken=True, raw=bytes([byte])) for byte, source in part)
        else:
            raw = bytes(byte for byte, _ in part)
            cells.append(Cell("\ufffd", tuple(source for _, source in part), broken=True, raw=raw))
        at += have
    return cells


@lru_cache(maxsize=1 << 16)
def cells_once(text: str, source: int) -> tuple[Cell, ...]:
    return tuple(Cell(char, (source,) * len(char.encode())) for char in text)


def text_cells(text: str, source: int) -> list[Cell]:
    return list(cells_once(text, source))


def text_of(cells: Iterable[Cell]) -> str:
    return "".join(cell.char for cell in cells)


def common_prefix(lists: Sequence[list[Cell]]) -> list[Cell]:
    shared = []
    for row in zip(*lists, strict=False):
        if any(cell != row[0] for cell in row):
            break
        shared.append(row[0])
    return shared


# ---------------------------------------------------------------- decoder steps of a tokenizer.json


@dataclass
class Piece:
    """What one token has become so far. `literal` text bypasses the byte map (D2)."""

    cells: list[Cell]
    source: int
    literal: bool = False

    @property
    def text(self) -> str:
        return text_of(self.cells)


Step = Callable[[list[Piece]], list[Piece]]


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable letters for the 256 bytes."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in plain}
    rest = [byte for byte in range(256) if byte not in plain]
    letters.update({chr(256 + n): byte for n, byte in enumerate(rest)})
    return letters


BYTE_OF_LETTER = byte_alphabet()
LETTER_OF_BYTE = {byte: letter for letter, byte in BYTE_OF_LETTER.items()}


def to_letters(data: bytes) -> str:
    return "".join(LETTER_OF_BYTE[byte] for byte in data)


def byte_level_step(pieces: list[Piece]) -> list[Piece]:
    data: list[tuple[int, int]] = []
    for piece in pieces:
        text = piece.text
        if not piece.literal and all(char in BYTE_OF_LETTER for char in text):
            data += [(BYTE_OF_LETTER[cell.char], cell.sources[0]) for cell in piece.cells]
        else:
            for cell in piece.cells:
                encoded = cell.char.encode()
                # A character that was replaced may have more or fewer sources than bytes.
                sources = (cell.sources + cell.sources[-1:] * len(encoded))[: len(encoded)]
                data += list(zip(encoded, sources, strict=True))
    return [Piece(utf8_cells(data, bytewise=False), pieces[0].source if pieces else PROMPT)]


def byte_of_piece(text: str) -> int | None:
    """The byte a piece like `<0x41>` stands for, by the rules of Rust's integer parser: a sign `+` is legal."""
    data = text.encode()
    if len(data) != 6 or not data.startswith(b"<0x") or not data.endswith(b">"):
        return None
    digits = data[3:5]
    if digits.startswith(b"+"):
        digits = digits[1:]
    if not all(digit in b"0123456789abcdefABCDEF" for digit in digits):
        return None
    return int(digits, 16)


def byte_fallback_step(whole_runs: bool) -> Step:
    """`whole_runs` is the crate's rule: one bad byte spoils the run (the other side of D1)."""

    def run_pieces(run: list[tuple[int, int]]) -> list[Piece]:
        if not run:
            return []
        cells = utf8_cells(run, bytewise=True)
        if whole_runs and any(cell.broken for cell in cells):
            return [Piece([Cell("\ufffd", (source,), broken=True)], source) for _, source in run]
        return [Piece(cells, run[0][1])]

    def step(pieces: list[Piece]) -> list[Piece]:
        out: list[Piece] = []
        run: list[tuple[int, int]] = []
        for piece in pieces:
            byte = byte_of_piece(piece.text)
            if byte is not None:
                run.append((byte, piece.source))
                continue
            out += run_pieces(run)
            run = []
            out.append(piece)
        return out + run_pieces(run)

    return step


def replace_step(pattern: str, content: str) -> Step:
    def replaced(piece: Piece) -> Piece:
        if pattern not in piece.text:
            return piece
        cells: list[Cell] = []
        at = 0
        while at < len(piece.cells):
            match = piece.cells[at : at + len(pattern)]
            if text_of(match) != pattern:
                cells.append(piece.cells[at])
                at += 1
                continue
            sources = tuple(source for cell in match for source in cell.sources)
            raw = b"".join(cell.data for cell in match) if len(set(sources)) > 1 else None
            for n, char in enumerate(content):
                cells.append(Cell(char, sources, raw=raw) if n == 0 else Cell(char, sources[-1:]))
            at += len(pattern)
        return replace(piece, cells=cells)

    return lambda pieces: [replaced(piece) for piece in pieces]


def fuse_step(pieces: list[Piece]) -> list[Piece]:
    return [Piece([cell for piece in pieces for cell in piece.cells], pieces[0].source if pieces else PROMPT)]


def strip_step(content: str, start: int, stop: int) -> Step:
    def stripped(piece: Piece) -> Piece:
        cells = piece.cells
        for _ in range(start):
            if cells and cells[0].char == content:
                cells = cells[1:]
        for _ in range(stop):
            if cells and cells[-1].char == content:
                cells = cells[:-1]
        return replace(piece, cells=cells)

    return lambda pieces: [stripped(piece) for piece in pieces]


def metaspace_step(marker: str, prepend: bool, first_loses_all: bool) -> Step:
    """`first_loses_all` is the crate's rule: every marker of the first piece vanishes (the other side of D3)."""

    def step(pieces: list[Piece]) -> list[Piece]:
        out = []
        for n, piece in enumerate(pieces):
            cells = []
            for at, cell in enumerate(piece.cells):
                if cell.char != marker:
                    cells.append(cell)
                elif not (n == 0 and prepend and (at == 0 or first_loses_all)):
                    cells.append(replace(cell, char=" "))
            out.append(replace(piece, cells=cells))
        return out

    return step


CLEAN_UPS = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


def wordpiece_step(prefix: str, cleanup: bool) -> Step:
    def step(pieces: list[Piece]) -> list[Piece]:
        out = []
        for n, piece in enumerate(pieces):
            text = piece.text
            if n > 0:
                text = text.removeprefix(prefix) if text.startswith(prefix) else " " + text
            for untidy, tidy in CLEAN_UPS if cleanup else ():
                text = text.replace(untidy, tidy)
            out.append(replace(piece, cells=text_cells(text, piece.source)))
        return out

    return step


def bpe_suffix_step(suffix: str) -> Step:
    """The suffix is a blank, but in the last piece nothing. A blank between two pieces belongs to the later one."""

    def step(pieces: list[Piece]) -> list[Piece]:
        out = []
        for n, piece in enumerate(pieces):
            last = n == len(pieces) - 1
            parts = piece.text.split(suffix)
            trailing = 0
            while trailing < len(parts) - 1 and parts[-1 - trailing] == "":
                trailing += 1
            inner = ("" if last else " ").join(parts[: len(parts) - trailing])
            cells = text_cells(inner, piece.source)
            if not last:
                cells += text_cells(" " * trailing, pieces[n + 1].source)
            out.append(replace(piece, cells=cells))
        return out

    return step


def join_step(pieces: list[Piece]) -> list[Piece]:
    """No decoder at all: pieces are joined with blanks, each owned by the piece behind it."""
    return [
        replace(piece, cells=(text_cells(" ", piece.source) if n else []) + piece.cells)
        for n, piece in enumerate(pieces)
    ]


class NotExact(Exception):
    """The decoder has a part that only the window strategy can run."""


def steps_of(decoder: Mapping[str, Any] | None, crate: frozenset[str]) -> tuple[list[Step], list[str]]:
    """The steps of a decoder section, and strings that could complete a match begun before."""
    if decoder is None:
        return [join_step], []
    kind = decoder["type"]
    if kind == "Sequence":
        steps: list[Step] = []
        probes: list[str] = []
        for part in decoder["decoders"]:
            inner, strings = steps_of(part, crate)
            steps += inner
            probes += strings
        return steps, probes
    if kind == "ByteLevel":
        return [byte_level_step], []
    if kind == "ByteFallback":
        return [byte_fallback_step("D1" in crate)], []
    if kind == "Fuse":
        return [fuse_step], []
    if kind == "Replace":
        pattern = decoder["pattern"].get("String")
        if not pattern:
            raise NotExact("Replace with a regular expression")
        return [replace_step(pattern, decoder["content"])], [pattern[n:] for n in range(1, len(pattern))]
    if kind == "Strip":
        return [strip_step(decoder["content"], decoder["start"], decoder["stop"])], []
    if kind == "Metaspace":
        scheme = decoder.get("prepend_scheme", "always")
        prepend = scheme != "never" and decoder.get("add_prefix_space") is not False
        return [metaspace_step(decoder["replacement"], prepend, "D3" in crate)], []
    if kind == "WordPiece":
        return [wordpiece_step(decoder["prefix"], decoder["cleanup"])], []
    if kind == "BPEDecoder":
        return [bpe_suffix_step(decoder["suffix"])], [decoder["suffix"]]
    raise NotExact(kind)


# Whatever state a decoder is in, one of these completes it, breaks it or leaves it.
TAILS = (b"\x80", b"\x80\x80", b"\x80\x80\x80", b"\xa0\x80", b"\x90\x80\x80")
TEXT_PROBES = ("x", " ", MARKER, "")


# ---------------------------------------------------------------- normalizers (only what added tokens meet)


def normalize(text: str, normalizer: Mapping[str, Any] | None) -> str:
    if normalizer is None:
        return text
    kind = normalizer["type"]
    if kind == "Sequence":
        for part in normalizer["normalizers"]:
            text = normalize(text, part)
        return text
    if kind in ("NFC", "NFD", "NFKC", "NFKD"):
        return unicodedata.normalize(kind, text)
    if kind == "Lowercase":
        return "".join(char.lower() for char in text)  # letter by letter: no final sigma
    if kind == "Strip":
        text = text.lstrip() if normalizer["strip_left"] else text
        return text.rstrip() if normalizer["strip_right"] else text
    if kind == "Prepend":
        return normalizer["prepend"] + text if text else text
    if kind == "Replace" and "String" in normalizer["pattern"]:
        return text.replace(normalizer["pattern"]["String"], normalizer["content"])
    if kind == "ByteLevel":
        return to_letters(text.encode())
    raise ValueError(f"normalizer {kind}")


def inverts_bytes(normalizer: Mapping[str, Any] | None) -> bool:
    """Whether the normalizer writes text in the byte alphabet, so that the byte map is its inverse."""
    if normalizer is None:
        return False
    if normalizer["type"] == "Sequence":
        return any(inverts_bytes(part) for part in normalizer["normalizers"])
    return normalizer["type"] == "ByteLevel"


# ---------------------------------------------------------------- vocabularies


@dataclass(frozen=True)
class Token:
    """One entry: its string (or its bytes, in byte vocabularies) and what the decoder must know of it."""

    text: str = ""
    name: str = ""
    data: bytes | None = None
    special: bool = False
    literal: bool = False
    kind: str = "normal"  # of a SentencePiece piece


CRATE_RULES = frozenset({"D1", "D2", "D3"})


@dataclass
class Vocabulary:
    """Token id -> token, and how a list of tokens becomes cells."""

    tokens: dict[int, Token]
    names: dict[str, int]
    run: Callable[[list[tuple[int, Token]]], list[Cell]]
    probes: list[list[Token]]
    one_shot: Callable[[list[tuple[int, Token]]], list[Cell]] | None = None
    numbering_differs: bool = False  # the file names other ids for added tokens than they get
    bytewise: bool = False  # each broken byte has a U+FFFD of its own
    added: Mapping[int, bool] = field(
        default_factory=dict
    )  # those of `added_tokens`: whether the last entry says special

    @classmethod
    def from_json(
        cls, data: Mapping[str, Any], *, strict: bool = False, crate: frozenset[str] | None = None
    ) -> Vocabulary:
        """Reads a tokenizer.json's content. `strict` gives D2 and D3 the crate's answer, and D1 in `decode` only;
        `crate` names the cases that are decided as the crate does, streams included."""
        rules = crate if crate is not None else (frozenset({"D2", "D3"}) if strict else frozenset())
        model = data["model"]["vocab"]
        if isinstance(model, list):
            strings = {n: entry[0] for n, entry in enumerate(model)}
        else:
            strings = {token_id: text for text, token_id in model.items()}
        id_of = {text: token_id for token_id, text in strings.items()}

        normalizer = data.get("normalizer")
        contents: dict[int, str] = {}
        normalized: dict[int, str] = {}
        specials: set[str] = set()
        added_ids: dict[str, int] = {}
        added: dict[int, bool] = {}
        next_id = len(model)
        differs = False
        for entry in data.get("added_tokens") or ():
            content = entry["content"]
            if not content:
                continue
            token_id = added_ids.get(content, id_of.get(content))
            if token_id is None:
                token_id = next_id
                next_id += 1
            differs = differs or token_id != entry.get("id", token_id)
            if entry["normalized"]:
                form = normalize(content, normalizer)
                if form != content:
                    normalized[token_id] = form
            if entry["special"]:
                specials.add(content)
            added_ids[content] = token_id
            contents[token_id] = content
            added[token_id] = entry["special"]

        literal = "D2" not in rules
        tokens = {token_id: Token(text, text, special=text in specials) for token_id, text in strings.items()}
        for token_id, content in contents.items():
            text = normalized.get(token_id, content)
            inverted = token_id in normalized and inverts_bytes(normalizer)
            tokens[token_id] = Token(text, content, special=text in specials, literal=literal and not inverted)

        def runner(rules: frozenset[str]) -> tuple[Callable[[list[tuple[int, Token]]], list[Cell]], list[str]]:
            steps, strings = steps_of(data.get("decoder"), rules)

            def run(tokens: list[tuple[int, Token]]) -> list[Cell]:
                pieces = [Piece(text_cells(token.text, source), source, token.literal) for source, token in tokens]
                for step in steps:
                    pieces = step(pieces)
                return [cell for piece in pieces for cell in piece.cells]

            return run, strings

        run, strings_to_try = runner(rules)
        probes = [[Token(text)] for text in (*TEXT_PROBES, *strings_to_try)]
        probes += [[Token(f"<0x{byte:02X}>") for byte in tail] for tail in TAILS]
        probes += [[Token(to_letters(tail))] for tail in TAILS]
        one_shot = runner(rules | {"D1"})[0] if strict else None
        # Where an added token takes the id of another, the other's name leads nowhere.
        names = {name: token_id for name, token_id in {**id_of, **added_ids}.items() if tokens[token_id].name == name}
        bytewise = '"ByteFallback"' in json.dumps(data.get("decoder"))
        return cls(tokens, names, run, probes, one_shot, differs, bytewise, added)

    @classmethod
    def from_token_bytes(cls, tokens: Sequence[bytes | None], special_token_ids: Iterable[int] = ()) -> Vocabulary:
        """A byte vocabulary given as data: index = id, None = unmapped."""
        special = set(special_token_ids)
        table = {n: Token(data=data, special=n in special) for n, data in enumerate(tokens) if data is not None}

        def run(tokens: list[tuple[int, Token]]) -> list[Cell]:
            return utf8_cells(
                [(byte, source) for source, token in tokens for byte in token.data or b""], bytewise=False
            )

        probes = [[Token(data=tail)] for tail in (*TAILS, b"x")]
        return cls(table, {}, run, probes)

    @classmethod
    def from_pieces(
        cls,
        pieces: Sequence[tuple[str, str]],
        *,
        add_dummy_prefix: bool = True,
        remove_extra_whitespaces: bool = True,
    ) -> Vocabulary:
        """A SentencePiece model: (piece, "normal" | "unknown" | "control" | "user_defined" | "byte" | "unused")."""
        table = {
            n: Token(text, text, special=kind in ("unknown", "control"), kind=kind)
            for n, (text, kind) in enumerate(pieces)
        }

        def run(tokens: list[tuple[int, Token]]) -> list[Cell]:
            cells: list[Cell] = []
            run_of_bytes: list[tuple[int, int]] = []
            blank_taken = False
            for source, token in tokens:
                if token.kind == "byte":
                    run_of_bytes.append((int(token.text[3:5], 16), source))
                    continue
                cells += utf8_cells(run_of_bytes, bytewise=True)
                run_of_bytes = []
                piece = text_cells(token.text, source)
                if token.kind in ("unknown", "control"):  # shown by name, markers and all
                    cells += piece
                    continue
                at_start = not cells and not blank_taken and (add_dummy_prefix or remove_extra_whitespaces)
                if at_start and token.text.startswith(MARKER):
                    piece = piece[1:]
                    blank_taken = not remove_extra_whitespaces
                cells += [replace(cell, char=" ") if cell.char == MARKER else cell for cell in piece]
            return cells + utf8_cells(run_of_bytes, bytewise=True)

        probes = [[Token(text)] for text in TEXT_PROBES]
        probes += [[Token(f"<0x{byte:02X}>", kind="byte") for byte in tail] for tail in TAILS]
        return cls(table, {text: n for n, (text, _) in enumerate(pieces)}, run, probes, bytewise=True)

    # -------- what a list of ids gives

    def hidden(self, skip_special_tokens: bool, keep: Iterable[int | str] = ()) -> set[int]:
        if isinstance(keep, str):
            raise TypeError("keep_special_tokens is a sequence, not one string")
        kept = set()
        for name in keep:
            if isinstance(name, str) and name not in self.names:
                raise ValueError(f"no token is named {name!r}")
            kept.add(self.names[name] if isinstance(name, str) else name)
        if not skip_special_tokens:
            return set()
        return {token_id for token_id, token in self.tokens.items() if token.special} - kept

    def decode(
        self,
        token_ids: Sequence[int],
        skip_special_tokens: bool = True,
        keep_special_tokens: Iterable[int | str] = (),
        unknown_ids: str = "error",
    ) -> str:
        token_ids = check_ids(token_ids, self.tokens, unknown_ids)
        hidden = self.hidden(skip_special_tokens, keep_special_tokens)
        shown = [(n, self.tokens[i]) for n, i in enumerate(token_ids) if i in self.tokens and i not in hidden]
        return text_of((self.one_shot or self.run)(shown))


def cells_of_last(vocabulary: Vocabulary, before: Iterable[Token], token: Token) -> list[Cell]:
    """The characters that a token is part of, if it comes behind others and nothing comes behind it."""
    cells = vocabulary.run([(PROMPT, other) for other in before] + [(0, token)])
    return [cell for cell in cells if 0 in cell.sources]


def given_bytes(cells: Iterable[Cell]) -> bytes:
    return b"".join(cell.bytes_from(0) for cell in cells)


def token_bytes(vocabulary: Vocabulary, token_id: int) -> bytes:
    """The token's own bytes, as it gives them in the middle of text."""
    if token_id not in vocabulary.tokens:
        return b""
    return given_bytes(cells_of_last(vocabulary, [Token("x", data=b"x")], vocabulary.tokens[token_id]))


def check_ids(token_ids: Sequence[int], known: Mapping[int, Any] | None, unknown_ids: str) -> list[int]:
    """All ids or an error: types first, then values in order. `known` None means that every id is."""
    out = list(token_ids)
    for token_id in out:
        if type(token_id) is bool or not isinstance(token_id, int):
            raise TypeError(f"token ids are integers, not {type(token_id).__name__}")
    for index, token_id in enumerate(out):
        if not 0 <= token_id < 2**32:
            raise UnknownTokenError(token_id, index)
        if known is not None and token_id not in known and unknown_ids == "error":
            raise UnknownTokenError(token_id, index)
    return out


# ---------------------------------------------------------------- values


@dataclass(frozen=True)
class Record:
    """One generated token and its place: a flat TokenAttribution."""

    token_id: int
    visible: bool
    byte_offset: int
    continues_char: bool = False
    cut: bool = False

    def moved(self, by: int) -> Record:
        return replace(self, byte_offset=self.byte_offset + by)

    def may_leave(self, cutoff: int) -> bool:
        """A6."""
        return self.byte_offset < cutoff if self.visible else self.byte_offset <= cutoff


def boundaries(text: str) -> list[int]:
    """The byte offset of each character, and of the end."""
    out = [0]
    for char in text:
        out.append(out[-1] + len(char.encode()))
    return out


def byte_len(text: str) -> int:
    return len(text.encode())


class DecodedText:
    """Text and the records of its tokens; offsets are local bytes."""

    def __init__(self, text: str = "", records: Iterable[Record] = ()) -> None:
        self.text = text
        self.records = list(records)
        edges = boundaries(text)
        before = 0
        for record in self.records:
            if record.byte_offset < before:
                raise ValueError("offsets decrease")
            if record.byte_offset not in edges:
                raise ValueError("offset off a character boundary or past the text")
            if record.visible and not record.continues_char and record.byte_offset == edges[-1]:
                raise ValueError("a visible token at the end of text")
            before = record.byte_offset

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DecodedText) and (self.text, self.records) == (other.text, other.records)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"DecodedText({self.text!r}, {self.records!r})"

    def __bool__(self) -> bool:
        return bool(self.text or self.records)

    @property
    def token_ids(self) -> list[int]:
        return [record.token_id for record in self.records]

    def __add__(self, other: DecodedText) -> DecodedText:
        base = byte_len(self.text)
        return DecodedText(self.text + other.text, self.records + [record.moved(base) for record in other.records])

    def append(self, other: DecodedText) -> None:
        joined = self + other
        self.text, self.records = joined.text, joined.records

    def drain_prefix(self, length: int) -> DecodedText:
        if length not in boundaries(self.text):
            raise ValueError("not a character boundary")
        index = 0
        while index < len(self.records) and self.records[index].may_leave(length):
            index += 1
        data = self.text.encode()
        head = DecodedText(data[:length].decode(), self.records[:index])
        self.text = data[length:].decode()
        self.records = [record.moved(-length) for record in self.records[index:]]
        return head

    def take(self) -> DecodedText:
        out = DecodedText(self.text, self.records)
        self.text, self.records = "", []
        return out

    # -------- A9, A11

    def char_end(self, offset: int) -> int:
        """The end of the character that starts here; the end of text has none behind it."""
        return min((edge for edge in boundaries(self.text) if edge > offset), default=offset)

    def touch(self) -> list[tuple[int, int]]:
        spans: list[tuple[int, int]] = []
        following: Record | None = None
        following_end = end = byte_len(self.text)
        for record in reversed(self.records):
            start = record.byte_offset
            if not record.visible:
                spans.append((start, start))
                continue
            if following is None:
                end = byte_len(self.text)
            elif following.continues_char:
                end = self.char_end(following.byte_offset)
            elif following.byte_offset > start:
                end = following.byte_offset
            else:  # the window's tokens that share one piece of text
                end = following_end
            spans.append((start, end))
            following, following_end = record, end
        return spans[::-1]

    def own(self) -> list[tuple[int, int]]:
        visible = [index for index, record in enumerate(self.records) if record.visible]
        # Where each token's own characters begin, and whether it holds the first byte of its anchor's character.
        starts = {}
        for index in visible:
            record = self.records[index]
            heads = not record.continues_char or index == visible[0]
            starts[index] = (record.byte_offset if heads else self.char_end(record.byte_offset), heads)
        owned: dict[int, list[int]] = {index: [] for index in visible}
        for place in boundaries(self.text)[:-1]:
            reached = [index for index in visible if starts[index][0] <= place]
            if not reached:
                continue
            latest = max(starts[index][0] for index in reached)
            rivals = [index for index in reached if starts[index][0] == latest]
            heads = [index for index in rivals if starts[index][1]]
            owned[heads[0] if heads else rivals[-1]].append(place)
        spans = []
        for index, record in enumerate(self.records):
            if not record.visible:
                spans.append((record.byte_offset, record.byte_offset))
            elif owned[index]:
                spans.append((owned[index][0], self.char_end(owned[index][-1])))
            else:
                end = self.char_end(record.byte_offset)
                spans.append((end, end))
        return spans

    def unit_of(self, unit: str) -> dict[int, int]:
        """Byte offset -> offset in the unit, for every character boundary."""
        width = {"byte": byte_len, "codepoint": len, "utf16": lambda text: len(text.encode("utf-16-le")) // 2}[unit]
        return {edge: width(self.text[:n]) for n, edge in enumerate(boundaries(self.text))}

    def spans(self, *, unit: str = "codepoint", shared: str = "touch") -> list[tuple[int, int]]:
        at = self.unit_of(unit)
        spans = self.touch() if shared == "touch" else self.own()
        return [(at[start], at[end]) for start, end in spans]

    def offsets(self, *, unit: str = "codepoint") -> list[int]:
        at = self.unit_of(unit)
        return [at[record.byte_offset] for record in self.records]

    def tokens_at(self, start: int, end: int, *, unit: str = "codepoint") -> range:
        if start < 0 or end < start:
            raise ValueError("negative or reversed range")
        hits = [
            index
            for index, (first, last) in enumerate(self.spans(unit=unit))
            if self.records[index].visible and max(first, start) < min(last, end)
        ]
        return range(hits[0], hits[-1] + 1) if hits else range(0)

    def mask(self, ranges: Iterable[tuple[int, int]], *, unit: str = "codepoint", rule: str = "first") -> list[bool]:
        ranges = list(ranges)
        at = self.unit_of(unit)
        length = at[byte_len(self.text)]
        edges = boundaries(self.text)[:-1]

        def inside(place: int) -> bool:
            return any(start <= at[place] < end for start, end in ranges)

        out = []
        for record, (first, last) in zip(self.records, self.touch(), strict=True):
            if not record.visible:
                place = at[record.byte_offset]
                out.append(any(start <= place < end or place == end == length for start, end in ranges))
                continue
            marks = [inside(place) for place in edges if first <= place < last]
            if rule == "first":
                out.append(inside(record.byte_offset))
            elif rule == "any":
                out.append(any(marks))
            elif rule == "all":
                out.append(bool(marks) and all(marks))
            else:
                out.append(2 * sum(marks) > len(marks))
        return out

    def truncated(self, length: int) -> DecodedText:
        """A7."""
        if length >= byte_len(self.text):
            return self
        records = []
        for record, (_, end) in zip(self.records, self.touch(), strict=True):
            if record.byte_offset >= length if record.visible else record.byte_offset > length:
                records.append(Record(record.token_id, False, length, cut=True))
            else:
                records.append(replace(record, cut=record.cut or (record.visible and end > length)))
        return DecodedText(self.text.encode()[:length].decode(), records)


# ---------------------------------------------------------------- what is certain, and where tokens landed

# One entry per token: None while it waits, "nothing" if it can get no byte any more, else (offset, continues_char).
Landing = None | str | tuple[int, bool]


@dataclass
class Certain:
    text: str
    landings: list[Landing]
    incomplete_bytes: int


class ExactDecoder:
    """All ids so far -> what is certain. Recomputed from nothing each time."""

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int], hidden: set[int]) -> None:
        self.vocabulary = vocabulary
        self.hidden = hidden
        self.prompt = [(PROMPT, token) for _, token in self.shown(prompt)]
        self.prompt_cells = vocabulary.run(self.prompt)

    def shown(self, token_ids: Sequence[int]) -> list[tuple[int, Token]]:
        tokens = self.vocabulary.tokens
        return [(n, tokens[i]) for n, i in enumerate(token_ids) if i in tokens and i not in self.hidden]

    def generated(self, cells: list[Cell]) -> list[Cell]:
        """Without the prompt's text. A U+FFFD that the prompt's decode has already stays the prompt's."""
        same = 0
        for ours, theirs in zip(cells, self.prompt_cells, strict=False):
            # Equal characters are not enough: what the prompt began may have vanished at the start of text.
            if PROMPT not in ours.sources or (ours.char, ours.broken) != (theirs.char, theirs.broken):
                break
            same += 1
        return cells[same:]

    def certain(self, token_ids: Sequence[int], *, final: bool = False) -> Certain:
        now = self.prompt + self.shown(token_ids)
        ended = self.vocabulary.run(now)
        futures = [ended]
        if not final:
            for probe in self.vocabulary.probes:
                futures.append(self.vocabulary.run(now + [(len(token_ids), token) for token in probe]))
        settled = common_prefix(futures)
        open_bytes = sum(len(cell.sources) for cell in ended[len(settled) :] if cell.broken)
        cells = self.generated(settled)
        may_land = {source for future in futures for cell in self.generated(future) for source in cell.sources}
        landings: list[Landing] = []
        edges = boundaries(text_of(cells))
        for n in range(len(token_ids)):
            first = next((at for at, cell in enumerate(cells) if n in cell.sources), None)
            if first is not None:
                landings.append((edges[first], cells[first].sources.index(n) > 0))
            else:
                landings.append(None if n in may_land else "nothing")
        return Certain(text_of(cells), landings, open_bytes)


@dataclass
class WindowVocabulary:
    """Anything with `decode(ids, skip)`: the window strategy's tokenizer."""

    decode: Callable[[list[int], bool], str]
    id_to_token: Callable[[int], str | None]
    is_special: Callable[[int], bool]


class WindowDecoder:
    """Decodes a short window twice per emission and hands out the difference; replayed from nothing each time."""

    def __init__(self, vocabulary: WindowVocabulary, prompt: Sequence[int], skip: bool, limit: int) -> None:
        self.vocabulary = vocabulary
        self.skip = skip
        self.limit = limit
        self.prompt = list(prompt)

    def known(self, token_ids: Sequence[int]) -> list[int]:
        return [i for i in token_ids if self.vocabulary.id_to_token(i) is not None]

    def seed(self) -> tuple[list[int], str, int]:
        """The window, its decoded prefix, and how many ids of it are done with."""
        decode = self.vocabulary.decode
        for length in range(SAFE_SUFFIX_MIN, SAFE_SUFFIX_MAX + 1):
            if length >= len(self.prompt):
                break
            suffix = self.known(self.prompt[-length:])
            text = decode(suffix, self.skip)
            if len(suffix) >= SAFE_SUFFIX_MIN and "\ufffd" not in text:
                return suffix, text, len(suffix)
        window = self.known(self.prompt)
        text = decode(window, self.skip)
        return window, text, 0 if text.endswith("\ufffd") else len(window)

    def known_part(self, decoded: str) -> int:
        """The bytes handed out before. U+FFFD at the end of the prompt's decode is, unless ids completed it."""
        _, prefix, covered = self.state
        part = prefix if decoded.startswith(prefix) or covered else prefix.rstrip("\ufffd")
        return byte_len(part)

    def unknown_part(self, decoded: str) -> str:
        start = min(self.known_part(decoded), byte_len(decoded))
        while start not in boundaries(decoded):
            start -= 1
        return decoded.encode()[start:].decode()

    def certain(self, token_ids: Sequence[int], *, final: bool = False) -> Certain:
        decode = self.vocabulary.decode
        self.state = self.seed() if self.prompt else ([], "", 0)
        window, _, covered = self.state
        text = ""
        landings: list[Landing] = []
        waiting: list[int] = []

        def emit(decoded: str) -> None:
            nonlocal text
            for n in waiting:
                landings[n] = (byte_len(text), False)  # which bytes are whose is not known
            waiting.clear()
            text += self.unknown_part(decoded)

        for n, token_id in enumerate(token_ids):
            hidden = self.skip and self.vocabulary.is_special(token_id)
            if hidden or self.vocabulary.id_to_token(token_id) is None:
                landings.append("nothing")
                continue
            landings.append(None)
            waiting.append(n)
            window.append(token_id)
            decoded = decode(window, self.skip)
            longer = byte_len(decoded) > self.known_part(decoded)
            forced = len(window) - covered >= self.limit
            if longer and (forced or not decoded.endswith("\ufffd")):
                emit(decoded)
            elif not forced:
                continue
            window = window[covered:]
            covered = len(window)
            self.state = window, decode(window, self.skip), covered
        if final:
            if token_ids and waiting:
                decoded = decode(window, self.skip)
                if byte_len(decoded) > self.known_part(decoded):
                    emit(decoded)
            landings = ["nothing" if landing is None else landing for landing in landings]
        return Certain(text, landings, 0)


# ---------------------------------------------------------------- one stream


class DecodeStream:
    """The public shape of the library's stream."""

    def __init__(
        self,
        vocabulary: Vocabulary | WindowVocabulary,
        prompt_token_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        keep_special_tokens: Iterable[int | str] = (),
        min_bytes_to_buffer: int = 0,
        unknown_ids: str = "error",
        keep_output: bool = True,
        window_limit: int = WINDOW_LIMIT,
    ) -> None:
        self.vocabulary = vocabulary
        self.skip = skip_special_tokens
        self.keep = list(keep_special_tokens) if not isinstance(keep_special_tokens, str) else keep_special_tokens
        self.buffer = min_bytes_to_buffer
        self.unknown_ids = unknown_ids
        self.keep_output = keep_output
        self.window_limit = window_limit
        if isinstance(vocabulary, Vocabulary):
            self.hidden = vocabulary.hidden(self.skip, self.keep)
        self.reset(prompt_token_ids)

    def reset(self, prompt_token_ids: Sequence[int] = ()) -> None:
        if isinstance(self.vocabulary, Vocabulary):
            self.decoder = ExactDecoder(self.vocabulary, prompt_token_ids, self.hidden)
        else:
            self.decoder = WindowDecoder(self.vocabulary, prompt_token_ids, self.skip, self.window_limit)
        self.token_ids: list[int] = []
        self.arrived: list[int] = []  # settled length once each token had come
        self.sent_bytes = 0
        self.sent_records = 0
        self.finished = False
        self.now = self.decoder.certain([])

    # -------- pushing

    def push_token(self, token_id: int) -> int:
        return self.push_tokens([token_id])

    def push_tokens(self, token_ids: Sequence[int]) -> int:
        if self.finished:
            raise StreamFinishedError("the stream has ended")
        if isinstance(self.vocabulary, Vocabulary):
            token_ids = check_ids(token_ids, self.vocabulary.tokens, self.unknown_ids)
        else:
            token_ids = check_ids(token_ids, None, self.unknown_ids)
            for index, token_id in enumerate(token_ids):
                if self.unknown_ids == "error" and self.vocabulary.id_to_token(token_id) is None:
                    raise UnknownTokenError(token_id, index)
        before = byte_len(self.now.text)
        for token_id in token_ids:
            self.token_ids.append(token_id)
            self.now = self.decoder.certain(self.token_ids)
            self.arrived.append(byte_len(self.now.text))
        return byte_len(self.now.text) - before

    def records(self, certain: Certain) -> list[Record | None]:
        """A2, A3: one per token; None while it waits."""
        out: list[Record | None] = []
        before = 0
        for token_id, landing, arrived in zip(self.token_ids, certain.landings, self.arrived, strict=True):
            if landing is None:
                out.append(None)
                continue
            if landing == "nothing":
                record = Record(token_id, False, max(arrived, before))
            else:
                offset, continues = landing
                record = Record(token_id, True, offset, continues)
            before = record.byte_offset
            out.append(record)
        return out

    # -------- taking

    def cutoff(self) -> int:
        limit = max(0, byte_len(self.now.text) - self.buffer)
        return max(edge for edge in boundaries(self.now.text) if edge <= limit)

    def next_chunk(self) -> DecodedText | None:
        if self.finished:
            return None
        cutoff = max(self.cutoff(), self.sent_bytes)
        leaving = []
        for record in self.records(self.now)[self.sent_records :]:
            if record is None or not record.may_leave(cutoff):
                break
            leaving.append(record.moved(-self.sent_bytes))
        text = self.now.text.encode()[self.sent_bytes : cutoff].decode()
        if not text and not leaving:
            return None
        self.sent_bytes = cutoff
        self.sent_records += len(leaving)
        return DecodedText(text, leaving)

    def step(self, token_id: int) -> str | None:
        self.push_token(token_id)
        chunk = self.next_chunk()
        return chunk.text if chunk and chunk.text else None

    def flush(self, truncate_output_to: int | None = None) -> tuple[DecodedText | None, DecodedText]:
        if self.finished:
            raise StreamFinishedError("the stream has ended")
        ended = self.decoder.certain(self.token_ids, final=True)
        everything = DecodedText(ended.text, [record for record in self.records(ended) if record is not None])
        if truncate_output_to is not None and truncate_output_to < byte_len(ended.text):
            if truncate_output_to < self.sent_bytes or truncate_output_to not in boundaries(ended.text):
                raise ValueError("cut before text that has left, or inside a character")
            everything = everything.truncated(truncate_output_to)
        self.now = replace(ended, text=everything.text, incomplete_bytes=0)
        self.finished = True
        data = everything.text.encode()
        rest = DecodedText(
            data[self.sent_bytes :].decode(),
            [record.moved(-self.sent_bytes) for record in everything.records[self.sent_records :]],
        )
        return (rest if rest else None), (everything if self.keep_output else rest)

    # -------- looking

    @property
    def output(self) -> str:
        if not self.keep_output:
            raise StateError("this stream keeps no output")
        return self.now.text

    @property
    def token_count(self) -> int:
        return len(self.token_ids)

    @property
    def pending(self) -> dict[str, int]:
        if self.finished:
            return {"incomplete_bytes": 0, "held_bytes": 0, "waiting_tokens": 0}
        return {
            "incomplete_bytes": self.now.incomplete_bytes,
            # Certain, but not handed out, whether held back or not asked for yet.
            "held_bytes": byte_len(self.now.text) - self.sent_bytes,
            # Those behind a token that waits cannot leave before it.
            "waiting_tokens": len(self.token_ids) - [*self.now.landings, None].index(None),
        }
