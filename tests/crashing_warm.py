"""What the server of ``crashing`` does before the first process: a whole run, so that nothing is left to compile."""

import tempfile
from pathlib import Path

import crashing

with tempfile.TemporaryDirectory() as folder:
    crashing.fit(Path(folder) / "checkpoint")
