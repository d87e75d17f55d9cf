"""The command line: `detok stream`, `detok explain`, `detok demo`, `detok serve`."""

import argparse
import errno
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import BinaryIO, TextIO

from detok import DecodeStream, DetokError, Tokenizer, TokenizerLoadError, UnknownTokenError, __version__
from detok._ids import IdInputError, Update, read_updates
from detok.serve.command import add_arguments, run
from detok.view.steps import Step, step
from detok.view.text import EventWriter, TextWriter

OK, BAD_DATA, USAGE = 0, 1, 2
# What eight requests have room for in the engine's context, with their prompts.
MOST_TOKENS = 400
# What a shell reports for a process that SIGINT or SIGPIPE ended.
INTERRUPTED, PIPE_CLOSED = 130, 141

EPILOG = """\
exit status: 0 done; 1 the input holds something that is no token id of this tokenizer, or cannot be read;
2 wrong usage, also a tokenizer that cannot be loaded; 130 interrupted; 141 the reader of the output went away"""
INPUTS = (
    "file with token ids, by content: one id a line, JSON lines with an id or an array of ids, or .npy "
    "(default: standard input)"
)


class UsageError(Exception):
    """An argument is wrong in a way that only shows once it is used."""


class DataError(Exception):
    """The input is wrong; the message names the place and the value."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and gives its exit status."""
    try:
        try:
            code = _run(argv)
        except SystemExit as stop:  # argparse, for --help, --version and wrong usage
            code = stop.code if isinstance(stop.code, int) else USAGE
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        _abandon_output()
        return INTERRUPTED
    except OSError as error:
        _abandon_output()
        # Windows has no EPIPE for a console pipe that was closed.
        if isinstance(error, BrokenPipeError) or (os.name == "nt" and error.errno == errno.EINVAL):
            return PIPE_CLOSED
        _complain(str(error))
        return BAD_DATA


