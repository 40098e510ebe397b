"""A run of phase 3 as a process of its own, to be killed."""

import sys
from itertools import islice
from pathlib import Path

from pixelis.eval.tasks import interleaved, tasks_of
from pixelis.train.ttrl import adapt
from pixelis.train.ttrl_config import TtrlConfig

if __name__ == "__main__":
    count = int(sys.argv[3])
    items = islice(interleaved(tasks_of(["search", "space"], split="test"), count), count)
    adapt(TtrlConfig.model_validate_json(Path(sys.argv[1]).read_text()), items, Path(sys.argv[2]))
