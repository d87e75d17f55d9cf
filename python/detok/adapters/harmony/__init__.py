"""gpt-oss: messages with channel, recipient and content type, told by the ids of harmony's control tokens.

    parser = HarmonyParser(tokenizer, prompt_token_ids=prompt)
    for event in events:
        if isinstance(event, TextDelta):
            for delta in parser.push(event.decoded):
                print(delta.channel, delta.recipient, delta.decoded.text)

A message is a header, `<|message|>`, and text up to `<|end|>`, `<|return|>`, `<|call|>` or the next `<|start|>` or
`<|channel|>`. A header begins at one of the last two; the prompt often has the first part of it. Control tokens count
by their ids, shown or hidden; text that looks like them is text.

Models make mistakes, and no text is lost to them. Of a header that breaks off, or grows longer than any header is, what
follows its names is text of a message. Text without a header is a message without a channel; white space between
messages is none. `<|message|>` and `<|constrain|>` inside a message are passed over.

With the openai-harmony package, its `StreamableParser` reads the headers; those that it refuses are read as they are
without it.
"""

from detok.adapters.harmony.package import HarmonyBackend
from detok.adapters.harmony.parser import HarmonyDelta, HarmonyParser
from detok.adapters.harmony.sections import HarmonySections

__all__ = ["HarmonyBackend", "HarmonyDelta", "HarmonyParser", "HarmonySections"]
