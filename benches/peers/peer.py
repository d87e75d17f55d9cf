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
    nothing; `decode_batch` is offline."""

    name = kind = package = ""
    does: tuple[str, ...] = ()
    families: tuple[str, ...] = ("bytelevel", "spm")
    takes_prompt = False
    makes_text = True
    reads = "lists"  # what decode_batch takes: lists, arrays (NumPy), flat (ids and offsets)
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

    def decode_batch(self, sequences: Any) -> list[str]:
        raise NotImplementedError
