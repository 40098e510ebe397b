"""One of several processes: a sharded student takes a step, its state is saved, and another one is laid out from it."""

import sys
from pathlib import Path

import numpy as np
import torch

from pixelis.data.corpus.corpus import Corpus
from pixelis.training.common.distributed import DistributedContext, init_distributed, trainable_parameters
from pixelis.training.common.precision import compute_dtype
from pixelis.training.dataset.prepared_examples import run_sources
from pixelis.training.sft.build_sft import build_optimizer, build_sft_model
from pixelis.training.sft.sft_config import SftConfig
from pixelis.training.sft.sft_state import SftState, load_sft_state, save_sft_state
from pixelis.training.sft.train import train_step
from pixelis.training.sft.training_index import load_example, prepare_split, training_index


def run(config: SftConfig, out: Path, us: DistributedContext) -> None:
    corpus = Corpus(config.corpus)
    kept = []
    for seed in (0, 1):
        student, _ = build_sft_model(config.model_copy(update={"seed": seed}), corpus)
        train = prepare_split(config, corpus, student.policy, "train", us, lambda now: None)
        taught = us.wrap(student, shard=True, dtype=compute_dtype(config))
        kept.append((student, taught, build_optimizer(config, student)))
    (student, taught, optimizer), (other, _, others) = kept
    before = {name: value.full_tensor() for name, value in trainable_parameters(student).items()}
    batch = [load_example(train, lesson) for lesson in training_index(config, train)[:3]]
    losses = train_step(config, taught, optimizer, batch, [np.zeros(len(e), dtype=bool) for e in batch], 1.0, us)
    sources = run_sources(corpus, student.policy.tokenizer)
    save_sft_state(out, SftState(np.random.default_rng(0), np.zeros(3), step=1), sources, student, optimizer, us)
    us.barrier()
    assert load_sft_state(out, sources, other, others, us) is not None
    moved = []
    for (name, value), same in zip(
        trainable_parameters(student).items(), trainable_parameters(other).values(), strict=True
    ):
        assert value.dtype == torch.float32, name
        assert torch.equal(value.to_local(), same.to_local()), name
        for key, moment in optimizer.state[value].items():
            assert torch.equal(local(moment), local(others.state[same][key])), (name, key)
        if value.ndim == 2 and ".mlp." in name and "lora_A" not in name:  # A waits for its B to leave 0
            moved.append(float((value.full_tensor() != before[name]).float().mean()))
    if us.is_main:
        (out / "said.txt").write_text(f"{losses.sft} {min(moved)}")


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


if __name__ == "__main__":
    with init_distributed("cpu") as us:
        for given in sys.argv[1:]:
            run(SftConfig.model_validate_json(Path(given).read_text()), Path(given).with_suffix(""), us)
