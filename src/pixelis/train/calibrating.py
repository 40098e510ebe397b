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

from pixelis.equations.calibration import (
    SMALLEST,
    Affine,
    Calibrator,
    Isotonic,
    Platt,
    Temperature,
    fit_affine,
    fit_confidence_temperature,
    fit_isotonic,
    fit_platt,
    two_classes,
)
from pixelis.equations.conformal import conformal_quantile, nonconformity
from pixelis.errors import ConfigError
from pixelis.metrics.calibration import expected_calibration_error
from pixelis.metrics.selective import error_at_margin
from pixelis.policy.model import Policy
from pixelis.rollout.answering import spoken, sureness
from pixelis.rundir import write_json
from pixelis.scoring.consensus import PLAIN, Window, decide
from pixelis.tools.toolbox import Toolbox
from pixelis.train.questions import Questions, ask_each, right
from pixelis.train.ttrl_config import CalibrationSettings, Calibrators, TtrlConfig
from pixelis.world import Item

FILE = "calibration.json"
DELTAS = (0.0, 0.04, 0.08, 0.12, 0.2, 0.3, 0.5, 0.8)
"""Margins whose risk and coverage are told."""
Floats = NDArray[np.float64]


class Calibration(NamedTuple):
    """What weighs and gates the votes of a run."""

    calibrator: Calibrator = PLAIN
    threshold: float | None = None
    """Of the conformal set."""
    delta: float | None = None
    """The vote's own where it was not fitted."""


def calibrate(
    config: TtrlConfig,
    policy: Policy,
    toolbox: Toolbox,
    questions: Questions,
    path: Path,
    asking: Callable[[int], None] = lambda done: None,
) -> Calibration:
    """The calibration that lies at `path`, or a new one, fitted on these questions and written there."""
    if path.exists():
        return read_calibration(path)
    if not config.calibration.items:
        return Calibration()
    seed = config.seed * 1_000_003
    each = ask_each(config, policy, toolbox, questions, n=config.samples, seed=seed, temperature=1.0, asking=asking)
    asked = list(each)
    told = [
        (k, sureness(rolled.trace), right(own, rolled.answer))
        for k, (own, group) in enumerate(asked)
        for rolled in group
        if spoken(rolled)
    ]
    if not told:
        raise ConfigError(f"none of {len(asked)} dev-cal questions got an answer: there is nothing to calibrate on")
    item, raw, correct = (np.array(column) for column in zip(*told, strict=True))
    settings = config.calibration
    calibrator = FITS[settings.kind](raw, correct)
    window = Window(config.vote.window)
    votes = [
        decide(group, config.vote.model_copy(update={"delta": 0.0}), calibration=calibrator, window=window)
        for _, group in asked
    ]
    shares = [share_of_right(own, vote.consensus.scores) for (own, _), vote in zip(asked, votes, strict=True)]
    threshold = conformal_quantile(nonconformity(shares), alpha=settings.level)
    margins = np.array([vote.consensus.margin for vote in votes])
    wrong = np.array([not right(own, vote.answer) for (own, _), vote in zip(asked, votes, strict=True)])
    facts = {
        "kind": settings.kind,
        "calibrator": plain(calibrator),
        "threshold": None if threshold == inf else threshold,
        "delta": delta_of(margins, settings),
        "level": settings.level,
        "questions": len(asked),
        "rollouts": len(raw),
        "right": float(correct.mean()),
        "compared": compared(in_first_half([own.family for own, _ in asked])[item], raw, correct),
        "risk_coverage": [
            {"delta": d, **error_at_margin(margins, wrong.astype(float), delta=d)._asdict()} for d in DELTAS
        ],
    }
    write_json(path, facts)
    return read_calibration(path)


def share_of_right(item: Item, scores: Mapping[Any, float]) -> float:
    """The largest vote share among the answers that are right by the item's rule: sets are of single answers, so that
    two spellings with half of it each are not as good as one with all of it."""
    return max((share for answer, share in scores.items() if right(item, str(answer))), default=0.0)


def delta_of(margins: Floats, settings: CalibrationSettings) -> float | None:
    """δ under which the wanted share of dev-cal votes passes; None where none is wanted."""
    if settings.coverage is None:
        return None
    kept = max(1, int(np.ceil(settings.coverage * len(margins) - 1e-9)))  # 0.56 of 50 is 28, however it is rounded
    return float(np.sort(margins)[::-1][kept - 1])


# --- the calibrators


def fit_two_class(raw: Floats, correct: NDArray[np.bool_], *, full: bool) -> Affine:
    return fit_affine(two_classes(raw), correct.astype(np.int64), kind="matrix" if full else "vector")


FITS: dict[Calibrators, Any] = {
    "temperature": fit_confidence_temperature,
    "platt": lambda raw, correct: fit_platt(two_classes(raw)[:, 1], correct),
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


def compared(first: NDArray[np.bool_], raw: Floats, correct: NDArray[np.bool_]) -> list[dict[str, Any]]:
    """ECE and mean NLL of each calibrator on the half of the questions that it was not fitted on, both halves in turn.

    `first` says of each rollout whether its question is in the first half. With a single question there is no other
    half, and nothing is compared.
    """
    if first.all() or not first.any():
        return []
    rows = [{"kind": "none", **figures(raw, correct)}]
    for kind in get_args(Calibrators):
        told = np.zeros(len(raw))
        for seen in (first, ~first):
            told[~seen] = FITS[kind](raw[seen], correct[seen]).confidence(raw[~seen])
        rows.append({"kind": kind, **figures(told, correct)})
    return rows


def figures(told: Floats, correct: NDArray[np.bool_]) -> dict[str, float]:
    p = np.clip(told, SMALLEST, 1.0 - SMALLEST)
    nll = -np.where(correct, np.log(p), np.log1p(-p)).mean()
    return {"ece": 100.0 * float(expected_calibration_error(told, correct)), "nll": float(nll)}


# --- on disk


def plain(calibrator: Any) -> dict[str, Any]:
    """A calibrator as numbers and lists."""
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in asdict(calibrator).items()}


def read_calibration(path: Path) -> Calibration:
    """ConfigError in one line where the file is no calibration."""
    made = {"temperature": Temperature, "platt": Platt, "vector": Affine, "matrix": Affine, "isotonic": Isotonic}
    try:
        facts = json.loads(path.read_text())
        given = {k: np.array(v) if isinstance(v, list) else v for k, v in facts["calibrator"].items()}
        if facts["kind"] == "platt":
            given = {k: np.array(v) for k, v in given.items()}  # a slope of one class is an array too
        threshold = inf if facts["threshold"] is None else float(facts["threshold"])
        return Calibration(made[facts["kind"]](**given), threshold, facts["delta"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no calibration ({error}); delete it, and it is fitted again") from error
