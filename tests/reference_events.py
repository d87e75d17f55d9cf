"""The slow, obvious twin of stops, events, logprobs and batches, on top of the twin of streams.

A stop is looked for by trying every stop at every end; what is held back, by trying every suffix. A call that can
fail works on a copy, which takes the original's place at the end.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from reference import (
    Cell,
    DecodedText,
    DecodeStream,
    DetokError,
    ExactDecoder,
    StateError,
    StreamFinishedError,
    UnknownTokenError,
    Vocabulary,
    WindowVocabulary,
    boundaries,
    byte_len,
    cells_of_last,
    check_ids,
    given_bytes,
    text_of,
    token_bytes,
    utf8_cells,
)
from reference_sections import CONTENT, Marker, Scan, Sections

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
FRAGMENTS = ("openai", "empty", "replacement")


class RequestError(DetokError, RuntimeError):
    def __init__(self, message: str, request_id: str) -> None:
        super().__init__(f"request {request_id!r}: {message}")
        self.request_id = request_id


# ---------------------------------------------------------------- values


@dataclass(frozen=True)
class TokenLogprob:
    token_id: int
    logprob: float
    rank: int | None = None
    token: str = ""
    token_bytes: bytes = b""


@dataclass(frozen=True)
class PositionLogprobs:
    sampled: TokenLogprob
    top: Sequence[TokenLogprob] = ()


@dataclass(frozen=True)
class SampledDelta:
    token_ids: list[int]
    logprobs: list[PositionLogprobs] | None = None
    token_texts: tuple[str, ...] | None = None


@dataclass(frozen=True)
class TokenUsage:
    prompt_token_count: int
    output_token_count: int
    cached_token_count: int = 0


@dataclass(frozen=True)
class FinishReason:
    kind: str
    stop: str | int | None = None


@dataclass(frozen=True)
class StopMatch:
    stop: str | int
    byte_offset: int
    token_index: int
    cut: bool = False


@dataclass(frozen=True)
class Finished:
    usage: TokenUsage
    finish_reason: FinishReason
    stop_match: StopMatch | None = None
    kv_transfer_params: Any = None
    dropped_token_ids: Sequence[int] = ()
    first_cut_token: int | None = None


@dataclass(frozen=True)
class Start:
    prompt_token_ids: Sequence[int]
    prompt_logprobs: Sequence[PositionLogprobs | None] | None = None


@dataclass(frozen=True)
class TextDelta:
    decoded: DecodedText
    sampled: SampledDelta
    finished: Finished | None = None


@dataclass(frozen=True)
class Options:
    """TextDecodeOptions, under the same names."""

    skip_special_tokens: bool = True
    keep_special_tokens: Sequence[int | str] = ()
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    min_tokens: int = 0
    min_bytes_to_buffer: int = 0
    sections: Sequence[Marker] = ()
    stop_scope: str | None = None
    unknown_ids: str = "error"
    fragments: str = "openai"

    def __post_init__(self) -> None:
        for stop in self.stops:
            if not isinstance(stop, str):
                raise TypeError("a stop is a string")
            if not stop:
                raise ValueError("a stop is empty")
            if any("\ud800" <= char <= "\udfff" for char in stop):
                raise ValueError("a stop has a lone surrogate")
        if self.min_tokens < 0 or self.min_bytes_to_buffer < 0:
            raise ValueError("a number is negative")
        if self.fragments not in FRAGMENTS:
            raise ValueError(f"fragments is one of {FRAGMENTS}")
        names = [CONTENT, *(marker.name for marker in self.sections)] if self.sections else []
        if self.stop_scope is not None and self.stop_scope not in names:
            raise ValueError("stop_scope is none of the sections")

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


def position_of(entry: Any, token_id: int) -> PositionLogprobs:
    """One position of `logprobs` in any of its forms."""
    if isinstance(entry, float):
        sampled, top = TokenLogprob(token_id, entry), []
    elif isinstance(entry, TokenLogprob):
        sampled, top = entry, []
    elif isinstance(entry, Mapping):
        top = [
            TokenLogprob(i, getattr(value, "logprob", value), getattr(value, "rank", None))
            for i, value in entry.items()
        ]
        of_sampled = [candidate for candidate in top if candidate.token_id == token_id]
        if not of_sampled:
            raise ValueError("the sampled id is missing")
        sampled = of_sampled[0]
    else:
        sampled, *top = entry
    if sampled.token_id != token_id:
        raise ValueError("a logprob of another id than the sampled one")
    return PositionLogprobs(sampled, tuple(top))


@dataclass
class EngineUpdate:
    token_ids: Sequence[int] = ()
    logprobs: Sequence[Any] | None = None
    finish_reason: str | None = None
    stop_token_id: int | None = None
    stop_string: str | None = None
    prompt_token_ids: Sequence[int] | None = None
    prompt_logprobs: Sequence[Any] | None = None
    cached_token_count: int = 0
    kv_transfer_params: Any = None
    positions: list[PositionLogprobs] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        check_ids(self.token_ids, None, "skip")
        if self.finish_reason is not None and self.finish_reason not in FINISH_REASONS:
            raise ValueError(f"finish_reason is one of {FINISH_REASONS}")
        causes = [cause for cause in (self.stop_token_id, self.stop_string) if cause is not None]
        if len(causes) > 1 or (causes and self.finish_reason != "stop"):
            raise ValueError("one cause, and of a stop only")
        if self.cached_token_count < 0:
            raise ValueError("cached_token_count is negative")
        if self.logprobs is not None:
            self.positions = positions_of(self.logprobs, self.token_ids)

    def last_is_terminal(self, options: Options) -> bool:
        """Whether the last id is the engine's stop token, which is not decoded."""
        if self.finish_reason != "stop" or options.include_stop_str_in_output or not self.token_ids:
            return False
        another = self.stop_token_id is not None and self.stop_token_id != self.token_ids[-1]
        return not another and self.stop_string is None


