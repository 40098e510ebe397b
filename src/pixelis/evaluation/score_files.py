"""Scoring files in the field's own formats: MOTChallenge rows, JSONL, folders of mask PNGs, QVHighlights windows.

Five reports, ready to print as JSON, and below them the readers. An invalid file is a ConfigError with the file and, if
there are lines, the line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pixelis.core.errors import ConfigError
from pixelis.metrics import answer_accuracy, overlap, temporal, text, tracking

ID_KEYS = ("id", "qid", "question_id", "questionId")
GOLD_KEYS = ("answers", "answer", "golds", "gold", "text", "ground_truth")
PREDICTION_KEYS = ("prediction", "pred", "answer", "text", "output")
KINDS = ("choice", "exact", "relaxed", "mra", "anls")


class AnswerPair(NamedTuple):
    """A gold answer with its prediction."""

    name: str
    golds: list[str]
    prediction: str | None
    """None if the prediction file has no line for it."""
    options: list[str]
    kind: str
    """The scoring rule, one of KINDS."""


Report = dict[str, Any]
"""Names to numbers, or to reports of parts."""
Windows = dict[str, list[list[float]]]
"""Windows of each query, in seconds."""
Line = tuple[int, dict[str, Any]]
"""A line of a JSONL file: its number and its object."""

TRACK_NAMES = {
    "HOTA": "hota", "MOTA": "mota", "IDF1": "idf1", "DetA": "det_a", "AssA": "ass_a", "IDSW": "id_switches",
    "LocA": "loc_a", "DetRe": "det_re", "DetPr": "det_pr", "AssRe": "ass_re", "AssPr": "ass_pr", "MOTP": "motp",
    "IDR": "idr", "IDP": "idp", "CLR_Re": "recall", "CLR_Pr": "precision", "CLR_TP": "true_positives",
    "CLR_FN": "false_negatives", "CLR_FP": "false_positives", "Frag": "fragmentations", "MT": "mostly_tracked",
    "PT": "partly_tracked", "ML": "mostly_lost", "HOTA_by_alpha": "hota_by_alpha",
}  # fmt: skip
"""TrackEval's names of the scores."""


def track_report(gold: Path, predicted: Path, *, benchmark: tracking.Benchmark | None = None) -> Report:
    """TrackEval's scores, 0 to 1, by their names: of one sequence, or of several combined and individually."""
    sequences = mot_sequences(gold, predicted)
    try:
        combined_scores, sequence_scores = tracking.score_sequences(sequences, benchmark=benchmark)
    except ValueError as error:
        raise ConfigError(f"{gold}, {predicted}: {error}") from None
    parts = {sequence: _by_trackeval_name(scores) for sequence, scores in sequence_scores.items()}
    return {**_by_trackeval_name(combined_scores), "sequences": parts} if len(parts) > 1 else next(iter(parts.values()))


def text_report(gold: Path, predicted: Path) -> Report:
    """ANLS (InfoVQA), ANLS and CER with the paper's normalisation, CER without it, and exact match.

    CER is computed against the nearest gold text over the whole corpus; a missing prediction scores 0.
    """
    rows = read_answers(gold, predicted)
    predictions = [row.prediction or "" for row in rows]
    nearest = [text.nearest_gold(p, row.golds) for p, row in zip(predictions, rows, strict=True)]
    answered_rows = [r for r in rows if r.prediction is not None]
    return {
        "items": len(rows),
        "missing": len(rows) - len(answered_rows),
        "ANLS": sum(text.anls(r.prediction or "", r.golds) for r in answered_rows) / len(rows),
        "ANLS_normalised": sum(text.normalised_anls(r.prediction or "", r.golds) for r in answered_rows) / len(rows),
        "CER": text.corpus_cer(nearest, predictions),
        "CER_normalised": text.corpus_cer(
            [text.normalise_text(g) for g in nearest], [text.normalise_text(p) for p in predictions]
        ),
        "exact": sum(answer_accuracy.exact_match(r.prediction or "", r.golds) for r in answered_rows) / len(rows),
    }


