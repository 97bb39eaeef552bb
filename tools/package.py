"""Build the wheel and the sdist, install each in an environment of its own, and use it there.

    python tools/package.py

What an installed package must have: the command, the type marker, the shipped data, and a private fit that works. The
environments see the libraries of the one that runs this (nothing is fetched), but not its copy of dpfastmh.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("dpfastmh/py.typed", "dpfastmh/datasets/adult.csv.gz", "dpfastmh/report_assets/page.html")
USE = """
import dpfastmh, pathlib, sys
home = pathlib.Path(dpfastmh.__file__)
assert pathlib.Path(sys.prefix) in home.parents, f"{home} is not the installed package"
from dpfastmh import datasets
table = datasets.adult()
model = dpfastmh.LogisticRegression(table.domain, temperature=50.0)
found = dpfastmh.sample(model, table.x, table.y, budget=dpfastmh.Budget(2.0, 1e-6), draws=100)
assert found.privacy.private and found.privacy.epsilon_spent <= 2.0
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        wheel, sdist = build(ROOT, place / "dist")
        check_contents(wheel, sdist)
        try_out(wheel, place / "from-wheel")
        with tarfile.open(sdist) as archive:
            archive.extractall(place / "source", filter="data")
        (source,) = (place / "source").iterdir()
        again, _ = build(source, place / "again")
        assert names(again) == names(wheel), "the wheel that the sdist gives is another one"
        print(f"{wheel.name} ({wheel.stat().st_size // 1024} kB) and {sdist.name} install and work")


def build(source: Path, out: Path) -> tuple[Path, Path]:
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)])
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(archive.namelist())


def check_contents(wheel: Path, sdist: Path) -> None:
    missing = [name for name in NEEDED if name not in names(wheel)]
    assert not missing, f"the wheel lacks {missing}"
    stray = [name for name in names(wheel) if not name.startswith("dpfastmh")]
    assert not stray, f"the wheel has {stray}"
    with tarfile.open(sdist) as archive:
        inside = [name.partition("/")[2] for name in archive.getnames()]
    for name in ("README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "tests/test_budget.py", "docs/guarantee.md"):
        assert name in inside, f"the sdist lacks {name}"


def try_out(wheel: Path, place: Path) -> None:
    """Installed without its dependencies, which come in through a path file behind it."""
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    run([str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)])
    (site,) = (place / "lib").glob("python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    # an editable dpfastmh beside the libraries must not win: -P and the order of the path see to that, USE makes sure
    run([str(python), "-P", "-c", USE])
    run([str(place / "bin" / "dpfastmh"), "--version"])


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:5])} failed:\n{done.stdout[-2000:]}{done.stderr[-3000:]}")


if __name__ == "__main__":
    main()
