"""Foreign traces in: the shapes that Pixel-Reasoner, DeepEyes, TACO and OpenThinkIMG write."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pixelis.data.corpus.text_lines import Problem
from pixelis.data.importers.traces.foreign_files import iter_elements, parse_element, read_entries
from pixelis.data.importers.traces.foreign_traces import ImportedTrace, is_executed, read_foreign, to_plan
from pixelis.media import MediaSet, open_media
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.trace import codec
from pixelis.trace.plan import run_plan
from pixelis.trace.schema import verify

THEN = datetime(2026, 1, 1, tzinfo=UTC)


def saved(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read(path: Path, **options: Any) -> tuple[list[ImportedTrace], list[Problem]]:
    outcomes = list(read_foreign(path, created_at=THEN, **options))
    return [o for o in outcomes if isinstance(o, ImportedTrace)], [o for o in outcomes if isinstance(o, Problem)]


def calls(one: ImportedTrace) -> list[tuple[str, dict[str, Any]]]:
    return [(step.call.tool, step.call.args) for step in one.trace.steps]


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def picture(folder: Path, name: str, width: int = 400, height: int = 200) -> Path:
    folder.mkdir(exist_ok=True)
    Image.fromarray(np.full((height, width, 3), 90, dtype=np.uint8)).save(folder / name)
    return folder


def deepeyes(bbox: Any, image: str = "sa_1.png") -> dict[str, Any]:
    """A line of DeepEyes' evaluation: the turns end at the stop word, so that the closing tag is missing."""
    asked = [
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,"}},
        {"type": "text", "text": "Question"},
    ]
    zoom = {"name": "image_zoom_in_tool", "arguments": {"bbox_2d": bbox, "label": "the cap"}}
    return {
        "image": image, "question": "What is the color of the cap?", "answer": "white", "pred_ans": "A. white",
        "pred_output": [
            {"role": "system", "content": "You may call image_zoom_in_tool"},
            {"role": "user", "content": asked},
            {"role": "assistant", "content": f"<think>\nI zoom in.\n</think>\n<tool_call>\n{json.dumps(zoom)}\n"},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,"}}]},
            {"role": "assistant", "content": "<think>\nIt is white.\n</think>\n <answer>\nA. white\n</answer>"},
        ],
        "status": "success",
    }  # fmt: skip


def cota(*steps: tuple[str, str, dict[str, Any]], image: str = "image-0") -> dict[str, Any]:
    """A record of TACO's CoTA, as its training files have it."""
    turns = [{"from": "human", "value": f"# USER REQUEST #:\n{image}: <image>\nHow many people?"}]
    for thought, name, arguments in steps:
        action = {"thought": thought, "actions": [{"name": name, "arguments": arguments}]}
        turns.append({"from": "gpt", "value": json.dumps(action)})
        if name != "Terminate":
            turns.append({"from": "human", "value": 'OBSERVATION:\n{"text": "seen"}\nThe OBSERVATION can be wrong.'})
    return {"id": "cota-1", "images": ["coco/1.png", "new/1.png"], "conversations": turns}


def test_all_public_samples_are_read(realdata: Path) -> None:
    traces, problems = read(realdata / "traces" / "foreign_samples.json")
    assert [t.trace.origin for t in traces] == ["imported:pixel-reasoner"] + ["imported:deepeyes"] * 4
    assert [p.kind for p in problems] == ["changed"]  # one of them stands there twice
    assert calls(traces[0]) == [("ZOOM", {"box": [0.1, 0.2, 0.3, 0.4]})]
    assert traces[0].trace.query.startswith("What animal is depicted on the Woolshops")
    assert traces[0].trace.steps[0].thought.startswith("The image shows a street")
    assert calls(traces[1]) == [("ZOOM", {"box_px": [587.0, 1764.0, 629.0, 1860.0]})]
    for one in traces:
        verify(one.trace)
        assert not is_executed(one.trace.steps[0])


def test_pixels_become_units_where_the_picture_is_at_hand(tmp_path: Path) -> None:
    path = saved(tmp_path / "log.jsonl", deepeyes([100, 50, 300, 100]))
    (one,), problems = read(path, media=picture(tmp_path / "images", "sa_1.png"), beside=tmp_path / "trace.jsonl")
    assert not problems
    assert calls(one) == [("ZOOM", {"box": [0.25, 0.25, 0.75, 0.5]})]
    assert one.trace.steps[0].result.status == "failed"
    assert one.trace.steps[0].thought == "I zoom in."
    assert one.trace.answer == "A. white"
    assert one.trace.media[0].path == "images/sa_1.png"
    assert (one.waiting, one.unknown) == (1, ())


