"""A picture of decoded text for notebooks: token borders, zero-width tokens, ids on hover."""

from html import escape

from detok import DecodedText

# Two tones that read on light and dark pages; a token's tone tells it from its neighbours.
_TONES = ("rgba(90,140,255,.22)", "rgba(255,170,60,.25)")


def render(decoded: DecodedText) -> str:
    """HTML of the text; every token is a `<span>` titled with its index and id."""
    text = decoded.text
    parts = []
    end_before = 0
    for index, (record, (start, end)) in enumerate(zip(decoded.attributions, decoded.spans(shared="own"), strict=True)):
        # Text before the first visible token is the tail of one that is not here.
        if start > end_before:
            parts.append(escape(text[end_before:start]))
        title = escape(f"token {index}, id {record.token_id}")
        if start == end:
            parts.append(f'<span title="{title}" style="opacity:.6">&#8203;|</span>')
        else:
            tone = _TONES[index % len(_TONES)]
            parts.append(f'<span title="{title}" style="background:{tone}">{escape(text[start:end])}</span>')
        end_before = max(end_before, end)
    parts.append(escape(text[end_before:]))
    return f'<div style="white-space:pre-wrap;font-family:monospace">{"".join(parts)}</div>'
