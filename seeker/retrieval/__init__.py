"""Retrieval beside the sampler: a BM25 index that executors map, and the report on what it can find."""
