"""Layer and gate from saved chains of the shipped policy: real rollouts, and what each setting must come to."""

import numpy as np
import pytest

from pixelis.errors import ConfigError
from pixelis.eval.rescore_rft import GATES, gate_row, rescored
from pixelis.eval.running import evaluate_model
from pixelis.eval.tasks import tasks_of


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("eval")
    evaluate_model("nano-sft", tasks_of(["search"], split="dev"), limit=6, out=folder)
    return folder


def test_chains_are_read_at_every_layer_and_paid_under_every_gate(saved):
    rows = {
        row["setting"]: row for row in rescored("nano-sft", saved, saved, tasks_of(["search"], split="dev"), limit=6)
    }
    assert list(rows) == [*(f"layer {k:+d}" for k in (-2, -1, 0, 1, 2)), *(f"gate {name}" for name in GATES)]
    layers = [rows[f"layer {k:+d}"] for k in (-2, -1, 0, 1, 2)]
    assert all(row["chains"] == 6 for row in layers)
    assert len({row["cosine"] for row in layers}) == 5  # each layer has features of its own
    assert len({row["rapr"] for row in layers}) == 1  # which steps hold does not depend on it
    assert rows["gate off"]["luck"] == pytest.approx(0.0, abs=1e-12)  # no dropout, no luck
    assert rows["gate MC-2"]["luck"] > 0.0
    assert rows["gate off"]["paid"] > rows["gate MC-8"]["paid"]  # 1 / (1 + βσ²) takes something off
    assert rows["gate MC-4"]["rank_correlation"] == pytest.approx(1.0)


def test_a_gate_by_hand():
    paid = {"MC-2": np.array([[1.0, 2.0, 6.0], [1.0, 4.0, 6.0]]), "MC-4": np.array([[2.0, 3.0, 1.0]])}
    row = gate_row("MC-2", paid, np.array([True, True, False]))
    assert row["paid_valid"] == pytest.approx(2.0)  # (1 + 3) / 2
    assert row["paid_invalid"] == pytest.approx(6.0)
    # spreads 0, 1, 0 over the two draws: 1/3 on average; the means 1, 3, 6 have a spread of sqrt(38) / 3
    assert row["luck"] == pytest.approx((1 / 3) / (38**0.5 / 3))
    assert row["rank_correlation"] == pytest.approx(-0.5)  # ranks 1 2 3 and 2 3 1


def test_chains_of_other_items_are_refused(saved):
    with pytest.raises(ConfigError, match="not the chains of 5 items"):
        rescored("nano-sft", saved, saved, tasks_of(["search"], split="dev"), limit=5)
