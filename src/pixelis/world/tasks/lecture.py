"""lecture (Video-MMMU): what is written when something happens, and a small computation over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pixelis.world.film import FPS
from pixelis.world.item import Reference
from pixelis.world.programs import (
    Parameters,
    References,
    Unanswerable,
    box_of,
    centre,
    middle,
    nearest,
    number,
    says,
    showing,
    stretch,
    stretches,
    text_of,
    track,
    value_of,
)
from pixelis.world.slides import SCREEN, Lecture, Slide, line_y
from pixelis.world.tasks.staging import FIGURES
from pixelis.world.template import Brief, ChainStep, Draft, Template
from pixelis.world.vocabulary import MEASURES, choose, names, sample, spread, whole


def lecture(
    brief: Brief, count: int | None = None, *, same_keys: bool = False, varied: bool = False
) -> tuple[Lecture, list[str]]:
    """Slides with a title and measures on them, each `Key = value`; varied ones are light and dark by turns."""
    count = count or 3 + (brief.dial.level >= 3)
    titles = names(brief.rng, count)
    keys = sample(brief.rng, MEASURES, 3)
    slides = []
    for title in titles:
        own = keys if same_keys else sample(brief.rng, MEASURES, 3)
        values = spread(brief.rng, len(own), 12, 96, 3)
        slides.append(Slide(title, tuple(f"{key} = {value}" for key, value in zip(own, values, strict=True))))
    return Lecture(brief, slides, varied=varied), titles


def drafted(made: Lecture, evidence: Sequence[str], parameters: Mapping[str, object]) -> Draft:
    clip, references = made.finish()
    return Draft((clip,), references, list(evidence), parameters, traits=made.film.traits)  # type: ignore[arg-type]


def texts(made: Lecture, number: int, role: str) -> list[Reference]:
    return [r for r in made.texts if r.properties["slide"] == number and r.properties["role"] == role]


def marked(brief: Brief, made: Lecture, number: int) -> tuple[str, str]:
    """A mark that appears in the midst of a slide and goes with it: its phrase and its event."""
    first = max(made.starts[number] + whole(brief.rng, 3, 5), 6)  # TEMP must have seen the screen without it
    colour, figure = made.colours[0], choose(brief.rng, FIGURES)
    at = (SCREEN.width - brief.rng.uniform(60, 120), SCREEN.height * brief.rng.uniform(0.38, 0.6))
    actor, event = made.mark(colour, figure, first, made.ends[number], at)
    return actor.phrase, event


# --- by a mark


def _title_when(brief: Brief) -> Draft:
    made, _ = lecture(brief)
    number = int(brief.rng.integers(len(made.slides)))
    phrase, event = marked(brief, made, number)
    return drafted(made, [event, texts(made, number, "title")[0].name], {"target": phrase})


def at_mark(references: References, parameters: Parameters) -> float:
    return middle(stretch(references, f"{text_of(parameters, 'target')} appears"))


def only(found: Sequence[Reference]) -> Reference:
    if not found:
        raise Unanswerable("nothing of the kind is on screen then")
    return found[0]


def _title_at(references: References, parameters: Parameters) -> str:
    return says(only(showing(references, at_mark(references, parameters), role="title")))


def _value_when(brief: Brief) -> Draft:
    made, _ = lecture(brief, same_keys=True)
    number = int(brief.rng.integers(len(made.slides)))
    phrase, event = marked(brief, made, number)
    asked = choose(brief.rng, texts(made, number, "line"))
    return drafted(made, [event, asked.name], {"target": phrase, "key": str(asked.properties["key"])})


def keyed(references: References, seconds: float, key: str) -> float:
    """The value of a key on the slide of a moment; the key itself must be legible."""
    for r in showing(references, seconds, role="line"):
        before, _, after = says(r).partition(" = ")
        if before == key:
            return value_of(after)
    raise Unanswerable(f"no {key} is on screen then")


def _value_at(references: References, parameters: Parameters) -> str:
    return number(keyed(references, at_mark(references, parameters), text_of(parameters, "key")))


def _task(brief: Brief) -> Draft:
    titles = names(brief.rng, 3 + (brief.dial.level >= 3))
    slides = []
    for title in titles:
        a, b = whole(brief.rng, 12, 79), whole(brief.rng, 12, 79)
        sign = choose(brief.rng, ("+", "-"))
        a, b = (max(a, b), min(a, b)) if sign == "-" else (a, b)
        slides.append(
            Slide(
                title,
                (
                    "Find the result",
                    f"{a} {sign} {b}",
                    choose(brief.rng, ("Take your time", "No notes", "Work in pairs")),
                ),
            )
        )
    made = Lecture(brief, slides)
    number = int(brief.rng.integers(len(slides)))
    phrase, event = marked(brief, made, number)
    return drafted(made, [event, texts(made, number, "line")[1].name], {"target": phrase})


def _result(references: References, parameters: Parameters) -> str:
    for r in showing(references, at_mark(references, parameters), role="line"):
        for sign in ("+", "-"):
            left, found, right = says(r).partition(f" {sign} ")
            if found and left.isdigit() and right.isdigit():
                return str(int(left) + int(right) if sign == "+" else int(left) - int(right))
    raise Unanswerable("no task is on screen then")


def _pointed(brief: Brief) -> Draft:
    made, _ = lecture(brief)
    number = int(brief.rng.integers(len(made.slides)))
    line = choose(brief.rng, texts(made, number, "line"))
    first = max(made.starts[number] + whole(brief.rng, 2, 4), 6)
    colour, figure = made.colours[0], choose(brief.rng, ("circle", "square", "star", "diamond"))
    actor, event = made.mark(colour, figure, first, made.ends[number], (42.0, line_y(made, line)))
    parameters = {"target": actor.phrase}
    draft = drafted(made, [event, actor.name, line.name], parameters)
    draft.accepted = lambda answer: (answer, answer.replace(" = ", "="), answer.replace(" = ", " "))
    return draft


def _beside(references: References, parameters: Parameters) -> str:
    target = text_of(parameters, "target")
    seconds = at_mark(references, parameters)
    box = track(references, target).at(round(seconds * FPS))
    if box is None:
        raise Unanswerable(f"the {target} is not there then")
    y = centre(box)[1]
    return says(nearest(showing(references, seconds, role="line"), lambda r: abs(centre(box_of(r))[1] - y)))


# --- by a title


def _value_on(brief: Brief) -> Draft:
    made, titles = lecture(brief, same_keys=True)
    number = int(brief.rng.integers(len(titles)))
    asked = choose(brief.rng, texts(made, number, "line"))
    evidence = [made.shown(number), texts(made, number, "title")[0].name, asked.name]
    return drafted(made, evidence, {"title": titles[number], "key": str(asked.properties["key"])})


def on_slide(references: References, title: str) -> float:
    """The middle of a slide's time; its title must be on screen then."""
    seconds = middle(stretch(references, f"slide {title}"))
    if not any(says(r).casefold() == title.casefold() for r in showing(references, seconds, role="title")):
        raise Unanswerable(f"{title} is not on screen then")
    return seconds


