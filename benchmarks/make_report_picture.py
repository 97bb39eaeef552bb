"""Draw ``docs/report.png``: the first screen of the report that ``dpfastmh demo`` writes. Needs Chromium."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "docs" / "report.png"
WIDTH, HEIGHT = 1180, 1460
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars",
]  # fmt: skip


def main() -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("make_report_picture.py: Chromium is missing: install it, then run this again")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        subprocess.run([sys.executable, "-m", "dpfastmh", "demo", "--quiet", "-o", str(out)], check=True)
        page, profile = (out / "report.html").as_uri(), Path(folder) / "profile"
        place = [f"--user-data-dir={profile}", f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={PICTURE}"]
        subprocess.run([browser, *FLAGS, *place, page], check=True)
    print(f"{PICTURE}: {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
