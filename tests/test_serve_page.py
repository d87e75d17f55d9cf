"""The server's page in a real browser: the text, a border for each token, colours of logprobs, the two clocks."""

import json
import os
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import chromium
import pytest
from detok import DecodedText, EngineUpdate
from detok.data import demo_streams, demo_tokenizer
from serving import WAIT, ScriptedEngine, served, until

# Waits for the page to say how its stream ended.
SEND = """
new Promise((done) => {
  const root = document.documentElement;
  const seen = [];
  new MutationObserver(() => seen.push([sampled, shown, withheld].map((cell) => parseInt(cell.textContent))))
    .observe(document.querySelector("table"), { subtree: true, childList: true, characterData: true });
  new MutationObserver(() => root.dataset.state !== "streaming" && done({ state: root.dataset.state, seen }))
    .observe(root, { attributes: true });
  for (const [id, value] of Object.entries(FIELDS)) document.getElementById(id).value = value;
  document.getElementById("send").click();
})
"""


IDS = [19556, 905, 33085, 242, 28, 2]  # Hello| world|ED 95|98|,|<|im_end|>
LIKELY = [-0.01, -0.5, -1.0, -2.0, -5.0, -0.1]
UPDATES = [
    EngineUpdate([token_id], logprobs=[{token_id: logprob, 216: -3.0}])
    for token_id, logprob in zip(IDS[:-1], LIKELY, strict=False)
]
END = EngineUpdate(IDS[-1:], logprobs=[{IDS[-1]: LIKELY[-1]}], finish_reason="stop")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    program = chromium.installed()
    if program is None:
        message = "there is no chromium, in which the page of the server could be opened"
        # Where .ci/chromium installs one, a check that counts has to have it.
        pytest.fail(message) if os.environ.get("CI") and sys.platform == "linux" else pytest.skip(message)
    with chromium.Page(program, tmp_path_factory.mktemp("profile")) as page:
        yield page


def send(page: chromium.Page, url: str, **fields: str) -> Any:
    """Fills the form in, sends it, and waits for the end of the stream."""
    page.open(url)
    return page.evaluate(SEND.replace("FIELDS", json.dumps(fields)))


def boxes(page: chromium.Page) -> list[dict[str, Any]]:
    """What is shown: each token's text, mark of sharing, colour and note."""
    return page.evaluate(
        "[...document.querySelectorAll('#text > .token')].map(box => ({"
        "text: box.firstChild.data, shared: box.querySelector('sup')?.textContent ?? null,"
        "empty: box.classList.contains('empty'), about: box.dataset.about,"
        "outline: getComputedStyle(box).outlineStyle, colour: getComputedStyle(box).backgroundColor }))"
    )


def test_a_stream_is_shown_token_by_token(page):
    with served(ScriptedEngine(*UPDATES, END)) as server:
        ended = send(page, server.url, prompt="x")
    assert ended["state"] == "done"
    shown = boxes(page)
    assert [(box["text"], box["shared"]) for box in shown] == [
        ("Hello", None),
        (" world", None),
        ("하", "2"),
        (",", None),
        ("■", None),
    ]
    assert [box["empty"] for box in shown] == [False] * 4 + [True]
    assert {box["outline"] for box in shown} == {"solid"}
    # From likely to unlikely: no two colours are the same.
    assert len({box["colour"] for box in shown}) == len(shown)
    assert "id 905" in shown[1]["about"]
    assert "61%" in shown[1]["about"]
    assert page.evaluate("about.textContent") == "ended by stop"


def test_the_clocks_run_apart_and_meet_at_the_end(page):
    # The first half of a character, and what may become a stop string, are sampled and not shown.
    with served(ScriptedEngine(*UPDATES, END)) as server:
        ended = send(page, server.url, prompt="x", stop=" world!")
    seen = ended["seen"]
    assert seen[-1] == [6, len("Hello world하,"), 0]
    assert all(before[:2] <= after[:2] for before, after in pairwise(seen))
    assert all(withheld <= sampled for sampled, _, withheld in seen)
    # " world" waits for what comes behind it, then for the half character behind that.
    assert [2, 5, 1] in seen
    assert page.evaluate("shown_bar.style.width") == page.evaluate("sampled_bar.style.width")


def test_every_recorded_stream_is_shown_whole(page):
    with served() as server:
        for recorded in demo_streams().values():
            assert send(page, server.url, prompt=recorded.prompt, max_tokens="200")["state"] == "done"
            shown = boxes(page)
            text = "".join(box["text"] for box in shown if not box["empty"])
            decoded = demo_tokenizer().decode_attributed(recorded.ids, prompt_token_ids=recorded.prompt_ids)
            assert text == decoded.text
            assert [(box["text"], int(box["shared"] or 1)) for box in shown if not box["empty"]] == owned(decoded)
            assert sum(int(box["shared"] or 1) for box in shown) == len(recorded.ids)


def owned(decoded: DecodedText) -> list[tuple[str, int]]:
    """The text that each token owns, and how many have a part of it; tokens that own nothing count with another."""
    shares: list[tuple[str, int]] = []
    for (start, end), (first, last) in zip(decoded.spans(shared="own"), decoded.spans(), strict=True):
        if start < end:
            shares.append((decoded.text[start:end], 1))
        elif first < last:
            shares[-1] = (shares[-1][0], shares[-1][1] + 1)
    return shares


def test_what_goes_wrong_is_said(page):
    with served(ScriptedEngine(UPDATES[0], ValueError("out of tokens"))) as server:
        assert send(page, server.url, prompt="x")["state"] == "failed"
        assert "out of tokens" in page.evaluate("problem.textContent")
        assert page.evaluate("send.textContent") == "Send"
        assert send(page, server.url, prompt="")["state"] == "failed"
        assert "prompt" in page.evaluate("problem.textContent")


def test_a_stream_can_be_stopped(page):
    engine = ScriptedEngine(UPDATES[0], WAIT)
    with served(engine) as server:
        page.open(server.url)
        page.evaluate("send.click()")
        page.evaluate(
            "new Promise(done => new MutationObserver((_, all) => (all.disconnect(), done()))"
            ".observe(text, { subtree: true, childList: true, characterData: true }))"
        )
        page.evaluate("send.click()")
        until(lambda: engine.aborted)
    assert [cause for _, cause in engine.aborted] == ["client_gone"]
    assert page.evaluate("document.documentElement.dataset.state") == "stopped"


def test_the_page_asks_nobody_but_its_server_and_complains_of_nothing(page):
    page.heard.clear()
    with served(ScriptedEngine(*UPDATES, END)) as server:
        assert send(page, server.url, prompt="<script>alert(1)</script>")["state"] == "done"
        asked = [request["request"]["url"] for request in page.events("Network.requestWillBeSent")]
        assert f"{server.url}/v1/completions" in asked
        assert all(url.startswith((f"{server.url}/", "data:")) for url in asked)
    assert page.events("Runtime.exceptionThrown", "Runtime.consoleAPICalled") == []
    said = [entry["entry"]["text"] for entry in page.events("Log.entryAdded") if "favicon" not in str(entry)]
    assert said == []
