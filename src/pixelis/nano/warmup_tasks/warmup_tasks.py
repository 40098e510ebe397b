"""Drills: short conversations without pictures, made by rule, that a policy with random weights does before phase 1.

What a chain mostly asks of a small model is to carry things over: a phrase of the question into a call, a box that a
result printed into the next one, a line that was read into the answer; and to find the right one among several. In the
corpus these are a few tokens among hundreds. Here they are nearly all that is taught, over words and numbers that no
corpus has, so that they cannot be learnt by heart. The form is that of real conversations (`policy.script`).
"""

from __future__ import annotations

import re

import numpy as np
from numpy.random import Generator

from pixelis.data.teachers.oracle.question_goals import GOALS, prefix_goal
from pixelis.data.teachers.oracle.running_notes import DISTANCE_KEY, POSITION_KEYS, format_comparison, format_corner
from pixelis.items import option_letter
from pixelis.nano.quoting import find_quote
from pixelis.nano.warmup_tasks import warmup_clips, warmup_pages, warmup_photos, warmup_texts
from pixelis.nano.warmup_tasks.warmup_vocabulary import (
    Turns,
    WarmupTask,
    format_region,
    random_box,
    random_box_pair,
    random_figure,
    random_number,
    random_phrase,
    random_word,
    rank_in_turn,
    sample_distinct,
)
from pixelis.policy import chat_format
from pixelis.policy.chat_format import PromptStyle
from pixelis.policy.images import ImageProcessorConfig
from pixelis.policy.sequence import KINDS, TokenSequence
from pixelis.policy.tokenizer import PolicyTokenizer
from pixelis.tools.base import coordinates
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.training.dataset.examples import Example, empty_steps, output_indices

SLOT = re.compile(r"\{\w+\}")
MAX_OFFSET, MIN_DISTANCE = 0.12, 0.3
"""How far two things are apart, at most and at least, along the axis that does not count and the one that does."""
GOAL_SHARE = 0.5
"""Share of drills whose every thought carries a word on from the end of the question, as a plain teacher's does."""


def read_target(rng: Generator) -> WarmupTask:
    """Find it, look closer at the box that came back, read."""
    things = sample_distinct(rng, 1, 3)
    target, text, target_box = str(rng.choice(things)), random_word(rng), random_box(rng)
    others = f" Not the {things[0]}." if things[0] != target else ""
    turns: Turns = [
        (f"First the {target}.", ToolCall(tool="SEG", args={"target": target}), format_region(target, target_box, rng)),
        (
            f"A closer look at the {target}.",
            ToolCall(tool="ZOOM", args={"box": list(target_box)}),
            f"view of {coordinates(target_box)}",
        ),
        ("Read it.", ToolCall(tool="OCR", args={"media": "View_0"}), f'"{text}" at {coordinates(random_box(rng))}'),
    ]
    return f"What does the {target} say?{others}", turns, f"It says {text}.", text


def pick_line(rng: Generator) -> WarmupTask:
    """Among the lines of a page: the box of one, and what another one says."""
    names = sample_distinct(rng, 2, 6, random_word)
    values = [random_number(rng) if rng.random() < 0.6 else random_word(rng) for _ in names]
    boxes = [random_box(rng) for _ in names]
    separator = ": " if rng.random() < 0.5 else " = "
    page = "; ".join(f'"{n}{separator}{v}" at {coordinates(p)}' for n, v, p in zip(names, values, boxes, strict=True))
    k = int(rng.integers(len(names)))
    turns: Turns = [
        ("All lines.", ToolCall(tool="OCR", args={}), f"{len(names)} lines: {page}"),
        (f'A closer look at "{names[k]}".', ToolCall(tool="ZOOM", args={"box": list(boxes[k])}), "view"),
    ]
    return f'What stands after "{names[k]}"?', turns, f"{names[k]}{separator}{values[k]}.", values[k]


def rank_targets(rng: Generator) -> WarmupTask:
    """Several things of the question, one after the other: which lies furthest to one side, or their order."""
    things = sample_distinct(rng, 2, 4, random_figure if rng.random() < 0.7 else random_phrase)
    furthest = tuple(POSITION_KEYS)[int(rng.integers(len(POSITION_KEYS)))]
    side, single_answer = POSITION_KEYS[furthest], rng.random() < 0.6

    def make_turns(name: str, note: str) -> tuple[Turns, float]:
        target_box, area = random_box(rng), round(rng.uniform(0.0, 0.4), 2)
        result_text = format_region(name, target_box, rng, area)
        call = ToolCall(tool="SEG", args={"target": name})
        return [(f"{note}Let me find the {name}.", call, result_text)], area if side.edge is None else target_box[
            side.edge
        ]

    turns, tally = rank_in_turn(things, side, make_turns, named=1 if single_answer else None)
    listed = ", ".join(things)
    if single_answer:
        return f"Which is {furthest}: {listed}?", turns, tally.to_conclusion(furthest), tally.ranking[0][0]
    return (
        f"Sort {listed}: {furthest} first.",
        turns,
        tally.to_ordered_list(),
        ", ".join(name for name, _ in tally.ranking),
    )


