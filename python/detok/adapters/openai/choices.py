"""Answers of several choices (`n` > 1): a builder for each, one usage for all.

    builders = [CompletionBuilder(tokenizer, id=id, model=model, index=i, n=n, include_usage=True) for i in range(n)]
    ...  # events of each choice to its builder, its chunks to the client, in any order
    yield sse(usage_chunk(builders))
    yield sse(None)

Without a stream, `join_bodies([builder.body() for builder in builders])` is the answer.
"""

from collections.abc import Sequence
from typing import Any

from detok import StateError
from detok.adapters.openai.builder import ChoiceBuilder
from detok.adapters.openai.usage import joined_usage

__all__ = ["join_bodies", "usage_chunk"]


def usage_chunk(builders: Sequence[ChoiceBuilder], *, prompts: int = 1) -> dict[str, Any]:
    """The last chunk of a stream whose choices these builders made: no choices, and the usage of all.

    Args:
        builders: In order of their choices.
        prompts: Whose choices they are, as many of each; a prompt's tokens count once.

    Raises:
        StateError: A choice has not ended.
    """
    for builder in builders:
        if not builder.is_finished:
            raise StateError(f"the usage of choice {builder.index} is not known before its last event")
    usage = joined_usage([builder.usage for builder in builders], prompts)
    return {**builders[0].head, "choices": [], "usage": usage}


def join_bodies(bodies: Sequence[dict[str, Any]], *, prompts: int = 1) -> dict[str, Any]:
    """The answer with the choices of all bodies, by index; arguments as for `usage_chunk`."""
    bodies = sorted(bodies, key=lambda body: int(body["choices"][0]["index"]))
    usage = joined_usage([body["usage"] for body in bodies], prompts)
    return {**bodies[0], "choices": [choice for body in bodies for choice in body["choices"]], "usage": usage}
