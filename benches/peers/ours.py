"""This library, through its public names."""

from typing import ClassVar

from peers.peer import Peer


class Detok(Peer):
    name, kind, package, takes_prompt = "detok", "ours", "detok", True
    does = ("w1", "w4", "w6", "w7")

    def setup(self):
        import detok

        self.stream = detok.DecodeStream
        self.tokenizer = detok.Tokenizer.from_json(self.vocab.json)

    def open(self, prompt):
        return self.stream(self.tokenizer) if prompt is None else self.stream(self.tokenizer, prompt)

    def step(self, stream, token_id):
        return stream.step(token_id)

    def finish(self, stream):
        last, _ = stream.flush()
        return last.text if last is not None else ""

    def run(self, ids, prompt=None):
        stream = self.open(prompt)
        step = stream.step
        return [step(i) for i in ids], self.finish(stream)


class DetokUnkept(Detok):
    """Nothing kept of what was handed out: constant memory."""

    name = "detok-unkept"
    does = ("w1", "w7")

    def open(self, prompt):
        return self.stream(self.tokenizer, prompt or (), keep_output=False)


class DetokEverything(Detok):
    """The text and all records read at the end, too: a stream keeps ids, and decodes them again when it is asked."""

    name = "detok-everything"
    does = ("w1",)

    def finish(self, stream):
        last, everything = stream.flush()
        everything.to_numpy()
        return last.text if last is not None and everything.text else ""


class DetokChunks(Detok):
    """A chunk for each token, text and records: push_token and next_chunk."""

    name = "detok-chunks"
    does = ("w1",)

    def run(self, ids, prompt=None):
        stream = self.open(prompt)
        push, take, chunks = stream.push_token, stream.next_chunk, []
        for i in ids:
            push(i)
            chunks.append(take())
        return [chunk and chunk.text for chunk in chunks], self.finish(stream)


class DetokDecode(Detok):
    """A call for each sequence."""

    name, does = "detok-decode", ("w5",)

    def decode_batch(self, sequences):
        decode = self.tokenizer.decode
        return [decode(ids) for ids in sequences]


class DetokDecodeArrays(DetokDecode):
    name, reads = "detok-decode-numpy", "arrays"


class DetokBatch(Detok):
    name, does = "detok-batch", ("w5",)

    def decode_batch(self, sequences):
        return self.tokenizer.decode_batch(sequences)


class DetokBatchArrays(DetokBatch):
    name, reads = "detok-batch-numpy", "arrays"


class DetokStep(Detok):
    """All streams in one call."""

    name, does, most_stops = "detok-step", ("w2", "w3"), 4096

    def open_pool(self, prompts):
        return self.opened(prompts, None)

    def opened(self, prompts, options):
        import detok

        batch = detok.BatchDecoder(self.tokenizer, options)
        return batch, self.slots_of([batch.add(prompt) for prompt in prompts])

    def slots_of(self, slots):
        return slots

    def step_pool(self, pool, ids):
        batch, slots = pool
        return batch.step(slots, ids).texts

    def open_request_pool(self, prompts, stops):
        import detok

        return self.opened(prompts, detok.TextDecodeOptions(stop=stops))

    def step_request_pool(self, pool, ids):
        batch, slots = pool
        output = batch.step(slots, ids, token_texts=True)
        return output.texts, output.token_texts


class DetokBusy(Detok):
    """Steps beside another thread of the interpreter."""

    name, does = "detok-busy", ("w8",)

    def stepper(self, slots, release_gil):
        import detok

        batch = detok.BatchDecoder(self.tokenizer, release_gil=release_gil)
        slots = [batch.add() for _ in range(slots)]
        return lambda token_ids: batch.step(slots, token_ids)


class DetokStepArrays(DetokStep):
    name, reads = "detok-step-numpy", "arrays"

    def slots_of(self, slots):
        import numpy

        return numpy.array(slots, dtype=numpy.uint32)


class DetokRequest(Detok):
    """An event of each request for each update, read as a server would."""

    name, does, most_stops = "detok-request", ("w3",), 4096
    asks: ClassVar = {"token_texts": True}

    def open_request_pool(self, prompts, stops):
        import detok

        self.update = detok.EngineUpdate
        options = detok.TextDecodeOptions(stop=stops)
        pool = [detok.RequestDecoder(self.tokenizer, prompt, options, **self.asks) for prompt in prompts]
        for request in pool:
            request.push(self.update())  # the start
        return pool

    def step_request_pool(self, pool, ids):
        update, shown, texts = self.update, [], []
        for request, i in zip(pool, ids, strict=True):
            (delta,) = request.push(update([i]))
            shown.append(delta.text)
            texts.append(delta.token_texts[0])
        return shown, texts


class DetokRequestLogprobs(DetokRequest):
    """The same with what nobody else in the run has: each token's logprob as the engine gave it."""

    name, asks = "detok-request-logprobs", {}

    def step_request_pool(self, pool, ids):
        update, shown, texts = self.update, [], []
        for request, i in zip(pool, ids, strict=True):
            (delta,) = request.push(update([i], logprobs=[-0.5]))
            shown.append(delta.text)
            texts.append(delta.sampled.logprobs[0].sampled.token)
        return shown, texts


ADAPTERS = [
    DetokStep,
    DetokStepArrays,
    DetokRequest,
    DetokRequestLogprobs,
    DetokBusy,
    Detok,
    DetokUnkept,
    DetokEverything,
    DetokChunks,
    DetokDecode,
    DetokDecodeArrays,
    DetokBatch,
    DetokBatchArrays,
]
