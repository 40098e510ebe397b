"""Phase 2: improve a policy on its own rollouts with the Curiosity-Coherence reward and a KL limit.

python examples/05_grpo.py [FOLDER] [--tiny]       # tiny: one update of four rollouts; without it about ten minutes
"""

import sys
from pathlib import Path

import pixelis
from pixelis.data.build.build_corpus import build
from pixelis.data.corpus.corpus_config import CorpusConfig

tiny = "--tiny" in sys.argv
folder = Path(next((word for word in sys.argv[1:] if not word.startswith("--")), "runs/grpo_example"))
corpus = CorpusConfig.model_validate({
    "n": 8 if tiny else 100,
    "families": {"search": 1.0},
    "splits": {"train": 1.0},
    "toolbox": {"seg": "classical"},
})  # fmt: skip
build(corpus, folder / "corpus")

config = pixelis.RftConfig.model_validate({
    "policy": "nano-rft",  # π_SFT, the reference policy of the KL term
    "corpus": str(folder / "corpus"),
    "steps": 1 if tiny else 20,
    "prompts_per_step": 2 if tiny else 8,
    "group_size": 2 if tiny else 8,
    "keep_best": 2 if tiny else 8,
    "lr": 4e-4,
    "reward": {"curiosity": 0.3, "coherence": 0.3},
    "kl": {"beta": 0.1, "one_sided": True},
    "advantage_std": "batch",
})  # fmt: skip


def show(values: dict[str, float], step: int, total: int) -> None:
    print(
        f"step {step}/{total}: reward {values['reward']:.2f}, accuracy {values['accuracy']:.1f}, KL {values['kl']:.3f}"
    )


report = pixelis.train_rft(config, folder / "run", show=show)  # call it again to resume
print(f"trained {report.policy}")
