"""Examples are scripts; their notebooks are made from them, run once, so that the pictures are inside.

    python tools/notebooks.py examples/*.py

A script is cut at lines that begin with ``# %%``: ``# %% [markdown]`` starts text (in comments), ``# %%`` code.
"""

from __future__ import annotations

import base64
import re
import sys
from pathlib import Path
from typing import Any

import nbformat

MARK = re.compile(r"^# %%(.*)$", re.MULTILINE)


INLINE = "%matplotlib inline\n"  # in the first code cell: without it a notebook prints a figure's name only


def cells(script: str) -> list[tuple[str, str]]:
    """(kind, text) of every cell of the notebook, "markdown" or "code"."""
    parts = MARK.split(script)
    if parts[0].strip():
        raise ValueError("a script begins with '# %% [markdown]' and its title")
    found = []
    for mark, text in zip(parts[1::2], parts[2::2], strict=True):
        if mark.strip() == "[markdown]":
            found.append(("markdown", re.sub(r"^# ?", "", text.strip(), flags=re.MULTILINE)))
        else:
            found.append(("code", text.strip()))
    first = [kind for kind, _ in found].index("code")
    found[first] = ("code", INLINE + found[first][1])
    return found


def notebook_of(script: Path) -> Any:
    """The notebook, executed in the script's folder."""
    from nbclient import NotebookClient

    make = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    book = nbformat.v4.new_notebook(
        cells=[make[kind](text, id=f"cell-{k}") for k, (kind, text) in enumerate(cells(script.read_text()))],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    NotebookClient(book, timeout=600, resources={"metadata": {"path": str(script.parent)}}).execute()
    for cell in book.cells:
        cell.metadata.clear()  # times of execution: not worth a diff
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return book


def markdown_of(notebook: Path) -> str:
    """A page with text, code, what it printed and its pictures."""
    parts = []
    for cell in nbformat.read(notebook, as_version=4).cells:
        parts.append(
            cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source.removeprefix(INLINE)}\n```"
        )
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":
                parts.append(f"```text\n{output.text.rstrip()}\n```")
            elif "image/png" in output.get("data", {}):
                image = "".join(output.data["image/png"].split())
                base64.b64decode(image, validate=True)
                parts.append(f'<img alt="figure" src="data:image/png;base64,{image}">')
            elif "text/plain" in output.get("data", {}):
                parts.append(f"```text\n{output.data['text/plain'].rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    for name in sys.argv[1:]:
        script = Path(name)
        nbformat.write(notebook_of(script), script.with_suffix(".ipynb"))
        print(script.with_suffix(".ipynb"), script.with_suffix(".ipynb").stat().st_size // 1024, "kB")


if __name__ == "__main__":
    main()