def find_relative_side(rng: Generator) -> WarmupTask:
    """Two things, and on which side of one the other lies."""
    names, side = sample_distinct(rng, 2, 2, random_figure), str(rng.choice(("left", "right", "above", "below")))
    small_offset, large_offset = (
        rng.uniform(-MAX_OFFSET, MAX_OFFSET),
        rng.uniform(MIN_DISTANCE, 0.7) * (1 if side in ("right", "below") else -1),
    )
    across, down = (large_offset, small_offset) if side in ("left", "right") else (small_offset, large_offset)
    reference_box, target_box = random_box_pair(rng, across, down)
    boxes = [target_box, reference_box]
    turns: Turns = [
        (
            f"{note}Let me find the {name}.",
            ToolCall(tool="SEG", args={"target": name}),
            format_region(name, unit_box, rng),
        )
        for name, unit_box, note in zip(names, boxes, ("", f"{format_corner(names[0], boxes[0])}. "), strict=True)
    ]
    final_thought = format_comparison(boxes[0], boxes[1], side)
    return (
        f"Seen from the {names[1]}, where is the {names[0]}: left, right, above or below?",
        turns,
        final_thought,
        side,
    )


def find_nearest(rng: Generator) -> WarmupTask:
    """Which of several lies nearest to one."""
    name, *things = sample_distinct(rng, 4, 5, random_figure)
    reference_box = random_box(rng)

    def make_turns(target: str, note: str) -> tuple[Turns, float]:
        target_box = random_box(rng)
        call = ToolCall(tool="SEG", args={"target": target})
        distance = round(max(abs(target_box[0] - reference_box[0]), abs(target_box[1] - reference_box[1])), 2)
        return [
            (f"{note or 'Found. '}Let me find the {target}.", call, format_region(target, target_box, rng))
        ], distance

    turns, tally = rank_in_turn(things, DISTANCE_KEY, make_turns)
    turns.insert(
        0,
        (
            f"Let me find the {name}.",
            ToolCall(tool="SEG", args={"target": name}),
            format_region(name, reference_box, rng),
        ),
    )
    listed = " ".join(f"({option_letter(i)}) {option}" for i, option in enumerate(things))
    return (
        f"Which is nearest to the {name}? Options: {listed}",
        turns,
        tally.to_conclusion("nearest"),
        tally.ranking[0][0],
    )


def count_regions(rng: Generator) -> WarmupTask:
    """Several regions in one result: how many, and the box of one."""
    count, name = int(rng.integers(1, 7)), random_phrase(rng)
    boxes = [random_box(rng) for _ in range(count)]
    listed = "; ".join(format_region(name, unit_box, rng) for unit_box in boxes)
    result_text = listed if count == 1 else f"{count} regions: {listed}"
    k = int(rng.integers(count))
    order = ("first", "second", "third", "fourth", "fifth", "sixth")[k]
    turns: Turns = [
        (f"Find the {name}.", ToolCall(tool="SEG", args={"target": name}), result_text),
        (f"The {order} one.", ToolCall(tool="PROP", args={"box": list(boxes[k]), "attributes": ["colour"]}), "seen"),
    ]
    question = str(rng.choice(COUNT_WORDINGS)).format(name)
    return question, turns, f"Found {count}.", str(count)


COUNT_WORDINGS = ("How many {} are there?", "Count the {} in the photo.", "How many {} can you see?")


def find_present_option(rng: Generator) -> WarmupTask:
    """Options in turn, until one is there; what was not found is not looked for again."""
    things = sample_distinct(rng, 3, 4, random_figure)
    k = int(rng.integers(len(things)))
    listed = " ".join(f"({option_letter(i)}) {name}" for i, name in enumerate(things))
    turns: Turns = []
    for i, name in enumerate(things[: k + 1]):
        result_text = (
            format_region(name, random_box(rng), rng) if i == k else f"SEG failed: SEG found nothing that fits '{name}'"
        )
        previous_note = "Nothing fits. " if i else ""
        turns.append(
            (f"{previous_note}Let me find the {name}.", ToolCall(tool="SEG", args={"target": name}), result_text)
        )
    return f"Which of these is there? Options: {listed}", turns, f"The {things[k]} is there.", things[k]


