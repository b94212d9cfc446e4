"""What a Flame 0.6.0 cluster does, as its stock client sees it; runs against any cluster (see `__main__.py`)."""