def mask_report(gold: Path, predicted: Path, *, objects: bool = False) -> Report:
    """J, F and Dice of each mask, and their means. The foreground is all labels over 0, or each gold object."""
    measures: dict[str, Callable[..., float]] = {"J": overlap.mask_iou, "F": overlap.boundary_f1, "Dice": overlap.dice}
    frames: dict[str, dict[str, float]] = {}
    for name, (gold_file, predicted_file) in mask_pairs(gold, predicted).items():
        g, p = read_labels(gold_file), read_labels(predicted_file)  # (H, W), (H, W)
        if g.shape != p.shape:
            raise ConfigError(f"{predicted_file}: shape {p.shape}, {gold_file} has {g.shape}: want the same pixels")
        numbers = [n for n in np.unique(g) if n] if objects else []
        pairs = [(g == n, p == n) for n in numbers] or [(g > 0, p > 0)]
        frames[name] = {key: float(np.mean([measure(a, b) for a, b in pairs])) for key, measure in measures.items()}
    mean = {key: float(np.mean([frame[key] for frame in frames.values()])) for key in measures}
    recall = {f"{key}_recall": float(np.mean([f[key] > 0.5 for f in frames.values()])) for key in ("J", "F")}
    return {"frames": len(frames), **mean, "J&F": (mean["J"] + mean["F"]) / 2, **recall, "per_frame": frames}


def span_report(gold: Path, predicted: Path) -> Report:
    """R1@θ and mAP in percent with two decimals, in the format of QVHighlights' scorer.

    A length range without a gold window is null.
    """
    gold_windows, predicted_windows = read_moments(gold, predicted)
    ranges: Report = {}
    for name, scores in temporal.moment_scores_by_length(gold_windows, predicted_windows).items():
        ranges[name] = scores and {
            "queries": scores.queries,
            "MR-mAP": _percents(scores.map_by_iou) | {"average": _percent(scores.map_average)},
            "MR-R1": _percents(scores.r1_by_iou),
        }
    full = ranges["full"]
    brief = {f"MR-{name}-mAP": scores and scores["MR-mAP"]["average"] for name, scores in ranges.items()}
    brief |= {f"MR-full-mAP@{t}": full["MR-mAP"][t] for t in ("0.5", "0.75")}
    brief |= {f"MR-full-R1@{t}": full["MR-R1"][t] for t in ("0.5", "0.7")}
    return {"queries": full["queries"], "brief": dict(sorted(brief.items())), **ranges}


def answer_report(gold: Path, predicted: Path, *, reading: answer_accuracy.NumberReading = "official") -> Report:
    """Mean score, in total and by a gold line's `kind` (choice, exact, relaxed, mra, anls): by default choice if it has
    options, else exact. If all golds are numbers, also MRA and relaxed accuracy.
    """
    rows = read_answers(gold, predicted)
    by_kind: dict[str, list[float]] = {}
    for row in rows:
        by_kind.setdefault(row.kind, []).append(_answer_score(row, row.kind, reading))
    report: Report = {
        "items": len(rows),
        "missing": sum(row.prediction is None for row in rows),
        "score": float(np.mean([score for scores in by_kind.values() for score in scores])),
        "kinds": {k: {"items": len(v), "score": float(np.mean(v))} for k, v in sorted(by_kind.items())},
    }
    if all(answer_accuracy.parse_number(row.golds[0]) is not None for row in rows):
        report["relaxed_accuracy"] = float(np.mean([_answer_score(row, "relaxed", reading) for row in rows]))
        report["MRA"] = float(np.mean([_answer_score(row, "mra", reading) for row in rows]))
    return report


def _by_trackeval_name(scores: tracking.TrackScores) -> Report:
    return {name: getattr(scores, field) for name, field in TRACK_NAMES.items()}


def _answer_score(row: AnswerPair, kind: str, reading: answer_accuracy.NumberReading) -> float:
    if row.prediction is None:
        return 0.0
    if kind == "choice":
        return float(any(answer_accuracy.choice_match(row.prediction, gold, row.options) for gold in row.golds))
    if kind == "relaxed":
        return float(any(answer_accuracy.relaxed_match(row.prediction, gold) for gold in row.golds))
    if kind == "mra":
        mra = answer_accuracy.mean_relative_accuracy
        return max(mra([row.prediction], [gold], reading=reading) for gold in row.golds)
    if kind == "anls":
        return text.anls(row.prediction, row.golds)
    return float(answer_accuracy.exact_match(row.prediction, row.golds))


def _percents(by_iou: dict[float, float]) -> dict[str, float]:
    return {str(threshold): _percent(share) for threshold, share in by_iou.items()}


def _percent(share: float) -> float:
    return float(f"{100 * share:.2f}")


