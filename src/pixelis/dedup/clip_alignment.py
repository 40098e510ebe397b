"""Temporal consistency: whether one clip is a part of another (supp:index_whitelist_dedup).

The offset comes from hashes and embeddings, sampled densely enough to find a clip that is trimmed by a third of a
second; at least 70 % of the aligned frames must then be near, and a few of them are compared pixel by pixel.
"""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from pixelis.dedup.media_features import DENSE_FPS, Features, sample_times
from pixelis.dedup.similarity import NO_SIMILARITY, ComparisonImage, PixelSimilarity, compare_images, similarity_rank
from pixelis.media import Frame, Medium

Motion = NDArray[np.float32]
"""(samples - 1, 256)"""

MAX_SAMPLES = 600
"""Frames of the shorter clip that vote for an offset."""
NUM_COMPARED_FRAMES = 7
"""Aligned frames that are compared pixel by pixel."""
NUM_TRIED_FRAMES = 3
"""Frames of the other clip that each is compared with, until one matches."""
SEARCH_RADIUS_S = 1.0 / DENSE_FPS
"""How far the matching frame may lie from the time that the hashes suggest."""


class Alignment(NamedTuple):
    """The position of the shorter clip within the longer one."""

    offset_s: float
    """Time in the longer clip at which the shorter one begins."""
    share: float
    """Share of the aligned frames that are near by hash or embedding."""
    aligned_s: float
    """Duration of the part of the shorter clip that lies within the longer one."""


def best_alignment(
    short: Features, long: Features, *, radius: int, threshold: float, min_aligned: float
) -> Alignment | None:
    """The offset at which most frames agree, among those that align at least `min_aligned` of the shorter clip."""
    best: Alignment | None = None
    for offset in propose_offsets(short, long, radius, threshold):
        alignment = alignment_at(offset, short, long, radius, threshold)
        if alignment.aligned_s < min_aligned * short.duration_s:
            continue
        if best is None or (alignment.share, alignment.aligned_s) > (best.share, best.aligned_s):
            best = alignment
    return best


