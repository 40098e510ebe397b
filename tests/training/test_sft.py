"""Phase 1 from a corpus to a checkpoint: learning, killing, resuming, two processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pixelis.core.errors import ConfigError
from pixelis.data.build.build_corpus import build
from pixelis.data.corpus.corpus_config import CorpusConfig
from pixelis.policy.checkpoint import load_checkpoint
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.run_state import list_state_folders
from pixelis.training.sft.sft_state import SftState
from pixelis.training.sft.train import fit_budget, learning_rate_scale, plan_epoch, train_sft
from pixelis.training.sft.training_index import ExampleRef, make_batches

SCRIPT = Path(__file__).parent / "run_sft.py"


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def shared():
    """Runs that more than one test looks at."""
    return {}


@pytest.fixture
def finished(settings, tmp_path_factory, shared):
    """A run that nobody disturbed."""
    if "run" not in shared:
        out = tmp_path_factory.mktemp("runs") / "whole"
        shared["run"] = out, train_sft(settings(), out)
    return shared["run"]


def process(config, out, *before):
    file = out.with_suffix(".json")
    file.write_text(config.model_dump_json())
    return subprocess.Popen([sys.executable, *before, str(SCRIPT), str(file), str(out)], stderr=subprocess.PIPE)


def test_a_run_learns_and_exports_a_policy_that_describes_itself(finished, corpus):
    out, report = finished
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[-1] < 0.8 * losses[0]
    dev = [row["dev_loss"] for row in rows if "dev_loss" in row]
    assert len(dev) == 3
    assert dev[-1] == pytest.approx(report.dev_loss)
    loaded = load_checkpoint(report.policy)
    card = loaded.card
    assert card.corpus == corpus.manifest.corpus
    assert set(card.statistics["coherence"]) == {"search", "motion"}
    assert card.statistics["tokens"]["logprob"]["mean"] < 0 < card.statistics["tokens"]["entropy"]["mean"]
    assert card.training["seed"] == 0
    assert {key.split(".")[0] for key in loaded.heads} == {"arguments", "visual", "projector", "g_phi", "h_psi"}


def test_a_killed_run_goes_on_to_the_same_weights_bit_for_bit(finished, settings, tmp_path):
    out = tmp_path / "killed"
    killed = process(settings(save_minutes=0.0), out)
    try:
        deadline = time.monotonic() + 120
        while not (list_state_folders(out) and int(list_state_folders(out)[-1].name[-8:]) >= 5):
            assert killed.poll() is None, killed.stderr.read().decode()
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
    assert not (out / "policy").exists()
    report = train_sft(settings(), out)
    assert report.resumed
    for name in ("model.safetensors", "heads.safetensors"):
        assert (out / "policy" / name).read_bytes() == (finished[0] / "policy" / name).read_bytes()
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)


@pytest.mark.parametrize(
    ("fsdp", "optimizer", "bound"),
    [
        (False, "adamw", 1e-6),
        (True, "adamw", 1e-6),
        (False, "muon", 1e-4),  # it lifts the smallest directions of a gradient, where rounding lives, to full size
    ],
)
def test_two_processes_learn_what_one_does(settings, tmp_path, fsdp, optimizer, bound):
    smooth = settings().nano.model_dump() | {"copies": False}  # heads that begin sharp lift rounding too
    # a gradient that is nothing but rounding would be a whole step to AdamW with the usual ε (1.3e-6 apart, not 1e-6)
    changes = {"epochs": 1, "seed": 3, "optimizer": optimizer, "nano": smooth, "eps": 1e-6}
    alone = tmp_path / "one"
    train_sft(settings(**changes), alone)
    pair = tmp_path / "two"
    two = process(settings(**changes, fsdp=fsdp), pair, "-m", "torch.distributed.run", "--nproc_per_node", "2")
    _, said = two.communicate(timeout=200)
    assert two.returncode == 0, said.decode()[-3000:]
    for part, close in (("model", bound), ("heads", 1e-4)):  # g_φ and h_ψ learn from what the policy makes of steps
        a, b = (load_file(out / "policy" / f"{part}.safetensors") for out in (alone, pair))
        apart = {name: float((a[name] - b[name]).abs().max()) for name in a if part == "model" or "arguments" in name}
        assert max(apart.values()) < close, {name: far for name, far in apart.items() if far >= close}


def test_muon_wants_whole_matrices(settings):
    with pytest.raises(ValueError, match="turn fsdp off"):
        settings(optimizer="muon", fsdp=True)


def test_a_folder_with_another_run_is_refused(finished, settings):
    with pytest.raises(ConfigError, match="another lr"):
        train_sft(settings(lr=1e-4), finished[0])


def test_a_run_does_not_go_on_with_another_corpus_at_the_same_path(settings, tmp_path):
    plan = {
        "families": {"search": 1.0}, "difficulties": {1: 1.0}, "splits": {"train": 1.0},
        "teacher": {"kind": "answers"}, "toolbox": {"isolate": False},
    }  # fmt: skip
    config = settings(corpus=str(tmp_path / "corpus"), epochs=1)
    for n in (2, 3):
        shutil.rmtree(tmp_path / "corpus", ignore_errors=True)
        assert build(CorpusConfig.model_validate(plan | {"n": n}), tmp_path / "corpus", workers=1).is_complete
        if n == 2:
            train_sft(config, tmp_path / "run")
    with pytest.raises(ConfigError, match="holds a run with another corpus"):
        train_sft(config, tmp_path / "run")


def test_base_learns_answers_of_all_records_and_a_few_traces(settings, tmp_path, corpus):
    report = train_sft(settings(answers_only=True, format_traces=6, epochs=1), tmp_path / "base")
    assert report.examples == sum(1 for _ in corpus.rows(split="train")) + 6


def test_a_budget_of_minutes_cuts_the_epochs(settings, tmp_path, monkeypatch):
    monkeypatch.setattr("pixelis.training.sft.train.FIRST_STEPS", 2)
    report = train_sft(settings(epochs=500, minutes=0.05), tmp_path / "short")
    assert report.epochs < 100


def test_a_budget_is_fitted_again_after_the_first_epoch(settings):
    """50 s for 100 examples after 10 s of warm-up tasks: 240 s are left of 5 minutes, that is 480 more."""
    state = SftState(np.random.default_rng(0), np.zeros(100), epochs=2.0)
    state.visited, state.step, state.epoch, state.warmup_task_s = 100, 40, 1, 10.0
    fit_budget(settings(epochs=8, minutes=5.0), state, SimpleNamespace(seconds=60.0), DistributedContext())
    assert state.epochs == pytest.approx(5.8)
    fit_budget(settings(epochs=4, minutes=5.0), state, SimpleNamespace(seconds=60.0), DistributedContext())
    assert state.epochs == 4.0


def test_without_a_dev_split_there_is_no_dev_loss_and_the_curriculum_goes_on(settings, tmp_path):
    config = CorpusConfig.model_validate(
        {
            "n": 3,
            "families": {"search": 1.0},
            "difficulties": {1: 1.0},
            "splits": {"train": 1.0},
            "teacher": {"kind": "answers"},
            "toolbox": {"isolate": False},
        }
    )
    assert build(config, tmp_path / "corpus", workers=1).is_complete
    report = train_sft(settings(corpus=str(tmp_path / "corpus"), epochs=3), tmp_path / "run")
    assert report.dev_loss is None
    assert not report.dynamics  # nobody called a tool
    loaded = load_checkpoint(report.policy)
    assert {key.split(".")[0] for key in loaded.heads} == {"arguments"}
    assert set(loaded.card.statistics) == {"tokens"}


def test_a_corpus_without_train_is_one_line(settings, tmp_path):
    config = CorpusConfig.model_validate(
        {
            "n": 1,
            "families": {"search": 1.0},
            "splits": {"test": 1.0},
            "teacher": {"kind": "answers"},
            "toolbox": {"isolate": False},
        }
    )
    assert build(config, tmp_path / "corpus", workers=1).is_complete
    with pytest.raises(ConfigError, match="nothing to train on \\(0 of its 1 records are in train"):
        train_sft(settings(corpus=str(tmp_path / "corpus")), tmp_path / "run")


def test_lora_trains_adapters_and_exports_whole_weights(settings, finished, tmp_path):
    report = train_sft(settings(init=finished[1].policy, epochs=1, lora={"rank": 4}), tmp_path / "lora")
    loaded = load_checkpoint(report.policy)
    assert not hasattr(loaded.policy.model, "get_base_model")
    before = load_file(Path(finished[1].policy) / "model.safetensors")
    after = load_file(Path(report.policy) / "model.safetensors")
    changed = {name.split(".")[-2] for name in before if not torch.equal(before[name], after[name])}
    assert changed - {"norm"} <= {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert changed - {"norm"}
    scaled = before["model.language_model.norm.weight"] / after["model.language_model.norm.weight"]
    torch.testing.assert_close(scaled, torch.full_like(scaled, loaded.card.training["temperature"]), rtol=1e-3, atol=0)


def test_after_the_warm_up_no_easy_example_is_drawn(settings):
    pool = [ExampleRef(k, True, 100) for k in range(90)]
    state = SftState(np.random.default_rng(0), np.arange(90.0), epochs=3, epoch=1, visited=90)
    plan_epoch(settings(), state, pool)
    drawn = np.concatenate(state.batches)
    assert drawn.min() >= 30
    assert 1.4 < (drawn < 60).sum() / (drawn >= 60).sum() < 2.9  # medium to hard at 2:1
    assert state.stage == 1


def test_a_worse_dev_loss_keeps_the_bins(settings):
    pool = [ExampleRef(k, True, 100) for k in range(9)]
    state = SftState(np.random.default_rng(0), np.arange(9.0), epochs=9, epoch=2, bins=[2] * 9, dev_losses=[1.0, 9.0])
    plan_epoch(settings(), state, pool)
    assert state.bins == [2] * 9


def test_batches_hold_every_example_once_within_their_tokens():
    rng = np.random.default_rng(0)
    pool = [ExampleRef(k, True, int(n)) for k, n in enumerate(rng.integers(50, 900, size=300))]
    batches = make_batches(np.arange(300), pool, 4096, rng)
    assert sorted(k for batch in batches for k in batch) == list(range(300))
    padded = [len(batch) * max(pool[k].tokens for k in batch) for batch in batches]
    assert max(padded) <= 4096
    assert sum(ref.tokens for ref in pool) / sum(padded) > 0.9


def test_the_learning_rate_rises_and_then_falls_to_its_floor(settings):
    config = settings()
    rates = [learning_rate_scale(config, share) for share in (0.0, 0.03, 0.515, 1.0)]
    assert rates == pytest.approx([1e-3 / 0.031, 1.0, 0.55, 0.1])