def read_mot(path: Path, *, predicted: bool = False) -> NDArray[np.float64]:
    """(N, 8) rows of a MOTChallenge txt, separated by commas, semicolons or blanks.

    Columns after the class are dropped; a missing confidence or class is 1. Predictions must have class 1 or -1, as in
    TrackEval.
    """
    rows = []
    for number, line in _lines(path):
        where = f"{path}:{number}"
        try:
            values = [float(c) for c in re.split(r"[,;\s]+", line.strip()) if c]
        except ValueError:
            start = repr(line.strip()[:60])
            raise ConfigError(f"{where}: {start} is not a row of numbers: want frame, id, x, y, w, h") from None
        if len(values) < 6 or not all(map(math.isfinite, values)):
            raise ConfigError(f"{where}: {len(values)} columns: want at least frame, id, x, y, w, h, all finite")
        if values[0] < 1 or values[1] < 0:
            raise ConfigError(f"{where}: frame {values[0]:g}, id {values[1]:g}: frames count from 1 and ids from 0")
        row = [*values[:8], 1.0, 1.0][:8]
        row[0], row[1], row[7] = float(int(row[0])), float(int(row[1])), float(int(row[7]))
        if predicted and row[7] > 1:
            raise ConfigError(f"{where}: class {row[7]:g} in a prediction: only class 1 is scored, drop the others")
        rows.append(row)
    return np.array(rows, dtype=np.float64).reshape(-1, 8)


def mot_sequences(gold: Path, predicted: Path) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Gold and predicted rows of each sequence.

    Two files are one sequence. Two folders contain `<sequence>/gt/gt.txt` or `<sequence>.txt` as gold and
    `<sequence>.txt` (or `data/<sequence>.txt`) as predictions; each gold sequence needs its file.
    """
    if gold.is_file() or (gold / "gt" / "gt.txt").is_file():
        file = gold if gold.is_file() else gold / "gt" / "gt.txt"
        return {_sequence_name(file): (read_mot(file), read_mot(predicted, predicted=True))}
    _require_folder(gold)
    _require_folder(predicted)
    files = {_sequence_name(p): p for p in sorted(gold.glob("*/gt/gt.txt")) or sorted(gold.glob("*.txt"))}
    if not files:
        raise ConfigError(f"{gold}: no sequences: want <sequence>/gt/gt.txt or <sequence>.txt in it")
    inner = predicted / "data" if (predicted / "data").is_dir() else predicted
    return {n: (read_mot(file), read_mot(inner / f"{n}.txt", predicted=True)) for n, file in files.items()}


def read_answers(gold: Path, predicted: Path) -> list[AnswerPair]:
    """Gold answers with their predictions, paired by id, or line by line if neither file has ids.

    Files that are not .jsonl are one text each. A prediction for an unknown id is an error.
    """
    if gold.suffix != ".jsonl":
        texts = [" ".join(line.strip() for _, line in _lines(p)) for p in (gold, predicted)]
        return [AnswerPair(gold.stem, [texts[0]], texts[1], [], "exact")]
    golds, predictions = read_jsonl(gold), read_jsonl(predicted)
    if not golds:
        raise ConfigError(f"{gold}: no lines to score")
    has_ids = any(_id(row) is not None for _, row in golds)
    by_id = _by_id(predicted, predictions, has_ids=has_ids)
    pairs = []
    for name, (number, row) in _by_id(gold, golds, has_ids=has_ids).items():
        where = f"{gold}:{number}"
        prediction = None
        if (line := by_id.pop(name, None)) is not None:
            prediction = _one_text(f"{predicted}:{line[0]}", line[1], PREDICTION_KEYS)
        options = row.get("options") or []
        if not isinstance(options, list) or not all(isinstance(o, str) for o in options):
            raise ConfigError(f"{where}: options must be a list of strings")
        kind = row.get("kind", "choice" if options else "exact")
        row_golds = _texts(where, row, GOLD_KEYS)
        if kind not in KINDS:
            raise ConfigError(f"{where}: kind {kind!r}: want one of {', '.join(KINDS)}")
        if kind == "mra" and any(answer_accuracy.parse_number(g) is None for g in row_golds):
            raise ConfigError(f"{where}: kind mra wants a number as gold answer")
        pairs.append(AnswerPair(name, row_golds, prediction, options, kind))
    if by_id:
        name, (number, _) = next(iter(by_id.items()))
        raise ConfigError(f"{predicted}:{number}: {name!r} is not in {gold}")
    return pairs


def read_moments(gold: Path, predicted: Path) -> tuple[Windows, Windows]:
    """`relevant_windows` and `pred_relevant_windows` of each `qid`, QVHighlights' JSONL."""
    sides = []
    for path, key in ((gold, "relevant_windows"), (predicted, "pred_relevant_windows")):
        rows = _by_id(path, read_jsonl(path), has_ids=True)
        if not rows:
            raise ConfigError(f"{path}: no lines to score")
        sides.append({q: _windows(f"{path}:{number}", row, key) for q, (number, row) in rows.items()})
    for qid, windows in sides[0].items():
        if not windows or any(w[1] <= w[0] for w in windows):
            raise ConfigError(f"{gold}: query {qid} needs at least one gold window, each with start < end")
    if unmatched := sorted(sides[0].keys() ^ sides[1].keys()):
        first = ", ".join(unmatched[:3])
        raise ConfigError(f"{predicted}: {len(unmatched)} queries are on one side only ({first}): want the same")
    return sides[0], sides[1]


