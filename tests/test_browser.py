"""The report as a browser shows it: no console message, every figure drawn and readable, nothing wider than the page.

With Chromium on the machine the page is opened in it, at the widths of a phone and of a desk, in light and in dark; the
pictures go to the folder named by DPFASTMH_SCREENSHOTS, if it is set. Without Chromium the page is checked as text:
widths are bounded by its rules and every figure scales with them.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess

import pytest

from dpfastmh.report import report
from posteriors import models, synthetic
from test_report import Page, check_self_contained

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--enable-logging=stderr", "--log-level=0",
]  # fmt: skip

# Chromium's windows are never narrower than 500 pixels, so the page is shown in a frame of the width asked for; the
# script stands outside of it, where the page's policy does not reach.
FRAME = """<!doctype html><html><head><style>:root {{ color-scheme: light dark }} body {{ margin: 0 }}
iframe {{ border: 0; width: {width}px; height: 1200px }}</style></head><body><iframe srcdoc="{page}"></iframe>
<script>window.onload = () => {{ {script} }};</script></body></html>"""

MEASURE = """
const view = document.querySelector("iframe").contentWindow, page = view.document;
const style = node => view.getComputedStyle(node);
const brightness = color => {
  const [r, g, b] = color.match(/[\\d.]+/g).map(Number).map(c => c / 255)
    .map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b;
};
const behind = node => {
  for (; node; node = node.parentElement) {
    const color = style(node).backgroundColor;
    if (!/rgba\\(.*, 0\\)/.test(color)) return color;
  }
  return "rgb(255, 255, 255)";
};
const contrast = (node, color) => {
  const [a, b] = [brightness(color), brightness(behind(node))].sort((x, y) => y - x);
  return (a + .05) / (b + .05);
};
const figures = [...page.querySelectorAll("svg")].map(svg => {
  const box = svg.getBoundingClientRect(), texts = [...svg.querySelectorAll("text")];
  const outside = texts.filter(t => {
    const r = t.getBoundingClientRect();
    return r.left < box.left - 12 || r.right > box.right + 12;
  });
  return {
    name: svg.querySelector("title").textContent, width: box.width, height: box.height, outside: outside.length,
    letters: Math.min(...texts.map(t => t.getBoundingClientRect().height)),
    contrast: Math.min(...texts.map(t => contrast(svg, style(t).fill))),
    drawn: [...svg.querySelectorAll("path, use")].filter(p => p.getBoundingClientRect().width > 0).length,
  };
});
const words = [...page.querySelectorAll("p, li, th, td, dt, dd, h1, h2, h3, label, figcaption, pre, .banner")]
  .filter(node => node.offsetParent);
const found = {
  page: page.documentElement.scrollWidth, window: view.innerWidth, figures,
  dark: view.matchMedia("(prefers-color-scheme: dark)").matches,
  contrast: Math.min(...words.map(node => contrast(node, style(node).color))),
  letters: Math.min(...words.map(node => parseFloat(style(node).fontSize))),
  original: page.querySelector(".panel-original").offsetHeight,
};
page.querySelector("label[for=scale-original]").click();
found.switched = [page.querySelector(".panel-scaled").offsetHeight,
  page.querySelector(".panel-original").offsetHeight];
document.documentElement.dataset.found = JSON.stringify(found);
"""


def browse(page, width: int, height: int, dark: bool, *more: str) -> subprocess.CompletedProcess[str]:
    scheme = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
    return subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={page.parent / 'profile'}", f"--window-size={width},{height}",
         *scheme, *more, page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip


@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (1280, False)])
def test_the_page_in_a_browser(width, dark, tmp_path):
    posterior = synthetic(models()["softmax"], correlation=0.9, private=dark)
    text = report(posterior)
    if CHROMIUM is None:
        check_as_text(text)
        return
    page = tmp_path / "report.html"
    page.write_text(FRAME.format(width=width, page=html.escape(text), script=MEASURE), "utf-8")
    done = browse(page, max(width, 500), 1200, dark, "--dump-dom")
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    found = json.loads(html.unescape(re.search(r'data-found="([^"]*)"', done.stdout)[1]))
    assert found["window"] == width
    assert found["page"] <= width
    assert found["dark"] == dark
    assert found["contrast"] >= 4.5
    assert found["letters"] >= 12
    assert found["original"] == 0
    assert found["switched"][0] == 0 < found["switched"][1]
    assert len(found["figures"]) == 3 + 2 * len(posterior.names)
    for figure in found["figures"]:
        assert 240 <= figure["width"] <= width - 32
        assert figure["height"] >= 90
        assert figure["drawn"] >= 6
        assert figure["outside"] == 0
        assert figure["letters"] >= 10
        assert figure["contrast"] >= 4.5
    keep_pictures(text, tmp_path, width, dark)


def keep_pictures(text: str, tmp_path, width: int, dark: bool) -> None:
    """The page itself as a picture, where somebody wants it."""
    folder = os.environ.get("DPFASTMH_SCREENSHOTS")
    if not folder:
        return
    os.makedirs(folder, exist_ok=True)
    page = tmp_path / "page.html"
    page.write_text(text, "utf-8")
    picture = os.path.join(os.path.abspath(folder), f"report-{width}-{'dark' if dark else 'light'}.png")
    browse(page, width, 8000 if width < 500 else 5000, dark, f"--screenshot={picture}")
    assert os.path.getsize(picture) > 50_000


def check_as_text(text: str) -> None:
    """What can be said without a browser: nothing is loaded, figures and tables bend to the page's width."""
    check_self_contained(text)
    page = Page(text)
    assert all("width" not in attributes for tag, attributes in page.tags if tag == "svg")
    assert len(page.figures) == sum(tag == "svg" for tag, _ in page.tags)
    assert re.search(r"\.plot \{[^}]*width: 100%; height: auto", text)
    assert re.search(r"\.scroll \{[^}]*overflow-x: auto", text)
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.tags
    tables = [k for k, (tag, _) in enumerate(page.tags) if tag == "table"]
    assert tables
    assert all(page.tags[k - 1][1].get("class") == "scroll" for k in tables)


def test_the_check_without_a_browser_notices_a_fixed_width():
    text = report(synthetic())
    check_as_text(text)
    with pytest.raises(AssertionError):
        check_as_text(text.replace('<svg class="plot"', '<svg width="900" class="plot"'))
