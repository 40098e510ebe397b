"""Phase 1: build a corpus of the procedural world, train a small policy from random weights on it, and score it.

python examples/04_sft.py [FOLDER] [--tiny]        # tiny: one minute, learns nothing; without it about ten minutes
"""

import sys
from pathlib import Path

import pixelis
from pixelis.data.build.build_corpus import build
from pixelis.data.corpus.corpus_config import CorpusConfig

tiny = "--tiny" in sys.argv
folder = Path(next((word for word in sys.argv[1:] if not word.startswith("--")), "runs/sft_example"))
corpus = CorpusConfig.model_validate({
    "n": 12 if tiny else 200,
    "families": {"search": 1.0},
    "difficulties": {1: 1.0},
    "splits": {"train": 0.75, "dev": 0.25},
    "toolbox": {"seg": "classical"},
})  # fmt: skip
print(f"{build(corpus, folder / 'corpus').accepted} accepted trajectories")

network = {"hidden": 32, "layers": 5, "heads": 2, "head_dim": 16, "mlp": 64, "vision_hidden": 16, "vision_layers": 1,
           "vocabulary": 300} if tiny else {}  # fmt: skip
config = pixelis.SftConfig.model_validate({
    "corpus": str(folder / "corpus"),
    "name": "example",
    "nano": network,
    "epochs": 1 if tiny else 20,
    "minutes": 8,  # as many epochs as fit
    "lr": 2e-3,
    "batch_tokens": 2048,
    "curriculum": False,
})  # fmt: skip
report = pixelis.train_sft(config, folder / "run")  # call it again to resume a stopped run
print(f"trained {report.policy}")
print("search, % correct:", pixelis.evaluate("search", model=report.policy, limit=1 if tiny else 20).overall.score)
