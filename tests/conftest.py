"""Hypothesis profiles and the real tokenizers, loaded once per test run."""

import gzip
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The same examples at every run, so that a check passes or fails for what changed; `ci` looks for new ones.
settings.register_profile("dev", max_examples=100, deadline=None, derandomize=True)
settings.register_profile("ci", max_examples=2_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

DATA = Path(__file__).parent / "data"


@cache
def tokenizer_text(name: str) -> str:
    """The tokenizer.json of tests/data/tokenizers/`name`."""
    folder = DATA / "tokenizers" / name
    packed = folder / "tokenizer.json.gz"
    if packed.exists():
        return gzip.decompress(packed.read_bytes()).decode()
    return (folder / "tokenizer.json").read_text(encoding="utf-8")


@cache
def load_tokenizer(name: str) -> Any:
    import detok

    return detok.Tokenizer.from_json(tokenizer_text(name))


@cache
def load_oracle(name: str) -> Any:
    import tokenizers

    return tokenizers.Tokenizer.from_str(tokenizer_text(name))


def read_jsonl(name: str) -> list[Any]:
    # Not splitlines(): texts hold other line separators.
    lines = (DATA / name).read_bytes().decode().split("\n")
    return [json.loads(line) for line in lines if line]


@pytest.fixture(scope="session")
def real_tokenizer():
    """name -> the detok.Tokenizer of a file in tests/data/tokenizers."""
    return load_tokenizer


@pytest.fixture(scope="session")
def oracle():
    """name -> the same file read by the `tokenizers` package."""
    return load_oracle


@pytest.fixture(scope="session")
def rows():
    """file name -> the rows of a .jsonl file in tests/data."""
    return read_jsonl


@pytest.fixture(scope="session")
def unpacked_folder(tmp_path_factory):
    """name -> a model folder: tokenizer.json unpacked beside the other files of tests/data/tokenizers/`name`."""

    @cache
    def unpack(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        (folder / "tokenizer.json").write_text(tokenizer_text(name), encoding="utf-8")
        for file in (DATA / "tokenizers" / name).iterdir():
            if file.suffix == ".gz" and file.name != "tokenizer.json.gz":
                (folder / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
            elif file.name == "tokenizer_config.json":
                (folder / file.name).write_bytes(file.read_bytes())
        return folder

    return unpack