def _run(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    _use_utf8(sys.stdout)
    try:
        return int(arguments.run(arguments))
    except DataError as error:
        sys.stdout.flush()
        _complain(str(error))
        return BAD_DATA
    except UsageError as error:
        _complain(str(error))
        return USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="detok",
        description="Token ids in, text out, as soon as it is certain.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"detok {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="stream | explain | demo | serve")

    stream = commands.add_parser(
        "stream", help="decode token ids as they arrive", description="Decodes ids as they arrive."
    )
    stream.add_argument(
        "--events",
        action="store_true",
        help="JSON lines instead of text: what became certain, with one record for each token; "
        "byte offsets count from the start of the line's text; the last line has finished: true",
    )
    stream.set_defaults(run=_stream)
    explain = commands.add_parser(
        "explain",
        help="a table of every token: bytes, place in the text, what was withheld after it and why",
        description="Shows for every token its bytes, its anchor and span in the text (byte offsets; '+' after an "
        "anchor: the token begins inside that character), the text that left with it, and what was withheld and why.",
    )
    explain.set_defaults(run=_explain)
    for command in (stream, explain):
        _add_decoding_arguments(command)

    demo = commands.add_parser(
        "demo",
        help="watch a recorded stream, or a real engine",
        description="Shows a recorded stream of SmolLM2, or the model at work: live and coloured on a terminal, a "
        "short report elsewhere or where NO_COLOR is set. Checks the streamed text against the one-shot decode.",
    )
    demo.add_argument("--stream", metavar="NAME", default=None, help="which one (default: the first of --list)")
    demo.add_argument("--list", action="store_true", help="name the recorded streams")
    demo.add_argument(
        "--engine",
        action="store_true",
        help="run SmolLM2 itself, on the CPU, with eight requests in one batch (needs detok[demo] and a model)",
    )
    demo.add_argument(
        "--max-tokens",
        metavar="N",
        type=_token_count,
        default=64,
        help="with --engine: tokens of a request at most (default: 64)",
    )
    demo.add_argument(
        "--speed",
        metavar="N",
        type=_tokens_per_second,
        default=30.0,
        help="tokens a second of a recorded stream on a terminal, 0 for no pause (default: 30)",
    )
    demo.set_defaults(run=_demo)

    serve = commands.add_parser(
        "serve",
        help="OpenAI's API over HTTP, in front of recorded streams or an engine",
        description="Serves /v1/completions, /v1/chat/completions, /v1/models, /health and /metrics over HTTP, and a "
        "page at / that shows a stream as it comes. Needs detok[serve].",
    )
    add_arguments(serve)
    serve.set_defaults(run=_serve)
    return parser


def _add_decoding_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("ids", nargs="?", metavar="FILE", default="-", help=INPUTS)
    command.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer.json, tekken.json, *.tiktoken, *.model or a folder (default: SmolLM2's, which is shipped)",
    )
    command.add_argument(
        "--prompt-ids",
        metavar="IDS",
        default="",
        help="ids of the prompt, which shape only the start of the text: numbers with commas or blanks between, "
        "or @FILE",
    )
    shown = command.add_mutually_exclusive_group()
    shown.add_argument("--show-special", action="store_true", help="write special tokens as text too")
    shown.add_argument(
        "--keep-special",
        metavar="TOKEN",
        action="append",
        default=[],
        help="write this special token (a name or an id) as text; may be given again",
    )
    command.add_argument(
        "--unknown",
        choices=("error", "skip"),
        default="error",
        help="what an id is that the tokenizer does not have: an error (default) or no text",
    )
    command.add_argument(
        "--hold-back",
        metavar="BYTES",
        type=_byte_count,
        default=0,
        help="withhold so many bytes at the end of the text (default: 0)",
    )


def _tokens_per_second(word: str) -> float:
    with suppress(ValueError):
        if 0 <= (speed := float(word)) < float("inf"):
            return speed
    raise argparse.ArgumentTypeError(f"{word!r} is not a number of tokens a second")


def _token_count(word: str) -> int:
    with suppress(ValueError):
        if 0 < (count := int(word)) <= MOST_TOKENS:
            return count
    raise argparse.ArgumentTypeError(f"{word!r} is not a number of tokens from 1 to {MOST_TOKENS}")


def _byte_count(word: str) -> int:
    with suppress(ValueError):
        if (count := int(word)) >= 0:
            return count
    raise argparse.ArgumentTypeError(f"{word!r} is not a number of bytes")


# ---------------------------------------------------------------- commands


def _stream(arguments: argparse.Namespace) -> int:
    stream = _open_stream(_load_tokenizer(arguments.tokenizer), arguments, keep_output=False)
    writer = EventWriter(sys.stdout) if arguments.events else TextWriter(sys.stdout)
    with _open_ids(arguments.ids) as source:
        try:
            for update in _updates(source):
                with _naming(update):
                    stream.push_tokens(update.ids)
                if (chunk := stream.next_chunk()) is not None:
                    writer.chunk(chunk)
        except DataError:
            # What was right before stays; what was pending has no end that could be trusted.
            writer.close()
            raise
    writer.last(stream.flush()[0])
    return OK


def _explain(arguments: argparse.Namespace) -> int:
    from detok.view.table import explain

    tokenizer = _load_tokenizer(arguments.tokenizer)
    stream = _open_stream(tokenizer, arguments, keep_output=True)
    taken: list[Step] = []
    problem = None
    with _open_ids(arguments.ids) as source:
        try:
            for update in _updates(source):
                for index, token_id in enumerate(update.ids):
                    with _naming(update, index):
                        taken.append(step(stream, token_id))
        except DataError as error:
            problem = error
    rest, everything = stream.flush()
    sys.stdout.write(explain(tokenizer, taken, rest, everything))
    if problem is not None:
        raise problem
    return OK


def _demo(arguments: argparse.Namespace) -> int:
    if arguments.engine:
        return _demo_engine(arguments)
    from detok.data import demo_streams, demo_tokenizer
    from detok.view.show import show_live, show_plain

    streams = demo_streams()
    if arguments.list:
        longest = max(map(len, streams))
        for name, recorded in streams.items():
            sys.stdout.write(f"{name:{longest}}  {len(recorded.ids):3} tokens  {recorded.about}\n")
        return OK
    name = arguments.stream or next(iter(streams))
    if name not in streams:
        raise UsageError(f"there is no stream {name!r}; there are {', '.join(streams)}")
    tokenizer = demo_tokenizer()
    sys.stdout.write(f"detok {__version__}, strategy {tokenizer.strategy}\n")
    if _wants_colour(sys.stdout):
        right = show_live(tokenizer, streams[name], sys.stdout, arguments.speed)
    else:
        right = show_plain(tokenizer, streams[name], sys.stdout)
    return OK if right else BAD_DATA


def _demo_engine(arguments: argparse.Namespace) -> int:
    from detok.adapters.llamacpp import LlamaEngine, smollm2_path
    from detok.data import demo_tokenizer
    from detok.view.serve import serve

    if arguments.list or arguments.stream is not None:
        raise UsageError("--engine runs the model; --list and --stream are for what was recorded")
    try:
        engine = LlamaEngine(smollm2_path())
    except ModuleNotFoundError as error:
        raise UsageError(str(error)) from None
    sys.stdout.write(f"detok {__version__}, SmolLM2-135M on the CPU, {engine.sequences} requests in a batch\n\n")
    with engine:
        live = _wants_colour(sys.stdout)
        right = serve(engine, demo_tokenizer(), sys.stdout, max_tokens=arguments.max_tokens, live=live)
    return OK if right else BAD_DATA


def _serve(arguments: argparse.Namespace) -> int:
    try:
        run(arguments)
    except (ModuleNotFoundError, ValueError) as error:
        raise UsageError(str(error)) from None
    return OK


# ---------------------------------------------------------------- arguments and input


def _load_tokenizer(path: str | None) -> Tokenizer:
    if path is None:
        from detok.data import demo_tokenizer

        return demo_tokenizer()
    try:
        return Tokenizer.load(path)
    except (TokenizerLoadError, OSError) as error:
        message = str(error)
        raise UsageError(message if path in message else f"{path}: {message}") from None


def _open_stream(tokenizer: Tokenizer, arguments: argparse.Namespace, *, keep_output: bool) -> DecodeStream:
    prompt_ids = _prompt_ids(arguments.prompt_ids)
    keep = [int(word) if word.isascii() and word.isdigit() else word for word in arguments.keep_special]
    try:
        return DecodeStream(
            tokenizer,
            prompt_ids,
            skip_special_tokens=not arguments.show_special,
            keep_special_tokens=keep,
            min_bytes_to_buffer=arguments.hold_back,
            unknown_ids=arguments.unknown,
            keep_output=keep_output,
        )
    except (DetokError, ValueError, OverflowError) as error:
        raise UsageError(str(error)) from None


def _prompt_ids(words: str) -> list[int]:
    try:
        if words.startswith("@"):
            with open(words[1:], "rb") as source:
                return [token_id for update in read_updates(source) for token_id in update.ids]
        text = words if words.lstrip().startswith("[") else "[" + ",".join(words.replace(",", " ").split()) + "]"
        return [token_id for update in read_updates(io.BytesIO(text.encode())) for token_id in update.ids]
    except (IdInputError, OSError) as error:
        raise UsageError(f"--prompt-ids: {error}") from None


@contextmanager
def _open_ids(path: str) -> Iterator[BinaryIO]:
    if path != "-":
        try:
            source = open(path, "rb")  # noqa: SIM115
        except OSError as error:
            raise DataError(str(error)) from None
        with source:
            yield source
    elif sys.stdin is None:
        raise DataError("there is no standard input")
    else:
        if sys.stdin.isatty():
            _complain("token ids, one a line; end with Ctrl-D (Ctrl-Z and Enter on Windows)")
        yield sys.stdin.buffer


def _updates(source: BinaryIO) -> Iterator[Update]:
    try:
        yield from read_updates(source)
    except IdInputError as error:
        raise DataError(str(error)) from None


@contextmanager
def _naming(update: Update, first: int = 0) -> Iterator[None]:
    """Says where in the input a bad id stood, if a call that began with the update's id at `first` finds one."""
    try:
        yield
    except UnknownTokenError as error:
        item = f", item {first + error.index}" if len(update.ids) > 1 else ""
        raise DataError(f"{update.place}{item}: {error.token_id} is not an id of this tokenizer") from None
    except (DetokError, ValueError) as error:
        raise DataError(f"{update.place}: {error}") from None


# ---------------------------------------------------------------- output


def _use_utf8(out: TextIO) -> None:
    """Text leaves as UTF-8 without translated line ends; on a terminal, whose encoding is given, as near as it can."""
    if isinstance(out, io.TextIOWrapper):
        if out.isatty():
            out.reconfigure(errors="backslashreplace")
        else:
            out.reconfigure(encoding="utf-8", newline="\n")


def _wants_colour(out: TextIO) -> bool:
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _complain(message: str) -> None:
    with suppress(OSError, AttributeError):
        sys.stderr.write(f"detok: {message}\n")
        sys.stderr.flush()


def _abandon_output() -> None:
    """Points standard output at nothing, so that the interpreter's own flush at exit cannot fail aloud."""
    with suppress(OSError, ValueError, AttributeError):
        out = sys.stdout.fileno()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, out)
        os.close(nothing)


if __name__ == "__main__":
    sys.exit(main())
