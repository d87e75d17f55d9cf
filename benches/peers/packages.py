"""Other packages. One that is not installed, or cannot load the vocabulary, is skipped."""

from peers.huggingface import DecodeStream
from peers.peer import Peer, Skip
from peers.python import Driver


class Fastokens(DecodeStream):
    """A drop-in for the stream of tokenizers."""

    name, package = "fastokens", "fastokens"
    does = (*DecodeStream.does, "w5")

    def setup(self):
        from fastokens._native import DecodeStream, Tokenizer

        self.stream, self.tokenizer = DecodeStream, Tokenizer.from_json_str(self.vocab.json)

    def decode_batch(self, sequences):
        return self.tokenizer.decode_batch(sequences, skip_special_tokens=True)


class Splintr(Peer):
    name, kind, package = "splintr", "peer", "splintr-rs"
    does = ("w1", "w4", "w5", "w6", "w7")
    most_streams = 50  # each copies the vocabulary

    def setup(self):
        import splintr

        self.tokenizer = _loaded(lambda: splintr.from_json(self.vocab.path))

    def open(self, prompt):
        return self.tokenizer.streaming_decoder()

    def step(self, stream, token_id):
        return stream.add_token(token_id)

    def finish(self, stream):
        return stream.flush()

    def run(self, ids, prompt=None):
        stream = self.open(prompt)
        add = stream.add_token
        return [add(i) for i in ids], stream.flush()

    def decode_batch(self, sequences):
        return self.tokenizer.decode_batch(sequences)


class Tiktoken(Driver):
    name, package, families = "tiktoken", "tiktoken", ("bytelevel",)
    does = (*Driver.does, "w5")

    def setup(self):
        import tiktoken

        ranks, special = {}, {}
        for i, token in enumerate(self.vocab.table):
            if token and token not in ranks:
                ranks[token] = i
            else:
                special[f"<duplicate {i}>"] = i
        self.encoding = tiktoken.Encoding("bench", pat_str=r"\s+|\S+", mergeable_ranks=ranks, special_tokens=special)
        self.one = self.encoding.decode_single_token_bytes

    def decode_batch(self, sequences):
        return self.encoding.decode_batch(sequences, num_threads=1)


class Gigatoken(Driver):
    name, package = "gigatoken", "gigatoken"
    does = (*Driver.does, "w5")

    def setup(self):
        import gigatoken

        tokenizer = _loaded(lambda: gigatoken.Tokenizer.from_json(self.vocab.json))
        self.decode = tokenizer.decode

    def one(self, token_id):
        return self.decode([token_id])

    def decode_batch(self, sequences):
        decode = self.decode
        return [decode(ids).decode("utf-8", "replace") for ids in sequences]


class GigatokenArrays(Gigatoken):
    name, does, reads = "gigatoken-numpy", ("w5",), "arrays"


def _loaded(load):
    try:
        return load()
    except ImportError:
        raise
    except Exception as error:
        raise Skip(f"cannot load this vocabulary: {error}") from None


ADAPTERS = [Fastokens, Splintr, Tiktoken, Gigatoken, GigatokenArrays]
