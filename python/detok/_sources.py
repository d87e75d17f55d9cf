"""What `Tokenizer.load` takes: paths, names in the local cache, and objects told by what they have."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detok._core import Tokenizer
from detok.errors import TokenizerLoadError

# Files that make a folder of the local Hugging Face cache a tokenizer, the best first.
_CACHED_FILES = ("tokenizer.json", "tekken.json", "tokenizer.model", "spiece.model")


def load(source: Any, strict: bool) -> Tokenizer:
    """The tokenizer behind `source`; see `Tokenizer.load`."""
    if isinstance(source, str | os.PathLike):
        if not os.fspath(source):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        return _load_path(Path(source), strict)
    if isinstance(source, Tokenizer):
        return source
    if isinstance(source, type):
        raise TypeError(f"cannot load a tokenizer from the class {source.__qualname__}: give an object of it")
    for has, make in _KINDS:
        if has(source):
            return make(source, strict)
    kind = type(source)
    raise TypeError(
        f"cannot load a tokenizer from {kind.__module__}.{kind.__qualname__}: give a path, a tokenizers, transformers, "
        "tiktoken or mistral_common tokenizer, or an object with decode, id_to_token and is_special"
    )


def _load_path(path: Path, strict: bool) -> Tokenizer:
    if not path.exists():
        cached = _cached_folder(str(path))
        if cached is not None:
            return Tokenizer.from_file(cached, strict=strict)
    return Tokenizer.from_file(path, strict=strict)


def _cached_folder(name: str) -> Path | None:
    """The folder of a model in the local cache, if huggingface_hub is installed; nothing is fetched."""
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return None
    for file in _CACHED_FILES:
        try:
            cached = try_to_load_from_cache(name, file)
        except HFValidationError:
            return None
        if isinstance(cached, str):
            return Path(cached).parent
    return None


def _is_from(package: str) -> Callable[[Any], bool]:
    """Whether an object's class, or one it derives from, was defined in `package`."""
    return lambda source: any(base.__module__.partition(".")[0] == package for base in type(source).__mro__)


def _encodes(also: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Tells a tokenizer from the parts it is made of."""
    return lambda source: also(source) and callable(getattr(source, "encode", None))


def _from_transformers(source: Any, strict: bool) -> Tokenizer:
    backend = getattr(source, "backend_tokenizer", None)
    if backend is None:
        kind = type(source).__qualname__
        raise TokenizerLoadError(f"{kind} is a slow transformers tokenizer; load its fast version, or its files")
    return _from_tokenizers(backend, strict)


def _from_tokenizers(source: Any, strict: bool) -> Tokenizer:
    # Tokenizers up to 0.23 write their JSON; those of the 1.0 candidates pickle to it.
    data = source.to_str() if hasattr(source, "to_str") else next(iter(source.__reduce__()[1]), None)
    if not isinstance(data, str | bytes):
        kind = type(source)
        raise TokenizerLoadError(f"{kind.__module__}.{kind.__qualname__} does not give its JSON")

    def encode(text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = source.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    return Tokenizer.from_json(data, strict=strict)._with_encoder(encode)


def _from_tiktoken(source: Any, strict: bool) -> Tokenizer:
    ranks, special, pattern = source._mergeable_ranks, source._special_tokens, source._pat_str

    def encode(text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = source.encode_ordinary(text)
        return ids

    return Tokenizer._from_ranks(ranks, special, pattern)._with_encoder(encode)


def _from_mistral_common(source: Any, strict: bool) -> Tokenizer:
    inner = getattr(getattr(source, "instruct_tokenizer", source), "tokenizer", source)
    path = getattr(inner, "file_path", None)
    if path is None:
        raise TokenizerLoadError(f"{type(source).__qualname__} does not say which file it was loaded from")
    return Tokenizer.from_file(path, strict=strict)


def _decodes(source: Any) -> bool:
    return all(callable(getattr(source, name, None)) for name in ("decode", "id_to_token", "is_special"))


def _from_object(source: Any, strict: bool) -> Tokenizer:
    kind = type(source)
    reason = f"{kind.__module__}.{kind.__qualname__} is known only by what it decodes"
    tokenizer = Tokenizer._from_object(source, reason)
    if not callable(getattr(source, "encode", None)):
        return tokenizer

    def encode(text: str, add_special_tokens: bool) -> Any:
        return source.encode(text, add_special_tokens=add_special_tokens)

    return tokenizer._with_encoder(encode)


_KINDS: list[tuple[Callable[[Any], bool], Callable[[Any, bool], Tokenizer]]] = [
    (_encodes(_is_from("tokenizers")), _from_tokenizers),
    (_is_from("transformers"), _from_transformers),
    (_is_from("tiktoken"), _from_tiktoken),
    (_is_from("mistral_common"), _from_mistral_common),
    (_decodes, _from_object),
]
