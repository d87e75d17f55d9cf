"""Lower bounds: what the interpreter and a C extension cost at least."""

import subprocess

import floor

from peers.peer import Peer, Skip
from peers.python import hidden_table, trimmed


class Index(Peer):
    """parts.append(table[id]) and one join: no UTF-8 state at all."""

    name, kind, makes_text, does = "floor-index-join", "floor", False, ("w1",)

    def setup(self):
        self.table = [token.decode("utf-8", "replace") for token in self.vocab.table]

    def run(self, ids, prompt=None):
        table, parts = self.table, []
        append = parts.append
        for i in ids:
            append(table[i])
        return parts, "".join(parts)


class _C(Peer):
    kind = "floor"

    def setup(self):
        try:
            self.extension = floor.load()
        except (OSError, ImportError, subprocess.CalledProcessError) as error:
            raise Skip(f"floor.c was not built: {error}") from None
        self.table = self.extension.Table(hidden_table(self.vocab))


class Noop(_C):
    """The cheapest method of an extension type: one argument, returns a ready string."""

    name, makes_text, does = "floor-c-noop", False, ("w1",)
    method = "cached"

    def run(self, ids, prompt=None):
        call = getattr(self.extension.Noop(), self.method)
        return [call(i) for i in ids], ""


class NoopFresh(Noop):
    """... a new string of four bytes each time."""

    name, method = "floor-c-noop-newstr", "fresh"


class Step(_C):
    """Real UTF-8 streaming in C, one call per token, ready strings where a token is whole."""

    name, does = "floor-c-step", ("w1", "w4", "w6", "w7")
    method = "step"

    def open(self, prompt):
        return self.extension.Stream(self.table)

    def step(self, stream, token_id):
        return stream.step(token_id)

    def finish(self, stream):
        return stream.finish()

    def run(self, ids, prompt=None):
        stream = self.open(prompt)
        step = getattr(stream, self.method)
        return trimmed(self, [step(i) for i in ids], prompt), stream.finish()


class StepFresh(Step):
    """... every delta a new string."""

    name, method, does = "floor-c-step-newstr", "step_uncached", ("w1",)


class Lists(_C):
    """Lists to strings in one call."""

    name, does = "floor-c-lists", ("w5",)

    def decode_batch(self, sequences):
        return self.table.decode_batch(sequences)


class Flat(_C):
    """One array of ids and one of offsets to strings in one call."""

    name, does, reads = "floor-c-flat", ("w5",), "flat"

    def decode_batch(self, sequences):
        return self.table.decode_flat(*sequences)


class Gather(_C):
    """Bytes of all ids copied to one buffer: no UTF-8 check, no strings."""

    name, does, reads, makes_text = "floor-c-gather", ("w5",), "flat", False

    def decode_batch(self, sequences):
        return self.table.gather(sequences[0])


ADAPTERS = [Index, Noop, NoopFresh, Step, StepFresh, Lists, Flat, Gather]
