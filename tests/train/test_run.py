"""The clock of a run."""

from types import SimpleNamespace

import numpy as np

from pixelis.train.run import Watch
from pixelis.train.state import State


def test_a_second_step_before_the_next_round_is_timed_from_the_first(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("pixelis.train.run.time", SimpleNamespace(monotonic=lambda: now[0]))
    state = State(np.random.default_rng(0), np.zeros(1))
    watch = Watch(state)
    for seconds in (2.0, 3.0):
        now[0] += seconds
        watch.tick(10)
    assert state.teaching_s == 5.0  # not 2 + 5
    assert watch.tokens_per_s == 4.0
