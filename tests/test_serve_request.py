"""Bodies of requests: what each field may be, what is passed over, and what is refused in which words."""

import inspect
import json
from typing import Any

import openai.resources
import openai.resources.chat
import pytest
from detok import TextDecodeOptions
from detok.serve.engine import SamplingParams
from detok.serve.error import ApiError
from detok.serve.prompt import Chat
from detok.serve.request import PASSED_OVER, UNSUPPORTED, Request, read_chat, read_completion

HI = [{"role": "user", "content": "hi"}]


def completion(**fields: Any) -> Request:
    return read_completion({"prompt": "hi", **fields})


def chat(**fields: Any) -> Request:
    return read_chat({"messages": HI, **fields})


def refused(read: Any, param: str, **fields: Any) -> str:
    """The message of an error that names a parameter."""
    with pytest.raises(ApiError) as raised:
        read(**fields)
    error = raised.value
    assert error.status == 400
    assert error.body()["error"] == {
        "message": str(error),
        "type": "invalid_request_error",
        "param": param,
        "code": error.code,
    }
    # The message says which, and stands alone.
    assert param.split("[")[0].split(".")[-1] in str(error)
    return str(error)


def test_what_is_left_out_has_openais_defaults():
    request = completion()
    assert (request.model, request.prompts, request.n, request.stream, request.echo) == (None, ["hi"], 1, False, False)
    assert request.params("r", 0, 16) == SamplingParams(request_id="r", max_tokens=16)
    assert request.options() == TextDecodeOptions()
    assert (request.max_tokens, request.logprobs) == (16, None)
    assert (chat().max_tokens, chat().logprobs) == (None, None)
    assert chat().prompts == [Chat(HI)]


def test_null_counts_as_left_out():
    names = (*inspect.signature(openai.resources.Completions.create).parameters, "stop_token_ids", "min_tokens")
    names = [name for name in names if name not in ("self", "prompt", *NOT_FIELDS)]
    assert len(names) > 10
    assert completion(**dict.fromkeys(names)) == completion()


def test_what_is_honoured_reaches_the_engine_and_the_decoder():
    request = completion(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        seed=-7,
        min_tokens=2,
        ignore_eos=True,
        logprobs=3,
        echo=True,
        stop="x",
        stop_token_ids=[9, 8],
        include_stop_str_in_output=True,
        skip_special_tokens=False,
    )
    assert request.params("r-1", 1, 5) == SamplingParams(
        request_id="r-1",
        max_tokens=5,
        min_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        seed=-6,
        logprobs=3,
        prompt_logprobs=3,
        ignore_eos=True,
        stop_token_ids=(9, 8),
    )
    assert request.options() == TextDecodeOptions(
        stop="x", stop_token_ids=[8, 9], include_stop_str_in_output=True, skip_special_tokens=False, min_tokens=2
    )


def test_forms_of_prompts():
    for prompt, prompts in (
        ("hi", ["hi"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ):
        assert completion(prompt=prompt).prompts == prompts
    for prompt in (None, 5, {}, [1, "a"], ["a", 1], [[1], 2], [True], [-1], [2**32], [1.0], [["a"]], "\ud800"):
        refused(completion, "prompt", prompt=prompt)


def test_forms_of_messages():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for message, content in (
        ({"role": "user", "content": "x"}, {"role": "user", "content": "x"}),
        ({"role": "developer", "content": "x"}, {"role": "system", "content": "x"}),
        ({"role": "user", "content": parts, "name": "me"}, {"role": "user", "content": "a\nb"}),
        (
            {"role": "assistant", "content": None, "refusal": None, "tool_calls": []},
            {"role": "assistant", "content": ""},
        ),
        (
            {"role": "assistant", "content": "x", "reasoning_content": "y"},
            {"role": "assistant", "content": "x"},
        ),
    ):
        assert chat(messages=[message]).prompts == [Chat([content])]
    for message, place in (
        ("hi", ""),
        ({"content": "x"}, ".role"),
        ({"role": "tool", "content": "x"}, ".role"),
        ({"role": "user"}, ".content"),
        ({"role": "user", "content": 5}, ".content"),
        ({"role": "user", "content": "\udc00"}, ".content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, ".content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, ".content[0].text"),
        ({"role": "user", "content": "x", "colour": 1}, ".colour"),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, ".tool_calls"),
    ):
        refused(chat, f"messages[1]{place}", messages=[*HI, message])
    for messages in (None, [], "hi", {}):
        refused(chat, "messages", messages=messages)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("temperature", [0, 2, 0.5], [-0.1, 2.1, "1", True, [], 10**400]),
        ("top_p", [0, 1, 0.5], [-0.1, 1.1, "1"]),
        ("top_k", [0, 50], [-1, 1.0, "1", 2**40]),
        ("max_tokens", [1, 10**6], [0, -1, 1.5, "1", True]),
        ("min_tokens", [0, 5], [-1, "1"]),
        ("n", [1, 3], [0, -1, 1.0, "1"]),
        ("seed", [0, -(2**63), 2**63 - 1], [2**63, 0.5, "1"]),
        ("stream", [True, False], [0, 1, "true"]),
        ("ignore_eos", [True], [1]),
        ("skip_special_tokens", [False], [0]),
        ("return_token_ids", [True], ["yes"]),
        ("attribution", [True], [1]),
        ("include_stop_str_in_output", [True], [1]),
        ("stop", ["a", ["a", "b"], []], ["", ["a", ""], 5, {"a": 1}, ["a", 5], "\ud800"]),
        ("stop_token_ids", [[], [1]], [5, ["1"], [-1], [True], [2**32]]),
        ("model", ["m"], [5, ["m"]]),
        ("stop_scope", ["content"], ["", 5, ["content"]]),
    ],
)
def test_values_of_fields(name, right, wrong):
    for read in (completion, chat):
        for value in right:
            assert isinstance(read(**{name: value}), Request)
        for value in wrong:
            said = refused(read, name, **{name: value})
            # The value, as much of it as one wants to read.
            assert len(said) < 250


