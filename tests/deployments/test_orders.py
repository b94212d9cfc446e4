"""What is ordered of `train` and `pipeline`.

1. A preset begins a run; `steps` and dotted overrides are put over it; without either an order is refused.
2. A run that is there goes on under its stored configuration; only what was named changes.
3. A preset that is named for a run that is there keeps the run's end, and is refused by the run where values differ.
4. An unknown run, preset or field is refused with the nearest.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.orders import Order
from seeker.errors import ConfigError, RunDirectoryError
from seeker.presets import load_config
from seeker.runs import check_out, open_run


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def begin(run_id: str = "demo", **flags: int) -> None:
    root = Path("runs") / run_id
    root.mkdir(parents=True)
    open_run(root, load_config("micro", **flags), run_id)


def test_a_preset_begins_a_run() -> None:
    config, run_id = Order("micro", "demo", 3, ("rollout.top_k=1", "seed=5")).resolve()
    assert (run_id, config.preset, config.steps, config.rollout.top_k, config.seed) == ("demo", "micro", 3, 1, 5)
    assert config.out_path(run_id) == Path("runs/demo")
    _, named = Order("micro").resolve()
    assert named.startswith("micro-")


def test_a_run_goes_on_under_its_own_configuration() -> None:
    begin(seed=7)
    config, run_id = Order(run_id="demo", steps=20, overrides=("cluster.rollouts=3",)).resolve()
    assert (run_id, config.seed, config.steps, config.cluster.rollouts) == ("demo", 7, 20, 3)
    check_out(config.out_path(run_id), config)
    same, again = Order(run_id="runs/demo").resolve()
    assert (again, same.out_path(again)) == ("demo", Path("runs/demo"))


def test_a_preset_for_a_run_that_is_there() -> None:
    begin(steps=20)
    config, run_id = Order("micro", "demo").resolve()
    assert config.steps == 20
    check_out(config.out_path(run_id), config)
    other, run_id = Order("micro", "demo", overrides=("seed=9",)).resolve()
    with pytest.raises(RunDirectoryError, match="seed: 0 -> 9"):
        check_out(other.out_path(run_id), other)


def test_a_whole_configuration_is_taken_as_it_is() -> None:
    config, run_id = Order(config=load_config("micro", out="runs/there"), steps=2).resolve()
    assert (run_id, config.steps) == ("there", 2)
    with pytest.raises(ConfigError, match="give one of them"):
        Order("micro", config=config).resolve()


def test_what_is_not_there_is_refused_with_the_nearest() -> None:
    begin()
    with pytest.raises(ConfigError, match="no such run, did you mean 'demo'"):
        Order(run_id="deno").resolve()
    with pytest.raises(ConfigError, match=r"neither a run nor a preset was named; .*laptop"):
        Order().resolve()
    with pytest.raises(ConfigError, match="'laptop'"):
        Order("laptip").resolve()
    with pytest.raises(ConfigError, match="group_size"):
        Order(run_id="demo", overrides=("rollout.groupsize=3",)).resolve()
