"""One token pushed at a time, and what stood still after each: the data of every picture."""

from dataclasses import dataclass

from detok import DecodedText, DecodeStream
from detok.view.cells import count

__all__ = ["Step", "step", "withheld"]


@dataclass(frozen=True, slots=True)
class Step:
    """What one token did."""

    token_id: int
    settled_bytes: int
    """Bytes of text that became certain with it."""
    chunk: DecodedText | None
    incomplete_bytes: int
    held_bytes: int
    waiting_tokens: int


def step(stream: DecodeStream, token_id: int) -> Step:
    settled = stream.push_token(token_id)
    chunk = stream.next_chunk()
    pending = stream.pending
    return Step(token_id, settled, chunk, pending["incomplete_bytes"], pending["held_bytes"], pending["waiting_tokens"])


def withheld(after: Step) -> str:
    """What is kept back after a token and why, in words; empty if nothing is."""
    reasons = []
    if after.incomplete_bytes:
        reasons.append(f"{count(after.incomplete_bytes, 'byte')} of an unfinished character")
    if after.held_bytes:
        reasons.append(f"{count(after.held_bytes, 'byte')} held back as asked")
    if after.waiting_tokens:
        verb = "waits" if after.waiting_tokens == 1 else "wait"
        reasons.append(f"{count(after.waiting_tokens, 'token')} {verb}")
    return "; ".join(reasons)
