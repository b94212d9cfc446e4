"""Make a starting policy for the laptop preset from demonstrations: `python -m flows.warm_start --seed 1 --out DIR`."""

from __future__ import annotations

import argparse
from pathlib import Path

from flows.environment import prepare_environment, run_quietly

prepare_environment()  # before Prefect is imported

from prefect import flow  # noqa: E402

from data.starting_policy import make_policy  # noqa: E402
from seeker.config import Count, Section  # noqa: E402
from seeker.errors import ConfigError  # noqa: E402


class WarmStart(Section):
    """Which starting policy to make, and where. Example: ``WarmStart(seed=2, out="policies/two")``."""

    seed: Count = 1
    out: str


@flow(name="warm-start", flow_run_name="warm-start-{request.seed}")
def warm_start(request: WarmStart) -> str:
    """Train the policy of a seed on demonstrations and write it in transformers' layout; its folder."""
    folder = Path(request.out)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"--out {folder}: the folder is not empty; name a new one")
    return str(make_policy(request.seed, folder).resolve())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of weights and demonstrations (default: 1)")
    parser.add_argument("--out", required=True, help="a new folder")
    arguments = parser.parse_args()
    with run_quietly():
        print(warm_start(WarmStart(seed=arguments.seed, out=arguments.out)))


if __name__ == "__main__":
    main()
