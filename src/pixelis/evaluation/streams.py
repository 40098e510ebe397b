"""Streams of queries as in deployment: tasks in turn, under constant, abrupt, gradual or returning shifts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, get_args

from pixelis.core.errors import ConfigError
from pixelis.data.corpus.record import Split
from pixelis.evaluation.tasks import Task, apply_shift, make_tasks
from pixelis.world import RenderedItem
from pixelis.world.shifts import parse_shift

Names = Sequence[str]
Course = Literal["steady", "abrupt", "gradual", "returning"]
"""`abrupt`: in the second half; `gradual`: severities from 0 up; `returning`: in the middle third only."""


class Stream(NamedTuple):
    """Queries in a fixed order."""

    tasks: tuple[Task, ...]
    limit: int
    """Of each task."""
    shifts: tuple[str, ...] = ()
    """`KIND:SEVERITY`, in turn."""
    course: Course = "steady"

    def __len__(self) -> int:
        return sum(task.size(self.limit) for task in self.tasks)

    def items(self) -> Iterator[RenderedItem]:
        """The shifted queries."""
        total = len(self)
        for k, rendered in enumerate(interleave(self.tasks, self.limit)):
            yield apply_shift(rendered, self.shift_at(k, total), seed=rendered.item.seed)

    def shift_at(self, number: int, total: int) -> str:
        """The shift of a query, empty if none. In the next round of the tasks each has the next shift."""
        if not self.shifts:
            return ""
        round_, task = divmod(number, len(self.tasks))
        kind, max_severity = parse_shift(self.shifts[(task + round_) % len(self.shifts)])
        progress = number / max(total, 1)
        severity = {
            "steady": max_severity,
            "abrupt": max_severity if progress >= 0.5 else 0,
            "gradual": int(progress * (max_severity + 1)),
            "returning": max_severity if 1 / 3 <= progress < 2 / 3 else 0,
        }[self.course]
        return f"{kind}:{severity}" if severity else ""


HELD_OUT = "held-out"


class StreamTask(NamedTuple):
    """A stream as an evaluation task."""

    stream: Stream
    name: str = HELD_OUT

    def items(self, limit: int) -> Iterator[RenderedItem]:
        return self.stream.items()

    def size(self, limit: int) -> int:
        return len(self.stream)


def make_stream(
    names: Sequence[str], *, split: Split, limit: int, shifts: Sequence[str] = (), course: str = "steady", skip: int = 0
) -> Stream:
    """A stream by the names of its tasks, without the first `skip` items of each; ConfigError for an unknown shift,
    severity or course."""
    for shift in shifts:
        parse_shift(shift)
    if course not in get_args(Course):
        raise ConfigError(f"no course {course!r}: want one of {', '.join(get_args(Course))}")
    return Stream(tuple(make_tasks(names, split=split, skip=skip)), limit, tuple(shifts), course)  # type: ignore[arg-type]


def interleave(tasks: Sequence[Task], limit: int) -> Iterator[RenderedItem]:
    """One item of each task in turn."""
    streams = [task.items(limit) for task in tasks]
    while streams:
        for stream in list(streams):
            if (rendered := next(stream, None)) is None:
                streams.remove(stream)
            else:
                yield rendered
