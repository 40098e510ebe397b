"""Drills of what people ask about photographs, over every noun that the detector knows.

The corpus has twenty-one photographs, and most of those nouns never or hardly ever. Questions are those of its
templates, thoughts those of its plain teacher; what the tools say is made up, so that a noun can only be copied.
"""

from __future__ import annotations

from numpy.random import Generator

from pixelis.data.conclusions_pictures import part
from pixelis.data.goals import GOALS, with_goal
from pixelis.data.importers.photo_questions import TEMPLATES
from pixelis.tools.backends.nanodet import COCO_NAMES
from pixelis.tools.colours import COLOURS
from pixelis.tools.results import ToolCall
from pixelis.train.drills_words import COMMON, Drill, Talk, box, plural, region

MISSED = 0.2
"""How often the thing is not there."""


def noun_of_a_photo(rng: Generator) -> str:
    return str(rng.choice(COMMON if rng.random() < 0.4 else COCO_NAMES))


def worded(template: str, rng: Generator, name: str) -> str:
    """A question of the corpus with another noun in it."""
    asked = TEMPLATES[template].wordings
    return asked[int(rng.integers(len(asked)))].format(thing=name, things=plural(name))


def not_found(words: str) -> str:
    return f"SEG failed: SEG found nothing that fits '{words}'"


def find(name: str, goal: str, told: str) -> tuple[str, ToolCall, str]:
    return with_goal(goal, f"Let me find the {name}."), ToolCall(tool="SEG", args={"target": name}), told


def counted(rng: Generator) -> Drill:
    name, goal = noun_of_a_photo(rng), GOALS["photo.count"]
    things, count = plural(name), 0 if rng.random() < MISSED else int(rng.integers(1, 7))
    listed = "; ".join(region(name, box(rng), rng) for _ in range(count))
    told = not_found(things) if not count else listed if count == 1 else f"{count} regions: {listed}"
    outline = with_goal(goal, f"Let me outline every {things}.")
    talk: Talk = [(outline, ToolCall(tool="SEG", args={"target": things}), told)]
    last = f"{count} regions: {count} {things}." if count else f"No {things} were found: 0."
    return worded("photo.count", rng, name), talk, with_goal(goal, last), str(count)


def one_thing(rng: Generator) -> Drill:
    """Where it is, or what colour it has; that there is none, where SEG finds none."""
    name, where, of_colour = noun_of_a_photo(rng), box(rng), rng.random() < 0.5
    template, attribute = ("photo.colour", "colour") if of_colour else ("photo.where", "position")
    question, goal = worded(template, rng, name), GOALS[template]
    if rng.random() < MISSED:
        last = with_goal(goal, f"No {name} was found: there is none.")
        return question, [find(name, goal, not_found(name))], last, "there is none"
    x, y = (where[0] + where[2]) / 2, (where[1] + where[3]) / 2
    if of_colour:
        said = str(rng.choice(COLOURS))
        told, last = f"colour: {said} ({rng.uniform(0.4, 1):.2f})", f"The {name} is {said}."
    else:
        said = part(x, y)
        told, last = f"position: {said} ({x:.2f}, {y:.2f})", f"Its centre is at ({x:.2f}, {y:.2f}): {said}."
    look = ToolCall(tool="PROP", args={"attributes": [attribute], "box": list(where)})
    then = f"Found. {with_goal(goal, f'What is the {attribute}?')}"
    talk: Talk = [find(name, goal, region(name, where, rng)), (then, look, told)]
    return question, talk, with_goal(goal, last), said


def there(rng: Generator) -> Drill:
    name, goal, found = noun_of_a_photo(rng), GOALS["photo.there"], rng.random() < 0.5
    told = region(name, box(rng), rng) if found else not_found(name)
    last = f"A {name} was found: yes." if found else f"No {name} was found: no."
    question = worded("photo.there", rng, name)
    return question, [find(name, goal, told)], with_goal(goal, last), "yes" if found else "no"


DRILLS = (counted, one_thing, one_thing, there)
