"""Plans, references, and media found again."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pil

from pixelis.core.errors import TraceError
from pixelis.core.geometry import Box, Mask, Span, TextSpan, Track
from pixelis.media import MediaSet, open_media
from pixelis.tools.results import ToolResult
from pixelis.trace.media_records import record_media, reopen_media, resolve_media
from pixelis.trace.plan import CallPlan, read_plan, run_plan
from pixelis.trace.plan_references import DeadReferenceError, has_references, resolve


def test_a_chain_of_references_is_recorded_with_concrete_arguments(recording, runner):
    seg, zoom, ocr = recording.trace.steps
    assert seg.call.args == {"target": "white sign"}
    assert zoom.call.args == {"box": [0.25, 0.25, 0.75, 0.5]}
    assert ocr.call.args == {"media": "View_0"}
    assert [s.call.tool for s in recording.trace.steps] == ["SEG", "ZOOM", "OCR"]
    assert runner.calls == [s.call for s in recording.trace.steps]


def test_a_plan_never_pretends_that_somebody_chose_the_calls(recording):
    assert recording.trace.origin == "plan"


def test_a_failing_step_stops_nothing_but_what_refers_to_it(media, runner):
    steps = [
        {"tool": "SEG", "args": {"target": "nothing"}},
        {"tool": "ZOOM", "args": {"box": "$1.box"}},
        {"tool": "OCR", "args": {}},
    ]
    trace, _ = run_plan(CallPlan.model_validate({"steps": steps}), media, runner)
    assert [s.result.status for s in trace.steps] == ["failed", "invalid", "ok"]
    assert trace.steps[1].result.error == "$1.box: step 1 (SEG) gave no result (failed)"
    assert [c.tool for c in runner.calls] == ["SEG", "OCR"]


RESULT = ToolResult(
    tool="X",
    status="ok",
    output={"attributes": {"colour": "red"}, "counts": [4, 5]},
    footprints=(
        Mask.from_array(np.array([[True, False], [False, False]]), label="a"),
        Box(x0=0.1, y0=0.2, x1=0.3, y1=0.4, label="b", frame=3),
        Track(track_id=7, frames=(2, 4), boxes=((0.0, 0.0, 0.5, 0.5), (0.1, 0.1, 0.6, 0.6))),
        Span(start_s=1.5, end_s=2.5),
        TextSpan(text="EXIT", quad=((0.0, 0.0), (1.0, 0.0), (1.0, 0.1), (0.0, 0.1))),
    ),
)


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ("$1.box", [0.0, 0.0, 0.5, 0.5]),
        ("$1.box[1]", [0.1, 0.2, 0.3, 0.4]),
        ("$1.box[-1]", [0.0, 0.0, 1.0, 0.1]),
        ("$1.point[1]", [0.2, 0.3]),
        ("$1.frame[1]", 3),
        ("$1.span.start_s", 1.5),
        ("$1.text", "EXIT"),
        ("$1.track.frames[-1]", 4),
        ("$1.track.boxes[1]", [0.1, 0.1, 0.6, 0.6]),
        ("$1.footprints[1].label", "b"),
        ("$1.footprints[2].track_id", 7),
        ("$1.output.attributes.colour", "red"),
        ("$1.output.counts[1]", 5),
        ("$5 bill", "$5 bill"),
        ("$5.00 and more", "$5.00 and more"),
        ("$1.box ", "$1.box "),
        ("cost: $1.box", "cost: $1.box"),
    ],
)
def test_a_reference_leads_to_its_value(media, reference, value):
    assert resolve({"x": {"deep": [reference]}}, [RESULT], media) == {"x": {"deep": [value]}}


def test_a_mask_is_handed_over_as_tools_take_it(media):
    mask = resolve({"mask": "$1.mask"}, [RESULT], media)["mask"]
    assert set(mask) == {"width", "height", "counts"}


@pytest.mark.parametrize(
    "reference",
    ["$2.box", "$0.box", "$1.view", "$1.box[9]", "$1.nothing", "$1.output.size", "$1.output.counts[9]", "$1.text.x",
     "$1.footprints[0].__class__", "$1.model_dump"],
)  # fmt: skip
def test_a_reference_that_leads_nowhere_says_where_it_stopped(media, reference):
    with pytest.raises(DeadReferenceError) as caught:
        resolve({"x": reference}, [RESULT], media)
    assert str(caught.value).startswith(reference)
    assert has_references({"x": [reference]})


def test_a_box_of_one_medium_is_not_handed_to_a_call_on_another(photograph):
    two = MediaSet((open_media(photograph), open_media(photograph)))
    assert resolve({"box": "$1.box", "media": "image_0"}, [RESULT], two)["media"] == "image_0"
    with pytest.raises(DeadReferenceError, match=r"\$1.box lies on Image_0, and this call looks at Image_1"):
        resolve({"box": "$1.box", "media": "Image_1"}, [RESULT], two)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"steps": []}', b'{"steps": [{"args": {}}]}', b'{"steps": [{"tool": "OCR", "arg": {}}]}',
     b'{"steps": [{"tool": "OCR", "args": {"box": [NaN]}}]}', b"\xff", b"[" * 99_999],
)  # fmt: skip
def test_a_file_that_is_no_plan_gets_one_line(tmp_path, content):
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match="is not a plan: ") as caught:
        read_plan(path)
    assert "\n" not in str(caught.value)


def test_a_plan_is_read_from_its_file(tmp_path, chain):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(chain.model_dump()))
    assert read_plan(path) == chain
    with pytest.raises(TraceError, match="cannot be read"):
        read_plan(tmp_path / "none.json")


def test_media_are_found_by_the_hint_beside_the_trace_even_when_both_moved(recording, photograph, tmp_path):
    (record,) = recording.trace.media
    assert record.path == "sign.png"
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    shutil.move(photograph, moved / "sign.png")
    assert resolve_media(record, moved / "trace.jsonl").sha256 == record.sha256


def test_media_given_by_hand_are_matched_by_their_hash(recording, photograph, tmp_path):
    other = tmp_path / "other.png"
    Pil.new("RGB", (8, 8)).save(other)
    renamed = photograph.rename(tmp_path / "renamed.png")
    (record,) = recording.trace.media
    assert resolve_media(record, tmp_path / "trace.jsonl", [other, renamed]).path == renamed
    with pytest.raises(TraceError, match=r"Image_0 .* is missing.*other content.*--media"):
        resolve_media(record, tmp_path / "trace.jsonl", [other])


def test_a_medium_that_changed_is_not_the_medium(recording, photograph, tmp_path):
    Pil.new("RGB", (120, 80)).save(photograph)
    with pytest.raises(TraceError, match="other content"):
        reopen_media(recording.trace, tmp_path / "trace.jsonl")


def test_a_folder_of_frames_is_opened_again_at_its_rate(tmp_path):
    folder = tmp_path / "frames"
    folder.mkdir()
    for i in range(7):
        Pil.new("RGB", (8, 8), (i, 0, 0)).save(folder / f"{i}.png")
    clip = open_media(folder, fps=12.5)
    (record,) = record_media(MediaSet((clip,)), tmp_path / "t.jsonl")
    assert (record.name, record.fps, record.path) == ("Video_0", 12.5, "frames")
    assert resolve_media(record, tmp_path / "t.jsonl").sha256 == clip.sha256


def test_a_hint_is_absolute_where_only_the_root_is_shared(photograph):
    (record,) = record_media(MediaSet((open_media(photograph),)), Path("/nowhere/else/t.jsonl"))
    assert record.path == str(photograph.resolve())
