"""Warm-up tasks on photographs, over every noun that the detector knows.

The corpus has twenty-one photographs, where most of those nouns are rare or absent. Questions come from its templates,
thoughts from its plain teacher; tool results are invented, so that a noun can only be copied.
"""

from __future__ import annotations

from numpy.random import Generator

from pixelis.data.importers.photo_questions import TEMPLATES
from pixelis.data.teachers.oracle.question_goals import GOALS, prefix_goal
from pixelis.data.teachers.oracle.rationales_pictures import frame_part
from pixelis.nano.warmup_tasks.warmup_vocabulary import (
    COMMON,
    Turn,
    Turns,
    WarmupTask,
    format_region,
    not_found_text,
    plural,
    random_box,
)
from pixelis.tools.backends.nanodet import COCO_NAMES
from pixelis.tools.results import ToolCall
from pixelis.tools.vision.colours import COLOURS

MISSING_SHARE = 0.2
"""Share of tasks whose thing is not there."""


def sample_photo_noun(rng: Generator) -> str:
    return str(rng.choice(COMMON if rng.random() < 0.4 else COCO_NAMES))


def word_question(template: str, rng: Generator, name: str) -> str:
    """A question of the corpus about another noun."""
    wordings = TEMPLATES[template].wordings
    return wordings[int(rng.integers(len(wordings)))].format(thing=name, things=plural(name))


def find_turn(name: str, goal: str, result_text: str) -> Turn:
    return prefix_goal(goal, f"Let me find the {name}."), ToolCall(tool="SEG", args={"target": name}), result_text


def count_things(rng: Generator) -> WarmupTask:
    name, goal = sample_photo_noun(rng), GOALS["photo.count"]
    things, count = plural(name), 0 if rng.random() < MISSING_SHARE else int(rng.integers(1, 7))
    listed = "; ".join(format_region(name, random_box(rng), rng) for _ in range(count))
    result_text = not_found_text(things) if not count else listed if count == 1 else f"{count} regions: {listed}"
    outline = prefix_goal(goal, f"Let me outline every {things}.")
    turns: Turns = [(outline, ToolCall(tool="SEG", args={"target": things}), result_text)]
    final_thought = f"{count} regions: {count} {things}." if count else f"No {things} were found: 0."
    return word_question("photo.count", rng, name), turns, prefix_goal(goal, final_thought), str(count)


def describe_thing(rng: Generator) -> WarmupTask:
    """Where it is or what colour it has; that there is none, if SEG finds none."""
    name, thing_box, asks_colour = sample_photo_noun(rng), random_box(rng), rng.random() < 0.5
    template, attribute = ("photo.colour", "colour") if asks_colour else ("photo.where", "position")
    question, goal = word_question(template, rng, name), GOALS[template]
    if rng.random() < MISSING_SHARE:
        final_thought = prefix_goal(goal, f"No {name} was found: there is none.")
        return question, [find_turn(name, goal, not_found_text(name))], final_thought, "there is none"
    x, y = (thing_box[0] + thing_box[2]) / 2, (thing_box[1] + thing_box[3]) / 2
    if asks_colour:
        answer = str(rng.choice(COLOURS))
        result_text, final_thought = f"colour: {answer} ({rng.uniform(0.4, 1):.2f})", f"The {name} is {answer}."
    else:
        answer = frame_part(x, y)
        result_text = f"position: {answer} ({x:.2f}, {y:.2f})"
        final_thought = f"Its centre is at ({x:.2f}, {y:.2f}): {answer}."
    prop_call = ToolCall(tool="PROP", args={"attributes": [attribute], "box": list(thing_box)})
    prop_thought = f"Found. {prefix_goal(goal, f'What is the {attribute}?')}"
    turns: Turns = [find_turn(name, goal, format_region(name, thing_box, rng)), (prop_thought, prop_call, result_text)]
    return question, turns, prefix_goal(goal, final_thought), answer


def check_presence(rng: Generator) -> WarmupTask:
    name, goal, is_present = sample_photo_noun(rng), GOALS["photo.there"], rng.random() < 0.5
    result_text = format_region(name, random_box(rng), rng) if is_present else not_found_text(name)
    final_thought = f"A {name} was found: yes." if is_present else f"No {name} was found: no."
    question = word_question("photo.there", rng, name)
    turns, answer = [find_turn(name, goal, result_text)], "yes" if is_present else "no"
    return question, turns, prefix_goal(goal, final_thought), answer


PHOTO_TASKS = (count_things, describe_thing, describe_thing, check_presence)
