"""Fit the vote's calibration on dev-cal before a stream: calibrator, conformal threshold, δ (sec:supp:voting-calib).

The start policy answers dev-cal questions with N rollouts each. The calibrators are fitted on p_raw of every rollout
against its correctness; all are compared by fitting on one half of each family's questions and testing on the other.
The votes of the same rollouts, weighted with the chosen calibrator, give the conformal threshold: the quantile of
1 − the correct answer's share. The temperature, one number, is fitted on these questions too, so the guarantee of split
conformal prediction holds up to that. The result is one file of the run and never changes afterwards.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pixelis.core.config import Config
from pixelis.core.errors import ConfigError
from pixelis.core.provenance import write_json
from pixelis.equations.calibration import (
    MIN_CONFIDENCE,
    Affine,
    Calibrator,
    Isotonic,
    Platt,
    Temperature,
    fit_affine,
    fit_confidence_temperature,
    fit_isotonic,
    fit_platt,
    two_class_logits,
)
from pixelis.equations.conformal import conformal_quantile, nonconformity
from pixelis.items import Item
from pixelis.metrics.calibration_error import expected_calibration_error
from pixelis.metrics.selective import error_at_margin
from pixelis.rollout.answer_reading import answer_confidence, final_answer
from pixelis.rollout.episode import Rollout
from pixelis.voting.vote import NO_CALIBRATION, ReliabilityWindow, VoteSettings, vote

CALIBRATION_FILE = "calibration.json"
DELTAS = (0.0, 0.04, 0.08, 0.12, 0.2, 0.3, 0.5, 0.8)
"""Margins whose risk and coverage are reported."""
Floats = NDArray[np.float64]
IsCorrect = Callable[[Item, str | None], bool]
CalibratorKind = Literal["temperature", "platt", "vector", "matrix", "isotonic"]


class CalibrationSettings(Config):
    """What is fitted on dev-cal before the first query (sec:supp:voting-calib)."""

    old_names: ClassVar = {"items": "items_per_family", "level": "alpha"}

    items_per_family: int = Field(default=0, ge=0)
    """dev-cal questions of each family; 0 fits nothing: T = 1 and no conformal set."""
    kind: CalibratorKind = "temperature"
    """The calibrator that gives Cal_j; all of them are fitted and compared."""
    alpha: float = Field(default=0.1, gt=0.0, lt=1.0)
    """α of the conformal set."""
    coverage: float | None = Field(default=None, gt=0.0, le=1.0)
    """Share of dev-cal queries whose margin passes δ, which is then fitted; if left out, δ is the vote's."""


class VoteCalibration(NamedTuple):
    """What weights and gates the votes of a run."""

    calibrator: Calibrator = NO_CALIBRATION
    threshold: float | None = None
    """Of the conformal set."""
    delta: float | None = None
    """The vote's own where it was not fitted."""


def load_or_fit_calibration(
    path: Path,
    settings: CalibrationSettings,
    vote_settings: VoteSettings,
    sample_groups: Callable[[], Iterable[tuple[Item, Sequence[Rollout]]]],
    *,
    thresholds: Mapping[str, float],
    is_correct: IsCorrect,
) -> VoteCalibration:
    """The calibration at `path`; if there is none, fit one on the groups of rollouts that `sample_groups` yields and
    write it there."""
    if path.exists():
        return read_calibration(path)
    if not settings.items_per_family:
        return VoteCalibration()
    groups = list(sample_groups())
    items = [item for item, _ in groups]
    observations = [
        (k, answer_confidence(rollout.trace, thresholds), is_correct(item, rollout.answer))
        for k, (item, group) in enumerate(groups)
        for rollout in group
        if final_answer(rollout)
    ]
    if not observations:
        raise ConfigError(f"none of {len(groups)} dev-cal questions got an answer: there is nothing to calibrate on")
    item_index, raw, correct = (np.array(column) for column in zip(*observations, strict=True))
    calibrator = FITS[settings.kind](raw, correct)
    window = ReliabilityWindow(vote_settings.window)
    any_margin = vote_settings.model_copy(update={"delta": 0.0})
    votes = [vote(g, any_margin, thresholds=thresholds, calibration=calibrator, window=window) for _, g in groups]
    shares = [correct_share(item, v.consensus.scores, is_correct) for item, v in zip(items, votes, strict=True)]
    threshold = conformal_quantile(nonconformity(shares), alpha=settings.alpha)
    margins = np.array([result.consensus.margin for result in votes])
    errors = np.array([1.0 - is_correct(item, result.answer) for item, result in zip(items, votes, strict=True)])
    facts = {
        "kind": settings.kind, "calibrator": calibrator_to_dict(calibrator),
        "threshold": None if threshold == inf else threshold, "delta": fit_delta(margins, settings),
        "level": settings.alpha, "questions": len(groups), "rollouts": len(raw), "right": float(correct.mean()),
        "compared": compare_calibrators(in_first_half([item.family for item in items])[item_index], raw, correct),
        "risk_coverage": [{"delta": d, **error_at_margin(margins, errors, delta=d)._asdict()} for d in DELTAS],
    }  # fmt: skip
    write_json(path, facts)
    return read_calibration(path)


