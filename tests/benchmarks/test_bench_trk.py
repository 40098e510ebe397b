"""The association of TRK on made-up streets, scored by TrackEval."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from benchmarks.bench_trk import bench_trk, normalise_scores, read_mot
from pixelis.core.errors import MediaError

SIZE = (640, 480)


def walkers(frames: int, count: int = 8, seed: int = 3) -> np.ndarray:
    """Gold rows of people who walk at their own speed across a street of 640 x 480, crossing each other."""
    rng = np.random.default_rng(seed)
    rows = []
    for person in range(1, count + 1):
        width = rng.uniform(30, 50)
        x, y = rng.uniform(60, 540), rng.uniform(60, 330)
        speed = rng.uniform(0.6, 2.5) * rng.choice([-1, 1])
        for frame in range(1, frames + 1):
            left = x + speed * frame
            if 0 <= left <= SIZE[0] - width:
                rows.append(
                    (frame, person, left, y + 3 * np.sin(frame / 9 + person), width, 2.4 * width, 1, -1, -1, -1)
                )
    return np.array(rows)


def detected(gold: np.ndarray, *, miss: float, jitter: float, false: float, seed: int) -> np.ndarray:
    """What a detector might make of it: runs of misses, hidden people missed, jittering edges, false alarms."""
    rng = np.random.default_rng(seed)
    rows, blind = [], {}
    for frame in np.unique(gold[:, 0]):
        here = gold[gold[:, 0] == frame]
        for _, person, x, y, w, h, *_ in here:
            nearer = here[(here[:, 3] + here[:, 5] > y + h) & (here[:, 1] != person)]
            across = np.clip(np.minimum(nearer[:, 2] + nearer[:, 4], x + w) - np.maximum(nearer[:, 2], x), 0, None)
            down = np.clip(np.minimum(nearer[:, 3] + nearer[:, 5], y + h) - np.maximum(nearer[:, 3], y), 0, None)
            hidden = float((across * down).max(initial=0.0)) / (w * h)
            if rng.random() < miss:
                blind[person] = frame + rng.integers(1, 4)
            if hidden > 0.5 or blind.get(person, 0) > frame:
                continue
            edges = rng.normal(size=4) * jitter * np.array([w, h / 2, w, h / 2])
            score = np.clip(0.97 - 0.4 * hidden - abs(rng.normal()) * 0.05, 0.3, 1)
            rows.append(
                (frame, -1, x + edges[0], y + edges[1], w + edges[2] - edges[0], h + edges[3] - edges[1], score)
            )
        for _ in range(rng.poisson(false)):
            rows.append((frame, -1, *rng.uniform(0, 400, 2), *rng.uniform(25, 90, 2), rng.uniform(0.4, 0.9)))
    return np.array(rows)


def written(path: Path, rows: np.ndarray) -> Path:
    np.savetxt(path, rows, fmt="%.3f", delimiter=",")
    return path


def test_gold_boxes_as_detections_come_back_as_the_gold_tracks(tmp_path: Path) -> None:
    gold = walkers(150)
    blind = gold.copy()
    blind[:, 1] = -1
    result = bench_trk(None, written(tmp_path / "det.txt", blind), written(tmp_path / "gt.txt", gold))
    assert result.hota is not None
    assert result.hota >= 0.99
    assert result.tracks == 8
    assert not result.compensated


def test_a_shaken_camera_switches_ids_unless_its_motion_is_compensated(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    street = cv2.GaussianBlur(rng.integers(0, 255, (720, 880, 3), dtype=np.uint8), (0, 0), 2)
    street = cv2.normalize(street, None, 0, 255, cv2.NORM_MINMAX)
    coats = rng.integers(0, 255, (9, 3))
    gold = walkers(60)
    frames = tmp_path / "frames"
    frames.mkdir()
    for frame in range(1, 61):
        dx, dy = rng.integers(-60, 61, 2)
        picture = street[120 - dy : 600 - dy, 120 - dx : 760 - dx].copy()
        rows = gold[:, 0] == frame
        gold[rows, 2] += dx
        gold[rows, 3] += dy
        for _, person, x, y, w, h, *_ in gold[rows]:
            cv2.rectangle(picture, (int(x), int(y)), (int(x + w), int(y + h)), coats[int(person)].tolist(), -1)
        cv2.imwrite(str(frames / f"{frame:06d}.png"), picture)
    det, gt = written(tmp_path / "det.txt", gold), written(tmp_path / "gt.txt", gold)
    with_motion, without = bench_trk(frames, det, gt), bench_trk(None, det, gt)
    assert with_motion.compensated
    assert with_motion.id_switches == 0
    assert with_motion.hota is not None
    assert with_motion.hota >= 0.99
    assert without.id_switches is not None
    assert without.id_switches > 20


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_street_with_a_quarter_of_the_people_missed_is_tracked_well(tmp_path: Path, seed: int) -> None:
    gold = walkers(200, count=10, seed=seed)
    noisy = detected(gold, miss=0.1, jitter=0.07, false=0.4, seed=seed)
    people = gold[:, 0].size
    assert 0.6 * people < len(noisy) < 0.95 * people
    result = bench_trk(None, written(tmp_path / "det.txt", noisy), written(tmp_path / "gt.txt", gold))
    assert result.hota is not None
    assert result.hota >= 0.53


def test_without_gold_tracks_there_are_no_scores(tmp_path: Path) -> None:
    result = bench_trk(None, written(tmp_path / "det.txt", walkers(20)), None)
    assert result.tracks == 8
    assert result.hota is None


def test_scores_of_any_scale_become_shares() -> None:
    assert normalise_scores(np.array([-1.0, -1.0])).tolist() == [1.0, 1.0]
    assert normalise_scores(np.array([0.2, 0.9])).tolist() == [0.2, 0.9]
    assert normalise_scores(np.array([20.0, 90.0])).tolist() == [0.2, 0.9]
    margins = normalise_scores(np.linspace(-1.0, 3.0, 101))
    assert margins[50] == pytest.approx(0.65)  # the middle of a span that begins at 0.3
    assert (np.diff(margins) >= 0).all()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "contains no rows"),
        ("1,-1,3,4\n", "det.txt:1: expected frame, id"),
        ("1,-1,0,0,9,9,1\n2,-1,a,0,9,9,1\n", "det.txt:2: .* not a number"),
        ("1,-1,nan,0,9,9,1\n", "det.txt:1"),
        ("1,-1,0,0,9,9,1\n1,-1,0,0,9,9,1,1\n", "differ"),
    ],
)
def test_a_file_of_something_else_is_refused_in_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "det.txt"
    path.write_text(text)
    with pytest.raises(MediaError, match=complaint):
        read_mot(path)


def test_pictures_that_end_before_the_rows_are_refused(tmp_path: Path) -> None:
    frames = tmp_path / "frames"
    frames.mkdir()
    cv2.imwrite(str(frames / "1.png"), np.zeros((48, 64, 3), dtype=np.uint8))
    with pytest.raises(MediaError, match="reach frame 20"):
        bench_trk(frames, written(tmp_path / "det.txt", walkers(20)), None)