def positions_of(entries: Sequence[Any], token_ids: Sequence[int]) -> list[Any]:
    if len(entries) != len(token_ids):
        raise ValueError("not one logprobs entry for each id")
    return [
        None if entry is None else position_of(entry, token_id)
        for entry, token_id in zip(entries, token_ids, strict=True)
    ]


# ---------------------------------------------------------------- stops


def first_completion(text: str, searched: int, stops: Sequence[str]) -> tuple[str, int, int] | None:
    """(stop, start, end) of the match that ends first behind the `searched` bytes; a tie goes to list order."""
    data = text.encode()
    for end in range(searched + 1, len(data) + 1):
        for stop in stops:
            if data[:end].endswith(stop.encode()):
                return stop, end - byte_len(stop), end
    return None


def held_bytes(text: str, stops: Sequence[str]) -> int:
    """The length of the longest suffix that is the beginning of a stop, but no whole one."""
    data = text.encode()
    suffixes = [data[start:] for start in range(len(data) + 1)]
    return max(len(suffix) for suffix in suffixes if not suffix or begins_a_stop(suffix, stops))


def begins_a_stop(suffix: bytes, stops: Sequence[str]) -> bool:
    return any(stop.encode().startswith(suffix) and len(suffix) < byte_len(stop) for stop in stops)


