"""The evidence page as a file: whole, honest, bounded, without a request to anywhere."""

import dataclasses
import re

import numpy as np
import pytest

from pixelis.core.geometry import Span, Track
from pixelis.media import Image, ViewRecipe
from pixelis.tools.results import Artifact
from pixelis.tools.toolbox import builtin_thresholds
from pixelis.trace import MediaRecord
from pixelis.trace.codec import ArtifactProblem
from pixelis.view import make_exhibit, report
from pixelis.view.page import LEGEND, origin_sentence
from pixelis.view.panels import frames_to_show, sample_evenly, span_frames
from pixelis.view.templating import seconds
from tests.view.conftest import make_exhibit as make_chain
from tests.view.conftest import step


def test_the_page_says_who_chose_the_calls(chain):
    page = report([chain])
    assert "These calls were given by a person, as a plan. No model chose them." in page
    assert "Answer, given with the plan" in page
    assert origin_sentence("policy:nano") == "The policy nano chose these calls."
    assert origin_sentence("teacher:x") == "The teacher x chose these calls."
    assert origin_sentence("imported:deepeyes") == "Imported from deepeyes."


def test_a_chain_without_an_answer_says_so(film):
    assert "No answer: a person gave these calls, and no model was asked." in report([film])


def test_an_answer_that_is_withheld_is_no_answer_and_the_page_says_why(chain):
    page = report([dataclasses.replace(chain, withheld="the confidence is 0.12, under 0.30")])
    assert "I cannot tell: <bdi>the confidence is 0.12, under 0.30</bdi>" in page
    assert "Answer, given with the plan" not in page
    assert f'<p class="said"><bdi>{chain.trace.answer}' not in page
    assert f'<p class="said"><bdi>{chain.trace.answer}' in report([chain])


def test_the_confidence_that_was_told_and_the_votes_behind_it_are_shown(chain):
    terms = {"entropy": 0.0, "calibrated": 0.8, "fidelity": 0.5, "reliability": 1.0, "tools": ["OCR"]}
    ballots = [
        {"answer": said.casefold(), "spelt": said, "group": k, "weight": weight, **terms}
        for k, (said, weight) in enumerate((("EXIT", 0.7), ("<b>EXT</b>", 0.3)))
    ]
    vote = {
        "answer": "EXIT", "share": 0.7, "total": 1.0, "margin": 0.4, "reason": "", "majority": "exit", "exemplar": 0,
        "scores": {"exit": 0.7, "<b>ext</b>": 0.3}, "conformal_set": None, "ballots": ballots, "shown": 0,
        "flips": [{"rollout": 0, "weight": 0.7, "flips_at": 0.3, "answer": "<b>ext</b>"}],
    }  # fmt: skip
    page = report([dataclasses.replace(chain, confidence=0.42, vote=vote)])
    assert '<p class="sure">confidence <b>0.42</b>' in page
    assert "&#39;EXIT&#39; has 70 % of the vote, from 1 of 2 rollouts; it leads by a margin of 0.40." in page
    assert "falling under 0.300, alone would have made it" in page
    assert "<bdi>&lt;b&gt;EXT&lt;/b&gt;</bdi>" in page
    assert "<b>EXT</b>" not in page
    assert "1 (shown above) (exemplar)" in page
    assert "The vote" not in report([chain])
    assert '<p class="sure">confidence' not in report([chain])


def test_every_step_shows_its_call_its_result_and_where_it_comes_from(chain):
    page = report([chain])
    assert [int(n) for n in re.findall(r'<li id="t1-s(\d)"', page)] == [1, 2, 3, 4]
    for said in ("I call SEG.", "white sign", "View_0", "EXIT", "TRK needs a clip", "250 ms", "ab" * 32, "0.90"):
        assert said in page
    for sealed in chain.trace.steps:
        assert sealed.chain in page


def test_a_failed_step_is_visibly_failed_and_decisive_steps_are_marked(chain):
    page = report([chain])
    assert re.search(r'id="t1-s4" class="step failed"', page)
    assert re.findall(r'id="t1-s(\d)" class="step ok decisive"', page) == ["1", "2", "3"]


