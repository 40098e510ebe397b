"""Runs of phase 3 as processes of their own, killed at random moments.

One process imports everything and forks; each child goes on with the same adaptation and gets SIGKILL. The first child,
in a folder of its own, is left alone: it says what must come out. A moment is so many changes of the run's files and a
little time: then kills meet all that a run does, however busy the machine is.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from pixelis.evaluation.streams import make_stream
from pixelis.memory.keys import KeyMaker
from pixelis.policy.checkpoint import load_checkpoint
from pixelis.training.ttrl.journal import LEDGER, read_rows
from pixelis.training.ttrl.train import adapt
from pixelis.training.ttrl.ttrl_config import TtrlConfig
from pixelis.weights.encoders.text_encoder import TextEncoder
from pixelis.weights.encoders.visual_encoder import VisualEncoder

MOST_CHANGES = 20


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


def killed(pid, folder, chance):
    """Kill a child at a random moment; how it ended."""
    changes, last = chance.randint(1, MOST_CHANGES), None
    while changes:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        now = files_of(folder)
        changes -= now != last
        last = now
        time.sleep(0.005)
    time.sleep(chance.uniform(0.0, 0.05))
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def files_of(folder):
    """Names and sizes of everything that a run has written."""
    found = {}
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found[os.path.join(where, name)] = os.stat(os.path.join(where, name)).st_size
    return found


def acknowledged(folder):
    """What a ledger says of its rows: hash of the learner, watermark of the memory, baseline."""
    return [[row["weights"], row["memory"], row["baseline"]] for row in read_rows(folder / LEDGER)]


def main(config, folder, count, kills):
    items = list(make_stream(["search"], split="test", limit=count).items())
    load_checkpoint(config.policy)  # imports most of what a child would import again
    if os.waitpid(child(config, items, folder / "whole"), 0)[1]:
        sys.exit("the run that nobody killed failed")
    wanted = acknowledged(folder / "whole")
    chance, seen, landed = random.Random(0), [], 0
    for _ in range(kills):
        status = killed(child(config, items, folder / "run"), folder / "run", chance)
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