class HoldingStream(DecodeStream):
    """A stream that also holds back what may become a stop."""

    def __init__(self, vocabulary: Vocabulary | WindowVocabulary, prompt: Sequence[int], options: Options) -> None:
        self.options = options
        super().__init__(
            vocabulary,
            prompt,
            skip_special_tokens=options.skip_special_tokens,
            keep_special_tokens=options.keep_special_tokens,
            min_bytes_to_buffer=options.min_bytes_to_buffer,
            unknown_ids=options.unknown_ids,
        )

        scoped = options.stop_scope is not None and options.stops
        self.sections = Sections(vocabulary, options.sections, prompt) if scoped else None

    def fork(self) -> HoldingStream:
        other = copy.copy(self)
        other.token_ids, other.arrived = list(self.token_ids), list(self.arrived)
        return other

    @property
    def text_bytes(self) -> int:
        return byte_len(self.now.text)

    def cutoff(self) -> int:
        begin, end = self.open_stretch()
        text = self.now.text.encode()[begin:end].decode()
        held = 0 if self.options.include_stop_str_in_output else held_bytes(text, self.options.stops)
        limit = max(0, min(end - held, self.text_bytes - self.options.min_bytes_to_buffer))
        return max(edge for edge in boundaries(self.now.text) if edge <= limit)

    # -------- where stops are looked for

    def scan(self, final: bool) -> tuple[Scan, int]:
        """The sections of all that is certain, and how much of their text is the prompt's."""
        records = self.records(self.now)
        decoded = DecodedText(self.now.text, records[: [*records, None].index(None)])
        return self.sections.scan(decoded, final=final), byte_len(self.sections.prompt.text)

    def stretches(self, *, final: bool) -> list[tuple[int, int]]:
        """The text that may have stops, as far as that is decided."""
        if self.sections is None:
            return [(0, self.text_bytes)]
        scan, prompt = self.scan(final)
        parts = [part for part in scan.parts if part.section == self.options.stop_scope and not part.is_marker]
        return [(max(0, part.start.byte - prompt), max(0, part.end.byte - prompt)) for part in parts]

    def open_stretch(self) -> tuple[int, int]:
        """What of the text a stop may have begun in; behind it is what may become such text."""
        if self.sections is None:
            return 0, self.text_bytes
        scan, prompt = self.scan(False)
        last = scan.parts[-1]
        if last.section != self.options.stop_scope:
            return self.text_bytes, self.text_bytes
        return max(0, last.start.byte - prompt), max(0, last.end.byte - prompt)

    def completions(self, *, final: bool = False) -> Iterator[tuple[str, int, int]]:
        """(stop, start, end) of all stops that are certain, the one that ends first in front."""
        for begin, stretch_end in self.stretches(final=final):
            text = self.now.text.encode()[begin:stretch_end].decode()
            searched = 0
            while found := first_completion(text, searched, self.options.stops):
                stop, start, searched = found
                yield stop, begin + start, begin + searched


# ---------------------------------------------------------------- one request: ids -> text until a stop


class Generation:
    def __init__(
        self, vocabulary: Vocabulary | WindowVocabulary, prompt: Sequence[int], options: Options | None = None
    ) -> None:
        self.options = options or Options()
        self.prompt = list(prompt)
        self.stream = HoldingStream(vocabulary, prompt, self.options)
        self.kept: list[int] = []
        self.match: StopMatch | None = None
        self.finished = False
        self.tail = DecodedText()  # the last chunk
        self.first_cut_token: int | None = None
        self.passed = 0  # stops that were certain, and did not count

    def fork(self) -> Generation:
        other = copy.copy(self)
        other.stream, other.kept = self.stream.fork(), list(self.kept)
        return other

    def take(self, token_ids: Sequence[int], *, last_is_terminal: bool = False) -> int:
        """Takes ids up to a stop and says how many those are. All or nothing."""
        if self.finished:
            raise StreamFinishedError("the request has ended")
        trial = self.fork()
        for index, token_id in enumerate(token_ids):
            terminal = last_is_terminal and index == len(token_ids) - 1
            try:
                trial.take_one(token_id, terminal)
            except UnknownTokenError:
                raise UnknownTokenError(token_id, index) from None
            if trial.finished:
                break
        count = len(trial.kept) - len(self.kept)
        self.__dict__ = trial.__dict__
        return count

    def take_one(self, token_id: int, terminal: bool) -> None:
        index = len(self.kept)
        may_stop = index + 1 > self.options.min_tokens
        self.kept.append(token_id)
        if may_stop and token_id in self.options.stop_token_ids:
            if not self.stop_at_text(final=True):
                self.stop_at_token(token_id, index)
        elif not terminal:
            self.stream.push_token(token_id)
            self.stop_at_text()

    def stop_at_token(self, token_id: int, index: int) -> None:
        if self.options.include_stop_str_in_output:
            self.stream.push_token(token_id)
        self.end()
        self.match = StopMatch(token_id, self.stream.text_bytes, index)

    def stop_at_text(self, *, final: bool = False) -> bool:
        """Ends where a stop is that the last token made certain, if that token is not one of the first."""
        index = len(self.kept) - 1
        found = list(self.stream.completions(final=final))
        new, self.passed = found[self.passed :], len(found)
        if not new or index + 1 <= self.options.min_tokens:
            return False
        stop, start, end = new[0]
        cut = end if self.options.include_stop_str_in_output else start
        records = self.end(cut).records
        self.match = StopMatch(stop, cut, index, index < len(records) and records[index].cut)
        self.first_cut_token = next((n for n, record in enumerate(records) if record.cut), None)
        return True

    def finish(self) -> None:
        """The end, unless a stop turns out to have come before it."""
        if self.finished:
            raise StreamFinishedError("the request has ended")
        if not self.stop_at_text(final=True):
            self.end()

    def end(self, cut: int | None = None) -> DecodedText:
        if self.finished:
            raise StreamFinishedError("the request has ended")
        tail, everything = self.stream.flush(cut)
        self.tail = tail or DecodedText()
        self.finished = True
        return everything

    def next_chunk(self) -> DecodedText:
        """What became certain since the last call; of an ended request, the last chunk."""
        return self.tail if self.finished else self.stream.next_chunk() or DecodedText()

    def token_text(self, index: int, token_id: int) -> str:
        """The text of this id as if it had been sampled at this place."""
        return token_text(self.stream, self.kept[:index], token_id, self.options.fragments)

    def filled(self, index: int, position: PositionLogprobs) -> PositionLogprobs:
        return fill(self.stream, self.kept[:index], position, self.options.fragments)


