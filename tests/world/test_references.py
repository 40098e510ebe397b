"""References verify each other: the evaluators and the real tools find what the renderer says is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pixelis.core.geometry import Mask, Span, TextSpan, Track
from pixelis.media import MediaSet
from pixelis.metrics.text import normalised_anls
from pixelis.metrics.tracking import score_tracks
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.tools.vision.colours import colour_name
from pixelis.world import RenderedItem, generate
from pixelis.world.figure_outlines import ICON_NAMES, NAMED_FIGURES
from pixelis.world.painting import RasterCanvas, figure_sprite, make_mask
from pixelis.world.palette import DARKEST, LIGHTEST, PAINTS, apply_light


@pytest.fixture(scope="module")
def toolbox() -> Iterator[Toolbox]:
    with Toolbox(ToolboxConfig(seg="classical", isolate=False, cache=False)) as box:
        yield box


def run(toolbox: Toolbox, made: RenderedItem, tool: str, **args: Any) -> ToolResult:
    return toolbox.run(ToolCall(tool=tool, args=args), MediaSet(made.media)).result


def test_tracks_scored_against_themselves_have_hota_one() -> None:
    for seed in range(4):
        made = generate("motion", seed=seed, template_id="motion.mover")
        tracks = [r.footprint for r in made.item.references if isinstance(r.footprint, Track)]
        scores = score_tracks(tracks, tracks)
        assert scores.hota == pytest.approx(1.0)
        assert scores.id_switches == 0


def test_masks_are_the_pixels_that_were_painted() -> None:
    canvas = RasterCanvas(np.zeros((80, 100, 3), dtype=np.uint8))
    below = canvas.paste(figure_sprite("square", (200, 0, 0), 20), 10, 20)
    above = canvas.paste(figure_sprite("ring", (0, 200, 0), 18), 30, 25)
    for owner in (below, above):
        mask = canvas.visible_mask(owner, (0, 0, 100, 80), label="x")
        assert mask is not None
        assert (mask.array == (canvas.owner == owner)).all()
        assert Mask.model_validate_json(mask.model_dump_json()) == mask


def test_a_mask_over_the_whole_height_joins_its_columns() -> None:
    from pixelis.core.geometry import Size

    full = make_mask(np.ones((6, 3), dtype=bool), 2, 0, Size(8, 6))
    assert full.array.sum() == 18
    assert Mask.model_validate_json(full.model_dump_json()).area == 18 / 48


def test_over_thirty_figures_and_icons_leave_ink() -> None:
    assert len({*NAMED_FIGURES, *ICON_NAMES}) >= 30
    for name in (*NAMED_FIGURES, *ICON_NAMES):
        assert (figure_sprite(name, (1, 2, 3), 20).alpha > 127).sum() > 150, name


def test_every_paint_keeps_its_name_in_light_and_shade() -> None:
    for colour, paints in PAINTS.items():
        for rgb in paints:
            assert {colour_name(apply_light(rgb, light)) for light in (DARKEST, 256, LIGHTEST)} == {colour}


def test_seg_finds_unoccluded_things_with_an_iou_over_nine_tenths(toolbox: Toolbox) -> None:
    ious = []
    for seed in range(6):
        made = generate("choice", seed=seed, difficulty=1 + seed % 2, template_id="choice.extreme")
        for name in made.item.evidence:
            true = made.item.reference(name).footprint
            assert isinstance(true, Mask)
            found = run(toolbox, made, "SEG", target=true.label)
            assert found.ok, f"{made.item.id}: {true.label}"
            ious.append(max(overlap(f.array, true.array) for f in found.footprints if isinstance(f, Mask)))
    assert len(ious) == 24
    assert np.mean(ious) > 0.95
    assert np.mean(np.array(ious) >= 0.9) >= 0.95


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    return float((a & b).sum() / (a | b).sum())


def test_ocr_reads_what_was_written(toolbox: Toolbox) -> None:
    scores = []
    for seed, template in enumerate(("document.cell", "document.column_value", "document.share", "document.field")):
        made = generate("document", seed=seed, difficulty=1 + seed % 2, template_id=template)
        read = [f.text for f in run(toolbox, made, "OCR").footprints if isinstance(f, TextSpan)]
        for reference in made.item.references:
            if isinstance(reference.footprint, TextSpan):
                scores.append(normalised_anls(reference.footprint.text, read))
    assert len(scores) > 30
    assert np.mean(scores) >= 0.95


def test_trk_follows_what_moves(toolbox: Toolbox) -> None:
    for seed in range(2):
        made = generate("motion", seed=seed, difficulty=2, template_id="motion.direction")
        true = made.item.reference(made.item.evidence[0]).footprint
        assert isinstance(true, Track)
        result = run(toolbox, made, "TRK", box=list(true.boxes[0]))
        followed = [f for f in result.footprints if isinstance(f, Track)]
        assert score_tracks([true], followed).hota > 0.6
        assert result.output["tracks"][0]["direction"].replace("-", " ") == made.item.answer


def test_temp_finds_when_a_thing_appears(toolbox: Toolbox) -> None:
    for seed in range(3):
        made = generate("motion", seed=seed, difficulty=1 + seed % 2, template_id="motion.order")
        for name in made.item.evidence:
            true = made.item.reference(name).footprint
            assert isinstance(true, Span)
            found = run(toolbox, made, "TEMP", query=f"the {true.label}", top_k=1).footprints[0]
            assert isinstance(found, Span)
            assert abs(found.start_s - true.start_s) <= 0.5


def test_prop_names_the_pattern_and_the_way_a_bar_lies(toolbox: Toolbox) -> None:
    for template, attribute in (("search.texture", "texture"), ("search.orientation", "orientation")):
        for seed in range(3):
            made = generate("search", seed=seed, difficulty=1, template_id=template)
            mask = made.item.reference(made.item.evidence[0]).footprint
            assert isinstance(mask, Mask)
            region = {"width": mask.width, "height": mask.height, "counts": mask.counts}
            result = run(toolbox, made, "PROP", mask=region, attributes=[attribute])
            assert result.output["properties"][attribute]["value"] == made.item.answer
