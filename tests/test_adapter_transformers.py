"""Streamers for transformers' `generate`, beside transformers' own."""

import inspect
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from queue import Empty
from typing import Any

import detok
import numpy as np
import pytest
from adapters import (
    A0,
    BD,
    E4,
    END,
    PROMPT,
    TOKENIZER,
    A,
    B,
)
from conftest import load_tokenizer, tokenizer_text
from detok.data import demo_streams, demo_tokenizer
from engine import vocabulary


@pytest.fixture(scope="module")
def hf():
    """name -> a transformers tokenizer over the file in tests/data/tokenizers."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    @cache
    def load(name: str) -> Any:
        backend = tokenizers.Tokenizer.from_str(tokenizer_text(name))
        return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False)

    return load


@pytest.fixture
def streamers():
    from detok.adapters import transformers

    return transformers


class Tensor:
    """What `generate` puts, as far as a streamer looks: a torch tensor on the CPU."""

    def __init__(self, data: list[Any]) -> None:
        self._data = data
        self.shape = np.array(data).shape

    def tolist(self) -> list[Any]:
        return self._data


def generate(
    streamer: Any, prompts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], make: Any = Tensor
) -> None:
    """What `generate` does with a streamer: the prompts, one id a row at each step, the end."""
    streamer.put(make([list(prompt) for prompt in prompts]))
    for step in zip(*rows, strict=True):
        streamer.put(make(list(step)))
    streamer.end()


def test_streamers_are_base_streamers_with_the_arguments_of_transformers(streamers):
    from transformers import generation

    for name in ("TextStreamer", "TextIteratorStreamer"):
        ours, theirs = getattr(streamers, name), getattr(generation, name)
        assert issubclass(ours, generation.BaseStreamer)
        signatures = [inspect.signature(one).parameters.values() for one in (ours, theirs)]
        ours_has, theirs_has = ([(p.name, p.kind, p.default) for p in s] for s in signatures)
        assert ours_has == theirs_has
        for method in ("put", "end", "on_finalized_text"):
            ours_has, theirs_has = (list(inspect.signature(getattr(o, method)).parameters) for o in (ours, theirs))
            assert ours_has == theirs_has


FORMS = [("korean", make) for make in (Tensor, np.array, list)] + [
    (name, np.array) for name in list(demo_streams())[1:]
]


@pytest.mark.parametrize(("name", "make"), FORMS, ids=[f"{name}-{make.__name__}" for name, make in FORMS])
def test_printed_text_is_the_one_shot_decode(streamers, hf, capsys, name, make):
    recorded, tokenizer = demo_streams()[name], hf("smollm2")
    generate(streamers.TextStreamer(tokenizer), [recorded.prompt_ids], [recorded.ids], make)
    assert capsys.readouterr().out == tokenizer.decode([*recorded.prompt_ids, *recorded.ids]) + "\n"
    streamer = streamers.TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    generate(streamer, [recorded.prompt_ids], [recorded.ids], make)
    assert capsys.readouterr().out == tokenizer.decode(recorded.ids, skip_special_tokens=True) + "\n"


@pytest.mark.parametrize("name", demo_streams())
def test_all_text_is_that_of_transformers_and_no_later(streamers, hf, name):
    from transformers import generation

    recorded, tokenizer = demo_streams()[name], hf("smollm2")
    shown: dict[type, str] = {}
    lengths: dict[type, list[int]] = {}
    for base in (streamers.TextStreamer, generation.TextStreamer):

        class Kept(base):
            def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
                key = type(self).__base__
                shown[key] = shown.get(key, "") + text

        streamer = Kept(tokenizer, skip_prompt=True)
        streamer.put(np.array([recorded.prompt_ids]))
        lengths[base] = []
        for token_id in recorded.ids:
            streamer.put(np.array([token_id]))
            lengths[base].append(len(shown.get(base, "")))
        streamer.end()
    ours, theirs = shown[streamers.TextStreamer], shown[generation.TextStreamer]
    assert ours == tokenizer.decode(recorded.ids)
    if "\ufffd" not in ours:
        assert ours == theirs
        assert all(
            a >= b for a, b in zip(lengths[streamers.TextStreamer], lengths[generation.TextStreamer], strict=True)
        )


def test_the_blank_between_prompt_and_text_is_kept(streamers, capsys):
    # transformers decodes what follows a skipped prompt as if it began a text, and loses the blank.
    tokenizer = load_tokenizer("mistral-v3")
    prompt, ids = tokenizer.encode("The sea"), tokenizer.encode("is blue")
    generate(streamers.TextStreamer(tokenizer, skip_prompt=True), [prompt], [ids])
    assert capsys.readouterr().out == " is blue\n"


def test_several_tokens_a_step(streamers, capsys):
    # Assisted generation puts what was accepted as a row of a batch of one.
    recorded = demo_streams()["korean"]
    streamer = streamers.TextStreamer(demo_tokenizer(), skip_prompt=True, skip_special_tokens=True)
    streamer.put(np.array([recorded.prompt_ids]))
    streamer.put(np.array([recorded.ids[:5]]))
    streamer.put(np.array(recorded.ids[5:]))
    streamer.end()
    assert capsys.readouterr().out == demo_tokenizer().decode(recorded.ids) + "\n"


def test_a_streamer_serves_again(streamers, capsys):
    streamer = streamers.TextStreamer(TOKENIZER, skip_prompt=True)
    for _ in range(2):
        generate(streamer, [PROMPT], [[A, E4]])
        assert capsys.readouterr().out == "a\ufffd\n"
    streamer.end()
    assert capsys.readouterr().out == "\n"


def test_ids_that_only_the_model_has_are_no_text(streamers, capsys):
    generate(streamers.TextStreamer(TOKENIZER, skip_prompt=True), [PROMPT], [[A, 50_000, B]])
    assert capsys.readouterr().out == "ab\n"
    with pytest.raises(detok.UnknownTokenError):
        generate(streamers.TextStreamer(TOKENIZER, unknown_ids="error"), [PROMPT], [[50_000]])


def test_special_tokens_are_shown_unless_told_otherwise(streamers, capsys):
    for options, text in (({}, "a<|end|>"), ({"skip_special_tokens": True}, "a")):
        generate(streamers.TextStreamer(TOKENIZER, True, **options), [PROMPT], [[A, END]])
        assert capsys.readouterr().out == text + "\n"


def test_rows_of_a_batch_are_printed_by_line(streamers, capsys):
    tokenizer, (word, line, han, rest) = vocabulary("word ", "\n", b"\xe4", b"\xbd\xa0")
    streamer = streamers.TextStreamer(tokenizer, skip_prompt=True)
    streamer.put(np.array([[word, word], [line, word]]))
    shown = []
    for step in ([word, han], [line, rest], [word, line], [han, word], [line, line]):
        streamer.put(np.array(step))
        shown.append(capsys.readouterr().out)
    streamer.end()
    shown.append(capsys.readouterr().out)
    assert shown == ["", "[0] word \n", "[1] 你\n", "", "[0] word \ufffd\n[1] word \n", ""]


def test_a_batch_can_be_had_by_row(streamers):
    class Kept(streamers.TextStreamer):
        def on_finalized_texts(self, texts: list[str], stream_end: bool = False) -> None:
            kept.append((texts, stream_end))

    kept: list[tuple[list[str], bool]] = []
    generate(Kept(TOKENIZER, skip_prompt=True), [PROMPT, PROMPT], [[A, E4, BD], [E4, BD, A0]])
    assert kept == [(["a", ""], False), (["", "你"], False), (["\ufffd", ""], True)]


@pytest.mark.parametrize("step", [[[A]], [A, A, A], [[A], [A], [A]]])
def test_rows_must_be_as_many_as_prompts(streamers, step):
    streamer = streamers.TextStreamer(TOKENIZER)
    streamer.put(np.array([PROMPT, PROMPT]))
    with pytest.raises(ValueError, match="rows"):
        streamer.put(np.array(step))


@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("wrong", [50_000, "x"])
def test_an_error_in_one_row_loses_no_text_of_another(streamers, bad, wrong):
    shown = ["", "", ""]

    class Kept(streamers.TextStreamer):
        def on_finalized_texts(self, texts: list[str], stream_end: bool = False) -> None:
            shown[:] = [old + new for old, new in zip(shown, texts, strict=True)]

    streamer = Kept(TOKENIZER, skip_prompt=True, unknown_ids="error")
    streamer.put([PROMPT] * 3)
    streamer.put([A, A, A])
    step = [B, B, B]
    step[bad] = wrong
    with pytest.raises((detok.UnknownTokenError, TypeError)) as caught:
        streamer.put(step)
    assert caught.value.__notes__ == [f"in row {bad}"]
    expected = ["ab", "ab", "ab"]
    expected[bad] = "a"
    assert shown == expected
    streamer.put([A, A, A])
    streamer.end()
    assert shown == [text + "a" for text in expected]


def test_a_prompt_that_is_wrong_is_no_prompt(streamers, capsys):
    streamer = streamers.TextStreamer(TOKENIZER, skip_prompt=True, unknown_ids="error")
    with pytest.raises(TypeError):
        streamer.put(["x"])
    generate(streamer, [PROMPT], [[A]])
    assert capsys.readouterr().out == "a\n"


def test_options_that_a_stream_cannot_have(streamers):
    with pytest.raises(TypeError, match="use_source_tokenizer"):
        streamers.TextStreamer(TOKENIZER, use_source_tokenizer=True)
    with pytest.warns(detok.DetokWarning, match="clean_up"):
        streamers.TextStreamer(TOKENIZER, clean_up_tokenization_spaces=True)
    streamers.TextStreamer(TOKENIZER, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("rows", [[[A, E4, BD, A0, B]], [[A, E4, BD, A0], [B, B, A, END]]], ids=["one row", "two rows"])
def test_text_can_be_iterated_over_while_it_is_made(streamers, rows):
    streamer = streamers.TextIteratorStreamer(TOKENIZER, skip_prompt=True, timeout=60, skip_special_tokens=True)
    producer = threading.Thread(target=generate, args=(streamer, [PROMPT] * len(rows), rows))
    producer.start()
    items = list(streamer)
    producer.join()
    if len(rows) == 1:
        assert items == ["a", "你", "b"]
    else:
        assert items == [["a", "b"], ["", "b"], ["", "a"], ["你", ""]]
    with pytest.raises(Empty):
        next(streamers.TextIteratorStreamer(TOKENIZER, timeout=0.01))


@pytest.mark.extras
@pytest.mark.parametrize("rows", [1, 3])
def test_generate_streams_what_it_returns(streamers, hf, rows):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = hf("smollm2")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = LlamaForCausalLM(config).eval()
    inputs = torch.randint(0, len(tokenizer), (rows, 5))

    class Kept(streamers.TextStreamer):
        texts = [""] * rows

        def on_finalized_texts(self, texts: list[str], stream_end: bool = False) -> None:
            self.texts = [old + new for old, new in zip(self.texts, texts, strict=True)]

    for skip_prompt in (True, False):
        streamer = Kept(tokenizer, skip_prompt=skip_prompt)
        output = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            streamer=streamer,
            max_new_tokens=40,
            do_sample=True,
            pad_token_id=2,
            eos_token_id=2,
        )
        for text, prompt, row in zip(streamer.texts, inputs.tolist(), output.tolist(), strict=True):
            whole = demo_tokenizer().decode(row, skip_special_tokens=False)
            shown = demo_tokenizer().decode_attributed(row[5:], prompt_token_ids=prompt, skip_special_tokens=False).text
            assert text == (shown if skip_prompt else whole)


def test_without_transformers_a_streamer_still_streams():
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "from detok.adapters.transformers import TextStreamer\n"
        "from detok.data import demo_tokenizer\n"
        "s = TextStreamer(demo_tokenizer(), skip_prompt=True)\n"
        "s.put([[1]]); s.put([19556]); s.put([905]); s.end()"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)
    assert ended.stdout.decode().split() == ["Hello", "world"]
