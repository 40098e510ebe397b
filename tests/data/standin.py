"""A teacher that looks twice and answers, so that building can be tested without waiting for a real one.

Solver processes import this module by name; it never leaves the tests.
"""

import os
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

from pixelis.core.errors import RetryLaterError
from pixelis.data.teachers.teacher import Demonstration
from pixelis.media import MediaSet
from pixelis.tools.results import ToolCall
from pixelis.trace.recorder import TraceRecorder


class StandIn:
    """Two real calls and the right answer."""

    pause_s = 0.0

    def demonstrate(self, rendered, toolbox, *, rng):
        time.sleep(self.pause_s)
        recorder = TraceRecorder(MediaSet(rendered.media))
        corner = round(float(rng.uniform(0.1, 0.4)), 2)
        calls = [
            ToolCall(tool="ZOOM", args={"box": [corner, corner, 0.9, 0.9]}),
            ToolCall(tool="PROP", args={"box": [corner, corner, 0.9, 0.9], "attributes": ["colour"]}),
        ]
        for call in calls:
            recorder.add_step(call, toolbox.run(call, recorder.media), "I look.")
        trace = recorder.seal(
            id=rendered.item.id,
            query=rendered.item.question,
            origin="teacher:stand-in",
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
            answer=rendered.item.answer,
        )
        return Demonstration(trace, recorder.blobs, cited_steps=(1,), details={"outcome": "answered"})

    def close(self):
        pass


class Slow(StandIn):
    pause_s = 0.15


class Murderous(StandIn):
    """Kills its process at the third item of each split, once for each letter in a file beside the corpus."""

    def demonstrate(self, rendered, toolbox, *, rng):
        lives = Path(os.environ["PIXELIS_TEST_LIVES"])
        if rendered.item.seed % 10**7 == 2 and lives.read_text():
            lives.write_text(lives.read_text()[1:])
            os.kill(os.getpid(), signal.SIGKILL)
        return super().demonstrate(rendered, toolbox, rng=rng)


class Mistaken(StandIn):
    def demonstrate(self, rendered, toolbox, *, rng):
        raise KeyError("colour")


class Offline(StandIn):
    """A server that is not there, and will not be."""

    def demonstrate(self, rendered, toolbox, *, rng):
        raise RetryLaterError("server", "the server does not answer", stop_run=True)
