from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GenerateRequest(_message.Message):
    __slots__ = ("model", "text", "token_ids", "n", "sampling", "stopping", "response")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    token_ids: TokenIds
    n: int
    sampling: Sampling
    stopping: Stopping
    response: ResponseOptions
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., n: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., stopping: _Optional[_Union[Stopping, _Mapping]] = ..., response: _Optional[_Union[ResponseOptions, _Mapping]] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "seed")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    seed: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., seed: _Optional[int] = ...) -> None: ...

class Stopping(_message.Message):
    __slots__ = ("max_tokens", "min_tokens", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "stop_scope", "sections")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_STR_IN_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    STOP_SCOPE_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    min_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    include_stop_str_in_output: bool
    ignore_eos: bool
    stop_scope: str
    sections: _containers.RepeatedCompositeFieldContainer[Section]
    def __init__(self, max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., include_stop_str_in_output: bool = ..., ignore_eos: bool = ..., stop_scope: _Optional[str] = ..., sections: _Optional[_Iterable[_Union[Section, _Mapping]]] = ...) -> None: ...

class Section(_message.Message):
    __slots__ = ("name", "start", "end", "also_end", "reopen", "keep_markers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ALSO_END_FIELD_NUMBER: _ClassVar[int]
    REOPEN_FIELD_NUMBER: _ClassVar[int]
    KEEP_MARKERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    start: Pattern
    end: Pattern
    also_end: _containers.RepeatedCompositeFieldContainer[Pattern]
    reopen: bool
    keep_markers: bool
    def __init__(self, name: _Optional[str] = ..., start: _Optional[_Union[Pattern, _Mapping]] = ..., end: _Optional[_Union[Pattern, _Mapping]] = ..., also_end: _Optional[_Iterable[_Union[Pattern, _Mapping]]] = ..., reopen: bool = ..., keep_markers: bool = ...) -> None: ...

class Pattern(_message.Message):
    __slots__ = ("parts",)
    class Part(_message.Message):
        __slots__ = ("text", "token_id")
        TEXT_FIELD_NUMBER: _ClassVar[int]
        TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
        text: str
        token_id: int
        def __init__(self, text: _Optional[str] = ..., token_id: _Optional[int] = ...) -> None: ...
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[Pattern.Part]
    def __init__(self, parts: _Optional[_Iterable[_Union[Pattern.Part, _Mapping]]] = ...) -> None: ...

class ResponseOptions(_message.Message):
    __slots__ = ("text", "token_ids", "logprobs", "attributions", "prompt_token_ids", "prompt_logprobs", "skip_special_tokens")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    text: bool
    token_ids: bool
    logprobs: int
    attributions: bool
    prompt_token_ids: bool
    prompt_logprobs: int
    skip_special_tokens: bool
    def __init__(self, text: bool = ..., token_ids: bool = ..., logprobs: _Optional[int] = ..., attributions: bool = ..., prompt_token_ids: bool = ..., prompt_logprobs: _Optional[int] = ..., skip_special_tokens: bool = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("prompt_info", "outputs")
    PROMPT_INFO_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    prompt_info: PromptInfo
    outputs: _containers.RepeatedCompositeFieldContainer[Output]
    def __init__(self, prompt_info: _Optional[_Union[PromptInfo, _Mapping]] = ..., outputs: _Optional[_Iterable[_Union[Output, _Mapping]]] = ...) -> None: ...

class PromptInfo(_message.Message):
    __slots__ = ("num_tokens", "token_ids", "logprobs")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[PositionLogprobs]
    def __init__(self, num_tokens: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[PositionLogprobs, _Mapping]]] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("index", "text", "num_tokens", "token_ids", "logprobs", "attributions", "finish")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    num_tokens: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[PositionLogprobs]
    attributions: _containers.RepeatedCompositeFieldContainer[Attribution]
    finish: Finish
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ..., num_tokens: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[PositionLogprobs, _Mapping]]] = ..., attributions: _Optional[_Iterable[_Union[Attribution, _Mapping]]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ...) -> None: ...

class PositionLogprobs(_message.Message):
    __slots__ = ("sampled", "alternatives")
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    sampled: TokenLogprob
    alternatives: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, sampled: _Optional[_Union[TokenLogprob, _Mapping]] = ..., alternatives: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token_id", "logprob", "rank", "token", "token_bytes")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    rank: int
    token: str
    token_bytes: bytes
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., rank: _Optional[int] = ..., token: _Optional[str] = ..., token_bytes: _Optional[bytes] = ...) -> None: ...

class Attribution(_message.Message):
    __slots__ = ("token_id", "byte_offset", "kind", "continues_char", "cut")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Attribution.Kind]
        VISIBLE: _ClassVar[Attribution.Kind]
        ZERO_WIDTH: _ClassVar[Attribution.Kind]
    KIND_UNSPECIFIED: Attribution.Kind
    VISIBLE: Attribution.Kind
    ZERO_WIDTH: Attribution.Kind
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    BYTE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CONTINUES_CHAR_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    byte_offset: int
    kind: Attribution.Kind
    continues_char: bool
    cut: bool
    def __init__(self, token_id: _Optional[int] = ..., byte_offset: _Optional[int] = ..., kind: _Optional[_Union[Attribution.Kind, str]] = ..., continues_char: bool = ..., cut: bool = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("reason", "stop_string", "stop_token_id", "eos_token_id", "output_tokens", "cached_tokens", "stop_match", "first_cut_token", "dropped_token_ids", "kv_transfer_params")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[Finish.Reason]
        STOP: _ClassVar[Finish.Reason]
        LENGTH: _ClassVar[Finish.Reason]
        ABORT: _ClassVar[Finish.Reason]
        REPETITION: _ClassVar[Finish.Reason]
    REASON_UNSPECIFIED: Finish.Reason
    STOP: Finish.Reason
    LENGTH: Finish.Reason
    ABORT: Finish.Reason
    REPETITION: Finish.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_MATCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_CUT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DROPPED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    KV_TRANSFER_PARAMS_FIELD_NUMBER: _ClassVar[int]
    reason: Finish.Reason
    stop_string: str
    stop_token_id: int
    eos_token_id: int
    output_tokens: int
    cached_tokens: int
    stop_match: StopMatch
    first_cut_token: int
    dropped_token_ids: _containers.RepeatedScalarFieldContainer[int]
    kv_transfer_params: str
    def __init__(self, reason: _Optional[_Union[Finish.Reason, str]] = ..., stop_string: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., eos_token_id: _Optional[int] = ..., output_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., stop_match: _Optional[_Union[StopMatch, _Mapping]] = ..., first_cut_token: _Optional[int] = ..., dropped_token_ids: _Optional[_Iterable[int]] = ..., kv_transfer_params: _Optional[str] = ...) -> None: ...

class StopMatch(_message.Message):
    __slots__ = ("byte_offset", "token_index", "cut")
    BYTE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_INDEX_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    byte_offset: int
    token_index: int
    cut: bool
    def __init__(self, byte_offset: _Optional[int] = ..., token_index: _Optional[int] = ..., cut: bool = ...) -> None: ...
