"""What the builders share: the events of one choice in, its chunks out, and at the end the whole answer."""

import time
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from detok import (
    DecodedText,
    DecodedTextEvent,
    DetokError,
    Finished,
    PositionLogprobs,
    Start,
    StateError,
    StreamFinishedError,
    TextDelta,
    TokenUsage,
)
from detok.adapters.openai.sse import quoted, sse
from detok.adapters.openai.usage import usage_of

__all__ = ["ChoiceBuilder"]

Pieces: TypeAlias = list[tuple[str, DecodedText]]


@dataclass
class Riders:
    """What goes with text."""

    logprobs: list[Any] = field(default_factory=list)
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] = field(default_factory=list)
    attribution: dict[str, dict[str, list[Any]]] = field(default_factory=dict)


class ChoiceBuilder(ABC):
    """Chunks of one choice, and its body.

    A chunk leaves where there is text. Logprobs and attribution go with the records of their tokens, on the decoder's
    clock; ids with the update that sampled them, on the engine's. Without text they wait, and ride on the next chunk;
    what still waits at the end is on the last one, which has the finish reason.

    Text goes to fields of the answer; each counts its characters for itself.

    Attributes:
        index: Which choice.
        head: The first keys of every chunk.
    """

    _object: ClassVar[str]
    _chunk_object: ClassVar[str]

    def __init__(
        self,
        *,
        id: str,
        model: str,
        created: int | None,
        index: int,
        n: int,
        logprobs: bool,
        include_usage: bool,
        continuous_usage: bool,
        return_token_ids: bool,
        attribution: bool,
        keep_output: bool,
    ) -> None:
        if index < 0 or n < 1:
            raise ValueError(f"index counts from 0 and n from 1; they are {index} and {n}")
        created = int(time.time()) if created is None else created
        self.index = index
        self.head: dict[str, Any] = {"id": id, "object": self._chunk_object, "created": created, "model": model}
        self._with_usage, self._with_running_usage = include_usage, continuous_usage
        self._ends_with_usage = include_usage and n == 1
        self._with_logprobs, self._with_token_ids, self._with_attribution = logprobs, return_token_ids, attribution
        self._only_text = not (logprobs or continuous_usage or return_token_ids or attribution)

        self._prompt_token_count: int | None = None
        self._sampled_count = 0
        self._finished: Finished | None = None
        # Tokens of the engine's clock that the decoder's has not reached.
        self._waiting: deque[PositionLogprobs] = deque()
        self._riders = Riders()
        self._lengths: dict[str, int] = {}
        self._frames: dict[str, tuple[str, str]] = {}
        # For the body: what was sent.
        self._keeps_output = keep_output
        self._texts: defaultdict[str, DecodedText] = defaultdict(DecodedText)
        self._sent = Riders()

    def push(self, event: DecodedTextEvent) -> list[dict[str, Any]]:
        """The chunks of an event: none if it has nothing to show.

        Raises:
            StreamFinishedError: The last event came before.
            StateError: The first event is no `Start`, or a later one is.
            TypeError: What is pushed is no event.
            DetokError: Logprobs are wanted, and the engine gave none.
        """
        self._check(event)
        choices = self._start(event) if isinstance(event, Start) else self._delta(event)
        chunks = [self._chunk(choice) for choice in choices]
        if self._finished is not None and self._ends_with_usage:
            chunks.append({**self.head, "choices": [], "usage": self.usage})
        return chunks

    def push_sse(self, event: DecodedTextEvent) -> bytes:
        """`push`, and each chunk as `sse` writes it; much faster where chunks have text and nothing else."""
        if not self._only_text or isinstance(event, Start) or event.finished is not None:
            return b"".join([sse(chunk) for chunk in self.push(event)])
        self._check(event)
        self._sampled_count += len(event.sampled.token_ids)
        frames = [
            self._framed(name, text) for name, piece in self._split(event.decoded) if (text := self._take(name, piece))
        ]
        return "".join(frames).encode("ascii")

    def body(self) -> dict[str, Any]:
        """The answer to a request that is no stream, after the last event.

        Raises:
            StateError: The last event did not come yet, or nothing was kept.
        """
        if self._finished is None:
            raise StateError(f"choice {self.index} has no body before its last event")
        if not self._keeps_output:
            raise StateError(f"choice {self.index} has no body, it was not to keep its output")
        if self._with_attribution:
            # Spans of whole tokens, where chunks have those of their own text.
            self._sent.attribution = {name: _attribution(decoded, 0) for name, decoded in self._texts.items()}
        message = self._message({name: decoded.text for name, decoded in self._texts.items()})
        choice = self._choice(message, self._sent, self._finished)
        return {**self.head, "object": self._object, "choices": [choice], "usage": self.usage}

    @property
    def is_finished(self) -> bool:
        """Whether the last event came."""
        return self._finished is not None

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens so far; how many of the prompt were cached is known at the end."""
        running = TokenUsage(self._prompt_token_count or 0, self._sampled_count)
        return usage_of(running if self._finished is None else self._finished.usage, self._reasoning_tokens())

    # ------------------------------------------------------------------ what the forms differ in

    @abstractmethod
    def _start(self, start: Start) -> list[dict[str, Any]]:
        """The choices that come before any text."""

    @abstractmethod
    def _split(self, decoded: DecodedText, *, is_last: bool = False) -> Pieces:
        """Text with its records, by field, in order."""

    @abstractmethod
    def _content(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """The part of a chunk's choice that holds new text of fields."""

    @abstractmethod
    def _message(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """The part of a body's choice that holds all text of fields."""

    @abstractmethod
    def _entry(self, position: PositionLogprobs, offset: int) -> Any:
        """Logprobs of a token that stands at a character of its field."""

    @abstractmethod
    def _logprobs(self, entries: Sequence[Any]) -> dict[str, Any]:
        """A choice's logprobs."""

    @abstractmethod
    def _attributed(self, fields: dict[str, dict[str, list[Any]]]) -> dict[str, Any]:
        """A choice's attribution."""

    @property
    @abstractmethod
    def _field(self) -> str:
        """Where text would go now."""

    def _reasoning_tokens(self) -> int:
        return 0

    # ------------------------------------------------------------------ what they share

    def _check(self, event: DecodedTextEvent) -> None:
        if self._finished is not None:
            raise StreamFinishedError(f"choice {self.index} has had its last event")
        is_start = isinstance(event, Start)
        if not is_start and not isinstance(event, TextDelta):
            raise TypeError(f"an event must be a Start or a TextDelta, not {type(event).__name__}")
        if is_start is not (self._prompt_token_count is None):
            problem = "two starts" if is_start else "no start"
            raise StateError(f"choice {self.index} has {problem}: a request begins with its Start")

    def _delta(self, event: TextDelta) -> list[dict[str, Any]]:
        sampled, finished = event.sampled, event.finished
        token_ids = sampled.token_ids
        if self._with_logprobs and token_ids:
            if (positions := sampled.logprobs) is None:
                first, last = self._sampled_count, self._sampled_count + len(token_ids) - 1
                raise DetokError(f"logprobs are wanted, and the engine gave none for tokens {first} to {last}")
            self._waiting += positions
        self._sampled_count += len(token_ids)
        if self._with_token_ids:
            self._riders.token_ids += token_ids
        choices = [
            self._choice(self._content({name: text}), self._ride())
            for name, piece in self._split(event.decoded, is_last=finished is not None)
            if (text := self._take(name, piece))
        ]
        if finished is not None:
            self._finished = finished
            end = self._lengths.get(self._field, 0)
            self._riders.logprobs += [self._entry(position, end) for position in self._waiting]
            choices.append(self._choice(self._content({}), self._ride(), finished))
        elif self._with_running_usage and not choices:
            choices.append(self._choice(self._content({self._field: ""}), self._ride()))
        return choices

    def _take(self, name: str, piece: DecodedText) -> str:
        """The text of a piece; what its records bring rides on the next chunk."""
        text, before = piece.text, self._lengths.get(name, 0)
        self._lengths[name] = before + len(text)
        if self._with_logprobs:
            for token_id, offset in zip(piece.token_ids, piece.offsets(), strict=True):
                # Tokens of markers, which are in no piece, lie between.
                while self._take_position(before + offset) != token_id:
                    pass
        if self._with_attribution and piece.token_ids:
            riding = self._riders.attribution.setdefault(name, {"token_ids": [], "spans": []})
            for key, values in _attribution(piece, before).items():
                riding[key] += values
        if self._keeps_output:
            self._texts[name].append(piece)
        return text

    def _take_position(self, offset: int) -> int:
        position = self._waiting.popleft()
        self._riders.logprobs.append(self._entry(position, offset))
        return position.sampled.token_id

    def _ride(self) -> Riders:
        """What rides on the chunk that is made now."""
        riders, self._riders = self._riders, Riders()
        if self._keeps_output:
            self._sent.logprobs += riders.logprobs
            self._sent.token_ids += riders.token_ids
            if riders.prompt_token_ids is not None:
                self._sent.prompt_token_ids = riders.prompt_token_ids
        return riders

    def _choice(self, content: dict[str, Any], riders: Riders, finished: Finished | None = None) -> dict[str, Any]:
        logprobs = self._logprobs(riders.logprobs) if riders.logprobs else None
        choice = {"index": self.index, **content, "logprobs": logprobs, "finish_reason": None}
        if finished is not None:
            choice["finish_reason"] = finished.finish_reason.kind
            choice["stop_reason"] = finished.finish_reason.stop
        if riders.prompt_token_ids is not None:
            choice["prompt_token_ids"] = riders.prompt_token_ids
        if self._with_token_ids:
            choice["token_ids"] = riders.token_ids
        if self._with_attribution:
            choice["attribution"] = self._attributed(riders.attribution)
        return choice

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self.head, "choices": [choice]}
        if self._with_running_usage:
            chunk["usage"] = self.usage
        elif self._with_usage:
            chunk["usage"] = None
        return chunk

    def _framed(self, name: str, text: str) -> str:
        """The event of a chunk that has this text and nothing else, out of parts that are the same for every text."""
        frame = self._frames.get(name)
        if frame is None:
            event = sse(self._chunk(self._choice(self._content({name: "\0"}), Riders())))
            before, _, behind = event.decode("ascii").rpartition(quoted("\0"))
            frame = self._frames[name] = (before, behind)
        return frame[0] + quoted(text) + frame[1]


def _attribution(decoded: DecodedText, before: int) -> dict[str, list[Any]]:
    """Tokens, and their spans in a text that has so many characters before this one."""
    spans = [[before + start, before + end] for start, end in decoded.spans()]
    return {"token_ids": decoded.token_ids, "spans": spans}
