"""The page in a browser: what is read, clicked and typed there."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from viewer.folders import episode, evaluation, served, training

from rollenv.evaluation.export import Exported, keep
from rollenv.trajectory import Failure, StopReason, Trajectory, Turn
from rollenv.viewer.export import gathered
from rollenv.viewer.library import Library
from rollenv.viewer.page import page as the_page

pytestmark = pytest.mark.browser
playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'rollenv[dev]'")
expect = playwright.expect
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SEED_POLICY = Path(__file__).resolve().parents[2] / "envs" / "webshop" / "seed_policy"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """A page that no error may come from: neither an exception nor a word in the console."""
    tab = browser.new_page(viewport={"width": 1280, "height": 800})
    tab.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    yield tab
    tab.close()
    assert said == []


@contextlib.contextmanager
def shown(tab: Any, folder: Path) -> Iterator[str]:
    """Serves a folder until the page has been left, so that it never asks a server that has ended."""
    with served(folder) as address:
        yield address
        tab.goto("about:blank")


def test_episodes_are_walked_through_by_keys_filtered_and_compared(tab: Any, tmp_path: Path) -> None:
    failed = {"stop": StopReason.FAILED, "success": None, "failure": Failure("env", "timeout", "no answer", 1)}
    played = [*(episode(i, turns=3, reward=i / 8, success=i > 6, samples=4) for i in range(8)), episode(8, **failed)]
    evaluation(tmp_path, played, model=str(SEED_POLICY))
    with shown(tab, tmp_path) as address:
        tab.goto(address)
        chosen, headline = tab.locator(".item.chosen"), tab.locator("#episode h1")
        expect(headline).to_have_text("task-0")
        expect(tab.locator(".item")).to_have_count(9)
        for pressed, place in (("j", 1), ("j", 2), ("k", 1), ("J", 8), ("K", 0), ("j", 1)):
            tab.keyboard.press(pressed)
            expect(chosen).to_have_attribute("data-id", str(place))
        expect(tab.locator(".facts-line")).to_contain_text("sample 1")  # it is there, and not the one before
        expect(tab.locator(".turn")).to_have_count(3)
        tab.keyboard.press("n")
        expect(tab.locator(".turn.chosen")).to_have_attribute("data-turn", "1")
        expect(tab.locator(".turn .token").first).to_have_attribute(
            "title", re.compile(r"log p -0\.500, p 60\.7%; version 0")
        )
        tab.keyboard.press("c")
        expect(tab.get_by_role("button", name="policy version")).to_have_attribute("aria-pressed", "true")

        tab.keyboard.press("g")
        expect(tab.locator("#group th")).to_have_count(4)
        tab.locator("#group th a").nth(2).click()
        expect(chosen).to_have_attribute("data-id", "2")

        tab.locator(".chip", has_text="failed").click()
        expect(tab.locator(".item")).to_have_count(1)
        expect(headline).to_have_text("task-4")
        expect(tab.locator(".failure")).to_have_text("env/timeout, turn 2\nno answer")
        tab.locator(".chip", has_text="all").click()
        expect(tab.locator(".item")).to_have_count(9)
        tab.keyboard.press("/")
        tab.keyboard.type("thing 1")
        expect(tab.locator(".item")).to_have_count(4)
        tab.keyboard.press("Escape")
        tab.locator("select[aria-label=order]").select_option("reward")
        expect(tab.locator(".item").first).to_have_attribute("data-id", "7")
        tab.reload()
        expect(tab.locator(".item").first).to_have_attribute("data-id", "7")
        expect(tab.locator(".item")).to_have_count(4)


def test_tokens_are_coloured_by_what_they_trained_with(tab: Any, tmp_path: Path) -> None:
    training(tmp_path, {1: [episode(0, turns=3)]})
    given = [Exported(episode(0, turns=3), 1, True, [[0.5, -2.0], [], [1.0, 0.0]])]
    keep(tmp_path, 1, given)
    shutil.copytree(SEED_POLICY, tmp_path / "model")
    with shown(tab, tmp_path) as address:
        tab.goto(address)
        tab.get_by_role("button", name="advantage").click()
        tokens = tab.locator(".turn .token")
        expect(tokens).to_have_count(6)
        expect(tab.locator(".legend")).to_have_text("-2+2")
        said = [re.findall(r"advantage ([^;]+)", str(tokens.nth(i).get_attribute("title"))) for i in range(6)]
        assert said == [["+0.5"], ["-2"], [], [], ["+1"], ["0"]]
        painted = [tokens.nth(i).evaluate("token => getComputedStyle(token).backgroundColor") for i in range(6)]
        assert painted[0] == "rgba(30, 138, 76, 0.15)"
        assert painted[1] == "rgba(194, 53, 43, 0.6)", "the farthest, below nothing"
        assert painted[2] == painted[3] == "rgba(0, 0, 0, 0)", "a turn that did not train"


def test_a_long_list_has_few_elements_and_shows_its_end(tab: Any, tmp_path: Path) -> None:
    evaluation(tmp_path, [episode(i, turns=1) for i in range(3000)])
    with shown(tab, tmp_path) as address:
        tab.goto(address)
        expect(tab.locator("#count")).to_have_text("3,000 episodes")
        tab.locator("#list").evaluate("list => list.scrollTop = list.scrollHeight")
        expect(tab.locator(".item[data-id='2999']")).to_be_visible()
        assert tab.locator(".item").count() < 60


def test_curves_grow_while_the_run_trains_and_its_episodes_appear(tab: Any, tmp_path: Path) -> None:
    def lines(*steps: int) -> list[dict[str, float]]:
        return [{"step": n, "success": n / 10, "loss": 1 / (n + 1), "tokens_per_second": 1000.0} for n in steps]

    training(tmp_path, {1: [episode(0)]}, *lines(0, 1))
    with shown(tab, tmp_path) as address:
        tab.goto(f"{address}#run=.&tab=curves")
        success = tab.locator(".chart", has_text="success").locator(".value")
        expect(success).to_contain_text("0.1")
        expect(tab.locator(".live")).to_have_text("step 1 of 9")
        training(tmp_path / "unseen", {2: [episode(0), episode(1)]})
        (tmp_path / "unseen" / "trajectories" / "step-000002.jsonl").rename(
            tmp_path / "trajectories" / "step-000002.jsonl"
        )
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(lines(2)[0]) + "\n")
        expect(success).to_contain_text("0.2")
        expect(tab.locator(".live")).to_have_text("step 2 of 9")
        tab.keyboard.press("e")
        expect(tab.locator("#count")).to_have_text("3 episodes")


NASTY = [
    "<img src=x onerror=window.hacked=1>",
    "</script><script>window.hacked=2</script>",
    "<svg onload=window.hacked=3>",
    "javascript:window.hacked=4",
    "\"><b onmouseover='window.hacked=5'>",
    "\ud800 half a pair, \u202e turned round, \x00 nothing",
]


def hostile() -> list[Trajectory]:
    """Episodes every text of which tries to be markup."""
    found = []
    for i, text in enumerate(NASTY):
        turn = Turn(text, completion=f"{text} completion", action=text, reward=1.0, valid_action=False)
        failure = Failure("env", "crash", text, 0) if i % 2 else None
        stop = StopReason.FAILED if failure else StopReason.TERMINATED
        found.append(Trajectory(text, text, i, 0, i, turns=[turn], stop=stop, failure=failure, info={text: text}))
    return found


@pytest.mark.parametrize("exported", [False, True])
def test_what_episodes_say_is_shown_and_never_carried_out(exported: bool, tab: Any, tmp_path: Path) -> None:
    folder = tmp_path / "<b onclick=window.hacked=6>run"
    evaluation(folder, hostile(), env=NASTY[0], agent=NASTY[1], model=NASTY[2], note=NASTY[4])
    evaluation(tmp_path / "other", hostile())
    with shown(tab, tmp_path) as address:
        if exported:
            library = Library(tmp_path)
            (tmp_path / "page.html").write_text(the_page(gathered(library, 100)))
            library.close()
            address = (tmp_path / "page.html").as_uri()
        tab.goto(address)
        expect(tab.locator("#runs tbody tr")).to_have_count(2)
        expect(tab.locator("#runs")).to_contain_text("<b onclick=window.hacked=6>run")
        tab.locator("#runs tbody tr").first.click()
        for text in NASTY[:5]:
            expect(tab.locator("#episode h1")).to_have_text(text)
            expect(tab.locator(".action")).to_have_text(text)
            expect(tab.locator(".turn")).to_contain_text(f"{text} completion")
            tab.locator(".turn").hover()
            tab.keyboard.press("j")
        expect(tab.locator("#episode h1")).to_contain_text("half a pair")
        tab.keyboard.press("g")
        expect(tab.locator("#group")).to_be_visible() if exported else expect(
            tab.locator("#group, .empty")
        ).to_be_visible()
        tab.keyboard.press("a")
        expect(tab.locator("#about")).to_contain_text(NASTY[4])
        assert tab.evaluate("window.hacked") is None
        assert tab.locator("img, main script, b[onmouseover], svg[onload]").count() == 0


def test_a_file_shows_the_run_without_a_server(tab: Any, tmp_path: Path) -> None:
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    played = {step: [episode(i, reward=i / 4, success=i == 3, samples=4) for i in range(4)] for step in (1, 2, 3)}
    training(tmp_path / "run", played, *({"step": n, "success": n / 10} for n in (1, 2, 3)))
    library = Library(tmp_path / "run")
    file = tmp_path / "run.html"
    file.write_text(the_page(gathered(library, 8)))
    library.close()
    tab.goto(file.as_uri())
    expect(tab.locator("#note")).to_have_text(re.compile("This file holds 8 of 12 episodes"))
    expect(tab.locator("#count")).to_have_text("8 episodes")
    tab.locator(".chip", has_text=re.compile("^successful")).click()
    expect(tab.locator(".item")).to_have_count(2)
    tab.keyboard.press("j")
    tab.keyboard.press("g")
    expect(tab.locator("#group th")).to_have_count(4)
    tab.keyboard.press("Escape")
    tab.keyboard.press("t")
    expect(tab.locator(".chart .value").first).to_contain_text("0.3")
    assert asked == [file.as_uri()]
