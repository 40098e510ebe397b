"""Streams of queries as deployment brings them: tasks in turn, under shifts that stay, come, grow or go again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, get_args

from pixelis.data.record import Split
from pixelis.errors import ConfigError
from pixelis.eval.tasks import Task, tasks_of, under
from pixelis.world import Rendered
from pixelis.world.shifts import parse_shift

Course = Literal["steady", "abrupt", "gradual", "returning"]
"""`abrupt`: none in the first half; `gradual`: severities from 0 up; `returning`: in the middle third alone."""


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

    def items(self) -> Iterator[Rendered]:
        """The queries, each under its shift."""
        total = len(self)
        for k, made in enumerate(interleaved(self.tasks, self.limit)):
            yield under(made, self.shift_of(k, total), seed=made.item.seed)

    def shift_of(self, number: int, total: int) -> str:
        """The shift of a query, empty where it has none. In the next round of the tasks each has the next shift."""
        if not self.shifts:
            return ""
        round_, task = divmod(number, len(self.tasks))
        kind, most = parse_shift(self.shifts[(task + round_) % len(self.shifts)])
        share = number / max(total, 1)
        now = {
            "steady": most,
            "abrupt": most if share >= 0.5 else 0,
            "gradual": int(share * (most + 1)),
            "returning": most if 1 / 3 <= share < 2 / 3 else 0,
        }[self.course]
        return f"{kind}:{now}" if now else ""


HELD_OUT = "held-out"


class StreamTask(NamedTuple):
    """A stream as a task of the evaluation."""

    stream: Stream
    name: str = HELD_OUT

    def items(self, limit: int) -> Iterator[Rendered]:
        return self.stream.items()

    def size(self, limit: int) -> int:
        return len(self.stream)


def stream_of(
    names: Sequence[str],
    *,
    split: Split,
    limit: int,
    shifts: Sequence[str] = (),
    course: str = "steady",
    skip: int = 0,
) -> Stream:
    """A stream by the names of its tasks, the first `skip` items of each left out; ConfigError for a shift, severity or
    course that does not exist."""
    for shift in shifts:
        parse_shift(shift)
    if course not in get_args(Course):
        raise ConfigError(f"no course {course!r}: want one of {', '.join(get_args(Course))}")
    return Stream(tuple(tasks_of(names, split=split, skip=skip)), limit, tuple(shifts), course)  # type: ignore[arg-type]


def interleaved(tasks: Sequence[Task], limit: int) -> Iterator[Rendered]:
    """One item of each task in turn."""
    streams = [task.items(limit) for task in tasks]
    while streams:
        for stream in list(streams):
            made = next(stream, None)
            if made is None:
                streams.remove(stream)
            else:
                yield made
