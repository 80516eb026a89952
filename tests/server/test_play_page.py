"""The page to play by hand, in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import toys
from server.serving import served

import rollenv

CHROMIUM = shutil.which("chromium")


@pytest.fixture
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


class Hostile(toys.Colours):
    """Its texts look like markup."""

    def _see(self) -> str:
        return f"<img src=x onerror=\"document.title='broken'\"> {super()._see()}"


def test_the_page_needs_no_token_but_what_it_asks_for_does(temp_registry: Any) -> None:
    toys.register()
    with served("colours", token="s3cret") as (address, _):
        page = httpx.get(f"{address}/colours/play")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert httpx.get(f"{address}/colours/metadata").status_code == 401


@pytest.mark.browser
def test_an_episode_is_played_by_clicks_and_by_words(temp_registry: Any, browser: Any) -> None:
    toys.register()
    with served("colours", token="s3cret") as (address, hosts):
        page = browser.new_page()
        page.goto(f"{address}/colours/play?token=s3cret")
        first = rollenv.make("colours").tasks.ids("test")[0]
        page.get_by_text(f"{first} · step 0 · score 0").wait_for()
        colour = page.locator(".turn pre").inner_text().split()[-1]
        page.get_by_role("button", name=colour, exact=True).click()
        page.get_by_text("step 1").wait_for()
        page.locator("#action").fill("nonsense")
        page.keyboard.press("Enter")
        page.get_by_text("not an action here").wait_for()
        page.locator("#action").fill(colour)
        page.keyboard.press("Enter")
        page.get_by_text("solved", exact=True).wait_for()
        assert "score 1" in page.locator("#score").inner_text()
        assert page.locator("#action").is_disabled()
        page.get_by_role("button", name="New episode").click()
        page.get_by_text(f"{first} · step 0 · score 0").wait_for()
        assert len(hosts["colours"].sessions) == 1
        page.close()


@pytest.mark.browser
def test_texts_of_environments_are_never_markup(temp_registry: Any, browser: Any) -> None:
    rollenv.register("Hostile-v0", Hostile)
    with served("hostile") as (address, _):
        page = browser.new_page()
        page.goto(f"{address}/play")
        page.locator(".turn pre").wait_for()
        assert "<img src=x" in page.locator(".turn pre").inner_text()
        assert page.locator(".turn img").count() == 0
        assert page.title() == "hostile · rollenv"
        page.close()
