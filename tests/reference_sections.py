"""The slow, obvious twin of sections: markers found by trying every pattern at every end, from the beginning each time.

A generation is text and records. The markers that may open or end a section where it stands tell which of its ids are
symbols; every other byte of text is one. Patterns are looked for in the symbols, and a match cuts text and records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reference import (
    DecodedText,
    DecodeStream,
    Record,
    StreamFinishedError,
    UnknownTokenError,
    Vocabulary,
    byte_len,
    token_bytes,
)

CONTENT = "content"
MARKERS = "markers"
MOST_BYTES = 64 * 1024

Pattern = str | int | Sequence[str | int]
Key = int | tuple[int]  # a byte, or an id in a tuple of its own


# ---------------------------------------------------------------- markers


@dataclass(frozen=True)
class Marker:
    name: str
    start: Pattern
    end: Pattern
    also_end: Sequence[Pattern] = ()
    reopen: bool = False
    keep_markers: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or isinstance(self.also_end, str):
            raise TypeError("a name is a string, also_end a sequence of patterns")
        if self.name in ("", MARKERS):
            raise ValueError(f"no section is named {self.name!r}")
        for pattern in (self.start, *self.ends):
            check_pattern(pattern)

    @property
    def ends(self) -> tuple[Pattern, ...]:
        return (self.end, *self.also_end)


def parts_of(pattern: Pattern) -> Sequence[str | int]:
    return pattern if isinstance(pattern, (list, tuple)) else [pattern]


def check_pattern(pattern: Any) -> None:
    if not parts_of(pattern):
        raise ValueError("a pattern is empty")
    for part in parts_of(pattern):
        if isinstance(part, bool) or not isinstance(part, (str, int)):
            raise TypeError("a part of a pattern is a string or an id")
        if part == "":
            raise ValueError("a part of a pattern is empty")
        if isinstance(part, str) and any("\ud800" <= char <= "\udfff" for char in part):
            raise ValueError("a part of a pattern has a lone surrogate")


def marker_id(vocabulary: Vocabulary, content: str) -> int | None:
    """The special or added token of this content: the first of that name, as a look-up by name gives."""
    for token_id, token in sorted(vocabulary.tokens.items()):
        name = token.name if token.data is None else token.data.decode(errors="replace")
        if name == content:
            return token_id if token_id in vocabulary.added or is_special(vocabulary, token_id) else None
    return None


def is_special(vocabulary: Vocabulary, token_id: int) -> bool:
    """By the word of its source, also where it is shown for what it decodes to."""
    return vocabulary.added.get(token_id, token_id in vocabulary.tokens and vocabulary.tokens[token_id].special)


def keys_of(vocabulary: Vocabulary, pattern: Pattern) -> tuple[Key, ...]:
    keys: list[Key] = []
    for index, part in enumerate(parts_of(pattern)):
        if isinstance(part, int) and part not in vocabulary.tokens:
            raise UnknownTokenError(part, index)
        token_id = part if isinstance(part, int) else marker_id(vocabulary, part)
        if token_id is not None:
            token_bytes(vocabulary, token_id).decode()  # ValueError if it is a part of a character
        keys += part.encode() if token_id is None else [(token_id,)]
    return tuple(keys)


def ids_in(patterns: Iterable[tuple[Key, ...]]) -> set[int]:
    return {key[0] for keys in patterns for key in keys if isinstance(key, tuple)}


# ---------------------------------------------------------------- what a scan finds


@dataclass(frozen=True)
class Place:
    """A cut of the generation: so much text and so many records lie before it."""

    byte: int
    record: int

    def not_before(self, other: Place) -> Place:
        return Place(max(self.byte, other.byte), max(self.record, other.record))


@dataclass(frozen=True)
class Symbol:
    key: Key
    start: Place
    end: Place


@dataclass(frozen=True)
class Part:
    """The text of a section between two markers, or a marker. What belongs to one stay in a section has one `run`."""

    run: int
    section: str
    start: Place
    end: Place
    is_marker: bool = False
    is_shown: bool = True


@dataclass(frozen=True)
class State:
    inside: int | None = None  # index of the marker
    opened: frozenset[int] = frozenset()


@dataclass
class Scan:
    parts: list[Part]  # the last one is the section that goes on, as far as it is decided
    end: Place  # what lies between the last part and this is not decided
    floors: list[Place]  # where the text of each run begins: its records stand there or later
    state: State

    def record(self, index: int, record: Record) -> Record:
        floor = max(place.byte for place in self.floors if place.record <= index)
        if record.byte_offset >= floor:
            return record
        # Its character lies before the cut.
        return replace(record, visible=False, byte_offset=floor, continues_char=False)


class Sections:
    """The markers of a tokenizer, and where a generation begins among them."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        markers: Sequence[Marker],
        prompt_token_ids: Sequence[int] = (),
        initial: str | None = None,
    ) -> None:
        self.vocabulary = vocabulary
        self.markers = list(markers)
        self.starts = [keys_of(vocabulary, marker.start) for marker in markers]
        self.ends = [[keys_of(vocabulary, end) for end in marker.ends] for marker in markers]
        if len(set(self.starts)) < len(self.starts):
            raise ValueError("two markers have one start")
        patterns = [*self.starts, *(end for ends in self.ends for end in ends)]
        texts = [part for marker in markers for end in (marker.start, *marker.ends) for part in parts_of(end)]
        if sum(byte_len(part) for part in texts if isinstance(part, str)) > MOST_BYTES:
            raise ValueError("the patterns are too long")
        self.ids = ids_in(patterns)
        self.first = State()
        self.prompt = DecodedText()
        if initial is None:
            self.prompt = self.end_of_prompt(prompt_token_ids)
        elif initial != CONTENT:
            names = [marker.name for marker in markers]
            index = names.index(initial)  # ValueError if it is none of them
            self.first = State(index, frozenset([index]))

    def end_of_prompt(self, token_ids: Sequence[int]) -> DecodedText:
        """What lies behind the last special token that is in no pattern, with all of its tokens shown."""
        tokens = self.vocabulary.tokens
        others = [n for n, i in enumerate(token_ids) if is_special(self.vocabulary, i) and i not in self.ids]
        begin = others[-1] + 1 if others else 0
        stream = DecodeStream(
            self.vocabulary, token_ids[:begin], skip_special_tokens=False, unknown_ids="skip", keep_output=False
        )
        stream.push_tokens([token_id for token_id in token_ids[begin:] if token_id in tokens])
        return stream.next_chunk() or DecodedText()

    # -------- which patterns there are

    def may_open(self, state: State, index: int) -> bool:
        return self.markers[index].reopen or index not in state.opened

    def patterns(self, state: State) -> list[tuple[tuple[Key, ...], int | None]]:
        """Patterns in order of precedence, and the marker that each opens; None where it ends a section."""
        openers = [(keys, n) for n, keys in enumerate(self.starts) if self.may_open(state, n)]
        if state.inside is None:
            return openers
        others = {keys: n for keys, n in openers if n != state.inside}
        return [(keys, others.get(keys)) for keys in self.ends[state.inside]]

    def name(self, state: State) -> str:
        return CONTENT if state.inside is None else self.markers[state.inside].name

    # -------- symbols

    def symbols(self, decoded: DecodedText, at: Place, ids: set[int]) -> list[Symbol]:
        out: list[Symbol] = []
        data = decoded.text.encode()
        byte = at.byte

        def bytes_before(stop: int, record: int) -> Iterator[Symbol]:
            for place in range(byte, stop):
                end = at.record
                while end < record and decoded.records[end].byte_offset < place + 1:
                    end += 1
                yield Symbol(data[place], self.place(decoded, at, place), Place(place + 1, end))

        for index in range(at.record, len(decoded.records)):
            token_id = decoded.records[index].token_id
            if token_id in ids:
                start = max(byte, self.stand(decoded, index))
                out += bytes_before(start, index)
                byte = start + self.own_bytes(decoded, index, start)
                out.append(Symbol((token_id,), Place(start, index), Place(byte, index + 1)))
        out += bytes_before(len(data), len(decoded.records))
        return out

    def place(self, decoded: DecodedText, at: Place, byte: int) -> Place:
        """The cut before this byte, with all records that may leave with what is before."""
        record = at.record
        while record < len(decoded.records) and decoded.records[record].may_leave(byte):
            record += 1
        return Place(byte, record)

    def stand(self, decoded: DecodedText, index: int) -> int:
        """Where the text of this token begins: behind a character that another token began."""
        record = decoded.records[index]
        before = [other.byte_offset for other in decoded.records[:index] if other.visible]
        shares = record.continues_char if record.visible else before[-1:] == [record.byte_offset]
        return decoded.char_end(record.byte_offset) if shares else record.byte_offset

    def held_from(self, decoded: DecodedText, at: Place, symbol: Symbol) -> Place:
        """What leaves before a held symbol. A character that it stands in waits too: its tokens leave together."""
        if not isinstance(symbol.key, tuple):
            return symbol.start
        record = decoded.records[symbol.start.record]
        if record.visible or record.byte_offset >= symbol.start.byte or record.byte_offset < at.byte:
            return symbol.start
        return self.place(decoded, at, record.byte_offset)

    def own_bytes(self, decoded: DecodedText, index: int, start: int) -> int:
        """The length of the token's text, as far as it has come: up to where another token begins."""
        if not decoded.records[index].visible:
            return 0
        following = [other.byte_offset for other in decoded.records[index + 1 :] if other.visible]
        return max(0, min(following, default=byte_len(decoded.text)) - start)

    # -------- scanning

    def scan(self, decoded: DecodedText, *, final: bool = False) -> Scan:
        """Finds all markers of a generation behind the prompt; `final` if nothing follows."""
        whole = self.prompt + decoded
        at, state, run = Place(0, 0), self.first, 0
        parts: list[Part] = []
        floors = [at]
        while True:
            patterns = [keys for keys, _ in self.patterns(state)]
            symbols = self.symbols(whole, at, ids_in(patterns))
            keys = [symbol.key for symbol in symbols]
            match = first_match(keys, patterns)
            name = self.name(state)
            if match is None:
                end = Place(byte_len(whole.text), len(whole.records))
                first = hold(keys, patterns)
                undecided = end if final or first == len(keys) else self.held_from(whole, at, symbols[first])
                parts.append(Part(run, name, at, undecided))
                return Scan(parts, end, floors, state)
            first, behind, which = match
            start, end, opened = symbols[first].start, symbols[behind - 1].end, self.patterns(state)[which][1]
            parts.append(Part(run, name, at, start))
            if opened is None:
                kept = self.markers[state.inside].keep_markers
                parts.append(Part(run, name, start, end, True, kept))
                state = State(None, state.opened)
                run += 1
            else:
                marker = self.markers[opened]
                run += 1
                parts.append(Part(run, marker.name, start, end, True, marker.keep_markers))
                state = State(opened, state.opened | {opened})
            floors.append(start if opened is not None and parts[-1].is_shown else end)
            at = end