def correct_share(item: Item, scores: Mapping[Any, float], is_correct: IsCorrect) -> float:
    """The largest vote share of a single correct answer: a conformal set holds single answers, so two spellings with
    half of the vote each do not add up."""
    return max((share for answer, share in scores.items() if is_correct(item, str(answer))), default=0.0)


def fit_delta(margins: Floats, settings: CalibrationSettings) -> float | None:
    """δ that the requested share of dev-cal votes passes; None if no share is requested."""
    if settings.coverage is None:
        return None
    # 0.56 of 50 is 28, however it is rounded
    accepted_count = max(1, int(np.ceil(settings.coverage * len(margins) - 1e-9)))
    return float(np.sort(margins)[::-1][accepted_count - 1])


# --- the calibrators


def fit_two_class(raw: Floats, correct: NDArray[np.bool_], *, full: bool) -> Affine:
    return fit_affine(two_class_logits(raw), correct.astype(np.int64), kind="matrix" if full else "vector")


FITS: dict[CalibratorKind, Any] = {
    "temperature": fit_confidence_temperature,
    "platt": lambda raw, correct: fit_platt(two_class_logits(raw)[:, 1], correct),
    "vector": lambda raw, correct: fit_two_class(raw, correct, full=False),
    "matrix": lambda raw, correct: fit_two_class(raw, correct, full=True),
    "isotonic": fit_isotonic,
}
"""Each from (n,) p_raw and (n,) correctness."""


def in_first_half(families: Sequence[str]) -> NDArray[np.bool_]:
    """(questions,) every other question of each family, so that both halves hold every family."""
    counts, out = Counter[str](), []
    for family in families:
        out.append(counts[family] % 2 == 0)
        counts[family] += 1
    return np.array(out, dtype=bool)


def compare_calibrators(first: NDArray[np.bool_], raw: Floats, correct: NDArray[np.bool_]) -> list[dict[str, Any]]:
    """ECE and mean NLL of each calibrator by two-fold cross-validation over questions.

    `first` marks the rollouts of questions in the first half. With a single question nothing is compared.
    """
    if first.all() or not first.any():
        return []
    rows = [{"kind": "none", **calibration_errors(raw, correct)}]
    for kind in get_args(CalibratorKind):
        confidences = np.zeros(len(raw))
        for fit_half in (first, ~first):
            confidences[~fit_half] = FITS[kind](raw[fit_half], correct[fit_half]).confidence(raw[~fit_half])
        rows.append({"kind": kind, **calibration_errors(confidences, correct)})
    return rows


def calibration_errors(confidences: Floats, correct: NDArray[np.bool_]) -> dict[str, float]:
    p = np.clip(confidences, MIN_CONFIDENCE, 1.0 - MIN_CONFIDENCE)
    nll = -np.where(correct, np.log(p), np.log1p(-p)).mean()
    return {"ece": 100.0 * float(expected_calibration_error(confidences, correct)), "nll": float(nll)}


# --- on disk


def calibrator_to_dict(calibrator: Any) -> dict[str, Any]:
    """The parameters of a calibrator as JSON values."""
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in asdict(calibrator).items()}


def read_calibration(path: Path) -> VoteCalibration:
    """Raises ConfigError if the file is not a calibration."""
    classes = {"temperature": Temperature, "platt": Platt, "vector": Affine, "matrix": Affine, "isotonic": Isotonic}
    try:
        facts = json.loads(path.read_text())
        parameters = {k: np.array(v) if isinstance(v, list) else v for k, v in facts["calibrator"].items()}
        if facts["kind"] == "platt":
            parameters = {k: np.array(v) for k, v in parameters.items()}  # a slope of one class is an array too
        threshold = inf if facts["threshold"] is None else float(facts["threshold"])
        return VoteCalibration(classes[facts["kind"]](**parameters), threshold, facts["delta"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a calibration ({error}); delete it, and it is fitted again") from error
