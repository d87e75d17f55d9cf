"""Objects of the `tokenizers` 1.0 release candidates, in an environment of their own.

They move decoding to another class and pickle to a tokenizer.json of version 2.0, which is what is read here. The
candidate is installed without its dependencies (numpy among them): nothing that needs those is called.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import detok
import pytest
from assets import FOLDER
from conftest import load_tokenizer, tokenizer_text

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
SPEC = "tokenizers>=1.0.0rc1,<1.0.1"
# What a candidate itself refuses to load is no fault of ours: it wants all bytes in a vocabulary, SmolLM2 lacks 21.
NAMES = ["qwen3", "mistral-v3", "t5-small", "bert-base-uncased"]

# The candidate is imported first and `detok` found behind it, so that the main environment's own `tokenizers`, which
# may lie beside `detok`, is not taken instead.
CHILD = """
import json, pickle, sys
import tokenizers
sys.path.append(sys.argv[1])
import detok
out = {"version": tokenizers.__version__}
for name, path in zip(sys.argv[2::2], sys.argv[3::2]):
    source = tokenizers.Tokenizer.from_file(path)
    text = source.__reduce__()[1][0]
    again = pickle.loads(pickle.dumps(source))
    ours = detok.Tokenizer.load(source)
    ids = list(range(0, ours.vocab_size, 7))
    out[name] = {
        "json version": json.loads(text)["version"],
        "strategy": ours.strategy,
        "fingerprint": ours.fingerprint,
        "of the json": detok.Tokenizer.from_json(text).fingerprint,
        "of a pickle": detok.Tokenizer.load(again).fingerprint,
        "text": ours.decode(ids, skip_special_tokens=False),
    }
print(json.dumps(out))
"""


def candidate() -> Path:
    """The interpreter of an environment with the newest candidate."""
    folder = FOLDER.parent / "tokenizers-rc"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not (folder / "ready").exists():
        for command in [
            [sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)],
            [*PIP, "--python", str(python), "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--pre", SPEC],
        ]:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
        (folder / "ready").touch()
    return python


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder, arguments = tmp_path_factory.mktemp("rc"), []
    for name in NAMES:
        path = folder / f"{name}.json"
        path.write_text(tokenizer_text(name), encoding="utf-8")
        arguments += [name, str(path)]
    home = str(Path(detok.__file__).parent.parent)
    command = [str(candidate()), "-c", CHILD, home, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_is_a_candidate(answers):
    assert answers["version"].startswith("1.0.0")


@pytest.mark.parametrize("name", NAMES)
def test_objects_of_a_candidate(answers, name):
    got, ours = answers[name], load_tokenizer(name)
    assert got["json version"] == "2.0"
    assert got["strategy"] == ours.strategy
    ids = list(range(0, ours.vocab_size, 7))
    assert got["text"] == ours.decode(ids, skip_special_tokens=False)
    assert got["fingerprint"] == got["of the json"] == got["of a pickle"] == ours.fingerprint
