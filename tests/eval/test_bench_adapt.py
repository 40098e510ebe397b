"""What a query of phase 3 costs, told in rollouts: the arithmetic, with adaptations of known cost."""

import json

import pytest

from pixelis.eval import bench_adapt
from pixelis.train.adaptation import LEDGER


def test_what_learning_costs_is_told_in_rollouts(monkeypatch):
    turns = []

    def adapted(settings, items, folder, *, keys):
        """A rollout costs 0.1 s, a query 1 s, learning 0.45 s; the first batch ten times as much."""
        turns.append((settings.samples, settings.learn, len(items)))
        folder.mkdir(exist_ok=True)
        cost = 1.0 + 0.1 * settings.samples + 0.45 * settings.learn
        rows = [{"query": k, "cpu_s": cost * (10 if k <= 8 else 1)} for k in range(1, len(items) + 1)]
        (folder / LEDGER).write_text("".join(json.dumps(row) + "\n" for row in rows))

    monkeypatch.setattr(bench_adapt, "adapt", adapted)
    monkeypatch.setattr(bench_adapt, "stream_of", lambda *a, **k: type("S", (), {"items": lambda self: range(24)})())
    found = bench_adapt.rows(None, turns=2)
    assert [row.ours_cpu_s for row in found] == pytest.approx([1.8, 2.2, 2.6, 2.25])
    assert found[-1].note.startswith("as much as 12.5 rollouts without learning; mean of 16 queries")
    assert turns[:4] == [(8, False, 8), (12, False, 8), (16, False, 8), (8, True, 8)]  # in turns, not one after another
    assert len(turns) == 12
