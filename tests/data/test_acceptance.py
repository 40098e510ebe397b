"""Acceptance of traces, with scores worked out by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from pixelis.core.geometry import Mask
from pixelis.data.corpus.acceptance_checks import Stratum, judge_trace, sampling_weights, strata_report, trace_stratum
from pixelis.items import Item, MediumFacts, Reference
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.trace.schema import MediaRecord, StepDraft, Trace, seal_trace
from pixelis.verification.rights import rights_reasons

SHA = "0" * 64


def square(left: int, right: int, label: str = "red square") -> Mask:
    grid = np.zeros((20, 20), dtype=bool)
    grid[5:15, left:right] = True
    return Mask.from_array(grid, label=label)


def item(**changes: Any) -> Item:
    reference = Reference(name="thing_0", footprint=square(0, 10), properties={"colour": "red"})
    fields: dict[str, Any] = {
        "id": "test/1/0", "family": "space", "template": "test", "difficulty": 1, "seed": 0, "stem": "How many?",
        "answer": "1", "answers": ("1",), "scoring": "exact", "references": (reference,), "evidence": ("thing_0",),
        "media": (MediumFacts(name="Image_0", sha256=SHA, width=20, height=20),),
    }  # fmt: skip
    return Item(**{**fields, **changes})


def seg(mask: Mask, **args: Any) -> StepDraft:
    short = {"label": mask.label, "box": list(mask.box_unit or ()), "area": mask.area, "score": 1.0}
    result = ToolResult(
        tool="SEG", status="ok", text="1", footprints=(mask,), confidence=1.0, output={"regions": [short]}
    )
    return StepDraft(call=ToolCall(tool="SEG", args={"target": "red square", **args}), result=result)


REFUSED = StepDraft(
    call=ToolCall(tool="SEG", args={"phrase": "red"}), result=ToolResult.failed("SEG", "target: missing", "invalid")
)


def trace(*steps: StepDraft, answer: str | None = "1") -> Trace:
    media = MediaRecord(name="Image_0", kind="image", sha256=SHA, width=20, height=20, frame_count=1, duration_s=0.0)
    return seal_trace(
        query="How many?", media=[media], origin="teacher:test", created_at=datetime(2026, 1, 1, tzinfo=UTC),
        steps=steps, answer=answer, pixelis="test",
    )  # fmt: skip


def test_a_right_answer_from_an_exact_region_scores_one():
    found = judge_trace(item(), trace(seg(square(0, 10))), cited=(0,))
    assert found.accepted
    assert (found.logic, found.struct, found.visual, found.score) == (1.0, 1.0, 1.0, pytest.approx(1.0))
    assert found.decisive == (0,)


def test_the_thresholds_are_those_of_the_tools_that_ran():
    sealed = trace(seg(square(0, 10)))  # its confidence is 1.0
    assert judge_trace(item(), sealed, cited=(0,), thresholds={"SEG": 1.0}).decisive == (0,)
    assert judge_trace(item(), sealed, cited=(0,), thresholds={"SEG": 1.1}).decisive == ()


def test_a_wrong_answer_is_refused_however_well_it_was_seen():
    found = judge_trace(item(), trace(seg(square(0, 10)), answer="2"), cited=(0,))
    assert not found.accepted
    assert found.score == pytest.approx(0.6)  # 0.4·0 + 0.3 + 0.3
    assert "the answer is wrong" in found.reasons


def test_a_region_that_the_answer_rests_on_must_pass_its_check():
    found = judge_trace(item(), trace(seg(square(8, 20))), cited=(0,))  # IoU 2/20
    assert not found.accepted
    assert found.visual == pytest.approx(0.1)
    assert found.score == pytest.approx(0.4 + 0.3 + 0.03)
    assert found.reasons == ("step 1 (SEG) fails its check: IoU 0.10",)


def test_a_detour_that_failed_does_not_refuse_a_trace():
    found = judge_trace(item(), trace(seg(square(16, 20), limit=1), seg(square(0, 10))), cited=(1,))
    assert found.accepted
    assert found.steps[0].passed is False
    assert not found.steps[0].carries


def test_an_invalid_call_costs_its_share_of_structure():
    found = judge_trace(item(), trace(REFUSED, seg(square(0, 10))), cited=(1,))
    assert found.accepted
    assert found.struct == pytest.approx(0.5)


def test_a_call_made_twice_costs_as_much_as_one_that_is_not_there():
    found = judge_trace(item(), trace(seg(square(0, 10)), seg(square(0, 10))), cited=(0,))
    assert found.struct == pytest.approx(0.5)


def test_a_right_answer_that_nothing_leads_to_is_worth_half():
    needed = {"SEG": {"required": True, "answer": "1", "perturbed_answer": "0", "test": "eroded"}}
    guessed = judge_trace(item(necessity=needed), trace(seg(square(0, 10))), cited=())
    assert guessed.logic == pytest.approx(0.5)
    assert not guessed.accepted
    assert guessed.reasons == ("nothing that was observed leads to the answer",)
    assert judge_trace(item(), trace(), cited=()).logic == 1.0  # nothing needs a tool here


def test_a_trace_without_an_answer_is_refused():
    assert not judge_trace(item(), trace(seg(square(0, 10)), answer=None), cited=()).accepted


def test_licence_and_watermark_of_a_dataset_are_honoured():
    def judged(**facts: str) -> tuple[str, ...]:
        return judge_trace(item(parameters=facts), trace(seg(square(0, 10))), cited=(0,)).reasons

    assert judged(licence="CC BY 4.0", watermark="none") == ()
    assert judged(licence="CC BY-NC-ND 4.0") == ("licence 'cc by-nc-nd 4.0' does not allow it",)
    assert judged(watermark="visible") == ("its media carry a visible watermark",)


@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("Attribution-NonCommercial-ShareAlike License", True),
        ("Attribution-NonCommercial License", True),
        ("Attribution-NonCommercial-NoDerivs License", False),
        ("Attribution License", True),
        ("Attribution-ShareAlike License", True),
        ("Attribution-NoDerivs License", False),
        ("No known copyright restrictions", True),
        ("United States Government Work", True),
        ("http://creativecommons.org/licenses/by-nc-nd/2.0/", False),
        ("http://creativecommons.org/licenses/by-nd/2.0/", False),
        ("CC BY ND", False),
        ("Creative Commons Attribution-NoDerivatives 4.0", False),
        ("Attribution, No Derivative Works", False),
        ("© 2020 somebody. All rights reserved.", False),
        ("NoAI", False),
        ("Commercial and editorial", True),
        ("unknown", True),
    ],
)
def test_cocos_own_names_of_licences_are_known(licence: str, allowed: bool):
    assert (rights_reasons(item(parameters={"licence": licence})) == []) is allowed


def test_a_trace_belongs_to_the_tool_that_it_uses_most():
    assert trace_stratum(item(), trace(REFUSED, seg(square(0, 10)))) == Stratum("space", "SEG", "still")
    assert trace_stratum(item(), trace()).tool == "none"


def test_weights_even_out_what_is_rare():
    strata = [Stratum("a", "SEG", "still")] * 3 + [Stratum("b", "OCR", "still")]
    weights = sampling_weights(strata)
    assert list(weights) == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2.0])
    assert strata_report(strata)["task"] == {"a": 0.75, "b": 0.25}
    assert len(sampling_weights([])) == 0
