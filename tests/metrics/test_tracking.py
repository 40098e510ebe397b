"""Tracking: analytic cases, and TrackEval itself run from MOTChallenge folders on disk."""

import numpy as np
import pytest
from trackeval import Evaluator
from trackeval.datasets import MotChallenge2DBox
from trackeval.metrics import CLEAR, HOTA, Identity

from pixelis.core.geometry import Track
from pixelis.evaluation.score_files import track_report
from pixelis.metrics.tracking import score_rows, score_sequences, score_tracks

SILENT = {"PRINT_CONFIG": False, "PRINT_RESULTS": False, "TIME_PROGRESS": False, "OUTPUT_SUMMARY": False,
          "OUTPUT_DETAILED": False, "PLOT_CURVES": False, "OUTPUT_EMPTY_CLASSES": False, "USE_PARALLEL": False,
          "LOG_ON_ERROR": None, "BREAK_ON_ERROR": True}  # fmt: skip


def one_track(frames=range(1, 11), track_id=1, left=100.0):
    return [(f, track_id, left, 100, 20, 20, 1, 1) for f in frames]


def random_sequence(rng, classes=(1,)):
    """A few objects that drift, found with jitter, misses, false alarms and changed ids."""
    gold, predicted = [], []
    for track in range(1, 7):
        x, y, cls = rng.uniform(0, 300), rng.uniform(0, 200), rng.choice(classes)
        for frame in range(1, 31):
            x, y = x + rng.normal(1, 2), y + rng.normal(0, 2)
            gold.append((frame, track, x, y, 40, 60, float(rng.random() < 0.95), cls))
            if rng.random() < 0.85:
                jitter = rng.normal(0, 6, 4)
                name = 20 + track + 10 * (frame > 12 + track)
                predicted.append((frame, name, x + jitter[0], y + jitter[1], 40 + jitter[2], 60 + jitter[3], 0.9))
    for frame in range(1, 31):
        if rng.random() < 0.4:
            predicted.append((frame, 200 + frame // 4, *rng.uniform(0, 300, 2), 40, 60, 0.5))
    return np.array(gold), np.array(predicted)


def trackeval_from_disk(folder, sequences, benchmark):
    lengths = {}
    for name, (gold, predicted) in sequences.items():
        gt = folder / "gt" / name / "gt"
        tr = folder / "trackers" / "ours" / "data"
        gt.mkdir(parents=True)
        tr.mkdir(parents=True, exist_ok=True)
        np.savetxt(gt / "gt.txt", gold, delimiter=",", fmt="%.17g")
        np.savetxt(tr / f"{name}.txt", predicted, delimiter=",", fmt="%.17g")
        lengths[name] = int(max(gold[:, 0].max(), predicted[:, 0].max()))
    dataset = MotChallenge2DBox({
        "GT_FOLDER": str(folder / "gt"), "TRACKERS_FOLDER": str(folder / "trackers"), "BENCHMARK": benchmark,
        "SEQ_INFO": lengths, "SKIP_SPLIT_FOL": True, "PRINT_CONFIG": False,
    })  # fmt: skip
    metrics = [HOTA(), CLEAR({"PRINT_CONFIG": False}), Identity({"PRINT_CONFIG": False})]
    results, _ = Evaluator(dict(SILENT)).evaluate([dataset], metrics)
    return {name: r["pedestrian"] for name, r in results["MotChallenge2DBox"]["ours"].items()}


def agree(ours, theirs):
    hota, clear, identity = theirs["HOTA"], theirs["CLEAR"], theirs["Identity"]
    expected = {
        "hota": np.mean(hota["HOTA"]), "det_a": np.mean(hota["DetA"]), "ass_a": np.mean(hota["AssA"]),
        "det_re": np.mean(hota["DetRe"]), "det_pr": np.mean(hota["DetPr"]), "ass_re": np.mean(hota["AssRe"]),
        "ass_pr": np.mean(hota["AssPr"]), "loc_a": np.mean(hota["LocA"]), "mota": clear["MOTA"],
        "motp": clear["MOTP"], "recall": clear["CLR_Re"], "precision": clear["CLR_Pr"],
        "true_positives": clear["CLR_TP"], "false_negatives": clear["CLR_FN"], "false_positives": clear["CLR_FP"],
        "id_switches": clear["IDSW"], "fragmentations": clear["Frag"], "mostly_tracked": clear["MT"],
        "partly_tracked": clear["PT"], "mostly_lost": clear["ML"], "idf1": identity["IDF1"], "idr": identity["IDR"],
        "idp": identity["IDP"],
    }  # fmt: skip
    assert {k: getattr(ours, k) for k in expected} == pytest.approx(expected, abs=1e-9)
    assert ours.hota_by_alpha == pytest.approx(tuple(hota["HOTA"]), abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("benchmark", "classes"), [("MOT15", (-1,)), ("MOT17", (1, 1, 2, 7, 6, 12)), ("MOT20", (1, 1, 6, 8))]
)
def test_scores_equal_trackeval_run_from_disk(tmp_path, seed, benchmark, classes):
    rng = np.random.default_rng(seed)
    sequences = {name: random_sequence(rng, classes) for name in ("first", "second")}
    theirs = trackeval_from_disk(tmp_path, sequences, benchmark)
    together, alone = score_sequences(sequences, benchmark=benchmark)
    agree(together, theirs["COMBINED_SEQ"])
    agree(alone["first"], theirs["first"])
    agree(score_rows(*sequences["second"], benchmark=benchmark), theirs["second"])
    report = track_report(
        tmp_path / "gt", tmp_path / "trackers" / "ours", benchmark=benchmark
    )  # `pixelis score tracks`
    assert report["HOTA"] == pytest.approx(np.mean(theirs["COMBINED_SEQ"]["HOTA"]["HOTA"]), abs=1e-9)
    assert report["sequences"]["first"]["MOTA"] == pytest.approx(theirs["first"]["CLEAR"]["MOTA"], abs=1e-9)


def test_without_a_named_benchmark_classes_decide_between_mot17_and_mot15():
    rng = np.random.default_rng(3)
    gold, predicted = random_sequence(rng, (1, 2, 7))
    assert score_rows(gold, predicted) == score_rows(gold, predicted, benchmark="MOT17")
    gold[:, 7] = -1
    assert score_rows(gold, predicted) == score_rows(gold, predicted, benchmark="MOT15")
    with pytest.raises(ValueError, match="MOT17"):
        score_rows(gold, predicted, benchmark="MOT17")


def test_hota_of_a_perfect_track_is_1():
    scores = score_rows(one_track(), one_track(track_id=7))
    assert (scores.hota, scores.mota, scores.idf1, scores.id_switches) == (pytest.approx(1.0), 1.0, 1.0, 0)


def test_hota_of_a_track_whose_id_switches_at_frame_six():
    predicted = one_track(range(1, 6), 1) + one_track(range(6, 11), 2)
    scores = score_rows(one_track(), predicted)
    assert scores.hota == pytest.approx(0.707107, abs=1e-6)
    assert (scores.ass_a, scores.mota, scores.id_switches) == (pytest.approx(0.5), pytest.approx(0.9), 1)


def test_hota_of_a_track_that_is_found_in_half_of_its_frames():
    scores = score_rows(one_track(), one_track(range(1, 6)))
    assert (scores.hota, scores.mota) == (pytest.approx(0.5), pytest.approx(0.5))


def test_hota_of_a_box_shifted_by_half_its_width():
    scores = score_rows(one_track(), one_track(left=110.0))  # IoU 1/3: six of the nineteen thresholds
    assert scores.hota == pytest.approx(0.315789, abs=1e-6)
    assert scores.mota == pytest.approx(-1.0)


def test_an_empty_prediction_scores_0_and_misses_everything():
    scores = score_rows(one_track(), [])
    assert (scores.hota, scores.mota, scores.idf1, scores.false_negatives, scores.mostly_lost) == (0, 0, 0, 10, 1)
    assert scores.loc_a == 1.0


def test_predictions_without_gold_are_all_false_positives():
    scores = score_rows([], one_track())
    assert (scores.hota, scores.mota, scores.idf1, scores.false_positives) == (0, 0, 0, 10)


def test_nothing_against_nothing_scores_0():
    scores = score_rows([], [])
    assert (scores.hota, scores.mota, scores.false_negatives, scores.false_positives) == (0, 0, 0, 0)


def test_tracks_score_as_their_rows_do():
    frames, boxes = tuple(range(10)), ((0.1, 0.1, 0.3, 0.3),) * 10
    gold = [Track(track_id=3, frames=frames, boxes=boxes)]
    halves = [
        Track(track_id=0, frames=frames[:5], boxes=boxes[:5]),
        Track(track_id=1, frames=frames[5:], boxes=boxes[5:]),
    ]
    assert score_tracks(gold, halves).hota == pytest.approx(0.707107, abs=1e-6)
    assert score_tracks(gold, gold).hota == pytest.approx(1.0)
    assert score_tracks(gold, []).hota == 0.0


def test_two_boxes_of_one_id_in_one_frame_are_refused():
    with pytest.raises(ValueError, match="predicted id 1 has two boxes in frame 4"):
        score_rows(one_track(), [*one_track(), (4, 1, 0, 0, 5, 5, 1, 1)])


def test_rows_without_boxes_and_no_sequences_are_refused():
    with pytest.raises(ValueError, match="expected frame, id, left"):
        score_rows([(1, 2, 3)], [])
    with pytest.raises(ValueError, match="no sequences"):
        score_sequences({})
