"""One of several processes: a sharded student takes a step, its state is saved, and another one is laid out from it."""

import sys
from pathlib import Path

import numpy as np
import torch

from pixelis.data.store import Corpus
from pixelis.train.crew import Crew, crew, trained
from pixelis.train.precision import computed_in
from pixelis.train.prepared import sources_of
from pixelis.train.sft import teach
from pixelis.train.sft_config import SftConfig
from pixelis.train.starting import begin_optimizer, begin_student, example, examples_of, pool_of
from pixelis.train.state import State, load_state, save_state


def run(config: SftConfig, out: Path, us: Crew) -> None:
    corpus = Corpus(config.corpus)
    kept = []
    for seed in (0, 1):
        student, _ = begin_student(config.model_copy(update={"seed": seed}), corpus)
        train = examples_of(config, corpus, student.policy, "train", us, lambda now: None)
        taught = us.wrap(student, shard=True, dtype=computed_in(config))
        kept.append((student, taught, begin_optimizer(config, student)))
    (student, taught, optimizer), (other, _, others) = kept
    before = {name: value.full_tensor() for name, value in trained(student).items()}
    batch = [example(train, lesson) for lesson in pool_of(config, train)[:3]]
    losses = teach(config, taught, optimizer, batch, [np.zeros(len(e), dtype=bool) for e in batch], 1.0, us)
    sources = sources_of(corpus, student.policy.tokens)
    save_state(out, State(np.random.default_rng(0), np.zeros(3), step=1), sources, student, optimizer, us)
    us.wait()
    assert load_state(out, sources, other, others, us) is not None
    moved = []
    for (name, value), same in zip(trained(student).items(), trained(other).values(), strict=True):
        assert value.dtype == torch.float32, name
        assert torch.equal(value.to_local(), same.to_local()), name
        for key, moment in optimizer.state[value].items():
            assert torch.equal(local(moment), local(others.state[same][key])), (name, key)
        if value.ndim == 2 and ".mlp." in name and "lora_A" not in name:  # A waits for its B to leave 0
            moved.append(float((value.full_tensor() != before[name]).float().mean()))
    if us.first:
        (out / "said.txt").write_text(f"{losses.sft} {min(moved)}")


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


if __name__ == "__main__":
    with crew("cpu") as us:
        for given in sys.argv[1:]:
            run(SftConfig.model_validate_json(Path(given).read_text()), Path(given).with_suffix(""), us)
