"""`pixelis score` on real files: what it prints, and one clear line for each bad file."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from pixelis.cli.score import app
from pixelis.core.errors import ConfigError


def run(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


def scored(*args):
    result = run(*args, "--json")
    assert result.exit_code == 0, result.exception
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def refusal(*args):
    result = run(*args)
    assert isinstance(result.exception, ConfigError), result.exception
    assert "\n" not in str(result.exception)
    return str(result.exception)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = content if isinstance(content, str) else "\n".join(json.dumps(row) for row in content)
    path.write_text(lines, encoding="utf-8")
    return path


def boxes(frames, track=1, left=100, tail=",1,1,1"):
    return "".join(f"{f},{track},{left},100,20,20{tail}\n" for f in frames)


def test_tracks_of_two_files(tmp_path):
    gold = write(tmp_path / "gt.txt", boxes(range(1, 11)))
    predicted = write(tmp_path / "p.txt", boxes(range(1, 6)) + boxes(range(6, 11), track=2, tail=",0.9,-1,-1,-1"))
    report = scored("tracks", gold, predicted)
    assert report["HOTA"] == pytest.approx(0.707107, abs=1e-6)
    assert (report["AssA"], report["MOTA"], report["IDSW"], report["IDF1"]) == (
        pytest.approx(0.5),
        pytest.approx(0.9),
        1,
        0.5,
    )
    assert len(report["HOTA_by_alpha"]) == 19


def test_tracks_of_folders_are_combined_and_each_alone(tmp_path):
    write(tmp_path / "gold/one/gt/gt.txt", boxes(range(1, 11)))
    write(tmp_path / "gold/two/gt/gt.txt", boxes(range(1, 11)))
    write(tmp_path / "pred/data/one.txt", boxes(range(1, 11)))
    write(tmp_path / "pred/data/two.txt", "")
    report = scored("tracks", tmp_path / "gold", tmp_path / "pred")
    assert report["MOTA"] == pytest.approx(0.5)
    assert {n: s["HOTA"] for n, s in report["sequences"].items()} == {"one": pytest.approx(1.0), "two": 0.0}


def test_tracks_may_be_separated_by_blanks_and_begin_with_a_byte_order_mark(tmp_path):
    gold = tmp_path / "gt.txt"
    gold.write_bytes(b"\xef\xbb\xbf" + boxes([1, 2]).replace(",", "  ").encode())
    assert scored("tracks", gold, write(tmp_path / "p.txt", boxes([1, 2])))["HOTA"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("1,2,three,4,5,6", "p.txt:2: '1,2,three,4,5,6' is not a row of numbers"),
        ("1,2,3", "p.txt:2: 3 columns"),
        ("0,2,3,4,5,6", "p.txt:2: frame 0"),
        ("1,-1,3,4,5,6", "p.txt:2: frame 1, id -1"),
        ("1,2,3,4,nan,6", "p.txt:2: 6 columns"),
        ("1,2,3,4,5,6,1,3", "p.txt:2: class 3 in a prediction"),
        ("1,1,3,4,5,6", "predicted id 1 has two boxes in frame 1"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path, row, complaint):
    gold = write(tmp_path / "gt.txt", boxes([1]))
    assert complaint in refusal("tracks", gold, write(tmp_path / "p.txt", boxes([1]) + row))


def test_files_that_are_not_there_are_named(tmp_path):
    gold = write(tmp_path / "gt.txt", boxes([1]))
    assert refusal("tracks", gold, tmp_path / "none.txt").endswith("none.txt: no such file")
    assert refusal("tracks", tmp_path / "none", gold).endswith("none: no such folder")
    assert "no sequences" in refusal("tracks", (tmp_path / "empty").mkdir() or tmp_path / "empty", tmp_path)
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in refusal("tracks", gold, tmp_path / "binary.txt")


def test_text_by_id_with_a_missing_answer(tmp_path):
    gold = write(
        tmp_path / "g.jsonl", [{"question_id": 1, "answers": ["ax", "zz"]}, {"question_id": 2, "answer": "yes"}]
    )
    predicted = write(tmp_path / "p.jsonl", [{"question_id": 1, "answer": "ab"}])
    report = scored("text", gold, predicted)
    # "ab" is half of "ax": 0.5; the other is missing: 0. Edits: one of two characters, and all three of "yes"
    assert (report["ANLS"], report["CER"], report["missing"], report["exact"]) == (0.25, pytest.approx(4 / 5), 1, 0.0)


def test_text_line_by_line_without_ids(tmp_path):
    gold = write(tmp_path / "g.jsonl", [{"text": "Hello, world"}, {"text": "two"}])
    predicted = write(tmp_path / "p.jsonl", [{"text": "hello world"}, {"text": "two"}])
    report = scored("text", gold, predicted)
    assert (report["exact"], report["ANLS_normalised"], report["CER_normalised"]) == (1.0, 1.0, 0.0)
    assert report["ANLS"] == pytest.approx((1 - 1 / 12 + 1) / 2)


def test_plain_text_files_are_one_text_each(tmp_path):
    gold, predicted = write(tmp_path / "g.txt", "kitten\n"), write(tmp_path / "p.txt", "sitting\n")
    assert scored("text", gold, predicted)["CER"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("gold", "predicted", "complaint"),
    [
        ('{"id": 1, "answer": "a"}', "{", "p.jsonl:1: not JSON"),
        ('{"id": 1, "answer": "a"}', "[1]", "p.jsonl:1: list instead of a JSON object"),
        ('{"id": 1, "answer": "a"}', '\n{"id": 2, "answer": "a"}', "p.jsonl:2: '2' is not in"),
        ('{"id": 1, "answer": "a"}', '{"answer": "a"}', "p.jsonl:1: no id"),
        ('{"id": 1}', '{"id": 1, "answer": "a"}', "g.jsonl:1: no text"),
        ('{"id": 1, "answer": "a"}\n{"id": 1, "answer": "a"}', "", "g.jsonl:2: '1' was already on line 1"),
        ("", "", "g.jsonl: no lines to score"),
        ('{"id": 1, "answer": "a", "kind": "vibes"}', "", "g.jsonl:1: kind 'vibes'"),
        ('{"id": 1, "answer": "a", "options": "AB"}', "", "g.jsonl:1: options must be"),
        ('{"id": 1, "answer": "many", "kind": "mra"}', "", "g.jsonl:1: kind mra wants a number"),
    ],
)
def test_a_bad_line_is_named(tmp_path, gold, predicted, complaint):
    files = write(tmp_path / "g.jsonl", gold), write(tmp_path / "p.jsonl", predicted)
    assert complaint in refusal("answers", *files)


def test_answers_of_several_kinds(tmp_path):
    gold = write(
        tmp_path / "g.jsonl",
        [
            {"id": "a", "answer": "B", "options": ["a cat", "a dog"]},
            {"id": "b", "answer": "Paris"},
            {"id": "c", "answer": 4, "kind": "mra"},
            {"id": "d", "answer": "100", "kind": "relaxed"},
        ],
    )
    predicted = write(
        tmp_path / "p.jsonl",
        [
            {"id": "d", "prediction": "104"},
            {"id": "c", "prediction": 3},
            {"id": "b", "prediction": "Rome"},
            {"id": "a", "prediction": "a dog"},
        ],
    )
    report = scored("answers", gold, predicted)
    assert report["score"] == pytest.approx((1 + 0 + 0.6 + 1) / 4)
    assert {k: v["score"] for k, v in report["kinds"].items()} == {
        "choice": 1.0,
        "exact": 0.0,
        "mra": pytest.approx(0.6),
        "relaxed": 1.0,
    }
    assert "MRA" not in report


def test_answers_that_are_all_numbers_get_mra_by_either_reading(tmp_path):
    gold = write(tmp_path / "g.jsonl", [{"id": 1, "answer": "4"}, {"id": 2, "answer": "4"}])
    predicted = write(tmp_path / "p.jsonl", [{"id": 1, "pred": "There are 3 chairs"}, {"id": 2, "pred": "4"}])
    assert scored("answers", gold, predicted)["MRA"] == pytest.approx(0.5)
    assert scored("answers", gold, predicted, "--reading", "lmms")["MRA"] == pytest.approx(0.8)


def test_spans_have_the_shape_and_the_rounding_of_the_official_scorer(tmp_path):
    gold = [{"qid": q, "relevant_windows": [[0, 10], [20, 40]], "duration": 150} for q in (1, 2, 3)]
    windows = [[[0, 10, 0.9], [20, 40, 0.8]], [[60, 70, 0.9], [20, 40, 0.8]], [[0, 7, 0.4]]]
    predicted = [{"qid": q, "pred_relevant_windows": w} for q, w in zip((1, 2, 3), windows, strict=True)]
    report = scored("spans", write(tmp_path / "g.jsonl", gold), write(tmp_path / "p.jsonl", predicted))
    # AP at 0.5: 1, 1/2 * 1/2, 1/2 -> 58.33 percent; the third window reaches 0.7 and not 0.75
    assert report["full"]["MR-mAP"]["0.5"] == 58.33
    assert report["full"]["MR-mAP"]["0.75"] == 41.67
    assert report["brief"]["MR-full-R1@0.7"] == 66.67
    assert report["long"] is None
    assert report["brief"]["MR-long-mAP"] is None


@pytest.mark.parametrize(
    ("gold", "predicted", "complaint"),
    [
        ([], [], "g.jsonl: no lines"),
        ([{"qid": 1, "relevant_windows": []}], [{"qid": 1, "pred_relevant_windows": []}], "at least one gold window"),
        ([{"qid": 1, "relevant_windows": [[5, 5]]}], [{"qid": 1, "pred_relevant_windows": []}], "start < end"),
        ([{"qid": 1, "relevant_windows": [[0, 5]]}], [{"qid": 2, "pred_relevant_windows": []}], "2 queries are on one"),
        (
            [{"qid": 1, "relevant_windows": [[0, 5]]}],
            [{"qid": 1, "pred_relevant_windows": [[0]]}],
            "p.jsonl:1: pred_re",
        ),
        ([{"qid": 1, "relevant_windows": [[0, 5]]}], [{"qid": 1}], "p.jsonl:1: pred_relevant_windows must be"),
        (
            [{"qid": 1, "relevant_windows": [[0, 5]]}],
            [{"qid": 1, "pred_relevant_windows": [[0, 1], [0, 1, 1]]}],
            "p.jsonl:1: some windows",
        ),
    ],
)
def test_bad_spans_are_named(tmp_path, gold, predicted, complaint):
    assert complaint in refusal("spans", write(tmp_path / "g.jsonl", gold), write(tmp_path / "p.jsonl", predicted))


def save_mask(path, array, mode="L"):
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(array.astype(np.uint8))
    if mode == "P":
        picture.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
    picture.convert(mode).save(path) if mode == "RGB" else picture.save(path)


def test_masks_by_name_whatever_their_mode(tmp_path):
    labels = np.zeros((30, 30))
    labels[5:15, 5:15], labels[18:26, 18:26] = 1, 2
    save_mask(tmp_path / "g/clip/0.png", labels, "P")
    save_mask(tmp_path / "p/clip/0.png", 255 * (labels > 0), "RGB")
    report = scored("masks", tmp_path / "g", tmp_path / "p")
    assert (report["J"], report["F"], report["J&F"], report["Dice"], report["frames"]) == (1, 1, 1, 1, 1)
    assert list(report["per_frame"]) == ["clip/0"]


def test_masks_object_by_object(tmp_path):
    labels = np.zeros((30, 30))
    labels[5:15, 5:15], labels[18:26, 18:26] = 1, 2
    save_mask(tmp_path / "g.png", labels)
    save_mask(tmp_path / "p.png", np.where(labels == 2, 0, labels))
    assert scored("masks", tmp_path / "g.png", tmp_path / "p.png", "--objects")["J"] == 0.5
    assert scored("masks", tmp_path / "g.png", tmp_path / "p.png")["J"] == pytest.approx(100 / 164)


def test_bad_masks_are_named(tmp_path):
    save_mask(tmp_path / "g/0.png", np.zeros((4, 4)))
    save_mask(tmp_path / "p/0.png", np.zeros((4, 5)))
    assert "want the same pixels" in refusal("masks", tmp_path / "g", tmp_path / "p")
    write(tmp_path / "p/0.png", "not a picture")
    assert "not a readable picture" in refusal("masks", tmp_path / "g", tmp_path / "p")
    (tmp_path / "p/0.png").unlink()
    assert "0.png: no such file" in refusal("masks", tmp_path / "g", tmp_path / "p")
    assert "no PNG masks" in refusal("masks", tmp_path / "p", tmp_path / "g")


def test_masks_of_davis_equal_the_official_means(realdata):
    folder = realdata / "seg" / "davis" / "bike-packing"
    report = scored("masks", folder / "a", folder / "b")
    assert round(report["per_frame"]["00020"]["J"], 6) == 0.386303
    assert report["J"] == pytest.approx((0.750921 + 0.707564 + 0.386303 + 0.549569) / 4, abs=1e-6)
    assert report["F"] == pytest.approx((0.714420 + 0.619361 + 0.424969 + 0.595264) / 4, abs=1e-6)


def test_a_person_sees_a_table(tmp_path):
    gold = write(tmp_path / "g.jsonl", [{"qid": 1, "relevant_windows": [[0, 10]]}])
    predicted = write(tmp_path / "p.jsonl", [{"qid": 1, "pred_relevant_windows": [[0, 10, 1.0]]}])
    assert "MR-full-R1@0.5" in run("spans", gold, predicted).stdout
    rows = write(tmp_path / "gt.txt", boxes([1, 2]))
    assert "HOTA" in run("tracks", rows, rows).stdout
    assert "MOTA" in run("tracks", rows, rows).stdout


def test_the_verb_imports_nothing_heavy_before_it_runs():
    heavy = "numpy", "torch", "scipy", "trackeval", "rich.table", "PIL"
    code = f"import sys, pixelis.cli.score; print([m for m in {heavy!r} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_metrics_never_import_torch():
    names = "answer_accuracy bootstrap calibration_error logistic overlap selective statistics temporal text tracking"
    imports = "; ".join(f"import pixelis.metrics.{name}" for name in names.split())
    code = f"import sys; {imports}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
