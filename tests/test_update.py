"""What a request is given: `TextDecodeOptions` and `EngineUpdate`, and what they refuse."""

import detok
import numpy as np
import pytest
from detok import (
    EngineUpdate,
    PositionLogprobs,
    RequestDecoder,
    TextDecodeOptions,
    TokenLogprob,
)
from engine import serve, updates, vocabulary

SAMPLE = TokenLogprob(1, -0.5)

# name: (arguments, exception, words of it)
BAD_UPDATES = {
    "reason": ({"finish_reason": "eos"}, ValueError, r"stop.*length.*abort.*error.*repetition"),
    "reason, empty": ({"finish_reason": ""}, ValueError, "stop"),
    "reason of bytes": ({"finish_reason": b"stop"}, TypeError, None),
    "reason of a bool": ({"finish_reason": True}, TypeError, None),
    "stop id, no reason": ({"stop_token_id": 1}, ValueError, "stop_token_id"),
    "stop id, other reason": ({"stop_token_id": 1, "finish_reason": "length"}, ValueError, "stop_token_id"),
    "stop string, no reason": ({"stop_string": "x"}, ValueError, "stop_string"),
    "stop string, other reason": ({"stop_string": "x", "finish_reason": "abort"}, ValueError, "stop_string"),
    "stop id and string": ({"stop_token_id": 1, "stop_string": "x", "finish_reason": "stop"}, ValueError, None),
    "stop id of a bool": ({"stop_token_id": True, "finish_reason": "stop"}, TypeError, None),
    "stop string of bytes": ({"stop_string": b"x", "finish_reason": "stop"}, TypeError, None),
    "too few logprobs": ({"token_ids": [1, 1], "logprobs": [SAMPLE]}, ValueError, "2"),
    "too many logprobs": ({"token_ids": [1], "logprobs": [SAMPLE, SAMPLE]}, ValueError, "2"),
    "logprobs without ids": ({"logprobs": [SAMPLE]}, ValueError, "1"),
    "a logprob of another id": ({"token_ids": [2], "logprobs": [SAMPLE]}, ValueError, "2"),
    "cached below zero": ({"cached_token_count": -1}, ValueError, "cached_token_count"),
    "cached of a float": ({"cached_token_count": 1.5}, TypeError, None),
    "ids of text": ({"token_ids": "abc"}, TypeError, None),
    "ids of bytes": ({"token_ids": b"abc"}, TypeError, None),
    "a bool among ids": ({"token_ids": [1, True]}, TypeError, "1"),
    "a float among ids": ({"token_ids": [1.0]}, TypeError, "0"),
    "a generator of ids": ({"token_ids": (i for i in [1])}, TypeError, None),
    "ids in two dimensions": ({"token_ids": np.zeros((1, 2), np.int64)}, ValueError, None),
    "ids of a byte": ({"token_ids": np.zeros(2, np.uint8)}, TypeError, None),
    "a negative id": ({"token_ids": [1, -1]}, detok.UnknownTokenError, "-1"),
    "an id of 33 bits": ({"token_ids": [2**32]}, detok.UnknownTokenError, str(2**32)),
    "a misspelt argument": ({"tokens": [1]}, TypeError, "tokens"),
}


@pytest.mark.parametrize("name", BAD_UPDATES)
def test_updates_that_are_none(name):
    arguments, error, words = BAD_UPDATES[name]
    with pytest.raises(error, match=words):
        EngineUpdate(**arguments)


@pytest.mark.parametrize(
    "ids", [[1, 2], (1, 2), range(1, 3), np.array([1, 2], np.int64), np.array([1, 0, 2], "u4")[::2]]
)
def test_ids_of_any_sequence(ids):
    update = EngineUpdate(ids)
    assert list(update.token_ids) == [1, 2]
    assert update == EngineUpdate([1, 2])


def test_an_update_does_not_follow_its_array():
    ids = np.array([1, 2], np.uint32)
    update = EngineUpdate(ids)
    ids[0] = 7
    assert list(update.token_ids) == [1, 2]


def test_an_update_has_what_was_given():
    plain = EngineUpdate()
    assert (list(plain.token_ids), plain.logprobs, plain.finish_reason, plain.prompt_token_ids) == (
        [],
        None,
        None,
        None,
    )
    assert (plain.stop_token_id, plain.stop_string, plain.prompt_logprobs) == (None, None, None)
    assert (plain.cached_token_count, plain.kv_transfer_params) == (0, None)
    full = EngineUpdate(
        [1],
        logprobs=[SAMPLE],
        finish_reason="stop",
        stop_token_id=1,
        prompt_token_ids=[4, 1],
        prompt_logprobs=[None, SAMPLE],
        cached_token_count=2,
        kv_transfer_params={"a": 1},
    )
    assert (list(full.token_ids), list(full.logprobs)) == ([1], [PositionLogprobs(SAMPLE)])
    assert (full.finish_reason, full.stop_token_id, full.stop_string) == ("stop", 1, None)
    assert (list(full.prompt_token_ids), list(full.prompt_logprobs)) == ([4, 1], [None, PositionLogprobs(SAMPLE)])
    assert (full.cached_token_count, full.kv_transfer_params) == (2, {"a": 1})