# ---------------------------------------------------------------- logprob texts


def token_text(stream: DecodeStream, before: Sequence[int], token_id: int, fragments: str) -> str:
    decoder = stream.decoder
    if not isinstance(decoder, ExactDecoder):
        return window_token_text(stream, before, token_id, fragments)
    token = decoder.vocabulary.tokens.get(token_id)
    if token is None:
        return ""
    shown = [token for _, token in decoder.prompt + decoder.shown(before)]
    cells = cells_of_last(decoder.vocabulary, shown, token)
    if fragments == "empty":
        # A hidden token is named, but completes no character of the text.
        joins = bool(decoder.shown([token_id]))
        return text_of(cell for cell in cells if not cell.broken and (joins or set(cell.sources) == {0}))
    alone = [(byte, 0) for byte in given_bytes(cells)]
    if fragments == "replacement":
        return text_of(utf8_cells(alone, bytewise=decoder.vocabulary.bytewise))
    return "".join(openai_form(cell) for cell in utf8_cells(alone, bytewise=True))


def openai_form(cell: Cell) -> str:
    return "".join(f"\\x{byte:02x}" for byte in cell.data) if cell.broken else cell.char


def window_token_text(stream: DecodeStream, before: Sequence[int], token_id: int, fragments: str) -> str:
    decoder = stream.decoder
    if decoder.vocabulary.id_to_token(token_id) is None:
        return ""
    decoder.certain(before)
    window, _, _ = decoder.state
    # A special token as it would be shown, though the stream hides it and others.
    shown = [other for other in window if not (decoder.skip and decoder.vocabulary.is_special(other))]
    text = decoder.unknown_part(decoder.vocabulary.decode([*shown, token_id], False))
    return "" if fragments == "empty" and text.endswith("\ufffd") else text


def fill(stream: DecodeStream, before: Sequence[int], position: PositionLogprobs, fragments: str) -> PositionLogprobs:
    def filled(entry: TokenLogprob) -> TokenLogprob:
        text = token_text(stream, before, entry.token_id, fragments)
        return replace(entry, token=text, token_bytes=own_bytes(stream.vocabulary, entry.token_id))

    return PositionLogprobs(filled(position.sampled), tuple(filled(entry) for entry in position.top))


def own_bytes(vocabulary: Vocabulary | WindowVocabulary, token_id: int) -> bytes:
    # What a foreign object's token consists of is asked of the object.
    return token_bytes(vocabulary, token_id) if isinstance(vocabulary, Vocabulary) else vocabulary.token_bytes(token_id)


