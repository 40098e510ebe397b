"""What is fitted on dev-cal before a stream: a calibrator, the conformal threshold, δ (sec:supp:voting-calib).

The policy at the start answers dev-cal questions with N rollouts each. p_raw of every rollout against whether it is
right gives the calibrators; all are fitted on one half of each family's questions and held against the other, so that
the table compares what was not seen. The votes of the same rollouts, weighed with the chosen one, give the conformal
threshold: the quantile of 1 − the right answer's share. The one number of a temperature is fitted on these questions
too, so that the promise of split conformal holds but for that. It lies in one file of the adaptation and never changes
afterwards.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

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
from pixelis.metrics.calibration_error import expected_calibration_error
from pixelis.metrics.selective import error_at_margin
from pixelis.policy.model import Policy
from pixelis.rollout.answer_reading import answer_confidence, final_answer
from pixelis.tools.toolbox import Toolbox, decisive_thresholds
from pixelis.training.common.item_rollouts import ItemFactory, is_correct, stream_item_rollouts
from pixelis.training.ttrl.ttrl_config import CalibrationSettings, CalibratorKind, TtrlConfig
from pixelis.voting.vote import NO_CALIBRATION, ReliabilityWindow, vote
from pixelis.world import Item

CALIBRATION_FILE = "calibration.json"
DELTAS = (0.0, 0.04, 0.08, 0.12, 0.2, 0.3, 0.5, 0.8)
"""Margins whose risk and coverage are told."""
Floats = NDArray[np.float64]


class VoteCalibration(NamedTuple):
    """What weighs and gates the votes of a run."""

    calibrator: Calibrator = NO_CALIBRATION
    threshold: float | None = None
    """Of the conformal set."""
    delta: float | None = None
    """The vote's own where it was not fitted."""


def load_or_fit_calibration(
    config: TtrlConfig,
    policy: Policy,
    toolbox: Toolbox,
    item_factory: ItemFactory,
    path: Path,
    on_question: Callable[[int], None] = lambda done: None,
) -> VoteCalibration:
    """The calibration that lies at `path`, or a new one, fitted on these questions and written there."""
    if path.exists():
        return read_calibration(path)
    if not config.calibration.items:
        return VoteCalibration()
    seed = config.seed * 1_000_003
    rollout_stream = stream_item_rollouts(
        config, policy, toolbox, item_factory, n=config.samples, seed=seed, temperature=1.0, on_question=on_question
    )
    item_rollouts = list(rollout_stream)
    thresholds = decisive_thresholds(toolbox.tools)
    observations = [
        (k, answer_confidence(rollout.trace, thresholds), is_correct(question, rollout.answer))
        for k, (question, group) in enumerate(item_rollouts)
        for rollout in group
        if final_answer(rollout)
    ]
    if not observations:
        raise ConfigError(
            f"none of {len(item_rollouts)} dev-cal questions got an answer: there is nothing to calibrate on"
        )
    question_numbers, raw, correct = (np.array(column) for column in zip(*observations, strict=True))
    settings = config.calibration
    calibrator = FITS[settings.kind](raw, correct)
    window = ReliabilityWindow(config.vote.window)
    settings_without_margin = config.vote.model_copy(update={"delta": 0.0})
    votes = [
        vote(group, settings_without_margin, thresholds=thresholds, calibration=calibrator, window=window)
        for _, group in item_rollouts
    ]
    shares = [
        correct_share(question, result.consensus.scores)
        for (question, _), result in zip(item_rollouts, votes, strict=True)
    ]
    threshold = conformal_quantile(nonconformity(shares), alpha=settings.level)
    margins = np.array([result.consensus.margin for result in votes])
    wrong = np.array(
        [not is_correct(question, result.answer) for (question, _), result in zip(item_rollouts, votes, strict=True)]
    )
    facts = {
        "kind": settings.kind,
        "calibrator": calibrator_to_dict(calibrator),
        "threshold": None if threshold == inf else threshold,
        "delta": fit_delta(margins, settings),
        "level": settings.level,
        "questions": len(item_rollouts),
        "rollouts": len(raw),
        "right": float(correct.mean()),
        "compared": compare_calibrators(
            in_first_half([question.family for question, _ in item_rollouts])[question_numbers], raw, correct
        ),
        "risk_coverage": [
            {"delta": d, **error_at_margin(margins, wrong.astype(float), delta=d)._asdict()} for d in DELTAS
        ],
    }
    write_json(path, facts)
    return read_calibration(path)


def correct_share(item: Item, scores: Mapping[Any, float]) -> float:
    """The largest vote share among the answers that are right by the item's rule: sets are of single answers, so that
    two spellings with half of it each are not as good as one with all of it."""
    return max((share for answer, share in scores.items() if is_correct(item, str(answer))), default=0.0)


def fit_delta(margins: Floats, settings: CalibrationSettings) -> float | None:
    """δ under which the wanted share of dev-cal votes passes; None where none is wanted."""
    if settings.coverage is None:
        return None
    accepted_count = max(
        1, int(np.ceil(settings.coverage * len(margins) - 1e-9))
    )  # 0.56 of 50 is 28, however it is rounded
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
"""Each from (n,) p_raw and (n,) whether it was right."""


def in_first_half(families: Sequence[str]) -> NDArray[np.bool_]:
    """(questions,) every other question of each family, so that both halves hold them all."""
    seen = Counter[str]()
    out = []
    for family in families:
        out.append(seen[family] % 2 == 0)
        seen[family] += 1
    return np.array(out, dtype=bool)


def compare_calibrators(first: NDArray[np.bool_], raw: Floats, correct: NDArray[np.bool_]) -> list[dict[str, Any]]:
    """ECE and mean NLL of each calibrator on the half of the questions that it was not fitted on, both halves in turn.

    `first` says of each rollout whether its question is in the first half. With a single question there is no other
    half, and nothing is compared.
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
    """A calibrator as numbers and lists."""
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in asdict(calibrator).items()}


def read_calibration(path: Path) -> VoteCalibration:
    """ConfigError in one line where the file is no calibration."""
    classes = {"temperature": Temperature, "platt": Platt, "vector": Affine, "matrix": Affine, "isotonic": Isotonic}
    try:
        facts = json.loads(path.read_text())
        parameters = {k: np.array(v) if isinstance(v, list) else v for k, v in facts["calibrator"].items()}
        if facts["kind"] == "platt":
            parameters = {k: np.array(v) for k, v in parameters.items()}  # a slope of one class is an array too
        threshold = inf if facts["threshold"] is None else float(facts["threshold"])
        return VoteCalibration(classes[facts["kind"]](**parameters), threshold, facts["delta"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no calibration ({error}); delete it, and it is fitted again") from error