def test_a_missing_picture_is_reported_and_its_pixels_stay_pixels(tmp_path: Path) -> None:
    path = saved(tmp_path / "log.jsonl", deepeyes([100, 50, 300, 100]))
    (one,), (problem,) = read(path, media=picture(tmp_path / "images", "other.png"))
    assert (problem.where, problem.kind) == (f"{path}:1", "changed")
    assert calls(one) == [("ZOOM", {"box_px": [100.0, 50.0, 300.0, 100.0]})]
    assert one.trace.steps[0].result.status == "invalid"
    assert "size of the picture is unknown" in one.trace.steps[0].result.error


def test_a_box_beyond_the_picture_is_clipped_and_said(tmp_path: Path) -> None:
    path = saved(tmp_path / "log.jsonl", deepeyes([300, 100, 800, 900]))
    (one,), (problem,) = read(path, media=picture(tmp_path / "images", "sa_1.png"))
    assert calls(one) == [("ZOOM", {"box": [0.75, 0.5, 1.0, 1.0]})]
    assert "clipped" in problem.reason


def test_pixel_reasoner_views_are_numbered_as_ours_will_be(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": [{"type": "image", "image": "a.png"}, {"type": "text", "text": "<image>\nWhat?"}]},
        {
            "role": "assistant",
            "content": "Look. " + call("crop_image_normalized", bbox_2d=[0, 0, 0.5, 0.5], target_image=1),
        },
        {"role": "user", "content": "Here is the cropped image."},
        {
            "role": "assistant",
            "content": "Closer. " + call("crop_image_normalized", bbox_2d=[0, 0, 1, 0.5], target_image=2),
        },
        {"role": "assistant", "content": "It is a sheep: \\boxed{B}"},
    ]
    (one,), _ = read(saved(tmp_path / "p.jsonl", {"message_list": messages}))
    assert calls(one) == [("ZOOM", {"box": [0, 0, 0.5, 0.5]}), ("ZOOM", {"media": "View_0", "box": [0, 0, 1, 0.5]})]
    assert one.trace.answer == "B"
    assert one.trace.query == "What?"
    assert one.trace.steps[0].result.text == "Here is the cropped image."


def test_selected_frames_become_moments_of_the_clip(tmp_path: Path) -> None:
    frames = picture(tmp_path / "clips", "x.png").joinpath("v1")
    for k in range(31):
        picture(frames, f"{k:03d}.png", 16, 12)
    messages = [
        {"role": "user", "content": [{"type": "video", "video": "data/v1"}, {"type": "text", "text": "When?"}]},
        {"role": "assistant", "content": call("select_frames", target_frames=[1, 8, 16])},
        {"role": "assistant", "content": "\\boxed{C}"},
    ]
    path = saved(tmp_path / "p.jsonl", {"message_list": messages})
    (one,), _ = read(path, media=tmp_path / "clips")
    # the 1st, 8th and 16th of sixteen frames, evenly from 0 to 30, at 25 a second
    assert calls(one) == [("TEMP", {"select_s": 0.0}), ("TEMP", {"select_s": 0.56}), ("TEMP", {"select_s": 1.2})]
    (blind,), _ = read(path)
    assert calls(blind)[0] == ("TEMP", {"frame_of_16": 1})
    assert blind.trace.steps[0].result.status == "invalid"


def test_cota_actions_are_mapped_and_those_without_a_counterpart_are_counted(tmp_path: Path) -> None:
    record = cota(
        ("Find them.", "LocalizeObjects", {"image": "image-0", "objects": ["person", "dog"]}),
        ("How deep?", "EstimateObjectDepth", {"image": "image-0", "object": "dog"}),
        ("Closer.", "ZoomIn", {"image": "image-1", "bbox": [0.1, 0.1, 0.4, 0.4], "zoom_factor": 2}),
        ("Read.", "OCR", {"image": "image-2"}),
        ("Ask.", "QueryLanguageModel", {"query": "capital of France?"}),
        ("Done.", "Terminate", {"answer": "2"}),
    )
    (one,), problems = read(saved(tmp_path / "cota.jsonl", record))
    assert not problems
    assert one.trace.origin == "imported:taco"
    assert calls(one) == [
        ("SEG", {"target": "person"}),
        ("SEG", {"target": "dog"}),
        ("ESTIMATEOBJECTDEPTH", {"image": "image-0", "object": "dog"}),
        ("ZOOM", {"media": "Image_0", "box": [0.1, 0.1, 0.4, 0.4]}),  # image-1 is image-0 with boxes drawn on it
        ("OCR", {"media": "View_0"}),
        ("QUERYLANGUAGEMODEL", {"query": "capital of France?"}),
    ]
    assert one.unknown == ("ESTIMATEOBJECTDEPTH", "QUERYLANGUAGEMODEL")
    assert one.trace.answer == "2"
    assert one.trace.query == "image-0: \nHow many people?"
    assert one.trace.steps[2].result.error == "no tool measures depth"
    assert one.trace.steps[0].result.output["imported"]["observation"].startswith('{"text": "seen"}')


