"""Warm-up tasks are real conversations: the grammar reads their calls, and what they use occurred before."""

import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pixelis.core.geometry import TextSpan
from pixelis.data.teachers.oracle.rationales import write_rationale
from pixelis.nano.nano_model import NANO_STYLE
from pixelis.nano.warmup_tasks import warmup_clips, warmup_pages, warmup_photos, warmup_texts
from pixelis.nano.warmup_tasks.warmup_tasks import (
    WARMUP_TASKS,
    count_regions,
    find_missing_option,
    find_nearest,
    find_relative_side,
    make_example,
    make_warmup_batch,
    rank_targets,
)
from pixelis.policy.images import ImageProcessorConfig
from pixelis.rollout.episode import parse_turn_tokens
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.tools.trk import direction
from pixelis.training.sft.build_sft import build_sft_model
from pixelis.training.sft.train import train_sft
from pixelis.world import Reference


@pytest.mark.parametrize("make", WARMUP_TASKS)
def test_whatever_a_call_or_an_answer_says_was_given_before(make):
    rng = np.random.default_rng(1)
    for _ in range(50):
        question, turns, thought, answer = make(rng)
        context = question
        for _, call, result in turns:
            for edge in call.args.get("box", ()):
                assert f"{edge:.2f}" in context or edge in (0.0, 1.0)
            target = call.args.get("target")
            assert (
                target is None
                or target in question
                or (make is warmup_photos.check_presence and f"{target}s" in question)
            )
            context += "\n" + result
        if make in (
            warmup_pages.solve_sums,
            warmup_pages.add_digits,
            warmup_pages.find_and_solve_sum,
            warmup_pages.add_two_values,
        ):
            continue  # a result is new, and the thought works it out
        if make in (count_regions, warmup_photos.count_things) and answer in "01":
            continue  # one region is printed without a number, and none has none
        if answer in ("yes", "no", "there is none"):
            continue  # how it follows is held against the plain teacher's words below
        assert all(part in context for part in answer.replace(",", " ").split())
        if make is not warmup_texts.read_all_text:  # a long text is not result twice
            assert all(part in thought for part in answer.replace(",", " ").split())


def test_the_side_that_is_asked_for_is_the_one_that_is_answered():
    rng = np.random.default_rng(2)
    for _ in range(50):
        question, turns, thought, answer = rank_targets(rng)
        boxes = {call.args["target"]: boxes_of(result)[0] for _, call, result in turns}
        areas = {call.args["target"]: float(re.search(r"area (\d\.\d\d)", result)[1]) for _, call, result in turns}
        side = re.search(r"(left|top|right|bottom|small|larg)(?:most|est)", question)[1]
        if side in ("small", "larg"):
            values = areas
        else:
            values = {name: where[side in ("top", "bottom")] for name, where in boxes.items()}
        turned = -1 if side in ("right", "bottom", "larg") else 1
        values = {name: turned * number for name, number in values.items()}
        ordered = sorted(boxes, key=values.__getitem__)
        assert answer == (", ".join(ordered) if question.startswith("Sort") else ordered[0])
        result = rf"{ordered[0]} [\d.]+" if side in ("small", "larg") else rf"\([\d.]+, {ordered[0]}\)"
        assert re.search(rf"(is|in order) {result}", thought)


def boxes_of(result: str) -> list[list[float]]:
    return [[float(v) for v in box.split(", ")] for box in re.findall(r"\[([\d., ]+)\]", result)]


def test_their_tokens_are_turns_that_a_rollout_can_read(tokens):
    rng = np.random.default_rng(3)
    schemas = {
        schema["function"]["name"]: schema["function"]["parameters"]["properties"]
        for schema in Toolbox(ToolboxConfig(isolate=False, cache=False)).schemas()
    }
    for _ in range(20):
        example = make_example(rng, tokens, NANO_STYLE, ImageProcessorConfig(patch=8))
        for step in range(1, int(example.step_of.max()) + 1):
            own = (example.step_of == step) & example.is_sampled
            result = parse_turn_tokens(example.ids[own].tolist(), tokens)
            assert result.answer or set(result.call.args) <= set(schemas[result.call.tool])


def test_a_batch_is_as_large_as_it_may_be(tokens):
    rng = np.random.default_rng(4)
    batches = [make_warmup_batch(rng, tokens, NANO_STYLE, ImageProcessorConfig(patch=8), 3000) for _ in range(8)]
    sizes = [len(batch) * max(len(example) for example in batch) for batch in batches]
    assert max(sizes) <= 3000
    assert np.mean(sizes) > 3000 / 2  # one that is much longer than the rest waits for the next batch


