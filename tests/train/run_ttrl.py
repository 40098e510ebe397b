"""Runs of phase 3 as processes of their own, killed at random moments.

One process imports everything and forks; each child goes on with the same adaptation and gets SIGKILL. The first child,
in a folder of its own, is left alone: it says how long a row takes, and what must come out.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from pixelis.encoders.text import TextEncoder
from pixelis.encoders.visual import VisualEncoder
from pixelis.eval.streams import stream_of
from pixelis.retrieval.keys import KeyMaker
from pixelis.train.adaptation import LEDGER, read_rows
from pixelis.train.ttrl import adapt
from pixelis.train.ttrl_config import TtrlConfig


def child(config, items, out):
    """A process that adapts and ends; the child never comes back from here."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        adapt(config, items, out, keys=KeyMaker(TextEncoder(), VisualEncoder()))
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


def acknowledged(folder):
    """What a ledger says of its rows: hash of the learner, watermark of the memory, baseline."""
    return [[row["weights"], row["memory"], row["baseline"]] for row in read_rows(folder / LEDGER)]


def main(config, folder, count, kills):
    items = list(stream_of(["search"], split="test", limit=count).items())
    began = time.monotonic()
    if os.waitpid(child(config, items, folder / "whole"), 0)[1]:
        sys.exit("the run that nobody killed failed")
    whole = time.monotonic() - began
    wanted = acknowledged(folder / "whole")
    chance, seen, landed = random.Random(0), [], 0
    for _ in range(kills):
        pid = child(config, items, folder / "run")
        time.sleep(chance.uniform(0.0, 0.5 * whole))
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            sys.exit("a run that went on after a kill failed")
        landed += os.WIFSIGNALED(status)
        rows = acknowledged(folder / "run")
        if rows != wanted[: len(rows)] or (seen and len(rows) < seen[-1]):
            sys.exit(f"after a kill the rows are {rows}, wanted the first of {wanted}")
        seen.append(len(rows))
        if len(rows) == count:  # all of it is done: begin anew, so that every kill meets work
            (folder / "run" / LEDGER).unlink()
            seen.append(0)
    if os.waitpid(child(config, items, folder / "run"), 0)[1]:
        sys.exit("the last run failed")
    rows = acknowledged(folder / "run")
    print(json.dumps({"landed": landed, "rows": rows, "wanted": wanted, "seen": seen}))


if __name__ == "__main__":
    main(
        TtrlConfig.model_validate_json(Path(sys.argv[1]).read_text()),
        Path(sys.argv[2]),
        int(sys.argv[3]),
        int(sys.argv[4]),
    )