def test_cota_steps_and_fenced_json_are_read_too(tmp_path: Path) -> None:
    read_it = {"name": "OCR", "arguments": {"image": "image-0"}}
    steps = {
        "user_request": "What is x in the image?",
        "steps": [
            {"thought": "Read.", "actions": [read_it], "observation": {"text": "x"}},
            {"thought": "8", "actions": [{"name": "Terminate", "arguments": {"answer": "8"}}], "observation": {}},
        ],
    }  # fmt: skip
    block = f"```json\n{json.dumps({'thought': 't', 'actions': [read_it]})}\n```"
    fenced = {"conversations": [{"from": "human", "value": "<image>Read it"}, {"from": "gpt", "value": block}]}
    traces, problems = read(saved(tmp_path / "cota.jsonl", steps, fenced))
    assert not problems
    assert [calls(t) for t in traces] == [[("OCR", {})], [("OCR", {})]]
    assert traces[0].trace.answer == "8"


def test_an_openthinkimg_log_is_read_through_both_of_its_layers(tmp_path: Path) -> None:
    actions: list[tuple[str, dict[str, str]]] = [
        ("Point", {"image": "img_1", "param": "year 1970"}),
        ("DrawVerticalLineByX", {"image": "img_1", "param": "x=21.5"}),
        ("SegmentRegionAroundPoint", {"image": "img_2", "param": 'x="21.5" y="28.5"'}),
        ("ZoomInSubfigure", {"image": "img_1", "param": "Toy"}),
        ("OCR", {"image": "img_4"}),
        ("Terminate", {"ans": "1985"}),
    ]
    said = [{"thought": "So.", "actions": [{"name": name, "arguments": args}]} for name, args in actions]
    inner = {
        "meta_data": {"idx": "c_0", "text": "Which year?"},
        "model_response": [json.dumps(s) for s in said],
        "tool_response": [{"text": 'x="21.5" y="28.5"', "error_code": 0}, None],
    }
    (one,), _ = read(
        saved(tmp_path / "log.jsonl", {"task_name": "charxiv", "results": {"idx": "c_0", "results": inner}})
    )
    assert one.trace.origin == "imported:openthinkimg"
    assert (one.trace.query, one.trace.answer) == ("Which year?", "1985")
    assert calls(one)[0] == ("SEG", {"target": "year 1970"})
    assert calls(one)[2] == ("SEG", {"media": "Image_0", "target": [0.215, 0.285]})
    assert one.unknown == ("DRAWVERTICALLINEBYX", "ZOOMINSUBFIGURE")
    assert one.trace.steps[4].result.status == "invalid"  # it reads a picture that only ZoomInSubfigure makes
    assert one.trace.steps[0].result.text == 'x="21.5" y="28.5"'


def test_the_older_openthinkimg_log_and_its_plans_in_words_are_kept(tmp_path: Path) -> None:
    thoughts, acts, value = (f'"{w}"' for w in ("thoughts\U0001f914", "actions\U0001f680", "value\U0001f449"))
    spoken = f'{thoughts} Ground.\n{acts} [{{"API_name": "grounding", "api_params": {{"param": "all lines"}}}}]\n'
    older = {
        "query": "Which line?",
        "response_list": [
            f"{spoken}{value} Wait.",
            spoken.replace("grounding", "compare"),
            f"{thoughts} So.\n{acts} []\n{value} the blue one",
        ],
    }
    plan = '<thoughts>: Zoom.\n<actions>:\nStep 1: (ZoomInSubfigure_i(img, title="5-way")->img_1, "Zoom");\n'
    planned = {"idx": "1", "results": {"model_response": [plan]}}
    (first, second), problems = read(saved(tmp_path / "log.jsonl", older, planned))
    assert not problems
    assert calls(first)[0] == ("SEG", {"target": "all lines"})
    assert first.unknown == ("COMPARE",)
    assert first.trace.answer == "the blue one"
    assert second.unknown == ("ZOOMINSUBFIGURE",)
    assert second.trace.steps[0].result.error == "a step of a plan in words, not a call"


