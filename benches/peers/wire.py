"""Events of a request to the bytes of a server's stream, as text completions."""

import json

from peers.peer import Peer


class DetokOpenAI(Peer):
    name, kind, package, does = "detok-openai", "ours", "detok", ("w9",)

    def setup(self):
        import detok
        from detok.adapters import openai

        self.detok, self.openai = detok, openai
        self.tokenizer = detok.Tokenizer.from_json(self.vocab.json)

    def events(self, ids, prompt, alternatives):
        """An event a token, as an engine's updates give them."""
        decoder, update = self.detok.RequestDecoder(self.tokenizer, prompt), self.detok.EngineUpdate
        others = dict.fromkeys(range(1_000, 1_000 + (alternatives or 1) - 1), -2.5)
        events = []
        for i in ids:
            logprobs = None if alternatives is None else [{i: -0.5, **others}]
            events += decoder.push(update([i], logprobs=logprobs))
        return events + decoder.push(update(finish_reason="length"))

    def builder(self, alternatives):
        return self.openai.CompletionBuilder(self.tokenizer, id="cmpl-1", model="bench", logprobs=alternatives)

    def serve(self, events, alternatives):
        push = self.builder(alternatives).push_sse
        return [push(event) for event in events]

    def text(self, wire):
        """The text that a client reads out of it."""
        chunks = self.openai.SseReader().push(b"".join(wire))
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        return "".join(choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices)


class DetokOpenAIChat(DetokOpenAI):
    name = "detok-openai-chat"

    def builder(self, alternatives):
        how = {"logprobs": True, "top_logprobs": alternatives} if alternatives else {}
        return self.openai.ChatCompletionBuilder(self.tokenizer, id="cmpl-1", model="bench", **how)


class JsonChunk(DetokOpenAI):
    """What a careful user could write: a dict for each text, and `json`."""

    name, kind = "json-chunk", "python"

    def serve(self, events, alternatives):
        encode, offset, out = json.JSONEncoder(separators=(",", ":")).encode, 0, []
        for event in events[1:]:
            text, logprobs = event.decoded.text, None
            if alternatives is not None and event.sampled.logprobs:
                positions = event.sampled.logprobs
                logprobs = {
                    "tokens": [position.sampled.token for position in positions],
                    "token_logprobs": [position.sampled.logprob for position in positions],
                    "top_logprobs": [{one.token: one.logprob for one in position.top} for position in positions],
                    "text_offset": [offset for _ in positions],
                }
            offset += len(text)
            choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": None}
            chunk = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "bench", "choices": [choice]}
            out.append(b"data: %b\n\n" % encode(chunk).encode())
        return out


ADAPTERS = [DetokOpenAI, DetokOpenAIChat, JsonChunk]
