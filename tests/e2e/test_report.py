"""The report in a real browser: no errors, nothing loaded, the lens works by mouse, by touch and by keyboard."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "unit" / "report"))
import report_example as example

from loopwise.report.lens import exit_depths, payload, unpack
from loopwise.report.page import page

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next((p for p in ("chromium", "chromium-browser", "google-chrome") if shutil.which(p)), None)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


class Seen:
    """A page with what it complained about and what it asked the network for."""

    def __init__(self, tab: "playwright.Page", address: str) -> None:
        self.tab, self.complaints, self.requests = tab, [], []
        tab.on("console", lambda message: self.complaints.append(message.text))
        tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        tab.on("request", lambda request: self.requests.append(request.url))
        tab.goto(address)

    def colour(self, token: int) -> str:
        return self.tab.locator(".lens .t").nth(token).evaluate("node => getComputedStyle(node).backgroundColor")

    def depths(self) -> list[int]:
        return self.tab.evaluate("Array.from(document.querySelectorAll('.lens .t'), n => +n.dataset.depth)")

    def slide(self, value: int) -> None:
        self.tab.locator("#lens-threshold").evaluate(
            f"node => {{ node.value = {value}; node.dispatchEvent(new Event('input')); }}"
        )


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator["playwright.BrowserContext"]:
    profile = tmp_path_factory.mktemp("profile")
    with playwright.sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            str(profile), executable_path=shutil.which(CHROMIUM or ""), headless=True, args=FLAGS, has_touch=True
        )
        yield context
        context.close()


@pytest.fixture
def seen(browser: "playwright.BrowserContext", tmp_path: Path) -> Iterator[Seen]:
    file = tmp_path / "report.html"
    file.write_text(page(example.run()), "utf-8")
    tab = browser.new_page()
    tab.set_viewport_size({"width": 1200, "height": 900})
    found = Seen(tab, file.as_uri())
    yield found
    assert found.complaints == []
    assert [url for url in found.requests if not url.startswith(("file:", "data:"))] == []
    assert tab.title() == "tiny on factbook · Loopwise report", "measured text must not run"
    tab.close()


def test_slider_recomputes_exit_depths_as_python_does(seen: Seen) -> None:
    lens = example.lens()
    about = payload(lens)["signals"]["kl"]
    decoded = unpack(about, lens.max_depth)
    first = seen.depths()
    assert first == exit_depths(decoded, about["start"], about["first"]).tolist()
    seen.slide(40)
    low, high = about["range"]
    assert seen.depths() == exit_depths(decoded, 10 ** (low + 40 / 240 * (high - low)), about["first"]).tolist()
    assert sum(seen.depths()) > sum(first)
    mean = float(seen.tab.locator("#lens-mean").inner_text())
    assert mean == pytest.approx(sum(seen.depths()) / len(lens.pieces), abs=0.006)


def test_slider_changes_colours(seen: Seen) -> None:
    seen.slide(0)
    deep = seen.colour(1)
    seen.slide(240)
    assert seen.colour(1) != deep


def test_signals_and_rule_can_be_chosen(seen: Seen) -> None:
    before = seen.depths()
    seen.tab.select_option("#lens-signal", "rel_change")
    assert seen.depths() != before
    assert "Free" in seen.tab.locator("#lens-cost").inner_text()
    seen.tab.select_option("#lens-rule", "settled")
    assert all(1 <= d <= 32 for d in seen.depths())


def test_hover_shows_the_curves_of_a_token(seen: Seen) -> None:
    seen.tab.locator(".lens .t").nth(3).hover()
    detail = seen.tab.locator("#lens-detail")
    assert detail.locator("svg").count() == 2
    assert example.lens().pieces[3].strip() in detail.locator("h3").inner_text()
    assert "passes" in detail.inner_text()


def test_arrow_keys_move_through_the_text(seen: Seen) -> None:
    seen.tab.locator(".lens .t").first.focus()
    title = seen.tab.locator("#lens-detail h3")
    first = title.inner_text()
    seen.tab.keyboard.press("ArrowRight")
    assert title.inner_text() != first
    seen.tab.keyboard.press("ArrowDown")
    assert seen.tab.evaluate("document.activeElement.classList.contains('t')")
    assert seen.tab.locator("#lens-say").inner_text()


def test_slider_works_by_keyboard(seen: Seen) -> None:
    before = seen.tab.locator("#lens-limit").inner_text()
    seen.tab.locator("#lens-threshold").focus()
    for _ in range(5):
        seen.tab.keyboard.press("ArrowLeft")
    assert seen.tab.locator("#lens-limit").inner_text() != before


def test_legend_hides_a_curve(seen: Seen) -> None:
    key = seen.tab.locator("#fig-frontier_depth svg.wide [data-toggle='p-kl']")
    curve = seen.tab.locator("#fig-frontier_depth svg.wide [data-series~='p-kl']").first
    assert curve.is_visible()
    key.focus()
    seen.tab.keyboard.press("Enter")
    assert not curve.is_visible()


def test_theme_button_changes_the_page(seen: Seen) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    before = seen.tab.evaluate(paper)
    seen.tab.locator("#theme").click()
    assert seen.tab.evaluate(paper) != before


@pytest.mark.parametrize("width", [320, 360, 400, 768])
def test_phone_page_is_no_wider_than_the_screen(seen: Seen, width: int) -> None:
    seen.tab.set_viewport_size({"width": width, "height": 740})
    assert seen.tab.evaluate("document.documentElement.scrollWidth") <= width


def test_tap_opens_and_closes_the_detail_on_a_phone(seen: Seen) -> None:
    seen.tab.set_viewport_size({"width": 360, "height": 740})
    panel = seen.tab.locator("#lens-panel")
    assert not panel.is_visible()
    seen.tab.locator(".lens .t").nth(2).tap()
    assert panel.is_visible()
    seen.tab.locator("#lens-close").tap()
    assert not panel.is_visible()


def test_print_shows_every_passage_and_no_controls(seen: Seen) -> None:
    seen.tab.emulate_media(media="print")
    assert seen.tab.locator(".passage:visible").count() == len(example.lens().passages)
    assert not seen.tab.locator("#lens-threshold").is_visible()
