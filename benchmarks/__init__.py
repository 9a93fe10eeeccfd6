"""The figures of the README, measured anew: `python -m benchmarks`."""
