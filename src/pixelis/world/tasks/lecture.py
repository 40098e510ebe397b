"""lecture (Video-MMMU): what a slide says at an event, and small computations with it."""

from __future__ import annotations

from pixelis.items import Reference
from pixelis.world.film import FPS
from pixelis.world.programs import (
    Facts,
    Unanswerable,
    centre,
    format_number,
    get_centre,
    line_text,
    midpoint,
    nearest,
    parse_number,
    require_first,
)
from pixelis.world.slides import SCREEN, Lecture, Slide, line_centre_y
from pixelis.world.tasks.staging import COMMON_FIGURES
from pixelis.world.template import Brief, Evidence, ItemDraft, load_templates, make_draft
from pixelis.world.vocabulary import MEASURES, choose, choose_names, sample, sample_int, sample_spaced_integers


def make_lecture(
    brief: Brief, count: int | None = None, *, same_keys: bool = False, alternate_sheets: bool = False
) -> tuple[Lecture, list[str]]:
    """Slides with a title and lines `Key = value`; with `alternate_sheets` light and dark ones alternate."""
    count = count or 3 + (brief.difficulty.level >= 3)
    titles = choose_names(brief.rng, count)
    keys = sample(brief.rng, MEASURES, 3)
    slides = []
    for title in titles:
        slide_keys = keys if same_keys else sample(brief.rng, MEASURES, 3)
        values = sample_spaced_integers(brief.rng, len(slide_keys), 12, 96, 3)
        slides.append(Slide(title, tuple(f"{key} = {value}" for key, value in zip(slide_keys, values, strict=True))))
    return Lecture(brief, slides, alternate_sheets=alternate_sheets), titles


def find_texts(lecture: Lecture, number: int, role: str) -> list[Reference]:
    return [r for r in lecture.texts if r.properties["slide"] == number and r.properties["role"] == role]


def add_mark(brief: Brief, lecture: Lecture, number: int) -> tuple[str, str]:
    """Add a mark that appears during a slide and disappears with it; returns its phrase and its event."""
    first = max(lecture.starts[number] + sample_int(brief.rng, 3, 5), 6)  # TEMP must have seen the screen without it
    colour, figure = lecture.colours[0], choose(brief.rng, COMMON_FIGURES)
    at = (SCREEN.width - brief.rng.uniform(60, 120), SCREEN.height * brief.rng.uniform(0.38, 0.6))
    actor, event = lecture.add_mark(colour, figure, first, lecture.ends[number], at)
    return actor.phrase, event


# --- by a mark


def _compose_title_when(brief: Brief) -> ItemDraft:
    lecture, _ = make_lecture(brief)
    number = int(brief.rng.integers(len(lecture.slides)))
    phrase, event = add_mark(brief, lecture, number)
    return make_draft(lecture, [event, find_texts(lecture, number, "title")[0]], {"target": phrase})


def mark_time(facts: Facts) -> float:
    return midpoint(facts.span(f"{facts.text('target')} appears"))


def title_at(facts: Facts, seconds: float) -> str:
    return line_text(require_first(facts.lines_at(seconds, role="title"), "nothing of the kind is on screen then"))


def _solve_title_when(facts: Facts) -> str:
    return title_at(facts, mark_time(facts))


def _compose_value_when(brief: Brief) -> ItemDraft:
    lecture, _ = make_lecture(brief, same_keys=True)
    number = int(brief.rng.integers(len(lecture.slides)))
    phrase, event = add_mark(brief, lecture, number)
    target_line = choose(brief.rng, find_texts(lecture, number, "line"))
    return make_draft(lecture, [event, target_line], {"target": phrase, "key": str(target_line.properties["key"])})


def find_key_value(facts: Facts, seconds: float, key: str) -> float:
    """The value of a key on the slide at a time; the key itself must be legible."""
    for r in facts.lines_at(seconds, role="line"):
        before, _, after = line_text(r).partition(" = ")
        if before == key:
            return parse_number(after)
    raise Unanswerable(f"no {key} is on screen then")


def _solve_value_when(facts: Facts) -> str:
    return format_number(find_key_value(facts, mark_time(facts), facts.text("key")))


def _compose_task(brief: Brief) -> ItemDraft:
    titles = choose_names(brief.rng, 3 + (brief.difficulty.level >= 3))
    slides = []
    for title in titles:
        a, b = sample_int(brief.rng, 12, 79), sample_int(brief.rng, 12, 79)
        sign = choose(brief.rng, ("+", "-"))
        a, b = (max(a, b), min(a, b)) if sign == "-" else (a, b)
        advice = choose(brief.rng, ("Take your time", "No notes", "Work in pairs"))
        slides.append(Slide(title, ("Find the result", f"{a} {sign} {b}", advice)))
    lecture = Lecture(brief, slides)
    number = int(brief.rng.integers(len(slides)))
    phrase, event = add_mark(brief, lecture, number)
    return make_draft(lecture, [event, find_texts(lecture, number, "line")[1]], {"target": phrase})


def _solve_task(facts: Facts) -> str:
    for r in facts.lines_at(mark_time(facts), role="line"):
        for sign in ("+", "-"):
            left, separator, right = line_text(r).partition(f" {sign} ")
            if separator and left.isdigit() and right.isdigit():
                return str(int(left) + int(right) if sign == "+" else int(left) - int(right))
    raise Unanswerable("no task is on screen then")


