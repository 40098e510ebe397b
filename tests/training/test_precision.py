"""bfloat16 in the arithmetic, float32 in what is learnt: alone, beside LoRA, sharded, in both phases."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pixelis.policy.checkpoint import ModelCard, save_checkpoint
from pixelis.rewards.heads import ToolHeads
from pixelis.training.common.distributed import DistributedContext, trainable_parameters
from pixelis.training.common.run_state import TENSORS, list_state_folders
from pixelis.training.grpo.rft_config import RftConfig
from pixelis.training.grpo.train import train_rft
from pixelis.training.sft.build_sft import build_optimizer, build_sft_model
from pixelis.training.sft.sft_model import SftModel
from pixelis.training.sft.train import train_sft, train_step

SHARDED = Path(__file__).with_name("run_sharded.py")
SLOW = {"lr": 1e-5, "optimizer": "adamw", "dtype": "bfloat16"}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def few(train):
    return [train[k] for k, entry in enumerate(train.entries) if entry.accepted][:3]


def step(config, student, few, dtype):
    taught = DistributedContext().wrap(student, shard=config.fsdp, dtype=dtype)
    return train_step(
        config,
        taught,
        build_optimizer(config, student),
        few,
        [np.zeros(len(e), bool) for e in few],
        1.0,
        DistributedContext(),
    )


def moved(before, student):
    """The least share of its numbers that a matrix of an MLP has changed; a matrix A waits for its B to leave 0."""
    inner = [
        (n, v) for n, v in trainable_parameters(student).items() if v.ndim == 2 and ".mlp." in n and "lora_A" not in n
    ]
    return min(float((value != before[name]).float().mean()) for name, value in inner)


def test_a_step_that_bfloat16_could_not_hold_is_taken_in_float32(settings, policy, few):
    near = torch.tensor(0.02, dtype=torch.bfloat16)
    assert near - 1e-5 == near  # ulp 2^-13 = 1.2e-4: half of it is six times the step
    config = settings(**SLOW)
    losses = {}
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        student = SftModel(policy, ToolHeads(policy.width), w_act=2.0, smoothing=0.05)
        before = {name: value.detach().clone() for name, value in trainable_parameters(student).items()}
        losses[dtype] = step(config, student, few, dtype)
        assert all(value.dtype == value.grad.dtype == torch.float32 for value in trainable_parameters(student).values())
        assert moved(before, student) > 0.9
        student.load_state_dict(before, strict=False)
    assert losses[torch.bfloat16].sft != losses[torch.float32].sft
    assert losses[torch.bfloat16].sft == pytest.approx(losses[torch.float32].sft, rel=0.01)  # eight bits: 0.4 %


def test_beside_lora_the_frozen_weights_are_bfloat16_and_the_trained_ones_float32(
    settings, policy, few, corpus, tmp_path
):
    save_checkpoint(tmp_path / "base", policy, ModelCard(name="base"))
    config = settings(**SLOW, init=str(tmp_path / "base"), lora={"rank": 4})
    student, _ = build_sft_model(config, corpus)
    assert {value.dtype for value in trainable_parameters(student).values()} == {torch.float32}
    assert {value.dtype for value in student.parameters() if not value.requires_grad} == {torch.bfloat16}
    before = {name: value.detach().clone() for name, value in trainable_parameters(student).items()}
    assert np.isfinite(step(config, student, few, torch.bfloat16).sft)
    assert moved(before, student) > 0.9


def test_a_run_in_bfloat16_keeps_float32_and_exports_what_it_computed_with(settings, tmp_path):
    report = train_sft(settings(**SLOW | {"lr": 1e-3}, epochs=1), tmp_path / "run")
    kept = load_file(list_state_folders(tmp_path / "run")[-1] / TENSORS)
    assert {value.dtype for name, value in kept.items() if name != "errors"} == {torch.float32}
    exported = load_file(Path(report.policy) / "model.safetensors")
    assert {value.dtype for value in exported.values()} == {torch.bfloat16}
    assert report.dev_loss is not None


@pytest.mark.parametrize("lora", [None, {"rank": 4, "alpha": 8}])
def test_phase_2_reads_its_rollouts_in_the_arithmetic_that_sampled_them(corpus, tmp_path, lora):
    config = RftConfig.model_validate({
        "policy": "nano-sft", "corpus": str(corpus.folder), "steps": 2, "prompts_per_step": 2, "group_size": 2,
        "keep_best": 2,
        "lr": 1e-4, "threads": 1, "limits": {"steps": 3, "turn_tokens": 64, "total_tokens": 400}, "lora": lora,
        "min_tool_calls": 0.0, "min_entropy_ratio": 0.0, "dtype": "bfloat16", "logprob_tolerance": 0.5,
        "checkpoint_activations": True,
    })  # fmt: skip
    train_rft(config, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["kl"] == pytest.approx(0.0, abs=1e-6)  # the policy is still its anchor
    assert rows[1]["kl"] > 0.0
    kept = load_file(list_state_folders(tmp_path / "run")[-1] / TENSORS)
    assert {value.dtype for value in kept.values()} == {torch.float32}


def test_two_processes_share_float32_weights_and_compute_in_bfloat16(settings, policy, few, corpus, tmp_path):
    save_checkpoint(tmp_path / "base", policy, ModelCard(name="base"))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29617"]
    command.append(str(SHARDED))
    alone = {}
    for name, lora in (("whole", None), ("lora", {"rank": 4})):
        config = settings(**SLOW, init=str(tmp_path / "base"), lora=lora, fsdp=True)
        alone[name] = step(config, build_sft_model(config, corpus)[0], few, torch.bfloat16)
        (tmp_path / f"{name}.json").write_text(config.model_dump_json())
        command.append(str(tmp_path / f"{name}.json"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, losses in alone.items():
        loss, least = map(float, (tmp_path / name / "said.txt").read_text().split())
        assert loss == pytest.approx(losses.sft, rel=0.01)
        assert least > 0.9
