"""What the demo and the examples run on: a real tokenizer and a few streams that its model sampled."""

import gzip
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from detok import Tokenizer

__all__ = ["RecordedStream", "demo_streams", "demo_tokenizer"]


@dataclass(frozen=True, slots=True)
class RecordedStream:
    """Token ids as SmolLM2-135M-Instruct sampled them after a prompt."""

    name: str
    about: str
    source: str
    prompt: str
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    finish: str
    text: str
    """One-shot decode of `ids` with special tokens shown, made when the stream was recorded, not by detok."""


@cache
def demo_tokenizer() -> Tokenizer:
    """The tokenizer of SmolLM2: byte-level BPE with 49,152 ids, complete enough to encode too."""
    packed = (files(__name__) / "smollm2.json.gz").read_bytes()
    return Tokenizer.from_json(gzip.decompress(packed))


@cache
def demo_streams() -> dict[str, RecordedStream]:
    """Recorded streams by name, in the order in which `detok demo --list` shows them."""
    lines = (files(__name__) / "smollm2_streams.jsonl").read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line]
    return {
        row["name"]: RecordedStream(**{**row, "prompt_ids": tuple(row["prompt_ids"]), "ids": tuple(row["ids"])})
        for row in rows
    }
