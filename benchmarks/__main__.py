"""`make bench`: the figures of the README, measured on this machine."""

from benchmarks import analysis, core

core.main()
print()
analysis.main()
