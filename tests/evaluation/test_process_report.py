"""How answers were reached: crops that steps looked at, fixed statistics, RaCPR of chains worked out by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from pixelis.core.geometry import Box, TextSpan
from pixelis.evaluation.harness import ScoredItem, from_row, to_row
from pixelis.evaluation.process_report import (
    ProcessMeasures,
    crop_footprints,
    measure_process,
    process_scores,
    task_statistics,
)
from pixelis.media import MediaSet, open_media
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.trace.plan import CallPlan, run_plan
from pixelis.world import generate


def chain(valid, cosines, task="search"):
    return SimpleNamespace(task=task, process=ProcessMeasures(tuple(valid), sum(valid), tuple(cosines)))


@pytest.fixture
def picture(tmp_path):
    pixels = np.zeros((100, 200, 3), dtype=np.uint8)
    pixels[20:40, 100:150] = (255, 0, 0)
    Image.fromarray(pixels).save(tmp_path / "p.png")
    return MediaSet((open_media(tmp_path / "p.png"),))


def test_a_step_is_seen_by_the_crop_around_its_footprints(picture):
    red = Box(media="Image_0", x0=0.5, y0=0.2, x1=0.75, y1=0.4)
    crop = crop_footprints([red], picture)
    assert crop.shape == (20, 50, 3)
    assert (crop == (255, 0, 0)).all()
    both = crop_footprints([red, Box(media="Image_0", x0=0.0, y0=0.0, x1=0.1, y1=0.1)], picture)
    assert both.shape == (40, 150, 3)
    assert crop_footprints([], picture).shape == (100, 200, 3)


def test_a_crop_is_never_too_small_to_see(picture):
    speck = TextSpan(media="Image_0", text="x", quad=((1, 1), (1, 1), (1, 1), (1, 1)))
    assert min(crop_footprints([speck], picture).shape[:2]) >= 8


def test_statistics_are_taken_once_and_by_task():
    rows = [chain([1, 1, 1], [None, 0.2, 0.6]), chain([1, 1], [None, 0.5], "motion")]
    found = task_statistics(rows)
    # 0.2 and 0.6: mean 0.4, spread 0.2
    assert (found["search"].mean, found["search"].std) == pytest.approx((0.4, 0.2))
    assert found["motion"].samples == 1


def test_racpr_of_a_chain_by_hand():
    statistics = task_statistics([chain([1, 1, 1], [None, 0.2, 0.6])])
    good = chain([1, 1, 1, 1], [None, 0.6, 0.6, 0.6])  # z = 1 three times: three gates, mean of 1 - 0.3
    broken = chain([1, 0, 1, 1], [None, 0.6, 0.6, 0.6])  # one gate alone is no chain
    scores = process_scores([good, broken], statistics)
    np.testing.assert_allclose(scores.racpr, [0.7, 0.0])
    np.testing.assert_allclose(scores.rapr, [1.0, 0.75])
    assert scores.summary.qualified == 50.0


def test_a_task_without_statistics_opens_no_gate():
    assert process_scores([chain([1] * 4, [None, 0.9, 0.9, 0.9])], {}).racpr[0] == 0.0


def test_rows_come_back_from_their_file():
    row = ScoredItem(
        "search", "id", "t", 1, "a", "a", 1.0, 2, 2, "answered", 10, ProcessMeasures((True, False), 1, (None, 0.5))
    )
    assert from_row(to_row(row)) == row


def test_a_real_chain_is_held_against_its_item():
    """One step that finds the thing and one that points at nothing, embedded by their brightness."""

    class Brightness:
        def embed(self, images):
            means = np.array([[image.mean(), 1.0] for image in images], dtype=np.float32)
            return means / np.linalg.norm(means, axis=1, keepdims=True)

    made = generate("search", seed=3, difficulty=1)
    masks = [r.footprint for r in made.item.references if r.footprint.kind == "mask"]
    thing = next(mask for mask in masks if mask.label != "ground")
    wrong = {"box": [0.9, 0.1, 0.2, 0.3]}
    steps = ({"tool": "SEG", "args": {"target": thing.label}}, {"tool": "ZOOM", "args": wrong})
    plan = CallPlan.model_validate({"question": made.item.question, "steps": steps})
    with Toolbox(ToolboxConfig(seg="classical", isolate=False, cache=False)) as toolbox:
        trace = run_plan(plan, MediaSet(made.media), toolbox).trace
    found = measure_process(made, SimpleNamespace(trace=trace), Brightness())
    assert found.valid[1] is False  # its corners are crossed
    assert found.cosines[0] is None
    assert 0.0 < found.cosines[1] <= 1.0
