"""Whole data sets: plan a run, evaluate it (kill it, resume it), and read it again.

A run is one Zarr group. `xarray.open_zarr(path)` reads it too, with named dimensions.
"""

from patchdemux.runs.errors import RunError
from patchdemux.runs.evaluate import evaluate
from patchdemux.runs.fingerprint import differences
from patchdemux.runs.plan import Plan, plan
from patchdemux.runs.progress import Status
from patchdemux.runs.run import Run

__all__ = ["Plan", "Run", "RunError", "Status", "differences", "evaluate", "plan"]
