"""A teacher that looks twice and answers, so that building can be tested without waiting for a real one.

Solver processes import this module by name; it never leaves the tests.
"""

import os
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

from pixelis import __version__
from pixelis.core.errors import RetryLaterError
from pixelis.data.teachers.teacher import Demonstration
from pixelis.media import MediaSet
from pixelis.tools.results import ToolCall
from pixelis.trace.media_records import record_media
from pixelis.trace.schema import StepDraft, seal_trace


class StandIn:
    """Two real calls and the right answer."""

    pause_s = 0.0

    def teach(self, rendered, toolbox, *, rng):
        time.sleep(self.pause_s)
        media = MediaSet(rendered.media)
        corner = round(float(rng.uniform(0.1, 0.4)), 2)
        calls = [
            ToolCall(tool="ZOOM", args={"box": [corner, corner, 0.9, 0.9]}),
            ToolCall(tool="PROP", args={"box": [corner, corner, 0.9, 0.9], "attributes": ["colour"]}),
        ]
        drafts, blobs = [], {}
        for call in calls:
            execution = toolbox.run(call, media)
            drafts.append(StepDraft(thought="I look.", call=call, result=execution.result))
            blobs.update(execution.blobs)
        trace = seal_trace(
            id=rendered.item.id,
            query=rendered.item.question,
            media=record_media(media),
            origin="teacher:stand-in",
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
            steps=drafts,
            answer=rendered.item.answer,
            pixelis=__version__,
        )
        return Demonstration(trace, blobs, cited_steps=(1,), details={"outcome": "answered"})

    def close(self):
        pass


class Slow(StandIn):
    pause_s = 0.15


class Murderous(StandIn):
    """Kills its process at the third item of each split, once for each letter in a file beside the corpus."""

    def teach(self, rendered, toolbox, *, rng):
        lives = Path(os.environ["PIXELIS_TEST_LIVES"])
        if rendered.item.seed % 10**7 == 2 and lives.read_text():
            lives.write_text(lives.read_text()[1:])
            os.kill(os.getpid(), signal.SIGKILL)
        return super().teach(rendered, toolbox, rng=rng)


class Mistaken(StandIn):
    def teach(self, rendered, toolbox, *, rng):
        raise KeyError("colour")


class Offline(StandIn):
    """A server that is not there, and will not be."""

    def teach(self, rendered, toolbox, *, rng):
        raise RetryLaterError("server", "the server does not answer", stop_run=True)
