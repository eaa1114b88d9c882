"""The built-in page in a real browser. Pictures of it stay in the build folder, under test-artefacts."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_model
from browser import Page, find_browser
from conftest import Server, Start

ARTEFACTS = Path(os.environ["KVANT_BINARY"]).parent.parent / "test-artefacts"
WORDS = ["The", " moon", " goes", " round", " the", " earth", " `once`", " a", " month", "."]
ALT = 1


@pytest.fixture(scope="module")
def talker(start: Start, models: Path) -> Server:
    """Says one sentence, and guesses what it says."""
    model = tiny_model.write_chain(models / "talker.gguf", list(WORDS))
    return start(model, "--threads", 1, "--parallel", 4, "--kv", "nvfp4-plain", "--speculate", "ngram:3")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    program = find_browser()
    if program is None:
        pytest.skip("NO BROWSER: the page is not tested; install chromium (tools/setup.sh --browser)")
    page = Page(program, tmp_path_factory.mktemp("profile"))
    yield page
    page.close()


def ask(page: Page, text: str) -> None:
    page.evaluate("document.getElementById('prompt').focus()")
    page.type(text)
    page.press("Enter")


def answers(page: Page) -> list[str]:
    found = page.evaluate("[...document.querySelectorAll('.turn.assistant .text')].map((e) => e.innerText)")
    assert isinstance(found, list)
    return found


def overflow(page: Page) -> object:
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def test_chat_and_figures(page: Page, talker: Server) -> None:
    page.size(1280, 860)
    page.load(talker.url + "/")
    page.wait_for("document.getElementById('state').innerText === 'ready'")
    page.wait_for("document.querySelectorAll('.pool').length > 0")
    assert page.text("#model") == "talker"
    assert "nvfp4" in page.text("#facts")
    assert re.search(r"\d+ %", page.text("#saving"))
    ask(page, "What does the moon do?")
    # The text grows: it is streamed, not shown at once.
    page.wait_for("document.querySelector('.turn.assistant .text')?.innerText.length > 0")
    page.wait_for("document.querySelector('.turn.assistant .meta')")
    assert answers(page) == ["".join(WORDS).replace("`", "")]
    assert page.evaluate("document.querySelector('.turn.assistant code').innerText") == "once"
    assert "10 tokens" in page.text(".turn.assistant .meta")
    ask(page, "And again?")
    page.wait_for("document.querySelectorAll('.turn.assistant .meta').length === 2")
    # The figures have moved.
    page.wait_for("document.querySelectorAll('.pool i.used').length > 0")
    page.wait_for("/L\\d+(\\.\\d+)?,(?!31\\.00)/.test(document.querySelector('#speed-line .stroke').getAttribute('d'))")
    assert page.text("#drafts-card").startswith("Guesses accepted")
    page.picture(ARTEFACTS / "page-1280.png")
    page.press("n", "KeyN", modifiers=ALT)
    page.wait_for("document.querySelectorAll('.turn').length === 0")
    assert page.errors == []


def test_dark_and_keys(page: Page, talker: Server) -> None:
    page.size(1280, 860, dark=True)
    page.load(talker.url + "/")
    page.wait_for("document.getElementById('state').innerText === 'ready'")
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    ask(page, "Hello")
    page.wait_for("document.querySelector('.turn.assistant .meta')")
    assert page.text("#theme") == "Light"
    page.picture(ARTEFACTS / "page-dark.png")
    page.press("d", "KeyD", modifiers=ALT)
    assert page.evaluate(colour) != dark
    page.evaluate("document.activeElement.blur()")
    page.press("/", "Slash", text="/")
    assert page.evaluate("document.activeElement.id") == "prompt"
    assert page.evaluate("document.getElementById('prompt').value") == ""
    assert page.errors == []
    page.evaluate("localStorage.clear()")


def test_stop_keeps_what_was_said(page: Page, server: Server) -> None:
    page.size(1280, 860)
    page.load(server.url + "/")
    page.wait_for("document.getElementById('state').innerText === 'ready'")
    page.evaluate("document.getElementById('max-tokens').value = 900")
    ask(page, "Go on")
    page.wait_for("document.querySelector('.turn.assistant .text')?.innerText.length > 0")
    page.press("Escape")
    page.wait_for("document.querySelector('.turn.assistant .meta')")
    page.wait_for("!document.getElementById('send').hidden")
    assert page.errors == []


def test_phone(page: Page, talker: Server) -> None:
    page.size(390, 844)
    page.load(talker.url + "/")
    page.wait_for("document.getElementById('state').innerText === 'ready'")
    ask(page, "Hello on a phone, with a rather long line that has to wrap somewhere")
    page.wait_for("document.querySelector('.turn.assistant .meta')")
    assert answers(page) == ["".join(WORDS).replace("`", "")]
    assert overflow(page) == 0
    boxes = page.evaluate(
        "['#ask', '#send', '#log', '.card'].map((s) => {"
        " const r = document.querySelector(s).getBoundingClientRect(); return [r.left, r.right]; })"
    )
    assert isinstance(boxes, list)
    assert all(left >= 0 and right <= 390 for left, right in boxes)
    page.picture(ARTEFACTS / "page-390.png")
    page.evaluate("document.querySelector('.engine').scrollIntoView()")
    page.picture(ARTEFACTS / "page-390-engine.png")
    assert page.errors == []


def test_a_key_is_asked_for(page: Page, start: Start, tiny: Path) -> None:
    locked = start(tiny, "--threads", 1, "--api-key", "secret")
    page.size(1280, 860)
    page.load(locked.url + "/")
    page.wait_for("document.getElementById('state').innerText === 'ready'")
    ask(page, "Hello")
    page.wait_for("document.querySelector('.turn.failed')")
    assert "an API key is needed" in page.text(".turn.failed .text")
    page.errors.clear()
    page.evaluate(
        "const key = document.getElementById('key'); key.value = 'secret'; key.dispatchEvent(new Event('input'))"
    )
    page.wait_for("document.getElementById('model').innerText === 'tiny'")
