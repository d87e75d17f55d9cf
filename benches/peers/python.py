"""Pure Python over the bytes of each id: what a careful user could write. Special tokens are hidden."""

import codecs

from peers.peer import Peer, StopTail


class Driver(Peer):
    """`one(id)` gives bytes; Python's incremental decoder makes text of them."""

    kind = "driver"
    does = ("w1", "w4", "w6", "w7")
    decoder = staticmethod(codecs.getincrementaldecoder("utf-8"))

    def one(self, token_id):
        raise NotImplementedError

    def open(self, prompt):
        return self.decoder("replace")

    def step(self, stream, token_id):
        return stream.decode(self.one(token_id))

    def finish(self, stream):
        return stream.decode(b"", True)

    def run(self, ids, prompt=None):
        stream = self.open(prompt)
        decode, one = stream.decode, self.one
        return [decode(one(i)) for i in ids], self.finish(stream)


def hidden_table(vocab):
    """The bytes of each id; special tokens give none."""
    table = list(vocab.table)
    for i in vocab.specials:
        table[i] = b""
    return table


class ByteTable(Driver):
    """Ten lines: a list of bytes and codecs' incremental decoder."""

    name, kind = "py-bytetable", "python"
    does = (*Driver.does, "w5")

    def setup(self):
        self.table = hidden_table(self.vocab)
        self.one = self.table.__getitem__

    def run(self, ids, prompt=None):
        stream, table = self.open(prompt), self.table
        decode = stream.decode
        return trimmed(self, [decode(table[i]) for i in ids], prompt), self.finish(stream)

    def decode_batch(self, sequences):
        table, trim = self.table, self.vocab.family == "spm"
        out = [b"".join([table[i] for i in ids]).decode("utf-8", "replace") for ids in sequences]
        return [text.removeprefix(" ") for text in out] if trim else out


class StrTable(ByteTable):
    """Twenty lines: ready strings for ids that are whole characters by themselves, codecs for the others."""

    name = "py-strtable"
    does = (*Driver.does, "w2", "w3")

    def setup(self):
        super().setup()
        self.whole = [_whole(token) for token in self.table]

    def open(self, prompt):
        return [b""]

    def step(self, stream, token_id):
        text = self.whole[token_id]
        if text is None or stream[0]:
            data = stream[0] + self.table[token_id]
            text, used = codecs.utf_8_decode(data, "replace", False)
            stream[0] = data[used:]
        return text

    def finish(self, stream):
        return stream[0].decode("utf-8", "replace")

    def run(self, ids, prompt=None):
        whole, table, tail, out, partial = self.whole, self.table, b"", [], codecs.utf_8_decode
        append = out.append
        for i in ids:
            text = whole[i]
            if text is None or tail:
                tail += table[i]
                text, used = partial(tail, "replace", False)
                tail = tail[used:]
            append(text)
        return trimmed(self, out, prompt), tail.decode("utf-8", "replace")

    def open_pool(self, prompts):
        return [b""] * len(prompts)

    def step_pool(self, pool, ids):
        whole, table, out, partial = self.whole, self.table, [], codecs.utf_8_decode
        append = out.append
        for k, i in enumerate(ids):
            text, tail = whole[i], pool[k]
            if text is None or tail:
                tail += table[i]
                text, used = partial(tail, "replace", False)
                pool[k] = tail[used:]
            append(text)
        return out

    def open_request_pool(self, prompts, stops):
        return self.open_pool(prompts), [StopTail(stops) for _ in prompts]

    def step_request_pool(self, pool, ids):
        tails, searches = pool
        deltas = self.step_pool(tails, ids)
        return [search.push(delta) for search, delta in zip(searches, deltas, strict=True)], self.token_texts(ids)

    def token_texts(self, ids):
        whole, table = self.whole, self.table
        return [text if (text := whole[i]) is not None else table[i].decode("utf-8", "replace") for i in ids]


def _whole(token):
    try:
        return token.decode()
    except UnicodeDecodeError:
        return None


def trimmed(peer, out, prompt):
    """The first blank of a text goes where the decoder strips it."""
    if peer.vocab.family == "spm" and not prompt and out and out[0].startswith(" "):
        out[0] = out[0][1:]
    return out


ADAPTERS = [ByteTable, StrTable]