def _compose_pointed(brief: Brief) -> ItemDraft:
    lecture, _ = make_lecture(brief)
    number = int(brief.rng.integers(len(lecture.slides)))
    line = choose(brief.rng, find_texts(lecture, number, "line"))
    first = max(lecture.starts[number] + sample_int(brief.rng, 2, 4), 6)
    colour, figure = lecture.colours[0], choose(brief.rng, ("circle", "square", "star", "diamond"))
    actor, event = lecture.add_mark(colour, figure, first, lecture.ends[number], (42.0, line_centre_y(lecture, line)))
    parameters = {"target": actor.phrase}
    draft = make_draft(lecture, [event, actor, line], parameters)
    draft.accepted_answers = lambda answer: (answer, answer.replace(" = ", "="), answer.replace(" = ", " "))
    return draft


def _solve_pointed(facts: Facts) -> str:
    target = facts.text("target")
    seconds = mark_time(facts)
    box = facts.track(target).box_at(round(seconds * FPS))
    if box is None:
        raise Unanswerable(f"the {target} is not there then")
    y = centre(box)[1]
    return line_text(nearest(facts.lines_at(seconds, role="line"), lambda r: abs(get_centre(r)[1] - y)))


# --- by a title


def _compose_value_on(brief: Brief) -> ItemDraft:
    lecture, titles = make_lecture(brief, same_keys=True)
    number = int(brief.rng.integers(len(titles)))
    target_line = choose(brief.rng, find_texts(lecture, number, "line"))
    evidence: list[Evidence] = [lecture.add_slide_event(number), find_texts(lecture, number, "title")[0], target_line]
    return make_draft(lecture, evidence, {"title": titles[number], "key": str(target_line.properties["key"])})


def slide_time(facts: Facts, title: str) -> float:
    """The middle of a slide's span; its title must be on screen then."""
    seconds = midpoint(facts.span(f"slide {title}"))
    if not any(line_text(r).casefold() == title.casefold() for r in facts.lines_at(seconds, role="title")):
        raise Unanswerable(f"{title} is not on screen then")
    return seconds


def _solve_value_on(facts: Facts) -> str:
    return format_number(find_key_value(facts, slide_time(facts, facts.text("title")), facts.text("key")))


def _compose_sum(brief: Brief) -> ItemDraft:
    lecture, titles = make_lecture(brief, same_keys=True)
    number = int(brief.rng.integers(len(titles)))
    first, second = sample(brief.rng, find_texts(lecture, number, "line"), 2)
    evidence: list[Evidence] = [lecture.add_slide_event(number), find_texts(lecture, number, "title")[0], first, second]
    keys = {"a": str(first.properties["key"]), "b": str(second.properties["key"])}
    return make_draft(lecture, evidence, {"title": titles[number], **keys})


def _solve_sum(facts: Facts) -> str:
    seconds = slide_time(facts, facts.text("title"))
    return format_number(sum(find_key_value(facts, seconds, facts.text(key)) for key in ("a", "b")))


def _compose_change(brief: Brief) -> ItemDraft:
    lecture, titles = make_lecture(brief, same_keys=True)
    first, second = sorted(sample(brief.rng, range(len(titles)), 2))
    key = str(choose(brief.rng, find_texts(lecture, first, "line")).properties["key"])
    evidence: list[Evidence] = []
    for slide in (first, second):
        evidence += [lecture.add_slide_event(slide), find_texts(lecture, slide, "title")[0]]
        evidence += [r for r in find_texts(lecture, slide, "line") if r.properties["key"] == key]
    return make_draft(lecture, evidence, {"a": titles[first], "b": titles[second], "key": key})


def _solve_change(facts: Facts) -> str:
    key = facts.text("key")
    a, b = (find_key_value(facts, slide_time(facts, facts.text(k)), key) for k in ("a", "b"))
    return format_number(abs(a - b))


def _compose_next(brief: Brief) -> ItemDraft:
    lecture, titles = make_lecture(brief, 4)
    number = int(brief.rng.integers(len(titles) - 1))
    evidence: list[Evidence] = [
        lecture.add_slide_event(number),
        *(find_texts(lecture, k, "title")[0] for k in (number, number + 1)),
    ]
    return make_draft(lecture, evidence, {"title": titles[number]})


def _solve_next(facts: Facts) -> str:
    slide_time(facts, facts.text("title"))
    end = facts.span(f"slide {facts.text('title')}").end_s
    return title_at(facts, end + 0.5)


def _compose_count(brief: Brief) -> ItemDraft:
    lecture, _ = make_lecture(brief, sample_int(brief.rng, 2, 6), alternate_sheets=True)
    evidence: list[Evidence] = [
        lecture.film.add_event("cut", start - 1, start + 1) for start in lecture.starts[1:]
    ]  # from frame to frame
    return make_draft(lecture, evidence, {"what": "slides"})


def _solve_count(facts: Facts) -> str:
    """One more than the cuts between different titles."""
    cut_count = 0
    for span in facts.spans("cut"):
        cut = (span.start_s + span.end_s) / 2
        before, after = (facts.lines_at(max(s, 0.0), role="title") for s in (cut - 0.2, cut + 0.2))
        cut_count += [line_text(r) for r in before] != [line_text(r) for r in after]
    return str(cut_count + 1)


TEMPLATES = load_templates(
    "lecture",
    title_when=(_compose_title_when, _solve_title_when),
    value_when=(_compose_value_when, _solve_value_when),
    task=(_compose_task, _solve_task),
    pointed=(_compose_pointed, _solve_pointed),
    value_on=(_compose_value_on, _solve_value_on),
    sum=(_compose_sum, _solve_sum),
    change=(_compose_change, _solve_change),
    next=(_compose_next, _solve_next),
    count=(_compose_count, _solve_count),
)
