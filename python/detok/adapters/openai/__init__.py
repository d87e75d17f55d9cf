"""OpenAI's API: the events of a request as the chunks and bodies of /v1/completions and /v1/chat/completions.

    builder = ChatCompletionBuilder(tokenizer, id="chatcmpl-1", model="smollm2", include_usage=True)
    for event in decode_events(updates, tokenizer, options):
        yield builder.push_sse(event)
    yield sse(None)

Without a stream, push all events and send `builder.body()`. A stream that fails sends the error as a chunk of its own,
`sse({"error": {...}})`.

Keys that are not OpenAI's: `stop_reason` beside the finish reason (the stop string, the stop token's id, or null),
`reasoning_content`, and if asked for `prompt_token_ids`, `token_ids`, `attribution`. Finish reasons keep the engine's
word where OpenAI has none (`abort`, `repetition`).
"""

from detok.adapters.openai.chat import ChatCompletionBuilder
from detok.adapters.openai.choices import join_bodies, usage_chunk
from detok.adapters.openai.completion import CompletionBuilder
from detok.adapters.openai.sse import SseReader, sse

__all__ = ["ChatCompletionBuilder", "CompletionBuilder", "SseReader", "join_bodies", "sse", "usage_chunk"]