def fill_prompt(
    vocabulary: Vocabulary | WindowVocabulary,
    prompt: Sequence[int],
    entries: Sequence[Any],
    options: Options,
) -> list[PositionLogprobs | None]:
    """Each id in the context of the prompt before it."""
    return [
        position and fill(HoldingStream(vocabulary, prompt[:index], options), [], position, options.fragments)
        for index, position in enumerate(positions_of(entries, prompt))
    ]


# ---------------------------------------------------------------- updates -> events


class RequestDecoder:
    def __init__(
        self,
        vocabulary: Vocabulary | WindowVocabulary,
        prompt_token_ids: Sequence[int] | None = None,
        options: Options | None = None,
        *,
        request_id: str = "",
        intermediate: bool = True,
        token_texts: bool = False,
    ) -> None:
        self.vocabulary = vocabulary
        self.prompt = prompt_token_ids
        self.options = options or Options()
        self.request_id = request_id
        self.intermediate = intermediate
        self.token_texts = token_texts
        self.generation: Generation | None = None  # none before the first update
        self.sampled = SampledDelta([])  # not yet reported
        self.cached = 0
        self.kv: Any = None
        self.abort_cause: str | None = None

    @property
    def is_finished(self) -> bool:
        return self.generation is not None and self.generation.finished

    def push(self, update: EngineUpdate) -> list[Start | TextDelta]:
        if self.is_finished:
            raise StreamFinishedError("the request has ended")
        if update.finish_reason == "error":
            raise RequestError("the engine failed", self.request_id)
        if self.generation is not None:
            return [*self.delta(self.generation, update)]
        prompt = self.prompt_with(update)
        start = Start(prompt)
        if update.prompt_logprobs is not None:
            filled = fill_prompt(self.vocabulary, prompt, update.prompt_logprobs, self.options)
            start = replace(start, prompt_logprobs=filled)
        return [start, *self.delta(Generation(self.vocabulary, prompt, self.options), update)]

    def prompt_with(self, update: EngineUpdate) -> list[int]:
        given = [list(ids) for ids in (self.prompt, update.prompt_token_ids) if ids is not None]
        if not given:
            raise RequestError("no prompt", self.request_id)
        if given[0] != given[-1]:
            raise ValueError("two prompts")
        return given[0]

    def delta(self, generation: Generation, update: EngineUpdate) -> list[TextDelta]:
        before = len(generation.kept)
        count = generation.take(update.token_ids, last_is_terminal=update.last_is_terminal(self.options))
        if update.finish_reason is not None and not generation.finished:
            generation.finish()
        # Nothing below fails.
        self.generation = generation
        self.cached = max(self.cached, update.cached_token_count)
        self.kv = self.kv if update.kv_transfer_params is None else update.kv_transfer_params
        self.sampled = self.joined(self.sample(update, before, count))
        finished = None
        if generation.finished:
            finished = self.outcome(generation, update, list(update.token_ids[count:]))
        elif not self.intermediate:
            return []
        sampled, self.sampled = self.sampled, SampledDelta([])
        return [TextDelta(generation.next_chunk(), sampled, finished)]

    def sample(self, update: EngineUpdate, before: int, count: int) -> SampledDelta:
        positions = update.positions
        if positions is not None:
            positions = [self.generation.filled(before + n, positions[n]) for n in range(count)]
        token_ids, texts = list(update.token_ids[:count]), None
        if self.token_texts:
            texts = tuple(self.generation.token_text(before + n, token_id) for n, token_id in enumerate(token_ids))
        return SampledDelta(token_ids, positions, texts)

    def joined(self, new: SampledDelta) -> SampledDelta:
        old = self.sampled
        if not old.token_ids and old.logprobs is None:
            return new
        if not new.token_ids and new.logprobs is None:
            return old
        token_ids = old.token_ids + new.token_ids
        both = old.logprobs is not None and new.logprobs is not None
        texts = old.token_texts + new.token_texts if self.token_texts else None
        return SampledDelta(token_ids, old.logprobs + new.logprobs if both else None, texts)

    def outcome(self, generation: Generation, update: EngineUpdate, dropped: list[int]) -> Finished:
        match = generation.match
        if match is None:
            cause = update.stop_string if update.stop_token_id is None else update.stop_token_id
            reason = FinishReason(update.finish_reason, cause)
        else:
            self.abort_cause = "stop_string" if isinstance(match.stop, str) else "stop_token_id"
            reason = FinishReason("stop", match.stop)
        usage = TokenUsage(len(generation.prompt), len(generation.kept), self.cached)
        return Finished(usage, reason, match, self.kv, dropped, generation.first_cut_token)

    def close(self) -> None:
        if not self.is_finished:
            raise RequestError("no terminal update", self.request_id)


