"""A run of phase 2 as a process of its own: to be killed, or to be one of several."""

import sys
from pathlib import Path

from pixelis.training.grpo.rft_config import RftConfig
from pixelis.training.grpo.train import train_rft

if __name__ == "__main__":
    train_rft(RftConfig.model_validate_json(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
