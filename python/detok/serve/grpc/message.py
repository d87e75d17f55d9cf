"""Decoded events as messages."""

import json
from collections.abc import Sequence

from detok import DecodedText, Finished, PositionLogprobs, Start, TextDelta, TokenLogprob
from detok.serve.grpc import inference_pb2 as pb

__all__ = ["Messages", "wants_text"]

REASONS = {
    "stop": pb.Finish.STOP,
    "length": pb.Finish.LENGTH,
    "abort": pb.Finish.ABORT,
    "repetition": pb.Finish.REPETITION,
}
# Bits of the flags of `DecodedText.to_numpy`.
VISIBLE, CONTINUES_CHAR, CUT = 1, 2, 4


class Messages:
    """Makes messages that have what a request wants of its answer."""

    def __init__(self, wanted: pb.ResponseOptions) -> None:
        self._text = wants_text(wanted)
        self._token_ids = wanted.token_ids
        self._attributions = wanted.attributions
        self._prompt_token_ids = wanted.prompt_token_ids

    def prompt_info(self, start: Start) -> pb.PromptInfo:
        """The prompt, as the first event of a choice has it."""
        token_ids = start.prompt_token_ids
        return pb.PromptInfo(
            num_tokens=len(token_ids),
            token_ids=token_ids if self._prompt_token_ids else (),
            logprobs=map(_position, start.prompt_logprobs or ()),
        )

    def output(self, index: int, deltas: Sequence[TextDelta]) -> pb.Output:
        """What some updates, at least one, brought for a choice; those that follow on each other are joined."""
        message = pb.Output(index=index)
        decoded = deltas[0].decoded
        for delta in deltas[1:]:
            decoded.append(delta.decoded)
        for delta in deltas:
            token_ids = delta.sampled.token_ids
            message.num_tokens += len(token_ids)
            if self._token_ids:
                message.token_ids.extend(token_ids)
            message.logprobs.extend(map(_position, delta.sampled.logprobs or ()))
        if self._text:
            message.text = decoded.text
        if self._attributions:
            message.attributions.extend(_attributions(decoded))
        last = deltas[-1]
        if last.finished is not None:
            message.finish.CopyFrom(_finish(last.finished, last.sampled.token_ids))
        return message


def wants_text(wanted: pb.ResponseOptions) -> bool:
    """Whether messages have the text, as they do if nothing is said."""
    return wanted.text or not wanted.HasField("text")


def _attributions(decoded: DecodedText) -> list[pb.Attribution]:
    columns = (column.tolist() for column in decoded.to_numpy())
    return [
        pb.Attribution(
            token_id=token_id,
            byte_offset=byte_offset,
            kind=pb.Attribution.VISIBLE if flags & VISIBLE else pb.Attribution.ZERO_WIDTH,
            continues_char=bool(flags & CONTINUES_CHAR),
            cut=bool(flags & CUT),
        )
        for token_id, byte_offset, flags in zip(*columns, strict=True)
    ]


def _position(position: PositionLogprobs | None) -> pb.PositionLogprobs:
    if position is None:
        return pb.PositionLogprobs()
    return pb.PositionLogprobs(sampled=_logprob(position.sampled), alternatives=map(_logprob, position.top))


def _logprob(entry: TokenLogprob) -> pb.TokenLogprob:
    return pb.TokenLogprob(
        token_id=entry.token_id,
        logprob=entry.logprob,
        rank=entry.rank,
        token=entry.token,
        token_bytes=entry.token_bytes,
    )


def _finish(finished: Finished, last_token_ids: Sequence[int]) -> pb.Finish:
    reason, match = finished.finish_reason, finished.stop_match
    message = pb.Finish(
        reason=REASONS[reason.kind],
        output_tokens=finished.usage.output_token_count,
        cached_tokens=finished.usage.cached_token_count,
        first_cut_token=finished.first_cut_token,
        dropped_token_ids=finished.dropped_token_ids,
    )
    if isinstance(reason.stop, str):
        message.stop_string = reason.stop
    elif reason.stop is not None:
        message.stop_token_id = reason.stop
    elif reason.kind == "stop" and last_token_ids:
        message.eos_token_id = last_token_ids[-1]
    if match is not None:
        message.stop_match.byte_offset = match.byte_offset
        message.stop_match.token_index = match.token_index
        message.stop_match.cut = match.cut
    if finished.kv_transfer_params is not None:
        message.kv_transfer_params = json.dumps(finished.kv_transfer_params)
    return message