# ---------------------------------------------------------------- many requests


@dataclass
class StepOutput:
    """By position in `slots`; `stopped` and `errors` by slot."""

    chunks: list[DecodedText] = field(default_factory=list)
    kept_tokens: list[int] = field(default_factory=list)
    token_texts: list[list[str]] | None = None
    stopped: dict[int, StopMatch] = field(default_factory=dict)
    errors: dict[int, DetokError] = field(default_factory=dict)

    @property
    def texts(self) -> list[str]:
        return [chunk.text for chunk in self.chunks]

    def decoded(self, index: int) -> DecodedText:
        return self.chunks[index]


class BatchDecoder:
    def __init__(self, vocabulary: Vocabulary | WindowVocabulary, options: Options | None = None) -> None:
        self.vocabulary = vocabulary
        self.options = options
        self.slots: dict[int, Generation] = {}

    def __len__(self) -> int:
        return len(self.slots)

    def add(self, prompt_token_ids: Sequence[int] = (), options: Options | None = None) -> int:
        slot = next(n for n in range(len(self.slots) + 1) if n not in self.slots)
        self.slots[slot] = Generation(self.vocabulary, prompt_token_ids, options or self.options)
        return slot

    def slot(self, slot: int) -> Generation:
        if slot not in self.slots:
            raise StateError(f"no slot {slot}")
        return self.slots[slot]

    def step(
        self,
        slots: Sequence[int],
        token_ids: Sequence[int],
        counts: Sequence[int] | None = None,
        *,
        token_texts: bool = False,
    ) -> StepOutput:
        counts = [1] * len(slots) if counts is None else list(counts)
        check_ids(token_ids, None, "skip")
        if len(set(slots)) != len(slots) or len(counts) != len(slots) or sum(counts) != len(token_ids):
            raise ValueError("a slot named twice, or counts that do not add up")
        out = StepOutput(token_texts=[] if token_texts else None)
        at = 0
        for slot, count in zip(slots, counts, strict=True):
            self.step_one(out, slot, token_ids[at : at + count])
            at += count
        return out

    def step_one(self, out: StepOutput, slot: int, token_ids: Sequence[int]) -> None:
        chunk, kept, texts = DecodedText(), 0, []
        try:
            generation = self.slot(slot)
            before = len(generation.kept)
            kept = generation.take(token_ids)
            chunk = generation.next_chunk()
            texts = [generation.token_text(before + n, token_ids[n]) for n in range(kept)]
            if generation.match:
                out.stopped[slot] = generation.match
        except DetokError as error:
            out.errors[slot] = error
        out.chunks.append(chunk)
        out.kept_tokens.append(kept)
        if out.token_texts is not None:
            out.token_texts.append(texts)

    def finish(self, slots: Sequence[int]) -> StepOutput:
        out = StepOutput()
        for slot in slots:
            chunk = DecodedText()
            try:
                self.slot(slot).finish()
                chunk = self.slot(slot).tail
                if self.slot(slot).match:
                    out.stopped[slot] = self.slot(slot).match
            except DetokError as error:
                out.errors[slot] = error
            out.chunks.append(chunk)
            out.kept_tokens.append(0)
        return out

    def remove(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.slot(slot)
        for slot in slots:
            del self.slots[slot]

    def pending(self, slot: int) -> dict[str, int]:
        return self.slot(slot).stream.pending

    def usage(self, slot: int) -> TokenUsage:
        return TokenUsage(len(self.slot(slot).prompt), len(self.slot(slot).kept))
