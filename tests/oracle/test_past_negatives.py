"""Past partners as training negatives, compared with a walk over the source's events."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cordgt
from cordgt.errors import SettingError
from cordgt.history import rng
from cordgt.history.queries import Queries
from cordgt.models.base import LinkModel
from cordgt.tasks.negatives import mix_past_negatives, negatives_key, past_log_ratio

from . import slow
from .helpers import build
from .strategies import Stream, cuts, seeds, streams

PAST_TAG = 0x70617374
SHARES = (0.0, 0.3, 0.9)


@given(data=st.data(), stream=streams(), seed=seeds, share=st.sampled_from(SHARES))
def test_past_negatives(device: torch.device, data: st.DataObject, stream: Stream, seed: int, share: float) -> None:
    """Draws and their log ratios, with Numba, with torch operations and on the device."""
    ids = st.integers(0, stream.n_nodes - 1)
    n = data.draw(st.integers(1, 3))
    pool = sorted(data.draw(st.sets(ids, min_size=1)))
    rows = data.draw(st.lists(st.tuples(ids, cuts(stream), st.lists(ids, min_size=1 + n, max_size=1 + n)), min_size=1))
    src, cut, dst = (torch.tensor(x, dtype=torch.int64, device=device) for x in zip(*rows, strict=True))
    position = torch.arange(len(rows), device=device)
    queries = Queries(src, dst, torch.zeros(len(rows), dtype=torch.float64, device=device), cut, cut)
    base_key = rng.epoch_key(negatives_key(seed), 2)
    history = stream.history
    for index in (build(stream).to(device), build(stream).without_kernels().to(device)):
        pool_ids = torch.tensor(pool, device=device)
        mixed = mix_past_negatives(index, queries, pool_ids, position, key=base_key, share=share)
        expected = []
        for i, (u, c, (true, *negatives)) in enumerate(rows):
            keys = [slow.fold_in(slow.fold_in(slow.fold_in(base_key, i), PAST_TAG), k) for k in range(n)]
            drawn = [
                slow.past_negative(history, pool, v, u, c, key, share) for v, key in zip(negatives, keys, strict=True)
            ]
            expected.append([true, *drawn])
        assert mixed.dst.tolist() == expected
        ratio = past_log_ratio(index, mixed, len(pool), share)
        slow_ratio = [
            [slow.past_log_ratio(history, u, v, c, len(pool), share) for v in drawn]
            for (u, c, _), drawn in zip(rows, expected, strict=True)
        ]
        assert ratio.dtype == torch.float32
        assert np.allclose(ratio.cpu().numpy(), slow_ratio, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("share", SHARES)
def test_scores_do_not_depend_on_how_negatives_were_drawn(share: float) -> None:
    """With the log ratio, the best logit of a pair is log P(v | u) - log(1 / pool), whatever the share is."""
    true = torch.tensor([0.6, 0.3, 0.1])  # P(v | u); the source's events have the same shares
    drawn = (1 - share) / 3 + share * true
    logits = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        x = logits - (drawn * 3).log()
        value = -(true * torch.nn.functional.logsigmoid(x) + drawn * torch.nn.functional.logsigmoid(-x)).sum()
        value.backward()
        return value

    optimizer.step(loss)
    assert logits.detach().numpy() == pytest.approx((true * 3).log().numpy(), abs=1e-3)


def test_the_loss_subtracts_the_log_ratio() -> None:
    class Fixed(LinkModel):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return batch

    ratio = torch.tensor([[0.0, math.log(2.0)]])
    assert Fixed().losses(torch.tensor([[1.0, 2.0]]), ratio).equal(Fixed().losses(torch.tensor([[1.0, 2.0]]) - ratio))


def test_a_share_of_one_is_refused() -> None:
    with pytest.raises(SettingError, match="past_negatives=1"):
        cordgt.train("unused.csv", "counts", past_negatives=1.0)
