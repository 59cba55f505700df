"""Benchmarks: each figure beside its floor, taken in the same run. They are not timed tests."""