def test_values_of_fields_of_one_kind():
    assert completion(logprobs=0).logprobs == 0
    assert completion(best_of=2, n=2).n == 2
    for fields in ({"logprobs": True}, {"logprobs": -1}, {"echo": "yes"}, {"best_of": 2}, {"best_of": 1, "n": 2}):
        refused(completion, next(iter(fields)), **fields)
    assert chat(logprobs=True).logprobs == 0
    assert chat(logprobs=True, top_logprobs=5).logprobs == 5
    assert chat(max_completion_tokens=5).max_tokens == 5
    assert chat(logprobs=False).logprobs is None
    for fields in ({"logprobs": 1}, {"max_tokens": 5, "max_completion_tokens": 5}):
        refused(chat, next(iter(fields)), **fields)
    for fields in ({"top_logprobs": 2}, {"top_logprobs": 2, "logprobs": False}, {"top_logprobs": -1, "logprobs": True}):
        refused(chat, "top_logprobs", **fields)
    # What only the other kind has is unknown.
    for read, names in (
        (completion, ("messages", "top_logprobs", "max_completion_tokens")),
        (chat, ("prompt", "echo")),
    ):
        for name in names:
            assert "no field" in refused(read, name, **{name: 1})


def test_options_of_streams():
    request = completion(stream=True, stream_options={"include_usage": True})
    assert (request.include_usage, request.continuous_usage) == (True, False)
    request = completion(stream=True, stream_options={"continuous_usage_stats": True, "include_obfuscation": False})
    assert (request.include_usage, request.continuous_usage) == (False, True)
    refused(completion, "stream_options", stream=True, stream_options=True)
    refused(completion, "stream_options", stream_options={"include_usage": True})
    refused(completion, "stream_options.include_usage", stream=True, stream_options={"include_usage": 1})
    refused(completion, "stream_options.colour", stream=True, stream_options={"colour": 1})


def test_what_is_unknown_is_refused():
    for read in (completion, chat):
        said = refused(read, "max_token", max_token=5)
        assert "leave it out" in said


def test_what_cannot_be_honoured_is_refused_unless_it_asks_for_nothing():
    asking = {"tools": [{"type": "function"}], "response_format": {"type": "json_object"}, "logit_bias": {"5": 1}}
    for read in (completion, chat):
        for name, value in {**dict.fromkeys(UNSUPPORTED, "something"), **asking}.items():
            assert json.dumps(value) in refused(read, name, **{name: value})
        for name, nothing in UNSUPPORTED.items():
            for value in (None, *nothing):
                assert read(**{name: value}) == read()
        assert read(frequency_penalty=0.0) == read()
        for name, value in (("frequency_penalty", False), ("parallel_tool_calls", 0)):
            assert json.dumps(value) in refused(read, name, **{name: value})
        assert read(**dict.fromkeys(PASSED_OVER, "anything")) == read()


NOT_FIELDS = ("extra_headers", "extra_query", "extra_body", "timeout")


@pytest.mark.parametrize(
    ("create", "read"),
    [
        (openai.resources.Completions.create, completion),
        (openai.resources.chat.Completions.create, chat),
    ],
)
def test_every_field_of_the_client_is_known(create, read):
    names = [name for name in inspect.signature(create).parameters if name not in ("self", *NOT_FIELDS)]
    assert len(names) > 15
    unknown = [name for name in names if code_of(read, name) == "unknown_parameter"]
    assert unknown == []
    assert code_of(read, "colour") == "unknown_parameter"


def code_of(read: Any, name: str) -> str | None:
    """The code of the error that a field has at a value that it can hardly have."""
    try:
        read(**{name: "?"})
    except ApiError as error:
        return error.code
    return None
