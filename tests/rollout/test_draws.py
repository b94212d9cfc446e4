"""Drawing tokens.

1. A token is the place of its uniform number in the cumulative distribution; its log-prob is the distribution's.
2. A row's draw does not depend on the rows beside it.
3. Tokens of probability 0 are never drawn, not even at the ends of the unit interval.
"""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from seeker.engines.draws import draw

LOGITS = hnp.arrays(np.float32, (3, 7), elements=st.floats(-20, 20, width=32) | st.just(-np.inf)).filter(
    lambda rows: bool(np.isfinite(rows).any(-1).all())
)
UNIFORMS = hnp.arrays(np.float64, 3, elements=st.floats(0, 1, exclude_max=True) | st.just(1 - 2**-53))


@settings(max_examples=200, deadline=None)
@given(LOGITS, UNIFORMS, st.sampled_from([1.0, 0.5, 2.0]))
def test_inverse_of_the_cumulative_distribution(logits, uniforms, temperature: float) -> None:
    tokens, logprobs = draw(torch.from_numpy(logits), temperature, torch.from_numpy(uniforms))
    scaled = logits.astype(np.float64) / temperature
    probabilities = np.exp(scaled - np.logaddexp.reduce(scaled, axis=-1, keepdims=True))
    for row, token in enumerate(tokens.tolist()):
        below = probabilities[row, :token].sum()
        assert below - 1e-5 <= uniforms[row] <= below + probabilities[row, token] + 1e-5
        assert probabilities[row, token] > 0
        assert abs(float(logprobs[row]) - np.log(probabilities[row, token])) < 1e-4


@settings(max_examples=50, deadline=None)
@given(LOGITS, UNIFORMS)
def test_rows_are_drawn_apart(logits, uniforms) -> None:
    together = draw(torch.from_numpy(logits), 1.0, torch.from_numpy(uniforms))[0]
    for row in range(3):
        alone = draw(torch.from_numpy(logits[row : row + 1]), 1.0, torch.from_numpy(uniforms[row : row + 1]))[0]
        assert int(alone[0]) == int(together[row])


def test_greedy_takes_the_largest() -> None:
    tokens, logprobs = draw(torch.tensor([[0.0, 2.0, 1.0]]), 1.0, None)
    assert tokens.tolist() == [1]
    assert logprobs.tolist() == torch.log_softmax(torch.tensor([0.0, 2.0, 1.0]), -1)[1:2].tolist()
