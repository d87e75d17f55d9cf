"""The table of `detok explain`: every token with its bytes, its place, and what waited after it."""

from collections.abc import Iterator, Sequence

from detok import DecodedText, Tokenizer
from detok.view.cells import count, escaped, escaped_bytes, pad, width
from detok.view.steps import Step, withheld

__all__ = ["explain"]

HEADER = ("token", "id", "bytes", "anchor", "span", "text out", "withheld after it")
NUMBERS = 2
WIDEST = 32


def explain(tokenizer: Tokenizer, taken: Sequence[Step], rest: DecodedText | None, everything: DecodedText) -> str:
    """The whole table as text; anchors and spans are byte offsets in the text of all tokens."""
    rows = [HEADER, *_rows(tokenizer, taken, everything)]
    columns = list(zip(*rows, strict=True))
    widths = [max(map(width, column)) for column in columns]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(cells_wide) if index < NUMBERS else pad(cell, cells_wide)
            for index, (cell, cells_wide) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    flushed = f"flush gives {_quoted(rest.text)}" if rest is not None and rest.text else "flush gives no text"
    text = everything.text
    lines.append("")
    lines.append(
        f"{flushed}; {count(len(taken), 'token')}, {count(len(text), 'character')}, {count(len(text.encode()), 'byte')}"
    )
    return "\n".join(lines) + "\n"


def _rows(tokenizer: Tokenizer, taken: Sequence[Step], everything: DecodedText) -> Iterator[tuple[str, ...]]:
    spans = everything.spans(unit="byte")
    for index, (step, record, span) in enumerate(zip(taken, everything.attributions, spans, strict=True)):
        anchor = f"{record.anchor.kind.replace('_', '-')} {record.anchor.byte_offset}"
        yield (
            str(index),
            str(step.token_id),
            _spelled(tokenizer, step.token_id),
            anchor + (" +" if record.continues_char else ""),
            f"{span[0]}..{span[1]}",
            _quoted(step.chunk.text) if step.chunk is not None and step.chunk.text else "",
            withheld(step),
        )


def _spelled(tokenizer: Tokenizer, token_id: int) -> str:
    data = tokenizer.token_bytes(token_id)
    if data is not None:
        shown = escaped_bytes(data)
    elif (name := tokenizer.id_to_token(token_id)) is not None:
        # On the window strategy a tokenizer may know the name of a token and not its bytes.
        shown = escaped(name)
    else:
        return "unknown"
    return f"'{_cut(shown)}'" + (" (special)" if tokenizer.is_special(token_id) else "")


def _quoted(text: str) -> str:
    return f"'{_cut(escaped(text))}'"


def _cut(text: str) -> str:
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"
