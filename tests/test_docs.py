"""The pages cannot rot: snippets run, links resolve, and every path, test and name they mention exists."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *sorted((ROOT / "docs").glob("**/*.md")),
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
]
NOT_RUN = re.compile(r"<!-- not run: \S.*-->")


class Snippet(NamedTuple):
    page: str
    line: int  # of its first line of code
    code: str
    run: bool


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def without_fences(text: str) -> str:
    """The prose of a page."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def snippets(text: str, page: str) -> Iterator[Snippet]:
    lines = text.splitlines()
    for start in (n for n, line in enumerate(lines) if line.strip() == "```python"):
        stop = next(n for n in range(start + 1, len(lines)) if lines[n].strip() == "```")
        before = next((line for line in reversed(lines[:start]) if line.strip()), "")
        yield Snippet(page, start + 2, "\n".join(lines[start + 1 : stop]), not NOT_RUN.fullmatch(before.strip()))


def headings(text: str) -> set[str]:
    """The anchors that forges make of headings."""
    titles = re.findall(r"^#+ +(.+?) *$", without_fences(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(text: str, page: Path) -> list[str]:
    """Relative links of a page, and images, that lead nowhere."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_fences(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in headings(read(file))):
            broken.append(target)
    return broken


def exists(name: str) -> bool:
    """Whether a dotted name, dpfastmh.module.Class.member, can be reached."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def defines(file: Path, test: str) -> bool:
    return re.search(rf"^def {re.escape(test)}\(", read(file), re.MULTILINE) is not None


def unknown_names(text: str) -> list[str]:
    """Paths, tests and dotted names of the prose, in backquotes, that do not exist."""
    unknown = []
    for quoted in re.findall(r"`([^`\n]+)`", without_fences(text)):
        path, _, test = quoted.partition("::")
        if re.fullmatch(r"(src|tests|docs|benchmarks)/[\w./-]*", path):
            known = (ROOT / path).exists() and (not test or defines(ROOT / path, test))
        else:
            known = not re.fullmatch(r"dpfastmh(\.\w+)+", quoted) or exists(quoted)
        if not known:
            unknown.append(quoted)
    return unknown


ALL = [snippet for page in PAGES for snippet in snippets(read(page), str(page.relative_to(ROOT)))]


@pytest.mark.parametrize("snippet", [s for s in ALL if s.run], ids=lambda s: f"{s.page}:{s.line}")
def test_snippets_run(snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = compile("\n" * (snippet.line - 1) + snippet.code, str(ROOT / snippet.page), "exec")
    monkeypatch.chdir(tmp_path)  # a snippet may write a report
    exec(code, {"__name__": "snippet"})


def test_snippets_that_are_not_run_are_python_at_least() -> None:
    assert len(ALL) >= 4, "the pages have lost their snippets"
    for snippet in ALL:
        compile(snippet.code, snippet.page, "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_paths_and_names_of_a_page_exist(page: Path) -> None:
    assert broken_links(read(page), page) == []
    assert unknown_names(read(page)) == []


def test_every_page_is_on_the_map() -> None:
    index = ROOT / "docs" / "index.md"
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", read(index)))
    assert linked == {page.name for page in index.parent.glob("*.md")} - {"index.md"}


def test_every_theorem_names_its_code_and_its_tests() -> None:
    """Each part of the guarantee that states a theorem also says where it is used and what checks it."""
    parts = re.split(r"^## (?=\d+\. )", read(ROOT / "docs" / "guarantee.md"), flags=re.MULTILINE)[1:]
    stating = [part for part in parts if "**Theorem" in part and not part.startswith("12.")]
    assert len(stating) >= 9
    for part in stating:
        for needed in ("*Proof.*", "∎", "`tests/", "::test_"):
            assert needed in part, (needed, part[:40])


def test_citation_and_project_agree() -> None:
    citation = read(ROOT / "CITATION.cff")
    project = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]
    assert f"\nversion: {project['version']}\n" in citation
    assert f"\nlicense: {project['license']}\n" in citation
    assert "arXiv:2303.06171" in citation
    assert "arXiv:2006.11677" in citation


# -- the checks themselves ------------------------------------------------------------------------------------------
def test_rot_is_caught() -> None:
    page = ROOT / "docs" / "index.md"
    assert broken_links("[a](nowhere.md) and [b](guarantee.md#no-such-heading)", page) == [
        "nowhere.md",
        "guarantee.md#no-such-heading",
    ]
    assert broken_links("[a](guarantee.md) [b](guarantee.md#the-promise) [c](https://example.org/x.md)", page) == []
    gone = [
        "src/dpfastmh/gone.py",
        "tests/test_budget.py::test_gone",
        "dpfastmh.budget.gone",
        "dpfastmh.gone.name",
        "dpfastmh.Gone",
    ]
    for name in gone:
        assert unknown_names(f"see `{name}`") == [name]
    assert (
        unknown_names("`dpfastmh.budget.Budget.check_rows`, `dpfastmh.Box`, `src/dpfastmh/steps/`, `make test`") == []
    )


def test_a_failing_snippet_is_caught() -> None:
    text = "text\n\n```python\nraise RuntimeError\n```\n\n<!-- not run: needs a file -->\n```python\nopen('x')\n```\n"
    first, second = snippets(text, "page.md")
    assert first.run
    assert first.line == 4
    assert not second.run
    with pytest.raises(RuntimeError):
        exec(first.code, {})
