"""What the server of ``crashing`` does before the first process: a whole run, so that nothing is left to compile."""

import tempfile
from pathlib import Path

import crashing
from dpfastmh.data.ingest import ingest_arrays

with tempfile.TemporaryDirectory() as folder:
    crashing.fit(Path(folder) / "checkpoint")
    rows = ingest_arrays(crashing.MODEL, [(crashing.X, crashing.Y)], Path(folder) / "rows")
    crashing.fit(Path(folder) / "another", rows=rows)
