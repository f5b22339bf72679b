"""Timings as ratios, measured side by side in one process. Run with `python -m benchmarks.NAME [--quick]`."""
