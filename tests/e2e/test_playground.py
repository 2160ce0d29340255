"""The playground in headless Chromium: type, stream, switch tier, compare, hover, and say when the server is gone."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="the development extra (playwright) is absent")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium")
SHOTS = os.environ.get("LOOPWISE_SCREENSHOTS")  # a folder to keep pictures in


@pytest.fixture
def process(tmp_path):
    log = (tmp_path / "log").open("w+")
    command = [sys.executable, "-m", "loopwise", "serve", "tiny", "--port", "0", "--threads", "1"]
    found = subprocess.Popen(command, stderr=log, text=True)
    until, url = time.monotonic() + 120, ""
    while not url:
        assert found.poll() is None and time.monotonic() < until
        time.sleep(0.1)
        url = next((w for w in Path(log.name).read_text().split() if w.startswith("http://127.0.0.1:")), "")
    assert httpx.get(url + "/health", timeout=60, trust_env=False).status_code == 200
    yield found, url
    found.terminate()
    found.wait(60)
    log.close()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def keep(page, name):
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/{name}.png", full_page=True)


def generated(page, count=1):
    page.wait_for_selector('#panes[aria-busy="false"]', timeout=120_000)
    assert page.locator(".pane").count() == count


CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const light = colour => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map(c => c / 255)
      .map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const over = (a, b) => (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  const style = element => getComputedStyle(element);
  const of = (element, box) => over(light(style(element).color), light(style(box).backgroundColor));
  const found = [...document.querySelectorAll("#legend span")].map(span => of(span, span));
  const panel = document.querySelector("form");
  for (const one of document.querySelectorAll("label, .figures, .hint, dt, figcaption")) found.push(of(one, panel));
  return [...found, of(document.getElementById("go"), document.getElementById("go"))];
}"""


def test_it_is_readable_and_reached_by_keyboard(process, browser):
    _, url = process
    page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="light")
    page.set_default_timeout(60_000)
    page.goto(url)
    page.wait_for_selector("#tier option", state="attached")
    page.wait_for_selector("#state:has-text('ready')")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        contrasts = page.evaluate(CONTRAST)
        assert len(contrasts) > 20 and min(contrasts) >= 4.5, (scheme, contrasts)  # WCAG AA
        keep(page, f"empty-{scheme}")
    for width in (390, 320):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_viewport_size({"width": 390, "height": 844})

    page.fill("#max", "12")
    page.focus("#prompt")
    reached = []
    while not reached or reached[-1] != "go":
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.localName"))
        assert len(reached) < 20, reached
    assert reached == ["kind", "tier", "compare", "max", "temperature", "summary", "go"]
    page.keyboard.press("Enter")
    generated(page)
    assert page.locator(".tok").first.is_visible()
    page.wait_for_function("document.getElementById('said').textContent.includes('mean depth')")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className").startswith("tok") and page.locator("#tip").is_visible()
    box = page.locator("#tip").bounding_box()
    assert box and box["x"] >= 0 and box["x"] + box["width"] <= 390
    keep(page, "phone-tip")
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()
    page.close()


def test_playground(process, browser):
    server, url = process
    page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
    faults, requests = [], []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: requests.append(request.url))
    page.set_default_timeout(60_000)
    page.goto(url)
    page.wait_for_selector("#tier option", state="attached")

    page.fill("#prompt", "The capital of")
    page.fill("#max", "40")
    page.click("#go")
    generated(page)
    deep = page.locator(".tok").count()
    assert 1 <= deep <= 40 and "mean depth 8.00" in page.inner_text(".figures")

    page.select_option("#tier", "tiny:economy")
    page.focus("#prompt")
    page.keyboard.press("Control+Enter")
    generated(page)
    assert "mean depth 8.00" not in page.inner_text(".figures")
    assert len(set(page.locator(".tok").evaluate_all("all => all.map(t => t.style.background)"))) > 1

    page.locator(".tok").nth(5).hover()
    page.wait_for_selector("#tip svg .curve")
    assert "depth" in page.inner_text("#tip") and page.locator("#tip tr").count() == 5
    keep(page, "hover-light")
    page.locator(".tok").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement._at[1]") == 1 and page.locator("#tip").is_visible()

    page.check("#compare")
    page.select_option("#other", "tiny:full")
    page.click("#go")
    generated(page, 2)
    assert page.inner_text(".pane >> nth=1").count("agreement") == 1
    assert page.locator("#histogram rect").count() == 8
    keep(page, "compare-light")
    page.emulate_media(color_scheme="dark")
    keep(page, "compare-dark")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    keep(page, "phone-dark")
    page.emulate_media(color_scheme="light")
    keep(page, "phone-light")

    page.fill("#prompt", "word " * 400)
    page.click("#go")
    page.wait_for_selector("#error:visible")
    assert "context" in page.inner_text("#error")
    page.fill("#prompt", "x")
    assert all(request.startswith((url, "data:")) for request in requests), "the page asks the network for something"
    assert [fault for fault in faults if "400" not in fault] == []

    server.terminate()
    server.wait(60)
    page.click("#go")
    page.wait_for_selector("#error:has-text('cannot be reached')")
    page.wait_for_selector("#state:has-text('cannot be reached')")
    keep(page, "stopped")
    page.close()
