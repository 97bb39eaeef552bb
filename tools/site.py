"""What the documentation site has beyond ``docs/``; MkDocs calls it while it builds.

- the pages of the project's root (contributing, security, changes, the citation), with their links mended;
- the command line's reference, from the parser itself, and the Python reference, from the public names;
- a page for each example, from its notebook, with the pictures that are in it.

Made at build time, these cannot fall behind the code.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

import dpfastmh
from notebooks import markdown_of

ROOT = Path(__file__).resolve().parent.parent
FROM_ROOT = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "CITATION.cff")
MODULES = {  # of the public names, in the order of the page
    "budget": "Budgets",
    "domain": "What is public about a record",
    "schema": "Schema files",
    "priors": "Priors",
    "models": "Models",
    "planning": "Forecasts",
    "sampling": "Private sampling",
    "resuming": "Going on with a run",
    "ledger": "Ledgers",
    "posterior": "Posteriors",
    "data.ingest": "Tables into folders of rows",
    "data.mapped": "Rows in files",
    "data.cluster": "Rows on a cluster",
    "data.engine": "Rows in another place",
    "methods": "Algorithms, not private",
}


def on_files(files: Files, config: Any) -> Files:
    pages = {name: from_root(ROOT / name) for name in FROM_ROOT}
    pages |= {"cli.md": command_line(), "api.md": python_names()}
    for notebook in sorted((ROOT / "examples").glob("*.ipynb")):
        pages[f"examples/{notebook.stem}.md"] = markdown_of(notebook)
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links out of ``docs/`` lead to the pages that ``from_root`` made, or to the examples' pages."""
    names = "|".join(map(re.escape, FROM_ROOT))
    text = re.sub(rf"\]\(\.\./({names})\)", r"](\1)", markdown)
    text = re.sub(r"\]\(\.\./examples/([\w-]+)\.(?:py|ipynb)\)", r"](examples/\1.md)", text)
    return re.sub(r"^<!-- not run: .*-->\n", "", text, flags=re.MULTILINE)


def on_post_build(config: Any) -> None:
    """Nothing that a page needs to be shown may come from elsewhere."""
    fetched = re.compile(
        r"""<(?:script|img|iframe|source)[^>]+src=["']?(?:https?:)?//|<link[^>]+href=["']?(?:https?:)?//"""
    )
    for page in Path(config.site_dir).rglob("*.html"):
        if found := fetched.search(page.read_text(encoding="utf-8")):
            raise PluginError(f"{page.name} would fetch from the network: {found[0]}")


def from_root(path: Path) -> str:
    return path.read_text(encoding="utf-8").replace("](docs/", "](")


# -- references ------------------------------------------------------------------------------------------------------
def command_line() -> str:
    """Every command's own help."""
    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1"}
    from dpfastmh.cli import parser
    from dpfastmh.commands import COMMANDS

    parts = ["# Command line\n", "Results go to standard output, progress and errors to standard error.\n"]
    parts += [f"```text\n{parser('').format_help()}```\n"]
    for name in COMMANDS:
        whole = parser(name)
        (commands,) = (action.choices for action in whole._actions if isinstance(action.choices, dict))
        parts.append(f"## {name}\n\n```text\n{commands[name].format_help()}```\n")
    return "\n".join(parts)


def python_names() -> str:
    return "\n".join(_python_names())


def _python_names() -> Iterator[str]:
    yield "# Python\n\nThe public names of `dpfastmh`, all of them also as `dpfastmh.NAME`.\n"
    unknown = set(dpfastmh._HOME.values()) - MODULES.keys()
    for module, title in (*MODULES.items(), *((name, name.capitalize()) for name in sorted(unknown))):
        yield f"## {title}\n"
        for name, home in dpfastmh._HOME.items():
            if home == module:
                yield f"::: dpfastmh.{module}.{name}\n"
    yield "## Estimators for scikit-learn\n"
    for name in ("Logistic", "Softmax", "Poisson", "Robust"):
        yield f"::: dpfastmh.sklearn.Private{name}Regression\n    options: {{members: false}}\n"