def test_a_run_that_drills_logs_it_and_goes_on_to_the_corpus(settings, tmp_path):
    train_sft(settings(warmup_task_steps=4, epochs=1), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    drills = [row["drill_loss"] for row in rows if "drill_loss" in row]
    assert len(drills) == 4
    assert drills[-1] < drills[0]
    assert any("dev_loss" in row for row in rows)


def test_drills_among_the_corpus_are_taught_and_a_killed_run_would_draw_the_same(settings, tmp_path):
    plain, mixed, again = (
        train_sft(settings(epochs=1, warmup_task_interval=interval), tmp_path / name).policy
        for name, interval in (("plain", 0), ("mixed", 1), ("again", 1))
    )
    weights = [load_file(f"{folder}/model.safetensors") for folder in (plain, mixed, again)]
    name = next(iter(weights[0]))
    assert not torch.equal(weights[0][name], weights[1][name])
    assert all(torch.equal(value, weights[2][key]) for key, value in weights[1].items())


def test_phase_1_goes_on_with_the_argument_heads_that_it_left(settings, tmp_path, corpus):
    left = train_sft(settings(epochs=1), tmp_path / "first").policy
    student, _ = build_sft_model(settings(init=left), corpus)
    kept = load_file(f"{left}/heads.safetensors")
    assert all(torch.equal(value, kept[f"arguments.{name}"]) for name, value in student.heads.state_dict().items())


def test_who_came_furthest_is_told_by_the_tracks():
    rng = np.random.default_rng(7)
    for _ in range(50):
        question, turns, _, answer = warmup_clips.find_fastest(rng)
        names = [call.args["target"] for _, call, _ in turns if call.tool == "SEG"]
        tracks = [boxes_of(result) for _, call, result in turns if call.tool == "TRK"]
        ways = [float(re.search(r"\w (\d\.\d\d), seen", result)[1]) for _, call, result in turns if call.tool == "TRK"]
        for way, (begin, end) in zip(ways, tracks, strict=True):  # along x mostly
            assert way == pytest.approx(abs(end[0] - begin[0]), abs=0.021)
        far = dict(zip(names, ways, strict=True))
        assert far[answer] == (max if "fastest" in question else min)(far.values())


def test_who_appears_first_is_told_by_the_moments():
    rng = np.random.default_rng(8)
    for _ in range(50):
        question, turns, _, answer = warmup_clips.find_first_moment(rng)
        starts = {call.args["query"]: float(re.match(r"1\. ([\d.]+)-", result)[1]) for _, call, result in turns}
        best = (max if "last" in question else min)(starts.values())
        assert starts[f"the {answer} appears"] == best


def test_who_is_nearest_is_told_by_the_boxes():
    rng = np.random.default_rng(9)
    for _ in range(50):
        _, turns, _, answer = find_nearest(rng)
        (_, here), *others = [(call.args["target"], boxes_of(result)[0]) for _, call, result in turns]
        away = {name: max(abs(at[0] - here[0]), abs(at[1] - here[1])) for name, at in others}
        assert away[answer] == pytest.approx(min(away.values()), abs=1e-9)


def test_in_which_clip_is_told_by_the_ways():
    rng = np.random.default_rng(10)
    answers = set()
    for _ in range(50):
        question, turns, last, answer = warmup_clips.compare_clips(rng)
        heading = re.search(r"go (\w+):", question)[1]
        ways = [re.search(r"\] (\w+) \d\.\d\d, seen", result)[1] for _, call, result in turns if call.tool == "TRK"]
        fits = tuple(way == heading for way in ways)
        assert answer == {(0, 0): "neither", (1, 0): "Video_0", (0, 1): "Video_1", (1, 1): "both"}[fits]
        assert last == f"Asked for {heading}: Video_0 {ways[0]}, Video_1 {ways[1]}: {answer}."
        answers.add(answer)
    assert len(answers) == 4


def test_the_way_that_is_printed_is_the_one_of_the_boxes():
    rng = np.random.default_rng(11)
    for make in (warmup_clips.follow_things, warmup_clips.find_fastest, warmup_clips.compare_clips) * 20:
        _, turns, _, _ = make(rng)
        for _, call, result in turns:
            if call.tool == "TRK":
                begin, end = boxes_of(result)
                assert re.search(rf"\] {direction(tuple(begin), tuple(end))} \d\.\d\d, seen", result)


def test_what_is_missing_is_what_was_not_found():
    rng = np.random.default_rng(12)
    for _ in range(30):
        _, turns, _, answer = find_missing_option(rng)
        assert [call.args["target"] for _, call, result in turns if result.startswith("SEG failed")] == [answer]


def test_on_which_side_is_told_by_the_boxes():
    rng = np.random.default_rng(13)
    for _ in range(50):
        question, turns, _, answer = find_relative_side(rng)
        at = {call.args["target"]: boxes_of(result)[0] for _, call, result in turns}
        (there,) = (name for name in at if f"where is the {name}:" in question)
        (here,) = set(at) - {there}
        across, down = (at[there][k] - at[here][k] for k in (0, 1))
        way = ("left", "right")[across > 0] if abs(across) > abs(down) else ("above", "below")[down > 0]
        assert answer == way


@pytest.mark.parametrize("make", [warmup_pages.find_and_solve_sum, warmup_pages.add_two_values])
def test_sums_are_right(make):
    rng = np.random.default_rng(14)
    for _ in range(50):
        question, ((_, _, page),), last, answer = make(rng)
        asked = re.fullmatch(r"What is (\w+) plus (\w+)\?", question)
        if asked:
            a, b = (int(re.search(rf'"{name} = (\d+)"', page)[1]) for name in asked.groups())
            sign = "+"
        else:
            a, sign, b = re.search(r'"(\d+) ?([+-]) ?(\d+)"', page).groups()
        assert int(answer) == (int(a) + int(b) if sign == "+" else int(a) - int(b))
        assert last.endswith(f"so {answer}.")


def lines_of(result: str) -> dict[str, list[float]]:
    """Texts with their boxes, as OCR printed them."""
    found = re.findall(r'"([^"]+)" at \[([\d., ]+)\]', result)
    return {text: [float(v) for v in box.split(", ")] for text, box in found}


@pytest.mark.parametrize("make", [warmup_pages.read_row, warmup_pages.read_column, warmup_pages.read_cell])
def test_a_strip_goes_through_what_it_is_about_and_gives_back_what_lies_in_it(make):
    rng = np.random.default_rng(5)
    for _ in range(50):
        _, ((_, _, page), (thought, call, strip_text)), _, answer = make(rng)
        lines, strip, (x0, y0, x1, y1) = lines_of(page), lines_of(strip_text), call.args["box"]
        assert answer in strip
        assert all(lines[text] == box for text, box in strip.items())
        for text, box in lines_of(thought).items():
            assert lines[text] == box
            across = make is warmup_pages.read_row or (
                make is warmup_pages.read_cell and text == min(lines_of(thought), key=lambda t: lines[t][0])
            )
            assert (box[1], box[3]) == (y0, y1) if across else (box[0], box[2]) == (x0, x1)
        middles = [((b[0] + b[2]) / 2, (b[1] + b[3]) / 2) for b in strip.values()]
        assert all(x0 - 0.02 <= x <= x1 + 0.02 and y0 - 0.02 <= y <= y1 + 0.02 for x, y in middles)


def test_questions_about_texts_end_in_the_words_of_the_plain_teacher(question):
    rng = np.random.default_rng(15)
    templates = {"all text": "text.all", "title": "text.title", "entry": "text.after"}
    for make in warmup_texts.TEXT_TASKS * 20:
        asked, ((first, _, result),), last, answer = make(rng)
        goal, words = re.fullmatch(r"Goal: (all text|title|entry)\. (.*)", last).groups()
        surface = re.fullmatch(rf"Goal: {goal}\. Read the (\w+)\.", first)[1]
        label = next((text.partition(": ")[0] for text in lines_of(result) if text.endswith(f": {answer}")), "")
        notes = [
            Reference(
                name=f"seen_{k}",
                footprint=TextSpan(media="Image_0", text=text, score=1.0, quad=[(0, 0), (1, 0), (1, 1), (0, 1)]),
            )
            for k, text in enumerate(lines_of(result))
        ]
        item = question(templates[goal], surface=surface, label=label)
        assert words == write_rationale(item, notes, [], answer, rng=rng, canonical_wording=True)
        assert surface in asked or surface == warmup_texts.DEFAULT_SURFACE


def test_questions_about_photographs_end_in_the_words_of_the_plain_teacher(question):
    rng = np.random.default_rng(6)
    for make in warmup_photos.PHOTO_TASKS * 20:
        _, turns, last, answer = make(rng)
        goal, words = re.fullmatch(r"Goal: (\w+)\. (.*)", last).groups()
        if goal == "place" and answer != "there is none":
            x, y = re.search(r"\((0\.\d\d), (0\.\d\d)\)", turns[-1][2]).groups()
            assert words == f"Its centre is at ({x}, {y}): {answer}."  # as in data/conclusions_pictures
            continue
        template = "photo.missing" if answer == "there is none" else f"photo.{goal}"
        target = str(turns[0][1].args["target"])
        item = question(template, thing=target, things=target)
        assert words == write_rationale(item, [], [], answer, rng=rng, canonical_wording=True)
