"""The report: one page that needs nothing else, says what it must, and holds nothing that was not released."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from dpfastmh import Box, Budget, LogisticRegression
from dpfastmh.netcdf import privacy_record
from dpfastmh.posterior import Posterior, PosteriorError
from dpfastmh.report import _number, report, write_report
from dpfastmh.sampling import sample
from posteriors import models, privacy, replaced, synthetic

LOADERS = {"script", "link", "img", "iframe", "object", "embed", "audio", "video", "source", "base", "form", "image"}
INLINE = {"span", "sup", "strong", "code"}
EMPTY = {"meta", "br", "input", "hr", "link", "img"}


class Page(HTMLParser):
    """The page as a flat list of elements, with a check that tags match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.figures: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.text += [] if tag in INLINE else [" "]
        self.tags.append((tag, {name: value or "" for name, value in attributes}))
        if tag == "figure":
            self.figures.append([])
        elif "figure" in self.open:
            self.figures[-1].append(tag)
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in EMPTY:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.text += [] if tag in INLINE else [" "]

    def handle_data(self, data):
        if not {"style", "svg"} & set(self.open):
            self.text.append(data)

    def words(self) -> str:
        return " ".join("".join(self.text).replace("\u00a0", " ").split())


def check_self_contained(text: str) -> None:
    """Nothing on the page can make a browser ask for anything."""
    page = Page(text)
    assert not LOADERS & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
                assert value.startswith("#")
            assert "://" not in value or name == "content"
    style = "".join(re.findall(r"<style>(.*?)</style>", text, re.S))
    assert not re.search(r"@import|url\(|@font-face|expression", style)
    assert re.findall(r"url\((?!#)", text) == []
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


CASES = {
    "plain": synthetic(),
    "seeded": synthetic(models()["softmax"], private=False, chains=3),
    "tempered": synthetic(models()["poisson"], unit="patient", max_rows_per_unit=3, epsilon=4.0),
    "balls": synthetic(models()["logistic-error"], chains=1),
    "no model": synthetic(names=("theta1", "theta2"), exact_target="clampable"),
    "few": synthetic(draws=5),
}


@pytest.fixture(scope="module")
def pages():
    return {name: report(posterior) for name, posterior in CASES.items()}


@pytest.mark.parametrize("case", CASES)
def test_the_page_needs_nothing_else(pages, case):
    check_self_contained(pages[case])


@pytest.mark.parametrize("planted", ["<img src='https://example.org/x.png'>", "<style>@import url(//x)</style>"])
def test_a_planted_load_is_caught(pages, planted):
    with pytest.raises(AssertionError):
        check_self_contained(pages["plain"].replace("<main>", f"<main>{planted}"))


@pytest.mark.parametrize("case", CASES)
def test_every_figure_has_content_and_words(pages, case):
    page, posterior = Page(pages[case]), CASES[case]
    expected = 3 + 2 * len(posterior.names)  # forest, spending, acceptance; a density and a trace each
    assert len(page.figures) == expected
    for inside in page.figures:
        assert inside[0] == "svg"
        assert {"title", "desc"} <= set(inside)
        assert inside.count("path") + inside.count("use") > 8
        assert inside.count("text") >= 3
    pictures = [a for tag, a in page.tags if tag == "svg"]
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    for picture in pictures:
        assert picture["role"] == "img"
        assert set(picture["aria-labelledby"].split()) <= set(ids)
    targets = [a["href"][1:] for _, a in page.tags if "href" in a]
    targets += re.findall(r"url\(#([^)]*)\)", pages[case])
    assert targets
    assert set(targets) <= set(ids)
    labels = [a["for"] for tag, a in page.tags if tag == "label"]
    assert set(labels) <= set(ids)


@pytest.mark.parametrize("case", CASES)
def test_colours_follow_the_readers_scheme(pages, case):
    svgs = "".join(re.findall(r"<svg.*?</svg>", pages[case], re.S))
    assert re.findall(r"#[0-9a-f]{6}\b", svgs) == []
    assert "var(--ink)" in svgs
    defined = set(re.findall(r"(--[\w-]+):", pages[case]))
    assert set(re.findall(r"var\((--[\w-]+)\)", pages[case])) <= defined
    assert "prefers-color-scheme: dark" in pages[case]
    assert "@media print" in pages[case]


def test_the_promise_in_words(pages):
    words = Page(pages["plain"]).words()
    for phrase in (
        "can hardly tell whether one person's record was replaced by another",
        "by at most a factor eε = 2.72, except with probability δ = 1e-6 (one in a million).",
        "at most 73% sure",
        "Running times and memory use are outside the promise.",
        "Costs add up.",
        "Wanrong Zhang and Ruqi Zhang (2023). DP-Fast MH",
        "costs the same budget again",
        "dpfastmh fit DATA --schema SCHEMA.toml --epsilon 1 --delta 1e-6 --chains 2 -o OUT",
        "Of 3 coefficients, 2 have 90% intervals that leave out zero: sex[M] (positive), age (negative).",
        "A logistic regression of readmitted, from 50,000 records",
    ):
        assert phrase in words, phrase


def test_the_numbers_are_those_of_the_summary(pages):
    words = Page(pages["plain"]).words()
    for row in CASES["plain"].summary():
        assert f"{row.name} {f'{row.mean:.2f}'.replace('-', '−') if row.sd > 0.1 else ''}".strip() in words


