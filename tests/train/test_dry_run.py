"""What a run would take, reckoned."""

from pathlib import Path

import pytest

from pixelis.config import load_config
from pixelis.errors import ConfigError
from pixelis.train.dry_run import dry_run, dry_run_rft
from pixelis.train.rft_config import RftConfig
from pixelis.train.sft_config import SftConfig

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def test_the_8b_has_its_published_number_of_parameters_and_fits(corpus):
    config = load_config(SftConfig, CONFIGS / "qwen3vl-8b" / "sft.yaml", [f"corpus={corpus.folder}"])
    plan = dry_run(config)
    assert plan.parameters == 8_767_123_696
    # 8.78e9 numbers of two bytes over eight devices
    assert plan.memory.weights == pytest.approx(plan.trained * 2 / 8 / 1e9)
    assert plan.memory.optimizer == pytest.approx(2 * plan.memory.weights)
    assert plan.fits
    assert any("not run" in note for note in plan.notes)


def test_lora_trains_few_parameters(corpus):
    overrides = [f"corpus={corpus.folder}", "lora.rank=8"]
    plan = dry_run(load_config(SftConfig, CONFIGS / "qwen3vl-8b" / "sft.yaml", overrides))
    # per layer: q 8192, k and v 5120, o 8192, three of the MLP 16384 rows and columns each, times rank 8, 36 layers
    adapters = 8 * 36 * (2 * 8192 + 2 * 5120 + 3 * 16384)
    assert adapters <= plan.trained < adapters + 40_000_000


def test_tokens_of_nano_are_reckoned_to_a_tenth(corpus, settings, train):
    plan = dry_run(settings(epochs=1))
    real = sum(entry.tokens for entry in train.entries if entry.accepted)
    assert plan.tokens == pytest.approx(real, rel=0.1)
    assert plan.steps >= 1


def test_a_model_that_cannot_be_reached_needs_its_shape(corpus, settings):
    with pytest.raises(ConfigError, match="architecture"):
        dry_run(settings(init="someone/absent-model"))


@pytest.mark.parametrize("name", ["nano/sft", "nano/base", "qwen3vl-8b/sft"])
def test_the_configurations_that_ship_are_valid(name):
    assert load_config(SftConfig, CONFIGS / f"{name}.yaml", []).alpha_tool == 0.2


def test_phase_2_of_the_8b_is_reckoned_by_its_rollouts(corpus):
    config = load_config(RftConfig, CONFIGS / "qwen3vl-8b" / "rft.yaml", [f"corpus={corpus.folder}"])
    plan = dry_run_rft(config)
    assert plan.parameters == 8_767_123_696
    assert (plan.what, plan.examples) == ("rollouts", 400 * 64 * 8)
    # LoRA takes the adapter off for π_SFT: one copy of the weights, two bytes each
    assert plan.memory.weights == pytest.approx(plan.parameters * 2 / 1e9)
    # rolled out and read by π_SFT at 2 operations a weight and token each, learnt from at 4
    assert plan.flops == pytest.approx(8 * plan.parameters * plan.tokens)
    assert any("not run" in note for note in plan.notes)


@pytest.mark.parametrize("name", ["nano/rft", "qwen3vl-8b/rft"])
def test_the_configurations_of_phase_2_that_ship_are_valid(name):
    assert load_config(RftConfig, CONFIGS / f"{name}.yaml", []).group == 8
