"""Clips that are parts of others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pixelis.dedup.audit_selfcheck import render_discs, render_pan
from pixelis.dedup.candidates import find_candidates
from pixelis.dedup.clip_alignment import alignment_at, best_alignment, compute_motion, nearest_index, offset_by_motion
from pixelis.dedup.media_collection import MediaCollection, MediaItem, collect
from pixelis.dedup.media_features import compute_features
from pixelis.dedup.pixel_verify import DedupConfig, PairFinding, PixelVerifier
from pixelis.dedup.synthetic_duplicates import bundled_images, reencode_clip
from pixelis.media import Clip, Image, Medium
from pixelis.weights.encoders.visual_encoder import VisualEncoder
from pixelis.world import generate

pytestmark = pytest.mark.weights


@pytest.fixture(scope="module")
def crossing() -> Clip:
    """Discs over a static background: most of every frame is the same."""
    return Clip.from_frames(render_discs(1), fps=12)


@pytest.fixture(scope="module")
def panning() -> Clip:
    return Clip.from_frames(render_pan(bundled_images()["astronaut"], 2), fps=12)


def found(a: Medium, b: Medium, encoder: VisualEncoder) -> list[PairFinding]:
    left, right = (collect([MediaItem(name, medium=m)], encoder) for name, m in (("a", a), ("b", b)))
    pairs = find_candidates(left.features, right.features, threshold=0.701)
    confirm = PixelVerifier(left, right, DedupConfig(), 0.701)
    return [confirm(pair) for pair in pairs.pairs]


@pytest.mark.parametrize("which", ["crossing", "panning"])
def test_a_trimmed_and_encoded_clip_is_found_at_its_offset(
    which: str, encoder: VisualEncoder, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    clip: Clip = request.getfixturevalue(which)
    short = reencode_clip(clip, tmp_path / "short.mp4", start=0.3, end=0.85, crf=30, scale=0.75)
    [finding] = found(short, clip, encoder)
    assert finding.kind == "near"
    assert finding.offset_s == pytest.approx(18 / 12, abs=0.13)  # frame 18 of 60 at 12 a second


def test_a_cropped_clip_of_few_frames_a_second_is_held_against_the_right_one(
    encoder: VisualEncoder, tmp_path: Path
) -> None:
    clip = generate("motion", seed=3_000_000_003, difficulty=1, template_id="motion.where_when").media[0]
    [finding] = found(reencode_clip(clip, tmp_path / "cropped.mp4", crop=0.05), clip, encoder)
    assert finding.kind == "near"  # at 4 a second the thumbnail of a crop prefers the frame beside its own


def test_other_discs_on_the_same_background_are_another_clip(encoder: VisualEncoder, crossing: Clip) -> None:
    other = Clip.from_frames(render_discs(2), fps=12)
    assert not any(finding.is_duplicate for finding in found(other, crossing, encoder))


def test_an_image_that_a_clip_shows_is_found_with_its_time(encoder: VisualEncoder, panning: Clip) -> None:
    still = Image.from_array(np.array(panning.frame(30)))
    [finding] = found(still, panning, encoder)
    assert finding.kind == "near"
    assert finding.offset_s == pytest.approx(30 / 12, abs=0.5)


def test_motion_finds_the_offset_that_a_still_background_hides(crossing: Clip) -> None:
    part = Clip.from_frames([crossing.frame(k) for k in range(15, 60)], fps=12)
    assert offset_by_motion(compute_motion(part), compute_motion(crossing), min_aligned=0.5) == pytest.approx(
        15 / 12, abs=0.13
    )


def test_what_stands_still_has_no_offset() -> None:
    still = Clip.from_frames([np.full((20, 20, 3), 9, np.uint8)] * 24, fps=12)
    assert offset_by_motion(compute_motion(still), compute_motion(still), min_aligned=0.5) is None


def test_frames_far_apart_share_nothing(encoder: VisualEncoder, crossing: Clip, panning: Clip) -> None:
    a, b = compute_features(crossing, encoder), compute_features(panning, encoder)
    best = best_alignment(a, b, radius=8, threshold=0.99, min_aligned=0.5)
    assert best is None or best.share < 0.7
    assert alignment_at(100.0, a, b, 8, 0.99).aligned_s == 0.0


def test_a_clip_of_five_seconds_has_five_keyframes_and_forty_hashes(encoder: VisualEncoder, crossing: Clip) -> None:
    features = compute_features(crossing, encoder)
    assert features.key_times_s.tolist() == [0, 1, 2, 3, 4]
    assert (
        len(features.dense_hashes) == 40
    )  # the last frame is shown at 59/12 = 4.917 s, the last eighth before is 4.875
    assert features.embeddings.shape == (5, 1280)


def test_the_nearest_moment_is_found_on_both_sides() -> None:
    times = np.array([0.0, 1.0, 2.0])
    assert nearest_index(times, np.array([-1.0, 0.4, 0.6, 1.9, 9.0])).tolist() == [0, 0, 1, 2, 2]
    assert nearest_index(np.zeros(1), np.array([0.3, 4.0])).tolist() == [0, 0]


def test_a_clip_whose_file_is_gone_is_unconfirmed_and_not_cleared(
    encoder: VisualEncoder, tmp_path: Path, panning: Clip
) -> None:
    path = tmp_path / "gone.mp4"
    reencode_clip(panning, path)
    side = collect([MediaItem("gone", path)], encoder)
    path.unlink()
    other = MediaCollection([MediaItem("here", medium=panning)], [compute_features(panning, encoder)])
    [pair] = find_candidates(side.features, other.features, threshold=0.701).pairs
    finding = PixelVerifier(side, other, DedupConfig(), 0.701)(pair)
    assert finding.kind == "unconfirmed"
    assert "gone.mp4" in finding.reason