MARKER = detok.Marker("reasoning", "<think>", "</think>")
BAD_OPTIONS = {
    "fragments": ({"fragments": "latin1"}, ValueError, r"openai.*empty.*replacement"),
    "fragments of None": ({"fragments": None}, TypeError, None),
    "unknown_ids": ({"unknown_ids": "ignore"}, ValueError, r"error.*skip"),
    "min_tokens below zero": ({"min_tokens": -1}, ValueError, "min_tokens"),
    "min_tokens of a float": ({"min_tokens": 1.0}, TypeError, None),
    "buffer below zero": ({"min_bytes_to_buffer": -1}, ValueError, "min_bytes_to_buffer"),
    "buffer of a float": ({"min_bytes_to_buffer": 1.5}, TypeError, None),
    "a name for specials": ({"keep_special_tokens": "<s>"}, TypeError, None),
    "a bool among specials": ({"keep_special_tokens": [True]}, TypeError, None),
    "a bool among stop ids": ({"stop_token_ids": [True]}, TypeError, None),
    "text for stop ids": ({"stop_token_ids": "12"}, TypeError, None),
    "a name among stop ids": ({"stop_token_ids": ["<s>"]}, TypeError, None),
    "a number for stop ids": ({"stop_token_ids": 5}, TypeError, None),
    "a negative stop id": ({"stop_token_ids": [-1]}, detok.UnknownTokenError, "-1"),
    "one section": ({"sections": MARKER}, TypeError, "sections.*list"),
    "no sections": ({"sections": None}, TypeError, "sections"),
    "a name among sections": ({"sections": [MARKER, "think"]}, TypeError, r"sections\[1\].*str"),
    "a scope without sections": ({"stop_scope": "content"}, ValueError, "stop_scope"),
    "a scope that is no section": ({"sections": [MARKER], "stop_scope": "x"}, ValueError, "stop_scope"),
    "a misspelt option": ({"stops": "x"}, TypeError, "stops"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_options_that_are_none(name):
    arguments, error, words = BAD_OPTIONS[name]
    with pytest.raises(error, match=words):
        TextDecodeOptions(**arguments)


def test_options_have_what_was_given():
    plain = TextDecodeOptions()
    assert (plain.skip_special_tokens, plain.include_stop_str_in_output) == (True, False)
    assert (tuple(plain.keep_special_tokens), plain.stop, plain.stop_token_ids) == ((), (), ())
    assert (plain.min_tokens, plain.min_bytes_to_buffer, plain.unknown_ids, plain.fragments) == (
        0,
        0,
        "error",
        "openai",
    )
    assert plain == TextDecodeOptions(stop=None) == TextDecodeOptions(stop=[])
    # Any iterable of ids, once each and in order.
    for ids in ([7, 3, 7], {7, 3}, (i for i in (3, 7)), np.array([7, 3], np.int64), {3: 1, 7: 1}.keys()):
        assert TextDecodeOptions(stop_token_ids=ids).stop_token_ids == (3, 7)
    with pytest.raises(TypeError):
        TextDecodeOptions(True)


def test_names_of_specials_are_looked_up_when_a_decoder_opens():
    tokenizer, (_, end) = vocabulary("a", "<|end|>")
    options = TextDecodeOptions(keep_special_tokens=["<|none|>"])
    for call in [
        lambda: RequestDecoder(tokenizer, [], options),
        lambda: detok.BatchDecoder(tokenizer, options),
        lambda: detok.BatchDecoder(tokenizer).add([], options),
    ]:
        with pytest.raises(ValueError, match="none"):
            call()
    for keep in (["<|end|>"], [end]):
        assert serve(tokenizer, updates([[end]]), TextDecodeOptions(keep_special_tokens=keep)).text == "<|end|>"


def test_sections_are_compiled_for_each_tokenizer():
    """One object of options serves tokenizers that have another id for the marker, or none."""
    options = TextDecodeOptions(stop="x", sections=[detok.Marker("r", "<|r|>", "<|/r|>")], stop_scope="r")
    for tokens in (["<|r|>", "x"], ["x", "<|r|>"][::-1], ["x", "y", "<|r|>"], ["x"]):
        tokenizer, ids = vocabulary(*tokens)
        expected = {"<|r|>": "", "y": "y"}
        for _ in range(2):
            got = serve(tokenizer, updates([ids]), options)
            opened = tokens.index("<|r|>") if "<|r|>" in tokens else len(tokens)
            assert got.stop == ("x" if "x" in tokens[opened:] else None)
            assert got.text == "".join(expected.get(token, "" if n > opened else "x") for n, token in enumerate(tokens))


BAD_CALLS = {
    "no tokenizer": lambda t: RequestDecoder(None, []),
    "a tokenizer's name": lambda t: RequestDecoder("gpt2", []),
    "a dict for options": lambda t: RequestDecoder(t, [], {"stop": "x"}),
    "a number for a request": lambda t: RequestDecoder(t, [], request_id=7),
    "a request by place": lambda t: RequestDecoder(t, [], None, "req"),
    "ids for an update": lambda t: RequestDecoder(t, []).push([0]),
    "None for an update": lambda t: RequestDecoder(t, []).push(None),
    "no update": lambda t: RequestDecoder(t, []).push(),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_calls_that_are_none(name):
    tokenizer, _ = vocabulary("a")
    with pytest.raises(TypeError):
        BAD_CALLS[name](tokenizer)