def _value_by_title(references: References, parameters: Parameters) -> str:
    return number(keyed(references, on_slide(references, text_of(parameters, "title")), text_of(parameters, "key")))


def _sum(brief: Brief) -> Draft:
    made, titles = lecture(brief, same_keys=True)
    number = int(brief.rng.integers(len(titles)))
    first, second = sample(brief.rng, texts(made, number, "line"), 2)
    evidence = [made.shown(number), texts(made, number, "title")[0].name, first.name, second.name]
    keys = {"a": str(first.properties["key"]), "b": str(second.properties["key"])}
    return drafted(made, evidence, {"title": titles[number], **keys})


def _plus(references: References, parameters: Parameters) -> str:
    seconds = on_slide(references, text_of(parameters, "title"))
    return number(sum(keyed(references, seconds, text_of(parameters, key)) for key in ("a", "b")))


def _change(brief: Brief) -> Draft:
    made, titles = lecture(brief, same_keys=True)
    first, second = sorted(sample(brief.rng, range(len(titles)), 2))
    key = str(choose(brief.rng, texts(made, first, "line")).properties["key"])
    evidence = []
    for slide in (first, second):
        evidence += [made.shown(slide), texts(made, slide, "title")[0].name]
        evidence += [r.name for r in texts(made, slide, "line") if r.properties["key"] == key]
    return drafted(made, evidence, {"a": titles[first], "b": titles[second], "key": key})


def _gap(references: References, parameters: Parameters) -> str:
    key = text_of(parameters, "key")
    a, b = (keyed(references, on_slide(references, text_of(parameters, k)), key) for k in ("a", "b"))
    return number(abs(a - b))


def _next(brief: Brief) -> Draft:
    made, titles = lecture(brief, 4)
    number = int(brief.rng.integers(len(titles) - 1))
    evidence = [made.shown(number), *(texts(made, k, "title")[0].name for k in (number, number + 1))]
    return drafted(made, evidence, {"title": titles[number]})


def _after(references: References, parameters: Parameters) -> str:
    on_slide(references, text_of(parameters, "title"))
    end = stretch(references, f"slide {text_of(parameters, 'title')}").end_s
    return says(only(showing(references, end + 0.5, role="title")))


def _count(brief: Brief) -> Draft:
    made, _ = lecture(brief, whole(brief.rng, 2, 6), varied=True)
    evidence = [made.film.event("cut", start - 1, start + 1) for start in made.starts[1:]]  # from frame to frame
    return drafted(made, evidence, {"what": "slides"})


def _slides(references: References, parameters: Parameters) -> str:
    """One more than the cuts, each of which must part two titles."""
    parts = 0
    for span in stretches(references, "cut"):
        cut = (span.start_s + span.end_s) / 2
        before, after = (showing(references, max(s, 0.0), role="title") for s in (cut - 0.2, cut + 0.2))
        parts += [says(r) for r in before] != [says(r) for r in after]
    return str(parts + 1)


