"""A run of phase 1 as a process of its own: to be killed, or to be one of several."""

import sys
from pathlib import Path

from pixelis.training.sft.sft_config import SftConfig
from pixelis.training.sft.train import train_sft

if __name__ == "__main__":
    train_sft(SftConfig.model_validate_json(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