def test_bad_entries_are_reported_with_their_line_and_the_others_stay(tmp_path: Path) -> None:
    path = saved(tmp_path / "log.jsonl", deepeyes([1, 2, 3, 4]), {"question": "?"}, [1], deepeyes([1, 2]))
    path.write_bytes(
        path.read_bytes()
        + b'{"pred_output": [{"role": "assi\n'
        + json.dumps({"index": 3, "question": "q", "all_messages": "result/3/all_messages.pkl"}).encode()
        + b'\n{"messages": [{"role": "robot", "content": "x"}]}\n'
        + b'{"messages": [{"role": "assistant", "content": "hello"}]}\n'
        + json.dumps(deepeyes([1, 2, 3, 4], image="caf.png"), ensure_ascii=False).encode().replace(b"caf", b"caf\xe9")
        + b"\n"
    )
    traces, problems = read(path)
    told = {int(p.where.rpartition(":")[2]): (p.kind, p.reason) for p in problems}
    assert [t.location.rpartition(":")[2] for t in traces] == ["1", "4", "9"]
    assert {k: v[0] for k, v in told.items()} == {
        2: "skipped", 3: "skipped", 5: "skipped", 6: "skipped", 7: "skipped", 8: "skipped", 9: "changed",
    }  # fmt: skip
    assert "pickle, which is never opened" in told[6][1]
    assert "the project cannot be detected" in told[8][1]
    assert traces[1].trace.steps[0].result.status == "invalid"  # a box of two numbers is kept, with the reason
    assert "four numbers" in traces[1].trace.steps[0].result.error


def test_a_list_of_records_is_read_member_by_member(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(
        json.dumps([deepeyes([1, 2, 3, 4]), deepeyes([5, 6, 7, 8])], indent=1).replace(
            '"status": "success"', '"status" "x"', 1
        )
    )
    traces, problems = read(path)
    assert [calls(t)[0][1] for t in traces] == [{"box_px": [5.0, 6.0, 7.0, 8.0]}]
    assert len(problems) == 1
    assert int(problems[0].where.rpartition(":")[2]) == 2


def test_imported_traces_survive_the_codec_and_say_that_nobody_ran_them(tmp_path: Path) -> None:
    (one,), _ = read(saved(tmp_path / "log.jsonl", deepeyes([1, 2, 3, 4])))
    codec.write([one.trace], tmp_path / "trace.jsonl", {})
    (back,) = codec.read(tmp_path / "trace.jsonl")
    assert back == one.trace
    result = back.steps[0].result
    assert not is_executed(back.steps[0])
    assert (result.identity, result.confidence, result.footprints) == (None, None, ())
    assert result.output["imported"]["arguments"] == {"bbox_2d": [1, 2, 3, 4], "label": "the cap"}


def test_the_calls_of_an_imported_trace_can_be_executed_as_a_plan(tmp_path: Path) -> None:
    folder = picture(tmp_path / "images", "sa_1.png")
    (one,), _ = read(saved(tmp_path / "log.jsonl", deepeyes([100, 50, 300, 100])), media=folder)
    plan = to_plan(one.trace)
    assert plan is not None
    with Toolbox(ToolboxConfig(seg="classical")) as toolbox:
        run = run_plan(plan, MediaSet((open_media(folder / "sa_1.png"),)), toolbox)
    assert [step.result.status for step in run.trace.steps] == ["ok"]
    assert is_executed(run.trace.steps[0])
    assert run.trace.answer == "A. white"


def test_members_are_found_whatever_their_strings_hold() -> None:
    content = json.dumps({"a": [{"x": '"]}{['}, {"y": [1, {"z": 2}]}], "b": {"k": {"q": 1}}}).encode()
    found = [(e.section, e.key, parse_element(content, e)[0]) for e in iter_elements(content)]
    assert found == [("a", "", {"x": '"]}{['}), ("a", "", {"y": [1, {"z": 2}]}), ("b", "k", {"q": 1})]


def test_a_transcript_as_plain_text_is_one_entry(tmp_path: Path) -> None:
    path = tmp_path / "chat.txt"
    text = "<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n"
    path.write_text(text + call("crop_image", bbox_2d=[0.1, 0.1, 0.2, 0.2], target_image=1))
    assert len(list(read_entries(path))) == 1
    (one,), _ = read(path)
    assert calls(one) == [("ZOOM", {"box": [0.1, 0.1, 0.2, 0.2]})]


@pytest.mark.parametrize("source", ["pixel-reasoner", "deepeyes"])
def test_a_named_project_is_believed(tmp_path: Path, source: str) -> None:
    path = saved(tmp_path / "x.jsonl", {"messages": [{"role": "assistant", "content": "<answer>4</answer>"}]})
    (one,), _ = read(path, source=source)
    assert (one.trace.origin, one.trace.answer, one.trace.steps) == (f"imported:{source}", "4", ())
