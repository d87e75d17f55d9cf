"""What an adapter is.

Kinds:
    ours        this library
    peer        a package's own decoder, used as its documentation shows
    driver      a package that only decodes whole lists, made to stream by a loop of ours: one id to bytes, then
                Python's incremental UTF-8 decoder
    equivalent  an inference engine's algorithm written anew on the same library calls; the engine is not installed
    python      what a careful user could write in pure Python
    floor       no detokenizer: a lower bound
"""

from collections.abc import Sequence
from typing import Any

from vocabs import Vocab

Ids = Sequence[int]


class Skip(Exception):
    """This adapter cannot run here; the message says why."""


class Peer:
    """`open`, `step`, `finish` are one stream; `run` is the whole loop inline, so that the adapter's calls cost
    nothing; `open_pool` and what follows it are many streams in lock step; `decode_batch` is offline."""

    name = kind = package = ""
    does: tuple[str, ...] = ()
    families: tuple[str, ...] = ("bytelevel", "spm")
    takes_prompt = False
    makes_text = True
    reads = "lists"  # what decode_batch and step_pool take: lists, arrays (NumPy), flat (ids and offsets)
    most_stops = 4  # stop strings a stream can be given in reasonable time
    most_streams = 5000  # fewer where each is huge

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab
        if vocab.family not in self.families:
            raise Skip(f"has no {vocab.family} vocabulary")
        try:
            self.setup()
        except ImportError as error:
            raise Skip(f"not installed ({error})") from None

    def setup(self) -> None:
        """Imports the package and loads the vocabulary."""

    def open(self, prompt: Ids | None) -> Any:
        raise NotImplementedError

    def step(self, stream: Any, token_id: int) -> str | None:
        raise NotImplementedError

    def finish(self, stream: Any) -> str:
        return ""

    def run(self, ids: Ids, prompt: Ids | None = None) -> tuple[list[str | None], str]:
        """Every delta, and the flushed rest."""
        stream, step = self.open(prompt), self.step
        return [step(stream, i) for i in ids], self.finish(stream)

    def open_pool(self, prompts: list[Ids]) -> Any:
        return [self.open(prompt if self.takes_prompt else None) for prompt in prompts]

    def step_pool(self, pool: Any, ids: Any) -> list[str | None]:
        """One token for each stream; what each may show."""
        step = self.step
        return [step(stream, i) for stream, i in zip(pool, ids, strict=True)]

    def open_request_pool(self, prompts: list[Ids], stops: list[str]) -> Any:
        """The same streams with stop strings."""
        return [(stream, StopTail(stops)) for stream in self.open_pool(prompts)]

    def step_request_pool(self, pool: Any, ids: Any) -> tuple[list[str], list[str]]:
        """What each may show, and the text of each sampled token as for logprobs."""
        step = self.step
        shown = [tail.push(step(stream, i)) for (stream, tail), i in zip(pool, ids, strict=True)]
        return shown, self.token_texts(ids)

    def token_texts(self, ids: Ids) -> list[str]:
        """The text of each token alone."""
        raise NotImplementedError

    def decode_batch(self, sequences: Any) -> list[str]:
        raise NotImplementedError


class StopTail:
    """Stop strings for a stream that has none: what was not shown is searched, and as much of it held back as the
    longest stop needs."""

    __slots__ = ("held", "hold", "stops")

    def __init__(self, stops: list[str]) -> None:
        self.stops, self.hold, self.held = stops, max(map(len, stops)) - 1, ""

    def push(self, delta: str | None) -> str:
        if not delta:
            return ""
        text = self.held + delta
        for stop in self.stops:
            if stop in text:
                raise AssertionError("no text of the bench has a stop")
        self.held = text[-self.hold :]
        return text[: -self.hold]
