"""Messages out of decoded text."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from detok import DecodedText, Marker, SectionSplitter, Tokenizer
from detok.adapters.harmony.header import (
    CHANNEL,
    CONSTRAIN,
    CONTROLS,
    ENDS,
    LONGEST_PART,
    MESSAGE,
    START,
    Header,
    Part,
    Section,
)
from detok.adapters.harmony.package import HarmonyBackend, load

__all__ = ["HarmonyDelta", "HarmonyParser"]


@dataclass(frozen=True, slots=True)
class HarmonyDelta:
    """More text of a message.

    Attributes:
        message_index: Of the generation's messages. One that the prompt began is the first.
        role: Of its author; `tool` for a tool, whatever its name.
        channel: `analysis`, `commentary`, `final`, or what else the header says; None if it says nothing.
        recipient: Whom it is addressed to, as `functions.get_weather`.
        content_type: As `json` or `code`.
        decoded: The text with the records of its tokens.
    """

    message_index: int
    role: str
    channel: str | None
    recipient: str | None
    content_type: str | None
    decoded: DecodedText

    @property
    def section(self) -> Section:
        """What it is in a chat.

        What the assistant addresses to somebody is a call, analysis for nobody is reasoning, and the rest is content.
        """
        return Header(self.role, self.channel, self.recipient).section


class HarmonyParser:
    """Messages of decoded text; see `detok.adapters.harmony`. However the text is cut into pushes, they are the same.

    Args:
        tokenizer: Of the text: gpt-oss's, or one with its control tokens.
        prompt_token_ids: Read from the last `<|start|>` on.
        backend: What reads headers. `auto` is openai-harmony if it is installed and finds its vocabulary in the folder
            that TIKTOKEN_ENCODINGS_BASE names, so that nothing is downloaded, and otherwise `native`.

    Raises:
        ValueError: A tokenizer without the control tokens, or with other ids for them than openai-harmony has.
        ImportError: openai-harmony is asked for and not installed.
        DetokError: It could not load its vocabulary.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, prompt_token_ids: Sequence[int] = (), backend: HarmonyBackend = "auto"
    ) -> None:
        self._controls = _controls(tokenizer)
        self._package = load(backend, {name: token_id for token_id, name in self._controls.items()})
        # Each control token ends a section and begins the next. What they are called does not matter: they cut.
        cuts = list(self._controls)
        markers = [Marker(name, cut, cuts[0], also_end=cuts[1:], reopen=True) for cut, name in self._controls.items()]
        self._splitter = SectionSplitter(tokenizer, markers)

        self._deltas: list[HarmonyDelta] = []
        self._message: Header | None = None
        self._message_index = -1
        # The header that is being read; none inside a message.
        self._parts: list[Part] = []
        self._header_ids: list[int] = []
        # White space and tokens without text, as long as they belong to no message.
        self._blank = DecodedText()
        self._token_count = 0
        self._counts: Counter[str] = Counter()
        self._reasoning_token_count = 0
        if len(prompt_token_ids):
            self._begin_behind(tokenizer, list(prompt_token_ids))

    def push(self, decoded: DecodedText) -> list[HarmonyDelta]:
        """What is certain of more decoded text; only deltas with text or tokens.

        Raises:
            StreamFinishedError: After `finish`.
        """
        pieces = self._splitter.push(decoded)
        self._read(decoded.token_ids, pieces)
        return self._taken()

    def finish(self) -> list[HarmonyDelta]:
        """What is text of a header that breaks off. Ends the parser.

        Raises:
            StreamFinishedError: At a second call.
        """
        self._read([], self._splitter.finish())
        self._close()
        return self._taken()

    @property
    def token_counts(self) -> Mapping[str, int]:
        """Tokens so far by channel, those without one under `content`, control tokens and headers under `markers`.

        Their sum is the number of records that were pushed. A header that turns out to be text counts as text from then
        on.
        """
        counts = Counter(self._counts)
        counts["markers"] += self._token_count - counts.total()
        return dict(counts)

    @property
    def reasoning_token_count(self) -> int:
        """Tokens of analysis that is addressed to nobody."""
        return self._reasoning_token_count

    @property
    def section(self) -> Section:
        """`HarmonyDelta.section` of the message that is open; `content` if there is none."""
        return (self._message or Header()).section

    # ------------------------------------------------------------------ ids and pieces

    def _begin_behind(self, tokenizer: Tokenizer, prompt: list[int]) -> None:
        begin = next((n for n in reversed(range(len(prompt))) if self._controls.get(prompt[n]) == START), 0)
        self.push(tokenizer.decode_attributed(prompt[begin:], skip_special_tokens=False, unknown_ids="skip"))
        # What it says is known from now on; it is not handed out and not counted.
        self._parts = [Part(part.control, part.text) for part in self._parts]
        self._message_index = -1 if self._message is None else 0
        self._blank = DecodedText()
        self._token_count = self._reasoning_token_count = 0
        self._counts.clear()

    def _read(self, token_ids: Sequence[int], pieces: Sequence[tuple[str, DecodedText]]) -> None:
        """Reads ids beside the texts that were cut out between the control tokens.

        No marker is longer than one token, so nothing is held back: the records of the pieces are those of the ids.
        """
        self._token_count += len(token_ids)
        texts = [text for _, text in reversed(pieces)]
        if texts and not len(texts[-1].attributions):
            # The rest of a token that came before.
            self._text([], texts.pop())
        for is_control, run in groupby(token_ids, self._controls.__contains__):
            if is_control:
                for token_id in run:
                    self._control(token_id)
            else:
                self._text(list(run), texts.pop())

    def _control(self, token_id: int) -> None:
        control, is_inside = self._controls[token_id], self._message is not None
        if control in ENDS:
            self._close()
        elif control == MESSAGE and not is_inside:
            self._open(self._header())
        elif control in (START, CHANNEL) or (control == CONSTRAIN and not is_inside):
            if control == START or is_inside:
                self._close()
            self._parts.append(Part(control))
            self._header_ids.append(token_id)

    def _text(self, token_ids: Sequence[int], text: DecodedText) -> None:
        if self._parts:
            part = self._parts[-1]
            part.decoded.append(text)
            self._header_ids += token_ids
            if len(part.decoded.text) > LONGEST_PART:
                self._open(*self._broken())
        elif self._message is not None:
            self._hand_out(text)
        else:
            self._blank.append(text)
            # All before it is blank.
            if not _is_blank(text):
                self._open(Header(), self._blank)

    # ------------------------------------------------------------------ messages

    def _header(self) -> Header:
        read = self._package.read(self._header_ids) if self._package is not None else None
        return read or Header.read((part.control, part.text) for part in self._parts)

    def _broken(self) -> tuple[Header, DecodedText]:
        """What a header without its `<|message|>` says, and the text in it."""
        names, text = [], DecodedText()
        for part in self._parts:
            name, rest = part.split()
            names.append((part.control, name))
            text.append(rest)
        return Header.read(names), text

    def _open(self, header: Header, text: DecodedText | None = None) -> None:
        self._message = header
        self._message_index += 1
        self._parts, self._header_ids, self._blank = [], [], DecodedText()
        if text:
            self._hand_out(text)

    def _close(self) -> None:
        if self._parts:
            header, text = self._broken()
            if not _is_blank(text):
                self._open(header, text)
        self._message = None
        self._parts, self._header_ids, self._blank = [], [], DecodedText()

    def _hand_out(self, text: DecodedText) -> None:
        header, index = self._message or Header(), self._message_index
        count = len(text.attributions)
        self._counts[header.channel or "content"] += count
        if header.section == "reasoning":
            self._reasoning_token_count += count
        if self._deltas and self._deltas[-1].message_index == index:
            self._deltas[-1].decoded.append(text)
        else:
            names = header.role, header.channel, header.recipient, header.content_type
            self._deltas.append(HarmonyDelta(index, *names, text))

    def _taken(self) -> list[HarmonyDelta]:
        deltas, self._deltas = self._deltas, []
        return deltas


def _controls(tokenizer: Tokenizer) -> dict[int, str]:
    ids = {name: tokenizer.token_to_id(name) for name in CONTROLS}
    if missing := [name for name, token_id in ids.items() if token_id is None]:
        raise ValueError(f"the tokenizer has no {', '.join(missing)}: is it that of a gpt-oss model?")
    return {token_id: name for name, token_id in ids.items() if token_id is not None}


def _is_blank(text: DecodedText) -> bool:
    return not text.text.strip()