def test_the_page_refers_to_nothing_outside_of_itself(chain, film):
    page = report([chain, film])
    references = re.findall(r'(?:href|src|action|data|srcset)="([^"]*)"', page)
    assert references
    assert all(r.startswith(("#", "data:image/jpeg;base64,")) for r in references)
    assert "url(" not in page
    assert "@import" not in page
    assert not re.search(r"\sstyle=", page), "the policy allows no style attribute"
    assert "default-src &#39;none&#39;; img-src data:;" in page


def test_a_picture_is_embedded_once_however_often_it_is_shown(chain):
    assert report([chain]).count("data:image/jpeg") == 2  # the photograph and the view


def test_hostile_text_is_escaped_everywhere(hostile):
    page = report([hostile])
    assert page.count("<script>") == 1
    assert "<img" not in page
    assert "&lt;script&gt;" in page
    assert "{{ 7*7 }}" in page


def test_broken_and_missing_things_are_said(chain, tmp_path):
    (_, artifact), *_ = chain.trace.artifacts
    page = report(
        [
            dataclasses.replace(
                chain,
                media={},
                missing={"Image_0": "Image_0 is not at hand: gone.jpg cannot be opened"},
                artifact_problems=[ArtifactProblem(2, artifact, "was changed")],
                chain_problem="chain broken at step 3",
            )
        ]
    )
    for said in ("chain broken at step 3", "1 of 1 artifacts missing or changed", "artifact view.png was changed",
                 "gone.jpg cannot be opened", "the file is missing"):  # fmt: skip
        assert said in page
    assert "data:image/jpeg" not in page
    assert page.count('<g class="mark') >= 3, "the footprints are drawn on an empty ground"


def test_gathering_an_exhibit_finds_what_is_not_there(chain, tmp_path):
    gathered = make_exhibit(chain.trace, tmp_path / "t.jsonl", thresholds=builtin_thresholds())
    assert list(gathered.missing) == ["Image_0"]
    assert [p.step for p in gathered.artifact_problems] == [2]
    assert gathered.chain_problem is None
    tampered = chain.trace.model_copy(update={"query": "another"})
    assert "chain broken" in make_exhibit(tampered, thresholds=builtin_thresholds()).chain_problem


def test_a_page_of_a_large_noisy_picture_stays_under_four_megabytes(chain):
    noise = np.random.default_rng(1).integers(0, 255, (3000, 4000, 3), dtype=np.uint8)  # what JPEG packs worst
    page = report([dataclasses.replace(chain, media={"Image_0": Image.from_array(noise)})])
    assert len(page) < 4 * 2**20


def test_a_film_strip_has_at_most_eight_frames(film):
    temp, trk = film.trace.steps
    (record,) = film.trace.media
    assert frames_to_show(trk, record) == [0, 6, 10, 16, 22, 28, 32, 38]
    assert len(frames_to_show(temp, record)) == 8
    page = report([film])
    assert len(re.findall(r'class="panel strip"', page)) == 16


@pytest.mark.parametrize(
    ("args", "frame"),
    [
        ({"time_s": 4.12}, 41), ({"time_s": 10.0}, 99), ({"time_s": 0}, 0), ({"frame": 7}, 7), ({"time_s": 11.0}, None),
        ({"frame": 100}, None), ({"frame": True}, None), ({"time_s": "4"}, None), ({}, None),
    ],
)  # fmt: skip
def test_a_call_that_found_nothing_shows_the_frame_it_looked_at(film, args, frame):
    record = MediaRecord(
        name="Video_0", kind="clip", sha256="0" * 64, width=8, height=8, frame_count=100, duration_s=10.0, fps=10.0
    )
    step = film.trace.steps[0]
    blind = step.model_copy(
        update={
            "call": step.call.model_copy(update={"args": args}),
            "result": step.result.model_copy(update={"footprints": ()}),
        }
    )
    assert frames_to_show(blind, record) == ([0, 33, 66, 99] if frame is None else [frame])