def mask_pairs(gold: Path, predicted: Path) -> dict[str, tuple[Path, Path]]:
    """Pairs of PNG files by their path inside the folder; two files are one pair.

    Each gold mask needs its prediction; other predictions are ignored.
    """
    if gold.is_file():
        return {gold.stem: (gold, _require_file(predicted))}
    _require_folder(gold)
    _require_folder(predicted)
    names = sorted(p.relative_to(gold) for p in gold.rglob("*.png"))
    if not names:
        raise ConfigError(f"{gold}: no PNG masks in it")
    return {str(n.with_suffix("")): (gold / n, _require_file(predicted / n)) for n in names}


def read_labels(path: Path) -> NDArray[np.int64]:
    """(height, width) object numbers of a mask PNG, 0 the background: palette index or grey value.

    In a colour picture all but black is object 1.
    """
    from PIL import Image

    try:
        with Image.open(_require_file(path)) as picture:
            array = np.asarray(picture if picture.mode in ("P", "L", "1", "I", "I;16") else picture.convert("RGB"))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ConfigError(f"{path}: not a readable picture ({error})") from None
    labels: NDArray[np.int64] = np.asarray(array.any(axis=2) if array.ndim == 3 else array, dtype=np.int64)
    return labels


def read_jsonl(path: Path) -> list[Line]:
    """Line number and object of each line; blank lines are skipped."""
    rows = []
    for number, line in _lines(path):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{path}:{number}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise ConfigError(f"{path}:{number}: {type(row).__name__} instead of a JSON object")
        rows.append((number, row))
    return rows


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = _require_file(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    return ((n, line) for n, line in enumerate(text.splitlines(), start=1) if line.strip())


def _require_file(path: Path) -> Path:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    return path


def _require_folder(path: Path) -> None:
    if not path.is_dir():
        raise ConfigError(f"{path}: no such folder")


def _sequence_name(file: Path) -> str:
    return file.parent.parent.name if file.parts[-2:] == ("gt", "gt.txt") else file.stem


def _id(row: dict[str, Any]) -> str | None:
    return next((str(row[k]) for k in ID_KEYS if row.get(k) is not None), None)


def _by_id(path: Path, rows: list[Line], *, has_ids: bool) -> dict[str, Line]:
    table: dict[str, Line] = {}
    for position, (number, row) in enumerate(rows):
        name = _id(row) if has_ids else str(position)
        if name is None:
            raise ConfigError(f"{path}:{number}: no id: want one of {', '.join(ID_KEYS)}")
        if name in table:
            raise ConfigError(f"{path}:{number}: {name!r} was already on line {table[name][0]}")
        table[name] = (number, row)
    return table


def _texts(where: str, row: dict[str, Any], keys: Sequence[str]) -> list[str]:
    value = next((row[k] for k in keys if row.get(k) is not None), None)
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(v, str | int | float) for v in values):
        raise ConfigError(f"{where}: no text: want a string under one of {', '.join(keys)}")
    return [str(v) for v in values]


def _one_text(where: str, row: dict[str, Any], keys: Sequence[str]) -> str:
    values = _texts(where, row, keys)
    if len(values) != 1:
        raise ConfigError(f"{where}: {len(values)} predictions: want one")
    return values[0]


def _windows(where: str, row: dict[str, Any], key: str) -> list[list[float]]:
    windows = row.get(key)
    if not isinstance(windows, list) or not all(_is_window(w) for w in windows):
        raise ConfigError(f"{where}: {key} must be a list of [start, end] or [start, end, score] in seconds")
    if len({len(w) for w in windows}) > 1:
        raise ConfigError(f"{where}: some windows of {key} have a score and some have none")
    return windows


def _is_window(window: object) -> bool:
    if not isinstance(window, list) or len(window) not in (2, 3):
        return False
    return all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in window)
