"""Seeker: training of an agent that learns to search.

Importing this package is cheap: neither torch, vllm, flamepy nor prefect is imported here.
"""
