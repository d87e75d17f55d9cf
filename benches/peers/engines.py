"""What vLLM and SGLang do for one request, written anew on the same library calls.

Left out: message passing, output processing, min_tokens, stop tokens, logging. The engines themselves are slower.
"""

from peers.peer import Peer


class VllmFast(Peer):
    """FastIncrementalDetokenizer: tokenizers' stream behind the prompt, restarted when it raises."""

    name, kind, package, takes_prompt = "vllm-fast", "equivalent", "transformers", True
    does = ("w1", "w2", "w3", "w4", "w6", "w7")

    def setup(self):
        from tokenizers.decoders import DecodeStream
        from transformers import PreTrainedTokenizerFast

        self.stream = DecodeStream
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_file=self.vocab.path)
        self.size = len(self.tokenizer)

    def open(self, prompt):
        return _FastRequest(self, prompt)

    def step(self, request, token_id):
        request.update([token_id])
        return request.take()

    def finish(self, request):
        return request.take(finished=True)

    def open_request_pool(self, prompts, stops):
        pool = self.open_pool(prompts)
        for request in pool:
            request.set_stops(stops)
        return pool

    def step_request_pool(self, pool, ids):
        shown = []
        for request, i in zip(pool, ids, strict=True):
            if request.update([i]) is not None:
                raise AssertionError("no text of the bench has a stop")
            shown.append(request.take())
        return shown, self.token_texts(ids)

    def token_texts(self, ids):
        decode = self.tokenizer.decode  # each id alone, through transformers
        return [decode([i]) for i in ids]


class VllmSlow(VllmFast):
    """SlowIncrementalDetokenizer: two windows of token strings to text at each step, and the difference. It shows
    special tokens here: transformers takes them from a configuration, which these vocabularies come without."""

    name = "vllm-slow"

    def open(self, prompt):
        return _SlowRequest(self, prompt)


class _Request:
    """BaseIncrementalDetokenizer: appends to the output, searches its end for each stop string, and hands out the
    difference but for what the longest stop string may need."""

    def __init__(self):
        self.text, self.ids, self.sent = "", [], 0
        self.set_stops(())

    def set_stops(self, stops):
        self.stops, self.hold = stops, max(map(len, stops), default=1) - 1

    def update(self, new_ids):
        before = len(self.text)
        for i in new_ids:
            self.ids.append(i)
            self.text += self.next_text(i)
        return self.find_stop(len(self.text) - before) if self.stops else None

    def find_stop(self, fresh):
        best, best_end, text = None, len(self.text) + 1, self.text
        if not fresh:
            return None
        for stop in self.stops:
            at = text.find(stop, 1 - fresh - len(stop))
            if 0 <= at < best_end - len(stop):
                best, best_end = stop, at + len(stop)
        return best

    def take(self, finished=False):
        end = len(self.text) - (0 if finished else self.hold)
        if self.sent >= end:
            return ""
        start, self.sent = self.sent, end
        return self.text[start:end]


class _FastRequest(_Request):
    def __init__(self, peer, prompt):
        super().__init__()
        self.new_stream, self.tokenizer = peer.stream, peer.vocab.hf
        self.stream = peer.stream(ids=list(prompt or []), skip_special_tokens=True)

    def next_text(self, token_id):
        return self.guarded(token_id) or ""

    def guarded(self, token_id):
        try:
            return self.stream.step(self.tokenizer, token_id)
        except (OverflowError, TypeError):
            return None
        except Exception as error:
            if not str(error).startswith("Invalid prefix"):
                raise
            self.stream = self.new_stream(skip_special_tokens=True)
            return self.stream.step(self.tokenizer, token_id)


class _SlowRequest(_Request):
    def __init__(self, peer, prompt):
        super().__init__()
        self.tokenizer, self.size = peer.tokenizer, peer.size
        prompt = prompt or []
        tail = self.tokenizer.convert_ids_to_tokens(prompt[-7:], skip_special_tokens=True)
        self.tokens = [token or "" for token in tail]
        self.read = len(self.tokens)
        self.prefix = max(self.read - 5, 0)
        self.ids.extend(prompt)

    def next_text(self, token_id):
        known = 0 <= token_id < self.size
        new = self.tokenizer.convert_ids_to_tokens([token_id], skip_special_tokens=True) if known else [""]
        tokens = self.tokens + new  # the original builds a new list at each step, too
        before = self.tokenizer.convert_tokens_to_string(tokens[self.prefix : self.read])
        after = self.tokenizer.convert_tokens_to_string(tokens[self.prefix :])
        self.tokens.extend(new)
        if len(after) <= len(before) or after.endswith("\ufffd"):
            return ""
        self.prefix, self.read = self.read, len(tokens)
        return after[len(before) :]


class Sglang(Peer):
    """DetokenizerManager: two batch_decode calls at each step and the difference; text that ends in U+FFFD is cut
    to its printable start."""

    name, kind, package, takes_prompt = "sglang", "equivalent", "transformers", True
    does = ("w1", "w4", "w6", "w7")

    def setup(self):
        from transformers import PreTrainedTokenizerFast

        self.tokenizer = PreTrainedTokenizerFast(tokenizer_file=self.vocab.path)

    def open(self, prompt):
        return _Status(prompt)

    def step(self, status, token_id):
        status.ids.extend([token_id])
        before = self.decode(status.ids[status.surrogate : status.read])
        new = self.decode(status.ids[status.surrogate :])[len(before) :]
        pending = status.sent - status.length
        if new and not new.endswith("\ufffd"):
            status.parts.append(new)
            status.length += len(new)
            status.surrogate, status.read, status.sent = status.read, len(status.ids), status.length
        else:
            new = _printable(new)
            status.sent = status.length + len(new)
        return new[pending:] if pending else new

    def finish(self, status):
        before = self.decode(status.ids[status.surrogate : status.read])
        text = "".join(status.parts) + self.decode(status.ids[status.surrogate :])[len(before) :]
        return text[status.sent :]

    def decode(self, ids):
        if not ids:
            return ""
        return self.tokenizer.batch_decode([ids], skip_special_tokens=True, spaces_between_special_tokens=True)[0]


class _Status:
    def __init__(self, prompt):
        self.ids = list(prompt[-5:]) if prompt else []
        self.surrogate, self.read = 0, len(self.ids)
        self.parts, self.length, self.sent = [], 0, 0


def _printable(text):
    if text.endswith("\n") or (text and _is_cjk(text[-1])):
        return text
    if len(text) > 1 and _is_cjk(text[-2]):
        return text[:-1]
    return text[: text.rfind(" ") + 1]


def _is_cjk(char):
    code = ord(char)
    ranges = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))
    return any(first <= code <= last for first, last in ranges)


ADAPTERS = [VllmFast, VllmSlow, Sglang]