def find_missing_option(rng: Generator) -> WarmupTask:
    """Options in turn, of which one is not there."""
    things = sample_distinct(rng, 3, 4, random_figure)
    k = int(rng.integers(len(things)))
    listed = " ".join(f"({option_letter(i)}) {name}" for i, name in enumerate(things))
    turns, finding, missing_note = list[tuple[str, ToolCall, str]](), "", ""
    for i, name in enumerate(things):
        result_text = (
            f"SEG failed: SEG found nothing that fits '{name}'" if i == k else format_region(name, random_box(rng), rng)
        )
        previous_note = f"{finding}{missing_note}. " if i else ""
        turns.append(
            (f"{previous_note}Let me find the {name}.", ToolCall(tool="SEG", args={"target": name}), result_text)
        )
        finding, missing_note = ("Nothing fits", f", missing so far: {name}") if i == k else ("Found", missing_note)
    return f"Which of these is missing? Options: {listed}", turns, f"{finding}; missing is the {things[k]}.", things[k]


def copy_words(rng: Generator) -> WarmupTask:
    """Several words of any letters, said again in order: nothing but copying."""
    words = sample_distinct(rng, 2, 8, random_word)
    text = " ".join(words)
    turns: Turns = [
        ("Read it.", ToolCall(tool="OCR", args={}), f'"{text}" at {coordinates(text_box := random_box(rng))}'),
        (f'A closer look at "{text}".', ToolCall(tool="ZOOM", args={"box": list(text_box)}), "view"),
    ]
    return "What does it say?", turns, f'It reads "{text}".', text


QUOTED_LINE = re.compile(r'"([^"]*)" at \[')
WARMUP_TASKS = (
    read_target, pick_line, pick_line, pick_line, rank_targets, rank_targets, find_relative_side,
    count_regions, count_regions, find_present_option, find_missing_option, find_relative_side, find_nearest,
    copy_words, copy_words,
    *warmup_clips.CLIP_TASKS, *warmup_pages.PAGE_TASKS, *warmup_photos.PHOTO_TASKS, *warmup_texts.TEXT_TASKS,
)  # fmt: skip
"""Some come more often than one in all: those that spell what was read, since most answers are quoted and other words
are not, and those that hold two numbers against each other."""


TASKS_WITH_OWN_GOALS = (*warmup_photos.PHOTO_TASKS, *warmup_texts.TEXT_TASKS)
"""Their goals are the corpus's."""


def make_warmup_example(
    rng: Generator, tokens: PolicyTokenizer, style: PromptStyle, image_config: ImageProcessorConfig
) -> Example:
    """One conversation."""
    make = WARMUP_TASKS[int(rng.integers(len(WARMUP_TASKS)))]
    question, turns, thought, answer = make(rng)
    if make not in TASKS_WITH_OWN_GOALS and rng.random() < GOAL_SHARE:
        goal = SLOT.sub(lambda match: random_word(rng), str(rng.choice(list(GOALS.values()))))
        goal = goal if rng.random() < 0.7 else random_word(rng)
        question = f"{question} {goal.capitalize()}?"
        turns = [(prefix_goal(goal, words), call, result_text) for words, call, result_text in turns]
        thought = prefix_goal(goal, thought)
    pieces = chat_format.render_question(style.system, question)
    for step, (words, call, result_text) in enumerate(turns, start=1):
        result = ToolResult(tool=call.tool, status="ok", text=result_text)
        pieces += chat_format.render_call(words, call, step=step)
        pieces += chat_format.render_result(result, step=step)
    quote = find_quote(answer, last_ocr_lines(turns)) if tokens.has_quote_tokens else None
    pieces += chat_format.render_answer(thought, answer, style, step=len(turns) + 1, quote=quote)
    sequence = TokenSequence()
    sequence.append_context(pieces, tokens, image_config)
    ids = np.array(sequence.ids, dtype=np.int32)
    kinds = np.array([KINDS.index(kind) for kind in sequence.kinds], dtype=np.uint8)
    step_of = np.array(sequence.steps, dtype=np.int16)
    return Example(
        id="drill", family="drill", difficulty=1, accepted=True, ids=ids, kinds=kinds, step_of=step_of,
        output_of=output_indices(ids, kinds, step_of, tokens), image_spans=(), steps=empty_steps(),
    )  # fmt: skip


def last_ocr_lines(turns: Turns) -> list[str]:
    """The lines of the last OCR call, as its result prints them."""
    ocr_results = [result_text for _, call, result_text in turns if call.tool == "OCR"]
    return QUOTED_LINE.findall(ocr_results[-1]) if ocr_results else []


def make_warmup_batch(
    rng: Generator, tokens: PolicyTokenizer, style: PromptStyle, image_config: ImageProcessorConfig, batch_tokens: int
) -> list[Example]:
    """As many conversations as fit into a batch."""
    batch: list[Example] = []
    longest = 0
    while True:
        example = make_warmup_example(rng, tokens, style, image_config)
        longest = max(longest, len(example))
        if batch and longest * (len(batch) + 1) > batch_tokens:
            return batch
        batch.append(example)
