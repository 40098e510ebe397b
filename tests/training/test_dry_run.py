"""Estimates of runs."""

from pathlib import Path

import pytest

from pixelis.core.config import load_config
from pixelis.core.errors import ConfigError
from pixelis.training.dry_run import dry_run, dry_run_rft
from pixelis.training.grpo.rft_config import RftConfig
from pixelis.training.sft.sft_config import SftConfig

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.mark.parametrize("name", ["nano", "qwen3vl-8b"])
def test_without_a_corpus_parameters_and_memory_are_told(name, tmp_path):
    overrides = [f"corpus={tmp_path / 'none'}"]
    for reckon, schema, phase in ((dry_run, SftConfig, "sft"), (dry_run_rft, RftConfig, "rft")):
        plan = reckon(load_config(schema, CONFIGS / name / f"{phase}.yaml", overrides))
        assert plan.parameters > 1_000_000
        assert plan.memory.total > 0.0
        assert plan.tokens_per_example == 0.0
        assert any("does not exist yet" in note for note in plan.notes)


def test_the_8b_has_its_published_number_of_parameters_and_fits(corpus):
    overrides = [f"corpus={corpus.folder}"]
    plan = dry_run(load_config(SftConfig, CONFIGS / "qwen3vl-8b" / "sft.yaml", overrides))
    assert plan.parameters == 8_767_123_696
    # heads: four times (2 · 4096 + 6 + 1) · 256, then 257 for each of 4 + 6 · 4096 + 64 + 16 outputs
    assert plan.trained == 8_767_123_696 + 14_733_396
    # 8,781,857,092 float32 numbers, gradients, and two moments each, over eight devices
    assert plan.memory.weights == pytest.approx(8.781857092 * 4 / 8)
    assert plan.memory.gradients == pytest.approx(8.781857092 * 4 / 8)
    assert plan.memory.optimizer == pytest.approx(8.781857092 * 8 / 8)
    # a layer: q and o 4096², k and v 4096 · 1024, MLP 3 · 4096 · 12288, norms 2 · 4096 + 2 · 128: 192,946,432
    # a block of the tower: 1152 · (3 · 1152 + 1152 + 2 · 4304) and 4 · 1152 + 3 · 1152 + 1152 + 4304 + 1152: 15,239,504
    # outside of 36 layers and 27 blocks: 1,409,585,536 and the heads; with two layers 1,810,211,796
    # in bfloat16, with gradients; and 151,936 rows of the output matrix once more
    assert plan.memory.copies == pytest.approx(1.810211796 * (2 + 2) + 0.151936 * 4096 * 2 / 1000)
    # 131,072 / 8 tokens: 36 · 4096 numbers enter the layers, 106,496 are inside of one, two bytes each; 0.3 · 151,936
    # logits four times in float32
    assert plan.memory.activations == pytest.approx(16384 * (253_952 * 2 + 729_292.8) / 1e9)
    assert plan.memory.total == pytest.approx(46.3, abs=0.1)
    assert plan.fits
    small = load_config(SftConfig, CONFIGS / "qwen3vl-8b" / "sft.yaml", [*overrides, "device_facts.memory_gb=40"])
    assert not dry_run(small).fits
    assert any("not run" in note for note in plan.notes)


def test_lora_trains_few_parameters(corpus):
    overrides = [f"corpus={corpus.folder}", "lora.rank=8"]
    plan = dry_run(load_config(SftConfig, CONFIGS / "qwen3vl-8b" / "sft.yaml", overrides))
    # per layer: q 8192, k and v 5120, o 8192, three of the MLP 16384 rows and columns each, times rank 8, 36 layers
    adapters = 8 * 36 * (2 * 8192 + 2 * 5120 + 3 * 16384)
    assert plan.trained == adapters + 14_733_396
    # frozen weights have two bytes, adapters and heads four; all are spread over eight devices
    assert plan.memory.weights == pytest.approx((8_767_123_696 * 2 + plan.trained * 4) / 8 / 1e9)


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
    # 64 · 36 · 75,776 (above); LoRA takes the adapter off for π_SFT: one copy of the weights, two bytes each
    assert plan.trained == 174_587_904
    assert plan.memory.weights == pytest.approx(8.767123696 * 2 + 0.174587904 * 4)
    assert plan.memory.optimizer == pytest.approx(0.174587904 * 8)
    # adapters under autocast, and 151,936 rows of the output matrix
    assert plan.memory.copies == pytest.approx(0.174587904 * 2 + 0.151936 * 4096 * 2 / 1000)
    # every device reads 16,384 tokens at once; logits of the policy and of π_SFT
    assert plan.memory.activations == pytest.approx(16384 * (253_952 * 2 + 2 * 729_292.8) / 1e9)
    assert plan.fits
    # rolled out and read by π_SFT at 2 operations a weight and token each, learnt from at 4, layers run again at 2
    assert plan.flops == pytest.approx(10 * plan.parameters * plan.tokens)
    assert any("not run" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("name", "k"), [("nano/rft", 16), ("nano/rft_all", 16), ("nano/winding_rft", 8), ("qwen3vl-8b/rft", 8)]
)
def test_the_configurations_of_phase_2_that_ship_are_valid(name, k):
    config = load_config(RftConfig, CONFIGS / f"{name}.yaml", [])
    assert config.keep_best == config.group_size == k


def test_warmup_tasks_are_counted_and_a_budget_of_minutes_is_reported(settings):
    plain = dry_run(settings(epochs=2))
    with_tasks = dry_run(settings(epochs=2, warmup_task_steps=30, minutes=1e-6))
    assert with_tasks.tokens == plain.tokens + 30 * settings().batch_tokens
    assert with_tasks.steps > plain.steps
    assert any("30 batches of warm-up tasks" in note for note in with_tasks.notes)
    assert any("epochs are cut" in note for note in with_tasks.notes)
    assert not any("warm-up" in note or "cut" in note for note in plain.notes)
