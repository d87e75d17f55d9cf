"""The README keeps its word: its example runs as shown, its commands exist, it stays short."""

import contextlib
import io
import re
from pathlib import Path

import detok
import pytest
from detok.__main__ import main

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COSTS = (ROOT / "docs" / "COSTS.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_it_is_short():
    assert len(README.splitlines()) <= 120


@pytest.mark.parametrize(("code", "shown"), list(zip(blocks("python"), blocks("text"), strict=True)))
def test_an_example_prints_what_is_shown(code, shown):
    assert len(code.splitlines()) <= 10
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert printed.getvalue() == shown


def test_every_make_target_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", README, re.MULTILINE))
    assert {"demo", "test"} <= named
    assert named <= targets
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert set(phony.split()) == targets


@pytest.mark.parametrize("command", re.findall(r"^detok ([a-z]+)", "\n".join(blocks("sh")), re.MULTILINE))
def test_every_command_exists(command, capsys):
    assert main([command, "--help"]) == 0
    assert command in capsys.readouterr().out


def test_links_and_paths_lead_to_files():
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    # A path that begins with a folder of this repository is meant to be there.
    paths = [
        path for path in re.findall(r"`([\w.-]+(?:/[\w.-]+)+)`", README) if (ROOT / path.split("/", 1)[0]).is_dir()
    ]
    assert targets
    assert paths
    for path in targets + paths:
        assert (ROOT / path).exists(), path


def test_every_name_of_the_page_of_costs_exists():
    names = set(re.findall(r"`(Tokenizer|DecodeStream|DecodedText)\.(\w+)", COSTS))
    assert len(names) > 10
    for owner, name in names:
        assert hasattr(getattr(detok, owner), name), f"{owner}.{name}"


def test_the_oldest_compiler_is_the_manifests():
    manifest = (ROOT / "Cargo.toml").read_text(encoding="utf-8")
    (version,) = re.findall(r'^rust-version = "(.*)"$', manifest, re.MULTILINE)
    assert f"{version} or newer" in README


def test_versions_agree():
    manifest = (ROOT / "Cargo.toml").read_text(encoding="utf-8")
    (version,) = re.findall(r'^\[workspace\.package\]\nversion = "(.*)"$', manifest, re.MULTILINE)
    assert detok.__version__ == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
