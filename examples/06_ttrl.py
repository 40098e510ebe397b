"""Phase 3: answer a stream of questions without labels, adapt on it, and revert.

python examples/06_ttrl.py [FOLDER] [--tiny]       # tiny: four queries; without it 40
"""

import sys
from pathlib import Path

import pixelis
from pixelis.evaluation.streams import make_stream
from pixelis.memory.keys import KeyMaker
from pixelis.weights.encoders.text_encoder import TextEncoder
from pixelis.weights.encoders.visual_encoder import VisualEncoder

tiny = "--tiny" in sys.argv
folder = Path(next((word for word in sys.argv[1:] if not word.startswith("--")), "runs/ttrl_example"))
config = pixelis.TtrlConfig.model_validate({
    "policy": "nano-rft",
    "batch": 2 if tiny else 4,
    "group_size": 3 if tiny else 8,
    "lr": 5e-5,
    "eps": 1e-5,
    "calibration": {"items_per_family": 0},
    "vote": {"delta": 0.1},
})  # fmt: skip
stream = make_stream(("search",), split="test", limit=4 if tiny else 40, shifts=("lighting:3", "motion_blur:3"))


def show(row: dict[str, object], total: int) -> None:
    print(f"{row['query']}: {row['answer']!r}, {row['why'] or 'accepted'}")


keys = KeyMaker(TextEncoder(), VisualEncoder())  # by which neighbours are retrieved
report = pixelis.adapt(config, stream.items(), folder, keys=keys, show=show)
print(f"{report.answered:.0f} % of {report.queries} queries answered; the policy is in {report.policy}")
print(f"undo: pixelis adapt revert {config.batch} -o {folder}")
