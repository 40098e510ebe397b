"""What a query of phase 3 costs, told in rollouts: the arithmetic, with adaptations of known cost."""

import json

import pytest

from benchmarks import bench_adapt
from pixelis.training.ttrl.journal import LEDGER


def test_what_learning_costs_is_told_in_rollouts(monkeypatch):
    turns = []

    def adapted(settings, items, folder, *, keys):
        """A rollout costs 0.1 s, its query 0.2 s, all else 1 s, learning 0.45 s; the first batch ten times as much."""
        turns.append((settings.group_size, settings.learn, len(items)))
        folder.mkdir(exist_ok=True)
        rollouts = 0.2 + 0.1 * settings.group_size
        cost = {"rollout_cpu_s": rollouts, "cpu_s": rollouts + 1.0 + 0.45 * settings.learn}
        rows = [{name: s * (10 if k < 8 else 1) for name, s in cost.items()} for k in range(len(items))]
        (folder / LEDGER).write_text("".join(json.dumps(row) + "\n" for row in rows))

    monkeypatch.setattr(bench_adapt, "adapt", adapted)
    monkeypatch.setattr(bench_adapt, "make_stream", lambda *a, **k: type("S", (), {"items": lambda self: range(24)})())
    found = bench_adapt.rows(None, turns=2)
    assert [row.ours_cpu_s for row in found] == pytest.approx([1.0, 1.8, 2.6, 2.45])
    assert found[-1].note.startswith("as much as 22.5 rollouts alone; mean of 16 queries")
    assert turns[:4] == [(8, False, 8), (16, False, 8), (24, False, 8), (8, True, 8)]  # in turns, not one after another
    assert len(turns) == 12
