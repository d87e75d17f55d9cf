"""Exact streaming detokenization: text as it arrives, and for every token its place in it."""

from collections.abc import Sequence as _Sequence

from detok._core import (
    AttributionList,
    DecodedText,
    DecodeStream,
    TokenAnchor,
    TokenAttribution,
    Tokenizer,
    __version__,
)
from detok.errors import (
    DetokError,
    DetokWarning,
    InternalError,
    StateError,
    StreamFinishedError,
    TokenizerLoadError,
    UnknownTokenError,
)

_Sequence.register(AttributionList)

__all__ = [
    "DecodeStream",
    "DecodedText",
    "DetokError",
    "DetokWarning",
    "InternalError",
    "StateError",
    "StreamFinishedError",
    "TokenAnchor",
    "TokenAttribution",
    "Tokenizer",
    "TokenizerLoadError",
    "UnknownTokenError",
    "__version__",
]
