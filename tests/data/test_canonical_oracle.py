"""The oracle in its plain manner: nothing is left to chance, and boxes are handed on as they were printed."""

import numpy as np
import pytest

from pixelis.data.teachers.oracle.oracle import solve_item
from pixelis.data.teachers.oracle.thought_templates import PLAN_TEMPLATES, RECAP_TEMPLATES
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.world import generate

SEEDS = (11, 12)
PROBING = ("lecture.next", "lecture.change")
"""They look on every few seconds."""


@pytest.fixture(scope="module")
def toolbox():
    with Toolbox(ToolboxConfig(seg="classical", isolate=False, cache=False)) as box:
        yield box


@pytest.mark.parametrize("family", ["search", "choice", "space", "document", "lecture", "motion"])
def test_another_stream_of_chance_changes_nothing(toolbox, family):
    for seed in SEEDS:
        made = generate(family, seed=seed, difficulty=1)
        traces = [
            solve_item(
                made,
                toolbox,
                rng=np.random.default_rng(k),
                detour_rate=False,
                visual_guess_rate=0.0,
                canonical_wording=True,
            ).trace
            for k in (0, 1)
        ]
        assert traces[0].seal == traces[1].seal


def test_a_thought_has_one_wording_and_always_looks_back(toolbox):
    made = generate("search", seed=11, difficulty=1)
    trace = solve_item(made, toolbox, rng=np.random.default_rng(0), visual_guess_rate=0.0, canonical_wording=True).trace
    first = {plan[0].split("{")[0] for plan in PLAN_TEMPLATES.values()}
    assert all(any(start in step.thought for start in first) for step in trace.steps)
    later = {back[0].split("{")[0] for back in RECAP_TEMPLATES.values()}
    assert all(any(step.thought.startswith(start) for start in later) for step in trace.steps[1:])


def test_options_are_looked_for_in_their_order(toolbox):
    for seed in range(30, 60):
        made = generate("choice", seed=seed, difficulty=1)
        if made.item.template != "choice.extreme":
            continue
        for k in range(3):
            trace = solve_item(
                made, toolbox, rng=np.random.default_rng(k), detour_rate=False, canonical_wording=True
            ).trace
            asked = [step.call.args["target"] for step in trace.steps if step.call.tool == "SEG"]
            assert [phrase for phrase in asked if phrase in made.item.options] == list(made.item.options)
        return
    pytest.fail("no item of this template among the seeds")


def test_a_region_is_enlarged_by_the_box_that_seg_printed(toolbox):
    for seed in range(60):
        made = generate("search", seed=seed, difficulty=2)
        trace = solve_item(
            made, toolbox, rng=np.random.default_rng(seed), visual_guess_rate=0.0, canonical_wording=True
        ).trace
        for before, step in zip(trace.steps, trace.steps[1:], strict=False):
            if before.call.tool == "SEG" and before.result.ok and "scale" in step.call.args:
                assert "[" + ", ".join(f"{v:.2f}" for v in step.call.args["box"]) + "]" in before.result.text
                return
    pytest.fail("no view with room around it among the seeds")


@pytest.mark.parametrize("family", ["lecture", "motion"])
def test_a_moment_is_one_that_was_printed(toolbox, family):
    """A time in a call stands in the question's media line or in a result before it, to two decimals."""
    copied = 0
    for seed in range(6):
        made = generate(family, seed=seed, difficulty=1)
        trace = solve_item(
            made,
            toolbox,
            rng=np.random.default_rng(seed),
            detour_rate=False,
            visual_guess_rate=0.0,
            canonical_wording=True,
        ).trace
        known = ""
        for step in trace.steps:
            for key in ("time_s", "start_s"):
                if step.call.args.get(key) and "TEMP" in known and made.item.template not in PROBING:
                    at = step.call.args[key]
                    assert f"{at:.2f}" in known or f"{at + 0.05:.2f}" in known  # a clip is read just before its end
                    copied += 1
            known += f"{step.call.tool} {step.result.text}\n"
    assert copied >= 3


def made_of(family, template):
    """The first items of a template."""
    found = [generate(family, seed=seed, difficulty=1) for seed in range(80)]
    return [made for made in found if made.item.template == template]


def test_a_choice_is_answered_by_its_words(toolbox):
    made = made_of("choice", "choice.panel")[0]
    solved = solve_item(made, toolbox, rng=np.random.default_rng(0), detour_rate=False, canonical_wording=True)
    assert solved.answer in made.item.options
    assert made.item.score(solved.answer) == 1.0
    assert "option" not in solved.trace.answer_thought
    assert solved.answer in solved.trace.answer_thought


@pytest.mark.parametrize(
    ("template", "across"), [("document.share", True), ("document.column_value", False), ("document.cell", None)]
)
def test_a_page_is_read_once_more_only_where_the_answer_stands(toolbox, template, across):
    right = 0
    for made in made_of("document", template)[:2]:
        trace = solve_item(
            made,
            toolbox,
            rng=np.random.default_rng(0),
            detour_rate=False,
            visual_guess_rate=0.0,
            canonical_wording=True,
        ).trace
        x0, y0, x1, y1 = trace.steps[-1].call.args["box"]
        assert trace.steps[-1].call.tool == "OCR"
        assert across is None or ((x0, x1) if across else (y0, y1)) == (0.0, 1.0)
        right += made.item.score(trace.answer or "") == 1.0 and (trace.answer or "") in trace.steps[-1].result.text
    assert right >= 1


def test_a_goal_names_what_on_the_page_it_is_about(toolbox):
    made = made_of("document", "document.column_value")[0]
    trace = solve_item(
        made, toolbox, rng=np.random.default_rng(0), detour_rate=False, visual_guess_rate=0.0, canonical_wording=True
    ).trace
    assert all(f"Goal: value of {made.item.parameters['label']}." in step.thought for step in trace.steps)