APPEARS = ChainStep(tool="TEMP", args={"query": "the {target} appears", "top_k": 1})
READ_THEN = ChainStep(tool="OCR", args={"time_s": "$1.span.end_s"}, note="inside the segment; the line decides")
FIND = ChainStep(tool="TEMP", args={"query": 'the screen says "{title}"', "top_k": 1})
READ_SLIDE = ChainStep(tool="OCR", args={"time_s": "$1.span.start_s"}, note="in the middle of the segment")

TEMPLATES = (
    Template(
        "lecture.title_when", "lecture",
        (
            "What is the title of the slide on which the {target} appears?",
            "Which heading is on screen when the {target} appears?",
            "When the {target} comes up, what is the slide called?",
            "Name the title shown at the moment of the {target}.",
        ),
        _title_when, _title_at, "exact", (APPEARS, READ_THEN), doc="the first line",
    ),
    Template(
        "lecture.value_when", "lecture",
        (
            "What is the value of {key} when the {target} appears?",
            "The {target} appears. Which number stands for {key} then?",
            "Read {key} at the moment that the {target} comes up.",
            "On the slide with the {target}, how much is {key}?",
        ),
        _value_when, _value_at, "exact", (APPEARS, READ_THEN), reads_operands=True, doc="the number after {key}",
    ),
    Template(
        "lecture.task", "lecture",
        (
            "What is the result of the task on screen when the {target} appears?",
            "Solve the task that is shown with the {target}.",
            "When the {target} appears there is a small calculation on the slide. What does it give?",
            "Compute what is written on the slide of the {target}.",
        ),
        _task, _result, "exact", (APPEARS, READ_THEN), reads_operands=True, doc="compute the line with + or -",
    ),
    Template(
        "lecture.pointed", "lecture",
        (
            "Which line does the {target} stand beside?",
            "What is written next to the {target}?",
            "The {target} points out a line. What does the line say?",
            "Read the line at the right of the {target}.",
        ),
        _pointed, _beside, "exact",
        (
            APPEARS,
            ChainStep(tool="SEG", args={"target": "{target}", "time_s": "$1.span.end_s"}),
            ChainStep(tool="OCR", args={"time_s": "$1.span.end_s"}),
        ),
        doc="the line at the height of the region",
    ),
    Template(
        "lecture.value_on", "lecture",
        (
            'What is the {key} on the slide "{title}"?',
            'On the slide titled "{title}", which value does {key} have?',
            'Find the slide "{title}". How much is {key} there?',
            'Read {key} from the slide called "{title}".',
        ),
        _value_on, _value_by_title, "exact", (FIND, READ_SLIDE), reads_operands=True, doc="the number after {key}",
    ),
    Template(
        "lecture.sum", "lecture",
        (
            'Add {a} and {b} on the slide "{title}".',
            'On the slide titled "{title}", what is {a} plus {b}?',
            'What do {a} and {b} of the slide "{title}" give together?',
            'Find the slide "{title}" and compute the sum of {a} and {b}.',
        ),
        _sum, _plus, "exact", (FIND, READ_SLIDE), reads_operands=True, doc="the numbers after {a} and {b}, added",
    ),
    Template(
        "lecture.change", "lecture",
        (
            'By how much does {key} differ between the slides "{a}" and "{b}"?',
            'What is the difference of {key} on "{a}" and on "{b}"?',
            'Compare {key} on the slide "{a}" with {key} on the slide "{b}": how far are they apart?',
            'From the slide "{a}" to the slide "{b}", how much does {key} change?',
        ),
        _change, _gap, "exact",
        (
            ChainStep(tool="TEMP", args={"query": 'the screen says "{a}"', "top_k": 1}),
            READ_SLIDE,
            ChainStep(tool="TEMP", args={"query": 'the screen says "{b}"', "top_k": 1}),
            ChainStep(tool="OCR", args={"time_s": "$3.span.start_s"}, note="in the middle of the segment"),
        ),
        reads_operands=True, doc="the larger number after {key} minus the smaller",
    ),
    Template(
        "lecture.next", "lecture",
        (
            'Which slide comes right after "{title}"? Give its title.',
            'What is the title of the slide that follows "{title}"?',
            'After the slide "{title}", which one is next?',
            'Name the slide shown directly after "{title}".',
        ),
        _next, _after, "exact",
        (FIND, ChainStep(tool="OCR", args={"time_s": "$1.span.end_s"}, note="half a second after the segment")),
        doc="the first line",
    ),
    Template(
        "lecture.count", "lecture",
        (
            "How many slides are shown?",
            "Count the slides of this lecture.",
            "What is the number of different slides?",
            "How many slides does the clip go through?",
        ),
        _count, _slides, "exact", (ChainStep(tool="TEMP", args={"query": "new scene", "top_k": 20}),),
        doc="one more than the number of segments",
    ),
)  # fmt: skip
