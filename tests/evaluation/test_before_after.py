"""A short adaptation of the shipped policy, asked before and after."""

from __future__ import annotations

import json
from pathlib import Path

from pixelis.evaluation.before_after import measure_before_after
from pixelis.training.ttrl.ttrl_config import TtrlConfig


def test_a_policy_that_may_not_learn_answers_as_before_and_one_that_learns_leaves_its_ledger(tmp_path: Path):
    fixed = TtrlConfig(learn=False, neighbours=0, samples=2, batch=2)
    found = measure_before_after(fixed, tmp_path / "fixed", shift="lighting:3", queries=1, held_out_items=2)
    assert found.held_out_items == 4  # two families
    assert found.before == found.after
    sure = fixed.vote.model_copy(update={"delta": 0.0, "max_entropy": 1.1})
    learning = fixed.model_copy(update={"learn": True, "lr": 1e-3, "samples": 3, "vote": sure})
    found = measure_before_after(learning, tmp_path / "run", shift="lighting:3", queries=1, held_out_items=1)
    rows = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert len(rows) == found.report.queries == 2
    assert all("lighting" in row["shift"] for row in rows)
    # something is taught, and the policy that is asked afterwards is another one
    assert any(row["learnt"] and abs(row["positive"] - 0.5) < 0.5 for row in rows)
    assert found.report.drift > 0.0
    assert found.report.start_kl is None  # nano-rft went through phase 2 twice, the second time held to the first
