"""tokenizers and transformers."""

from peers.peer import Peer


class DecodeStream(Peer):
    """tokenizers.decoders.DecodeStream, started without the prompt."""

    name, kind, package = "hf-decodestream", "peer", "tokenizers"
    does = ("w1", "w2", "w3", "w4", "w6", "w7")

    def setup(self):
        from tokenizers.decoders import DecodeStream

        self.stream, self.tokenizer = DecodeStream, self.vocab.hf

    def open(self, prompt):
        return self.stream(skip_special_tokens=True)

    def step(self, stream, token_id):
        return stream.step(self.tokenizer, token_id)

    def run(self, ids, prompt=None):
        step, tokenizer = self.open(prompt).step, self.tokenizer
        return [step(tokenizer, i) for i in ids], ""

    def step_pool(self, pool, ids):
        tokenizer = self.tokenizer
        return [stream.step(tokenizer, i) for stream, i in zip(pool, ids, strict=True)]

    def token_texts(self, ids):
        decode = self.tokenizer.decode
        return [decode([i]) for i in ids]


class DecodeStreamPrompt(DecodeStream):
    """Primed with the prompt's ids, as vLLM does."""

    name, takes_prompt = "hf-decodestream-prompt", True
    does = ("w1", "w2", "w3", "w6", "w7")

    def open(self, prompt):
        return self.stream(ids=list(prompt or []), skip_special_tokens=True)


class Decode(Peer):
    """Tokenizer.decode, a call for each sequence."""

    name, kind, package = "hf-decode", "peer", "tokenizers"
    does = ("w4", "w5")

    def run(self, ids, prompt=None):
        return [self.vocab.hf.decode(ids, skip_special_tokens=True)], ""

    def decode_batch(self, sequences):
        decode = self.vocab.hf.decode
        return [decode(ids, skip_special_tokens=True) for ids in sequences]


class DecodeBatch(Decode):
    name, does = "hf-batch", ("w5",)

    def decode_batch(self, sequences):
        return self.vocab.hf.decode_batch(sequences, skip_special_tokens=True)


class _OneId:
    """Looks enough like a tensor for TextStreamer.put."""

    shape = (1,)

    def __init__(self, ids):
        self.ids = ids

    def tolist(self):
        return self.ids


class TextStreamer(Peer):
    name, kind, package = "tf-textstreamer", "peer", "transformers"
    does = ("w1", "w4", "w5", "w6", "w7")

    def setup(self):
        from transformers import PreTrainedTokenizerFast, TextStreamer

        self.tokenizer = PreTrainedTokenizerFast(tokenizer_file=self.vocab.path)

        class Tap(TextStreamer):
            out = ""

            def on_finalized_text(self, text, stream_end=False):
                self.out = text

        self.stream = Tap

    def open(self, prompt):
        stream = self.stream(self.tokenizer, skip_prompt=True, skip_special_tokens=True)
        stream.put(_OneId(prompt or [0]))
        return stream

    def step(self, stream, token_id):
        stream.put(_OneId([token_id]))
        return stream.out

    def finish(self, stream):
        stream.end()
        return stream.out

    def decode_batch(self, sequences):
        return self.tokenizer.batch_decode(sequences, skip_special_tokens=True)


ADAPTERS = [DecodeStream, DecodeStreamPrompt, Decode, DecodeBatch, TextStreamer]
