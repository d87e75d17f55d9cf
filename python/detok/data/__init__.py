"""What the demo and the examples run on: a real tokenizer and a few streams that its model sampled."""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from detok import PositionLogprobs, Tokenizer, TokenLogprob

__all__ = ["RecordedStream", "demo_chat", "demo_logprobs", "demo_streams", "demo_tokenizer"]

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


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


@cache
def demo_logprobs() -> dict[str, list[PositionLogprobs | None]]:
    """By name of a stream, what the model made of each token of its prompt and then of its answer: how likely it was,
    and the five likeliest tokens. The first of a prompt has none."""
    lines = gzip.decompress((files(__name__) / "smollm2_logprobs.jsonl.gz").read_bytes()).splitlines()
    streams = demo_streams()
    positions = {}
    for row in map(json.loads, lines):
        stream = streams[row["name"]]
        tokens = zip(stream.prompt_ids + stream.ids, row["positions"], strict=True)
        positions[stream.name] = [_position(token_id, *given) if given else None for token_id, given in tokens]
    return positions


def _position(
    token_id: int, logprob: float, rank: int, likeliest: list[int], logprobs: list[float]
) -> PositionLogprobs:
    top = zip(likeliest, logprobs, range(1, len(likeliest) + 1), strict=True)
    return PositionLogprobs(TokenLogprob(token_id, logprob, rank), [TokenLogprob(*entry) for entry in top])


def demo_chat(messages: Sequence[Mapping[str, str]]) -> str:
    """A chat with SmolLM2 as the model was trained to read it, up to where the answer begins.

    Each message has a `role` and a `content`. A chat that does not begin with the role `system` begins with the system
    message of the training.
    """
    if not messages or messages[0]["role"] != "system":
        messages = [{"role": "system", "content": SYSTEM}, *messages]
    turns = (f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages)
    return "".join(turns) + "<|im_start|>assistant\n"