def propose_offsets(
    short: Features, long: Features, radius: int, threshold: float, *, max_offsets: int = 4
) -> list[float]:
    """Offsets with most votes of hashes, then of embeddings (a cropped clip has no near hash); 0 last."""
    step = max(1, len(short.dense_hashes) // MAX_SAMPLES)
    is_near = np.bitwise_count(short.dense_hashes[::step, None] ^ long.dense_hashes) <= radius
    by_hash = vote_offsets(is_near, short.dense_times_s[::step], long.dense_times_s, max_offsets)
    cosines = short.embeddings.astype(np.float32) @ long.embeddings.astype(np.float32).T
    by_embedding = vote_offsets(cosines >= threshold, short.key_times_s, long.key_times_s, max_offsets)
    return list(dict.fromkeys([*by_hash, *by_embedding, 0.0]))


def vote_offsets(
    is_near: NDArray[np.bool_], short_s: NDArray[np.float64], long_s: NDArray[np.float64], max_offsets: int
) -> list[float]:
    i, j = np.nonzero(is_near)
    offsets, counts = np.unique(np.round((long_s[j] - short_s[i]) * DENSE_FPS), return_counts=True)
    order = np.lexsort((np.abs(offsets), -counts))[:max_offsets]
    return [float(offsets[k] / DENSE_FPS) for k in order]


def alignment_at(offset: float, short: Features, long: Features, radius: int, threshold: float) -> Alignment:
    """The share of near frames among those of the shorter clip that fall into the longer one."""
    target_times_s = short.dense_times_s + offset
    inside = np.flatnonzero((target_times_s > -SEARCH_RADIUS_S) & (target_times_s < long.duration_s + SEARCH_RADIUS_S))
    if not len(inside):
        return Alignment(offset, 0.0, 0.0)
    nearest = np.clip(np.round(target_times_s[inside] * DENSE_FPS).astype(np.int64), 0, len(long.dense_hashes) - 1)
    neighbours = np.clip(nearest[:, None] + np.array([-1, 0, 1]), 0, len(long.dense_hashes) - 1)  # (n, 3)
    distance = np.bitwise_count(short.dense_hashes[inside][:, None] ^ long.dense_hashes[neighbours]).min(axis=1)
    key_short = nearest_index(short.key_times_s, short.dense_times_s[inside])
    key_long = nearest_index(long.key_times_s, target_times_s[inside])
    vectors = short.embeddings[key_short].astype(np.float32), long.embeddings[key_long].astype(np.float32)
    is_near = (distance <= radius) | ((vectors[0] * vectors[1]).sum(axis=1) >= threshold)
    return Alignment(offset, float(is_near.mean()), len(inside) / DENSE_FPS)


def nearest_index(times: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.int64]:
    right = np.clip(np.searchsorted(times, targets), 1, max(1, len(times) - 1))
    if len(times) == 1:
        return np.zeros(len(targets), np.int64)
    return np.where(targets - times[right - 1] <= times[right] - targets, right - 1, right)


def compute_motion(clip: Medium) -> Motion:
    """Change from one sample to the next, because a static background says nothing about the time."""
    thumbnails = [
        normalised_thumbnail(clip.frame(clip.index_at(t)), side=16).ravel() for t in sample_times(clip, DENSE_FPS)
    ]
    return np.diff(np.stack(thumbnails), axis=0) if len(thumbnails) > 1 else np.zeros((0, 256), np.float32)


def offset_by_motion(short: Motion, long: Motion, *, min_aligned: float) -> float | None:
    """The offset at which the changes of the shorter clip correlate best with those of the longer one."""
    if not len(short) or not len(long):
        return None
    products = short @ long.T  # (n, m)
    power_short, power_long = (short**2).sum(axis=1), (long**2).sum(axis=1)
    best, best_score = None, 0.2  # less than this is chance
    for shift in range(-len(short) + 1, len(long)):
        a, b = max(0, -shift), max(0, shift)
        length = min(len(short) - a, len(long) - b)
        if length < min_aligned * len(short):
            continue
        power = float(power_short[a : a + length].sum() * power_long[b : b + length].sum())
        score = float(np.trace(products[a : a + length, b : b + length])) / max(power, 1e-12) ** 0.5
        if score > best_score:
            best, best_score = shift / DENSE_FPS, score
    return best


def compare_aligned_frames(short: Medium, long: Medium, offset_s: float) -> list[PixelSimilarity]:
    """Similarities of frames spread over the aligned part, each with the best matching frame of the other clip."""
    begin, end = max(0.0, -offset_s), min(short.duration_s, long.duration_s - offset_s)
    times_s = begin + (np.arange(NUM_COMPARED_FRAMES) + 0.5) / NUM_COMPARED_FRAMES * (end - begin)
    similarities = []
    for index in dict.fromkeys(frame_index(short, float(t)) for t in times_s):
        frame = short.frame(index)
        others = near_frames(frame, long, short.time_of(index) + offset_s)[:NUM_TRIED_FRAMES]
        similarities.append(best_similarity(frame, others))
    return similarities


def best_similarity(frame: Frame, others: list[Frame], *, stop_at: float = 0.97) -> PixelSimilarity:
    """Similarity with the best frame: a crop moves everything, so that thumbnails may rank a neighbour first."""
    image, best = ComparisonImage.from_frame(frame), NO_SIMILARITY
    for other in others:
        best = max(best, compare_images(image, ComparisonImage.from_frame(other)), key=similarity_rank)
        if best.overlap >= stop_at:
            break
    return best


def near_frames(frame: Frame, clip: Medium, seconds: float, *, radius_s: float = SEARCH_RADIUS_S) -> list[Frame]:
    """The clip's frames near this time, most similar thumbnail first."""
    first, last = frame_index(clip, seconds - radius_s), frame_index(clip, seconds + radius_s)
    step = max(1, (last - first) // 16)
    target = normalised_thumbnail(frame)
    frames = [clip.frame(index) for index in range(first, last + 1, step)]
    return sorted(frames, key=lambda other: float(np.abs(normalised_thumbnail(other) - target).mean()))


def frame_index(medium: Medium, seconds: float) -> int:
    return medium.index_at(min(max(seconds, 0.0), medium.duration_s))


def normalised_thumbnail(frame: Frame, *, side: int = 64) -> NDArray[np.float32]:
    """Grey levels of zero mean and unit deviation, so that brightness does not choose the frame."""
    grey = cv2.cvtColor(cv2.resize(frame, (side, side), interpolation=cv2.INTER_AREA), cv2.COLOR_RGB2GRAY)
    values = grey.astype(np.float32)
    return (values - values.mean()) / max(float(values.std()), 1.0)
