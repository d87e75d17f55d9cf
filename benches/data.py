"""Id streams of one vocabulary."""

from functools import cache, cached_property

import numpy as np
from texts import SEED, texts
from vocabs import Vocab

CALLS = 10  # of the offline workload


class Data:
    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab
        self.texts = texts()
        self.ids = cache(lambda cls: vocab.encode(self.texts[cls]))
        self.stream = cache(self._stream)
        self.pool = cache(self._pool)
        self.offline = cache(self._offline)
        self.long_prompt = cache(self._long_prompt)

    def _stream(self, cls: str, prompt: int = 512, count: int = 4096) -> tuple[list[int], list[int]]:
        """Prompt ids, and about `count` ids that follow them, cut between characters."""
        ids = self.ids(cls)
        ids = ids * (2 * (prompt + count) // len(ids) + 1)
        start = self._clean(ids, prompt)
        return ids[:start], ids[start : self._clean(ids, start + count)]

    def _pool(self, reads: str, streams: int = 1_000, steps: int = 64) -> tuple[list[list[int]], list]:
        """Prompts of 512 ids, and the ids of each step, one a stream; as numbers that nobody else has, as an engine
        gives them."""
        ids, random = self.ids("mixed"), np.random.default_rng(SEED + 2)
        starts = [self._clean(ids, at) for at in random.integers(512, len(ids) - steps - 64, streams).tolist()]
        matrix = np.array([ids[at : at + steps] for at in starts], dtype=np.uint32).T
        rows = [np.ascontiguousarray(row) for row in matrix]
        return [ids[at - 512 : at] for at in starts], rows if reads == "arrays" else [row.tolist() for row in rows]

    def _long_prompt(self, count: int) -> tuple[list[int] | None, list[int]]:
        """A prompt of `count` ids (none for 0), and ids that follow it."""
        ids = self.ids("mixed")
        start = self._clean(ids, 1024)
        prompt = (ids[start:] + ids[:start]) * (count // len(ids) + 1)
        return prompt[-count:] if count else None, ids[start : start + 64]

    @cached_property
    def _sequences(self) -> np.ndarray:
        ids = np.array(self.ids("mixed"), dtype=np.uint32)
        starts = np.random.default_rng(SEED).integers(0, len(ids) - 500, 2_000)
        return np.stack([ids[at : at + 500] for at in starts])

    @property
    def ids_a_call(self) -> int:
        return self._sequences.size // CALLS

    def _offline(self, form: str) -> list:
        """Sequences of each call as `lists`, as `arrays`, or `flat`: all ids, and the offsets of the sequences."""
        calls = np.split(self._sequences, CALLS)
        if form == "lists":
            return [[row.tolist() for row in rows] for rows in calls]
        if form == "arrays":
            return [list(rows) for rows in calls]
        return [(rows.reshape(-1), np.arange(0, rows.size + 1, rows.shape[1], dtype=np.uint64)) for rows in calls]

    def _clean(self, ids: list[int], at: int) -> int:
        """The first position from `at` on where a character ends before it and one starts behind it."""
        table = self.vocab.table
        while True:
            before = b"".join(table[i] for i in ids[max(0, at - 8) : at])
            cut = next((k for k in range(min(4, len(before))) if before[k] & 0xC0 != 0x80), 0)
            behind = table[ids[at]]
            if _is_text(before[cut:]) and (not behind or behind[0] & 0xC0 != 0x80):
                return at
            at += 1


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
