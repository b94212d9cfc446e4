"""Where a policy lives.

1. A service that asks for no GPU keeps to the CPU.
2. One that asks for a GPU and sees none says which field asked, what torch was built for, and what to do; it does not
   fall back to the CPU, where a training would take weeks.
3. `load_policy` puts every weight and buffer on the device.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from seeker.config import PolicyConfig
from seeker.engines.devices import CPU, device_for
from seeker.engines.policy import load_policy
from seeker.errors import ConfigError

SHIPPED = Path(__file__).resolve().parents[2] / "data/policy"


def test_without_a_gpu() -> None:
    assert device_for("cpu=4,mem=32g", "cluster.trainer_resources") == CPU


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU here")
def test_a_gpu_that_is_not_there() -> None:
    expected = r"cluster\.rollout_resources: 'cpu=4,gpu=1' asks for a GPU, but torch .* sees none"
    with pytest.raises(ConfigError, match=expected):
        device_for("cpu=4,gpu=1", "cluster.rollout_resources")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
def test_the_first_gpu_that_is_shown() -> None:
    assert device_for("cpu=4,gpu=1", "cluster.rollout_resources") == torch.device("cuda", 0)


def test_a_policy_goes_where_it_is_told() -> None:
    model, _ = load_policy(PolicyConfig(path=str(SHIPPED)), torch.device("meta"))
    held = [*model.parameters(), *model.buffers()]
    assert len(held) > 10
    assert {tensor.device.type for tensor in held} == {"meta"}
