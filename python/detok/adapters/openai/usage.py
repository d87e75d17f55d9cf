"""Counts of tokens as OpenAI's API has them."""

from collections.abc import Sequence
from typing import Any

from detok import TokenUsage

__all__ = ["joined_usage", "usage_of"]


def usage_of(counts: TokenUsage, reasoning_tokens: int) -> dict[str, Any]:
    """Usage of one choice; the details are always there."""
    return {
        "prompt_tokens": counts.prompt_token_count,
        "completion_tokens": counts.output_token_count,
        "total_tokens": counts.prompt_token_count + counts.output_token_count,
        "prompt_tokens_details": {"cached_tokens": counts.cached_token_count},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }


def joined_usage(usages: Sequence[dict[str, Any]], prompts: int) -> dict[str, Any]:
    """Usage of all choices, of which each prompt has as many, in order: a prompt counts once, however many it has.

    A token of a prompt counts as cached if no choice had to compute it.
    """
    if prompts < 1 or not usages or len(usages) % prompts:
        raise ValueError(f"{len(usages)} choices cannot be those of {prompts} prompts, as many of each")
    each = len(usages) // prompts
    of_prompts = [usages[at : at + each] for at in range(0, len(usages), each)]
    counts = TokenUsage(
        sum(choices[0]["prompt_tokens"] for choices in of_prompts),
        sum(usage["completion_tokens"] for usage in usages),
        sum(min(usage["prompt_tokens_details"]["cached_tokens"] for usage in choices) for choices in of_prompts),
    )
    return usage_of(counts, sum(usage["completion_tokens_details"]["reasoning_tokens"] for usage in usages))
