"""`make bench`: the figures of the README, measured on this machine."""

import os
import platform

import torch

from benchmarks import analysis, core
from patchdemux import __version__

print(
    f"patchdemux {__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
    f"{os.cpu_count()} cores ({platform.machine()}), {torch.get_num_threads()} threads\n"
)
core.main()
print()
analysis.main()
