"""Benchmarks: `make bench`. Every figure is a ratio taken within one run, since machines differ and are noisy."""