def test_frames_of_a_span_lie_in_the_middle_of_equal_parts():
    record = MediaRecord(
        name="Video_0", kind="clip", sha256="0" * 64, width=8, height=8, frame_count=100, duration_s=10.0, fps=10.0
    )
    assert span_frames(Span(start_s=2.0, end_s=6.0), record, 4) == [25, 35, 45, 55]
    assert span_frames(Span(start_s=10.0, end_s=10.0), record, 4) == [99]
    assert sample_evenly(list(range(100)), 4) == [0, 33, 66, 99]


def test_no_trace_field_can_break_the_page(film):
    wild = Track(media="Video_0", track_id=10**9, frames=(0, 10**9), boxes=((0, 0, 1, 1),) * 2)
    step = film.trace.steps[1]
    result = step.result.model_copy(
        update={
            "footprints": (
                wild,
                Span(media="Video_0", start_s=1e9, end_s=1e9),
                Span(media="Nowhere", start_s=0, end_s=1),
            ),
            "artifacts": (Artifact(name="../../x", media_type="x", sha256="0" * 64, size_bytes=0),),
        }
    )
    trace = film.trace.model_copy(update={"steps": (step.model_copy(update={"result": result}),)})
    assert "frame 1000000000 does not exist" in report([dataclasses.replace(film, trace=trace)])


@pytest.mark.parametrize(("value", "said"), [(0.0021, "2 ms"), (0.25, "250 ms"), (1.0, "1.0 s"), (12.34, "12.3 s")])
def test_durations_are_said_as_people_say_them(value, said):
    assert seconds(value) == said


def test_a_record_that_promises_two_milliards_of_frames_costs_no_memory():
    endless = MediaRecord(
        name="Video_0", kind="clip", sha256="a" * 64, width=8, height=8, frame_count=2**31 - 1, duration_s=1e-300
    )
    assert span_frames(Span(start_s=1e308, end_s=1.5e308), endless, 2) == [2**31 - 2]
    assert sample_evenly(range(endless.frame_count), 4)[0] == 0
    with pytest.raises(ValueError, match="frame_count"):
        MediaRecord.model_validate(endless.model_dump() | {"frame_count": 10**12})


@pytest.mark.parametrize("change", [{"width": 100_000}, {"box": (0.5, 0.0, 0.5, 1.0)}, {"frame": -1}])
def test_a_view_that_nobody_could_have_made_is_refused(change):
    made = {"media": "Image_0", "frame": 0, "box": (0.0, 0.0, 0.5, 1.0), "width": 50, "height": 50}
    assert ViewRecipe.model_validate(made).width == 50
    with pytest.raises(ValueError, match=next(iter(change)) if "box" not in change else "shows nothing"):
        ViewRecipe.model_validate(made | change)


def test_the_time_of_a_kept_result_is_that_of_its_first_run_and_said_as_such(photograph):
    looked = step("OCR", {})
    page = report([make_chain([photograph], [looked, looked.model_copy(update={"first_seconds": 2.84})])])
    assert page.count('<span class="measure">250 ms</span>') == 1
    assert page.count('<span class="measure">kept result, first run took 2.8 s</span>') == 1
    assert "2 calls, 500 ms (1 kept result)" in page
    assert "<dt>kept result</dt>" in page
    assert "kept result" not in report([make_chain([photograph], [looked])])


def test_every_term_of_the_page_has_one_line_in_its_legend(chain, photograph):
    page = report([chain])
    terms = re.findall(r"<dt>([\w ]+)</dt><dd>[^<]+</dd>", page[page.index('class="legend"') :])
    assert terms == ["decisive", "confidence", "marks", "dashed", "failed", "hash chain", "View"]
    assert set(terms) <= set(LEGEND)
    asked = step("OCR", {"query": "asked"}, text='class="argument"')  # words of a tool are no drawing
    assert "<dt>dashed</dt>" not in report([make_chain([photograph], [asked])])