def first_match(keys: Sequence[Key], patterns: Sequence[tuple[Key, ...]]) -> tuple[int, int, int] | None:
    """(start, end, which pattern) of the match that ends first; a tie goes to the order of the patterns."""
    for end in range(1, len(keys) + 1):
        for which, pattern in enumerate(patterns):
            start = end - len(pattern)
            if start >= 0 and tuple(keys[start:end]) == pattern:
                return start, end, which
    return None


def hold(keys: Sequence[Key], patterns: Sequence[tuple[Key, ...]]) -> int:
    """Where the longest end begins that is the beginning of a pattern."""
    for start in range(len(keys)):
        end = tuple(keys[start:])
        if any(len(end) < len(pattern) and pattern[: len(end)] == end for pattern in patterns):
            return start
    return len(keys)


# ---------------------------------------------------------------- the splitter


class SectionSplitter:
    """The public shape of the library's splitter."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        markers: Sequence[Marker],
        *,
        prompt_token_ids: Sequence[int] = (),
        initial: str | None = None,
    ) -> None:
        self.sections = Sections(vocabulary, markers, prompt_token_ids, initial)
        prompt = self.sections.prompt
        self.begin = self.sent = Place(byte_len(prompt.text), len(prompt.records))
        self.generated = DecodedText()
        self.finished = False

    def push(self, decoded: DecodedText) -> list[tuple[str, DecodedText]]:
        if self.finished:
            raise StreamFinishedError("the splitter has ended")
        self.generated.append(decoded)
        return self.pieces()

    def finish(self) -> list[tuple[str, DecodedText]]:
        if self.finished:
            raise StreamFinishedError("the splitter has ended")
        self.finished = True
        return self.pieces()

    def scan(self) -> Scan:
        return self.sections.scan(self.generated, final=self.finished)

    def pieces(self) -> list[tuple[str, DecodedText]]:
        """All that is decided and has not been handed out."""
        scan, whole = self.scan(), self.sections.prompt + self.generated
        new: list[Part] = []
        for part in scan.parts:
            start, end = part.start.not_before(self.sent), part.end.not_before(self.sent)
            if not part.is_shown or start == end:
                continue
            if new and new[-1].run == part.run:
                new[-1] = replace(new[-1], end=end)
            else:
                new.append(replace(part, start=start, end=end))
        self.sent = scan.parts[-1].end.not_before(self.sent)
        return [(part.section, self.cut(whole, scan, part.start, part.end)) for part in new]

    def cut(self, whole: DecodedText, scan: Scan, start: Place, end: Place) -> DecodedText:
        records = [
            scan.record(index, whole.records[index]).moved(-start.byte) for index in range(start.record, end.record)
        ]
        return DecodedText(whole.text.encode()[start.byte : end.byte].decode(), records)

    @property
    def token_counts(self) -> Mapping[str, int]:
        counts = {CONTENT: 0, **{marker.name: 0 for marker in self.sections.markers}, MARKERS: 0}
        scan = self.scan()
        for part in [*scan.parts, Part(-1, self.section, scan.parts[-1].end, scan.end)]:
            name = MARKERS if part.is_marker else part.section
            counts[name] += part.end.not_before(self.begin).record - part.start.not_before(self.begin).record
        return counts

    @property
    def section(self) -> str:
        """Where the next text belongs, as far as is decided."""
        return self.sections.name(self.scan().state)
