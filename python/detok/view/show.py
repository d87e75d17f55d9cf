"""The demo: one recorded stream, live and coloured on a terminal, a short report elsewhere."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from detok import DecodedText, DecodeStream, Tokenizer
from detok.data import RecordedStream
from detok.view.cells import count, escaped, harmless, pad, width
from detok.view.steps import Step, step, withheld

__all__ = ["show_live", "show_plain"]

# Light backgrounds that black text can be read on, of the 256 that every colour terminal has; neighbours differ.
BACKGROUNDS = (153, 223, 157, 225, 229, 152)
RESET, DIM, REVERSE = "\x1b[0m", "\x1b[2m", "\x1b[7m"
SLIVER = "▏"
STEPS_SHOWN = 12
PROMPT_SHOWN = 60


class Totals:
    """Both clocks: tokens taken in, text settled."""

    def __init__(self) -> None:
        self.tokens = 0
        self.settled_bytes = 0
        self.chunks = 0
        self.kept_back = 0
        self.most_pending = 0
        self.joining = 0
        self.without_text = 0
        self.text = ""

    def add(self, one: Step) -> None:
        self.tokens += 1
        self.settled_bytes += one.settled_bytes
        self.kept_back += bool(one.incomplete_bytes)
        self.most_pending = max(self.most_pending, one.incomplete_bytes)
        if one.chunk is not None:
            self.add_chunk(one.chunk)

    def add_chunk(self, chunk: DecodedText) -> None:
        self.chunks += 1
        self.text += chunk.text
        for record in chunk.attributions:
            self.joining += record.continues_char
            self.without_text += not record.anchor.is_visible

    def add_flush(self, rest: DecodedText | None) -> None:
        if rest is not None:
            self.add_chunk(rest)
        self.settled_bytes = len(self.text.encode())


def show_plain(tokenizer: Tokenizer, recorded: RecordedStream, out: TextIO) -> bool:
    """Writes a report that is the same on every run; says whether the streamed text was right."""
    out.write(f"stream {recorded.name}: {recorded.about}\n")
    out.write(f"{len(recorded.ids)} tokens of SmolLM2 after a prompt of {len(recorded.prompt_ids)}\n\n")
    stream = DecodeStream(tokenizer, recorded.prompt_ids)
    totals = Totals()
    taken = [step(stream, token_id) for token_id in recorded.ids]
    for one in taken:
        totals.add(one)
    totals.add_flush(stream.flush()[0])

    out.write("token      id  text that became certain  withheld after it\n")
    for index, one in enumerate(taken[:STEPS_SHOWN]):
        text = f"'{escaped(one.chunk.text)}'" if one.chunk is not None and one.chunk.text else ""
        out.write(f"{index:5}  {one.token_id:6}  {pad(text, 24)}  {withheld(one)}".rstrip() + "\n")
    if len(taken) > STEPS_SHOWN:
        out.write("  ...\n")
    out.write(f"\n{harmless(totals.text)}\n\n")
    return _verdict(tokenizer, recorded, totals, out)


def show_live(tokenizer: Tokenizer, recorded: RecordedStream, out: TextIO, tokens_per_second: float) -> bool:
    """Paints tokens as they come; says whether the streamed text was right."""
    out.write(f"stream {recorded.name}: {recorded.about}\n")
    out.write(
        f"{DIM}one colour a token; {SLIVER} a token that only continues a character; "
        f"[name] a token without text; the end of the prompt comes first{RESET}\n\n"
    )
    out.write(f"{DIM}{harmless(recorded.prompt[-PROMPT_SHOWN:]).lstrip()}{RESET}")
    stream = DecodeStream(tokenizer, recorded.prompt_ids)
    totals = Totals()
    painter = Painter(tokenizer)
    with StatusLine(out).reserved() as status:
        for token_id in recorded.ids:
            one = step(stream, token_id)
            totals.add(one)
            if one.chunk is not None:
                out.write(painter.paint(one.chunk))
            status.show(_clocks(totals, len(recorded.ids), withheld(one)))
            out.flush()
            if tokens_per_second:
                time.sleep(1 / tokens_per_second)
        rest = stream.flush()[0]
        totals.add_flush(rest)
        if rest is not None:
            out.write(painter.paint(rest))
        status.show(_clocks(totals, len(recorded.ids), "flushed"))
        out.flush()
    out.write("\n\n")
    return _verdict(tokenizer, recorded, totals, out)


def _clocks(totals: Totals, of: int, reason: str) -> str:
    return (
        f" engine {totals.tokens:{len(str(of))}}/{of} tokens │ decoder {totals.settled_bytes:4} bytes │ "
        f"withheld: {reason or 'nothing'} "
    )


def _verdict(tokenizer: Tokenizer, recorded: RecordedStream, totals: Totals, out: TextIO) -> bool:
    prompt = tokenizer.decode(recorded.prompt_ids)
    one_shot = tokenizer.decode(recorded.prompt_ids + recorded.ids).removeprefix(prompt)
    as_recorded = tokenizer.decode(recorded.ids, skip_special_tokens=False) == recorded.text
    right = totals.text == one_shot
    out.write(
        f"engine clock   {count(totals.tokens, 'token')} in\n"
        f"decoder clock  {count(totals.settled_bytes, 'byte')} settled, {count(len(totals.text), 'character')}, "
        f"{count(totals.chunks, 'chunk')}\n"
        f"in between     {count(totals.kept_back, 'token')} left a character unfinished; "
        f"never more than {count(totals.most_pending, 'byte')} withheld\n"
        f"attribution    {count(totals.joining, 'token')} begin inside a character, "
        f"{totals.without_text} have no text\n"
        f"streamed text equals the one-shot decode: {_yes(right)}\n"
        f"one-shot decode equals the recorded text: {_yes(as_recorded)}\n"
    )
    out.flush()
    return right and as_recorded


def _yes(fact: bool) -> str:
    return "yes" if fact else "NO"


class Painter:
    """Turns chunks into text with a colour for each token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.visible_tokens = 0

    def paint(self, chunk: DecodedText) -> str:
        """Every token leaves a trace: its own text, a sliver where it owns no character, or its name."""
        text, painted, done = chunk.text, [], 0
        spans, anchors = chunk.spans(unit="codepoint", shared="own"), chunk.offsets(unit="codepoint")
        for record, anchor, (start, end) in zip(chunk.attributions, anchors, spans, strict=True):
            # Text before the first record is the tail of a token that has left. So is a character that a record
            # continues and yet owns in this chunk, unless it began in the prompt.
            tail = start + (record.continues_char and start == anchor < end and self.visible_tokens > 0)
            painted.append(self._coloured(text[done:tail]))
            if record.anchor.is_visible:
                self.visible_tokens += 1
                painted.append(self._coloured(text[tail:end] or SLIVER))
            else:
                name = self.tokenizer.id_to_token(record.token_id)
                painted.append(f"{DIM}[{escaped(name) if name else record.token_id}]{RESET}")
            done = end
        painted.append(self._coloured(text[done:]))
        return "".join(painted)

    def _coloured(self, text: str) -> str:
        if not text:
            return ""
        colour = f"\x1b[48;5;{BACKGROUNDS[self.visible_tokens % len(BACKGROUNDS)]};38;5;16m"
        # A background that is on at a line feed would fill the next line.
        lines = [f"{colour}{harmless(line)}{RESET}" if line else "" for line in text.split("\n")]
        return f"{colour}↵{RESET}\n".join(lines)


class StatusLine:
    """The last row of the terminal, kept out of the scrolling text."""

    SMALLEST = 5

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.rows = 0

    @contextmanager
    def reserved(self) -> "Iterator[StatusLine]":
        try:
            yield self
        finally:
            if self.rows:
                self.out.write(f"\x1b7\x1b[{self.rows};1H\x1b[K\x1b[r\x1b8")
                self.out.flush()

    def show(self, text: str) -> None:
        size = shutil.get_terminal_size()
        if size.lines < self.SMALLEST:
            return
        if size.lines != self.rows:
            # Index makes room if the text stands in the last row and keeps the column, which a line feed does not;
            # setting the region moves the cursor.
            self.out.write(f"\x1bD\x1b[A\x1b7\x1b[1;{size.lines - 1}r\x1b8")
            self.rows = size.lines
        while width(text) > size.columns:
            text = text[:-1]
        self.out.write(f"\x1b7\x1b[{self.rows};1H{REVERSE}{pad(text, size.columns)}{RESET}\x1b8")
