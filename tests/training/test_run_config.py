"""Configurations of the three phases: one base, and keys of earlier releases."""

import subprocess
import sys

import pytest
import yaml

from pixelis.core.config import load_config
from pixelis.core.errors import ConfigError
from pixelis.rewards.settings import RewardSettings
from pixelis.training.common.kl_controller import KlSettings
from pixelis.training.common.run_config import RunConfig
from pixelis.training.common.run_folder import write_config
from pixelis.training.grpo.rft_config import RftConfig
from pixelis.training.sft.sft_config import SftConfig
from pixelis.training.ttrl.ttrl_config import CanarySettings, StressSettings, TtrlConfig
from pixelis.voting.fit_calibration import CalibrationSettings

RFT = {
    "policy": "nano-sft", "corpus": "c", "updates": 40, "queries": 60, "samples": 16, "group": 12, "spread": "batch",
    "per": "token", "ledger_tolerance": 0.05, "least_calls": 0.1, "least_entropy": 0.2,
    "kl": {"most": 3.0, "control": False}, "reward": {"prior": "cpc", "gate": 1.0, "sums": True},
}  # fmt: skip
RFT_NOW = {
    "policy": "nano-sft", "corpus": "c", "steps": 40, "prompts_per_step": 60, "group_size": 16, "keep_best": 12,
    "advantage_std": "batch", "loss_average": "token", "logprob_tolerance": 0.05, "min_tool_calls": 0.1,
    "min_entropy_ratio": 0.2, "kl": {"max": 3.0, "adaptive": False},
    "reward": {"coherence_kind": "cpc", "uncertainty_gate": 1.0, "sum_over_steps": True},
}  # fmt: skip
TTRL = {
    "samples": 4, "ledger_tolerance": 0.05, "over_tokens": "mean", "one_lesson_each": True, "least_spread": 0.2,
    "anchored": False, "kl_samples": 2, "guard": 0.3, "remember": False,
    "canary": {"items": 3, "every": 7, "level": 0.01}, "calibration": {"items": 5, "level": 0.4},
    "stress": {"flips": 0.2, "mismatched": True},
}  # fmt: skip
TTRL_NOW = {
    "group_size": 4, "logprob_tolerance": 0.05, "logprob_reduction": "mean", "merge_duplicate_rollouts": True,
    "min_advantage_scale": 0.2, "kl_to_ema": False, "kl_rollouts": 2, "max_drift": 0.3, "grow_memory": False,
    "canary": {"items_per_family": 3, "interval": 7, "p_value": 0.01},
    "calibration": {"items_per_family": 5, "alpha": 0.4},
    "stress": {"flip_share": 0.2, "mismatched_neighbours": True},
}  # fmt: skip


@pytest.mark.parametrize(("model", "old", "new"), [(RftConfig, RFT, RFT_NOW), (TtrlConfig, TTRL, TTRL_NOW)])
def test_a_file_of_an_earlier_release_gives_the_same_configuration(tmp_path, model, old, new):
    for name, values in (("old", old), ("new", new)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(values))
    config = load_config(model, tmp_path / "old.yaml")
    assert config == load_config(model, tmp_path / "new.yaml") == model.model_validate(old)
    overrides = [f"{key}={yaml.safe_dump(value, default_flow_style=True).strip()}" for key, value in old.items()]
    assert load_config(model, tmp_path / "new.yaml", overrides) == config
    dumped = config.model_dump(mode="json")
    assert all(dumped[key] == value or isinstance(value, dict) for key, value in new.items())


def test_every_renamed_key_is_tried_above():
    for model, old in ((RftConfig, RFT), (TtrlConfig, TTRL)):
        assert set(model.old_names) <= set(old)
    assert set(KlSettings.old_names) == set(RFT["kl"])
    assert set(RewardSettings.old_names) == set(RFT["reward"])
    assert set(CanarySettings.old_names) == set(TTRL["canary"])
    assert set(CalibrationSettings.old_names) == set(TTRL["calibration"])
    assert set(StressSettings.old_names) == set(TTRL["stress"])


def test_the_folder_of_a_run_from_before_the_renaming_is_that_of_the_same_run(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(RFT))
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match=r"holds a run with another group_size, kl\.max:"):
        write_config(RftConfig.model_validate(RFT | {"samples": 8, "kl": {"most": 1.0, "control": False}}), path)
    write_config(RftConfig.model_validate(RFT_NOW), path)
    written = yaml.safe_load(path.read_text())
    assert written["group_size"] == 16
    assert "samples" not in written


def test_a_mistyped_old_key_is_answered_with_the_present_one(tmp_path):
    with pytest.raises(
        ConfigError, match=r"ledger_tolerence \(command line\): there is no such key; did you mean logp"
    ):
        load_config(TtrlConfig, None, ["ledger_tolerence=1"])


def test_the_three_phases_share_one_base():
    assert all(issubclass(model, RunConfig) for model in (SftConfig, RftConfig, TtrlConfig))


def test_the_loop_of_phase_2_imports_at_most_half_of_the_modules_that_it_did():
    """184 before the package was sorted into rooms: rendering, importers and pretrained files load when needed."""
    code = (
        "import sys, pixelis.training.grpo.train; print(sum(name.split('.')[0] == 'pixelis' for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 92
