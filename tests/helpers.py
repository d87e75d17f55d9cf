"""Small things that several test modules need: groupings, replays, oracles, objects that count."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import detok


def ones(ids: Sequence[int]) -> list[Sequence[int]]:
    """One id a call."""
    return [ids[i : i + 1] for i in range(len(ids))]


def groupings(ids: Sequence[int], seed: object, count: int = 3) -> Iterator[list[Sequence[int]]]:
    """All in one call, one a call, and `count` random ways (some calls are empty)."""
    yield [ids]
    yield ones(ids)
    rng = random.Random(str(seed))
    for _ in range(count):
        groups, at = [], 0
        while at < len(ids):
            size = rng.choice([0, 1, 1, 2, 3, 5, 8])
            groups.append(ids[at : at + size])
            at += size
        yield groups


@dataclass
class Replay:
    """What a stream gave: the text after each call (the flushed one last), and everything together."""

    deltas: list[str]
    joined: detok.DecodedText
    everything: detok.DecodedText
    token_count: int

    @property
    def text(self) -> str:
        return "".join(self.deltas)


def replay(stream: detok.DecodeStream, groups: Iterable[Sequence[int]]) -> Replay:
    """Pushes each group, takes the chunk after it, flushes at the end."""
    deltas, joined = [], detok.DecodedText()

    def take(chunk: detok.DecodedText | None) -> None:
        deltas.append(chunk.text if chunk is not None else "")
        if chunk is not None:
            joined.append(chunk)

    for group in groups:
        stream.push_tokens(group)
        take(stream.next_chunk())
        assert stream.pending["incomplete_bytes"] <= 3
    last, everything = stream.flush()
    take(last)
    return Replay(deltas, joined, everything, stream.token_count)


def same(a: detok.DecodedText, b: detok.DecodedText) -> bool:
    """Equal text and equal records."""
    return a.text == b.text and list(a.attributions) == list(b.attributions)


def bytewise(data: bytes) -> str:
    """The rule of D1: complete characters stay, every other byte is one U+FFFD."""
    out, at = "", 0
    while at < len(data):
        for size in (1, 2, 3, 4):
            try:
                out += data[at : at + size].decode()
            except UnicodeDecodeError:
                continue
            at += size
            break
        else:
            out += "\ufffd"
            at += 1
    return out


def lossy(data: bytes) -> str:
    """The WHATWG rule: one U+FFFD for every maximal invalid part."""
    return data.decode("utf-8", errors="replace")


@dataclass
class CountingDecoder:
    """A SupportsDecode object over byte tokens that writes down what it is asked."""

    tokens: list[bytes]
    special: frozenset[int] = frozenset()
    asked: list[int] = field(default_factory=list)  # length of each decoded list

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        self.asked.append(len(token_ids))
        if any(i >= len(self.tokens) for i in token_ids):
            raise KeyError(f"no such token among {token_ids}")
        hidden = self.special if skip_special_tokens else frozenset()
        return lossy(b"".join(self.tokens[i] for i in token_ids if i not in hidden))

    def id_to_token(self, token_id: int) -> str | None:
        return lossy(self.tokens[token_id]) if token_id < len(self.tokens) else None

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special


class CountedId:
    """An id by way of __index__ that counts how often ids are read."""

    reads = 0

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        CountedId.reads += 1
        return self.value