def test_units_with_several_rows_show_no_rows(pages):
    words = Page(pages["tempered"]).words()
    assert "everything one patient contributed (at most 3 rows)" in words
    assert "50,000 units (patient)" in words
    assert "How many rows there are is private and appears nowhere." in words
    assert not re.search(r"50,000 (rows|records)", words)
    assert "is limited in telling" in words
    assert "a wide limit" in words


def test_tempered_is_never_called_the_posterior(pages):
    words = Page(pages["tempered"]).words()
    assert "tempered (4)" in words
    assert "about √T = 2 times the posterior's" in words
    assert not re.search(r"(?<!wider than )the posterior(?!'s)", words)


def test_not_private_is_on_top(pages):
    page = Page(pages["seeded"])
    assert page.words().count("NOT PRIVATE") >= 4
    assert ("div", {"class": "banner", "role": "alert"}) in page.tags
    assert "can hardly tell" not in page.words()
    assert "NOT PRIVATE" not in Page(pages["plain"]).words()


def test_the_data_on_the_page_are_privacy_json(pages):
    for case, text in pages.items():
        found = re.search(r"<details>.*?<pre>(.*?)</pre>", text, re.S)
        assert json.loads(html.unescape(found[1])) == privacy_record(CASES[case])


def test_names_are_text_and_nothing_else():
    evil = "<script>alert('$1')</script>"
    posterior = synthetic(LogisticRegression(Box({evil: (0, 1), "a&b $x$": (0, 2), "ü" * 40: (0, 1)})))
    text = report(replaced(posterior, outcome=evil, warnings=(evil,)))
    check_self_contained(text)
    assert "<script" not in text
    assert evil in Page(text).words()
    assert "$x$" in text


def test_the_page_is_a_function_of_the_posterior(pages):
    assert report(synthetic()) == pages["plain"]


def test_a_private_number_cannot_ride_along():
    """A negative control: the page shows what the posterior holds, and the posterior refuses to hold it."""
    with pytest.raises(PosteriorError, match="must stay on the private side"):
        report(replaced(synthetic(), start={"rows_touched": 123}))
    with pytest.raises(PosteriorError, match="must stay on the private side"):
        report(replaced(synthetic(), privacy=privacy(releases=({"what": "x", "rdp": 1.0, "seconds": 3.2},))))


def test_many_coefficients_stay_readable():
    posterior = synthetic(LogisticRegression(Box.unit(70)), draws=60)
    page = Page(report(posterior))
    assert len(page.figures) == 3 + 2 * 24
    assert "The first 24 are shown; 47 more are in posterior.nc." in page.words()
    assert "x69" in page.words()


@pytest.fixture(scope="module")
def real():
    """A seeded run of the sampler itself."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0.0, 10.0, (4_000, 2))
    y = rng.random(4_000) < 1.0 / (1.0 + np.exp(-(0.4 * x[:, 0] - 2.0)))
    table = {"a": x[:, 0], "b": x[:, 1], "y": y.astype(int)}
    model = LogisticRegression(Box(a=(0, 10), b=(0, 10)))
    return sample(model, table, target="y", budget=Budget(3.0, 1e-5), seed=1, max_time=0.2)


def test_a_real_run_from_sampling_to_the_page(real, tmp_path):
    again = Posterior.load(real.save(tmp_path / "posterior.nc"))
    assert report(again) == report(real)
    text = write_report(again, tmp_path / "report.html").read_text("utf-8")
    check_self_contained(text)
    words = Page(text).words()
    assert "a (positive)" in words
    assert "from 4,000 records" in words
    found = again.predict({"a": [0.0, 10.0], "b": [5.0, 5.0]})
    assert found.mean[0] < 0.3 < 0.7 < found.mean[1]
    assert again.spending[-1, 1] <= again.privacy.epsilon
    assert np.all(np.diff(again.spending[:, 1]) >= 0)


def test_a_sign_is_not_told_from_hardly_any_draws():
    rng = np.random.default_rng(5)
    drift = np.linspace(0.0, 1.0, 400)[None, :, None] + 0.01 * rng.standard_normal((2, 400, 1))
    sure = synthetic()
    unsure = replaced(sure, draws=np.concatenate([sure.draws[:, :400, :3], 3.0 + drift], axis=2))
    words = Page(report(unsure)).words()
    assert "1 of 3 coefficients have too few effective draws to say anything about their sign. Of the others," in words
    assert "The chains have not met, so that it may be more." in words


def test_public_knowledge_is_written_as_people_write_it():
    posterior = replaced(synthetic(), missing={"age": 45, "sex": "F"})
    words = Page(report(posterior)).words()
    assert "18 to 95; missing cells count as 45" in words
    assert "M against F; missing cells count as F" in words
    assert "missing={'age': 45, 'sex': 'F'}" in words
    assert _number(150_000.0) == "150,000"
    assert _number(-0.25) == "−0.25"


def test_what_is_left_of_a_budget_is_explained(pages):
    left = "was spent: the run ended at its planned steps"
    assert left not in Page(pages["plain"]).words()
    facts = replaced(synthetic(), privacy=privacy(epsilon_spent=0.6))
    assert f"Of ε = 1 only 0.6 {left}" in Page(report(facts)).words()
