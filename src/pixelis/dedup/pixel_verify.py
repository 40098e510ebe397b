"""Stage 3: compare the pixels of a flagged pair and classify it (supp:index_whitelist_dedup, thresholds and
priorities).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from pixelis.core.config import Config
from pixelis.core.errors import MediaError
from pixelis.dedup.candidates import Candidate, Candidates, SearchTables, find_candidates
from pixelis.dedup.clip_alignment import (
    Motion,
    best_alignment,
    compare_aligned_frames,
    compute_motion,
    near_frames,
    offset_by_motion,
)
from pixelis.dedup.media_collection import MediaCollection
from pixelis.dedup.media_features import Features
from pixelis.dedup.similarity import NO_SIMILARITY, ComparisonImage, PixelSimilarity, compare_images
from pixelis.dedup.thumbnail_match import thumbnail_correlation
from pixelis.media import Medium

MIN_CORRELATION = 0.6
"""Correlation of thumbnails below which two pictures are not compared further; synthetic copies stay above 0.72."""
MAX_CACHED_IMAGES = 96
MAX_CACHED_CLIPS = 4
T = TypeVar("T")

FindingKind = Literal["exact", "near", "flip", "template", "different", "unconfirmed"]
"""`template`: the same background or layout with other content. `unconfirmed`: a file did not open again."""


class DedupConfig(Config):
    """Thresholds of the pipeline; the paper's (tab:supp_dedup_thresholds) where they hold in practice."""

    hamming: int = 8
    """pHash distance up to which stage 1 flags a pair."""
    cosine: float | None = None
    """Cosine from which stage 2 flags a pair; None: calibrated for the encoder (the paper's 0.93 is for CLIP)."""
    ssim: float = 0.92
    """SSIM above which a pair that only one stage flagged is a duplicate."""
    clip_ssim: float = 0.90
    """SSIM above which two frames whose overlap is below `overlap` still match."""
    template_ssim: float = 0.75
    """SSIM from which a pair that is not a duplicate is a `template` rather than `different`; both are kept."""
    template_overlap: float = 0.25
    """Overlap above which it is a `template` too. The paper keeps a pair below both; here both kinds are kept."""
    overlap: float = 0.97
    """Share of local structure that must be equal: a table with one row of other numbers falls below."""
    clip_overlap: float = 0.90
    """The same for frames of clips: objects move between two samples, and codecs blur."""
    colour: float = 0.8
    """Share of coloured pixels that must keep their hue, unless one of the two pictures is grey."""
    frames: float = 0.70
    """Share of aligned frames that must be near (temporal consistency)."""
    aligned: float = 0.5
    """Share of the shorter clip that must lie within the longer one."""
    flips: Literal["report", "remove", "ignore"] = "report"
    """How mirror images are treated."""
    trust_phash: bool = False
    """Remove pairs with near pHash without comparing pixels, as the paper does; removes slides of one template."""
    per_item: int = 24
    """Candidates of each item that are verified, nearest first, for each stage."""

    def removes(self, finding: PairFinding) -> bool:
        return finding.is_duplicate or (finding.kind == "flip" and self.flips == "remove")


class PairFinding(NamedTuple):
    """The verdict on a pair."""

    left: int
    right: int
    kind: FindingKind
    distance: int
    cosine: float
    ssim: float
    overlap: float
    offset_s: float | None = None
    """Where the shorter clip begins in the longer one, or the time at which the clip shows the image."""
    reason: str = ""

    @classmethod
    def exact(cls, left: int, right: int, reason: str = "the same bytes") -> PairFinding:
        return cls(left, right, "exact", distance=0, cosine=1.0, ssim=1.0, overlap=1.0, reason=reason)

    @property
    def is_duplicate(self) -> bool:
        return self.kind in ("exact", "near")


def flagged_pairs(
    left: Sequence[Features], right: Sequence[Features] | SearchTables | None, config: DedupConfig, threshold: float
) -> Candidates:
    """`find_candidates` with the settings of a configuration."""
    flips = config.flips != "ignore"
    return find_candidates(
        left, right, threshold=threshold, radius=config.hamming, flips=flips, per_item=config.per_item
    )


def get_or_compute(cache: OrderedDict[str, T], key: str, compute: Callable[[], T], max_entries: int) -> T:
    """An entry of a least-recently-used cache."""
    if key not in cache:
        cache[key] = compute()
        if len(cache) > max_entries:
            cache.popitem(last=False)
    cache.move_to_end(key)
    return cache[key]


class PixelVerifier:
    """Classifies flagged pairs of two collections (or of one with itself); caches the media that it opened."""

    def __init__(
        self,
        left: MediaCollection,
        right: MediaCollection,
        config: DedupConfig,
        threshold: float,
        *,
        thorough: bool = False,
    ) -> None:
        self._thorough = thorough  # compare pixels even if neither stage flagged the pair
        self._left, self._right, self._config, self._threshold = left, right, config, threshold
        self._images_by_hash: OrderedDict[str, ComparisonImage] = OrderedDict()
        self._media_by_hash: OrderedDict[str, Medium] = OrderedDict()
        self._motion_by_hash: OrderedDict[str, Motion] = OrderedDict()

    def __call__(self, pair: Candidate) -> PairFinding:
        a, b = self._left.features[pair.left], self._right.features[pair.right]
        kinds = {a.kind, b.kind}
        try:
            if kinds == {"image"}:
                return self._compare_images(pair, a, b)
            return self._compare_clips(pair, a, b) if kinds == {"clip"} else self._compare_image_with_clip(pair, a, b)
        except MediaError as error:
            return self._make_finding(pair, "unconfirmed", reason=str(error))

    def _compare_images(self, pair: Candidate, a: Features, b: Features) -> PairFinding:
        distance = (a.phash ^ b.phash).bit_count()
        cosine = float(a.embeddings[0].astype(np.float32) @ b.embeddings[0].astype(np.float32))
        pair = pair._replace(distance=distance, cosine=cosine)
        if self._config.trust_phash and distance <= self._config.hamming:
            return self._make_finding(pair, "near", reason="pHash alone")
        is_mirror_near = pair.mirror_distance <= self._config.hamming and self._config.flips != "ignore"
        if not (is_mirror_near or self._thorough) and thumbnail_correlation(a.thumbnail, b.thumbnail) < MIN_CORRELATION:
            return self._make_finding(pair, "different", reason="neither picture is part of the other")
        image_a, image_b = self._get_image(self._left, pair.left), self._get_image(self._right, pair.right)
        unmirrored = NO_SIMILARITY
        if self._thorough or distance <= self._config.hamming or cosine >= self._threshold:
            unmirrored = compare_images(image_a, image_b)
            if self._is_same(pair, unmirrored):
                return self._make_finding(pair, "near", unmirrored)
        if is_mirror_near:
            mirrored = compare_images(image_a.mirrored, image_b)
            if mirrored.overlap >= self._config.overlap and mirrored.colour >= self._config.colour:
                return self._make_finding(pair, "flip", mirrored)
        return self._make_finding(pair, self._classify_different(unmirrored), unmirrored)

    def _is_same(self, pair: Candidate, similarity: PixelSimilarity) -> bool:
        """Structure and colour must agree; if only one stage flagged the pair, SSIM or nearly all structure as well."""
        config = self._config
        if similarity.overlap < config.overlap or similarity.colour < config.colour:
            return False
        flagged_by_both = pair.distance <= config.hamming and pair.cosine >= self._threshold
        # JPEG 10 on noise has an SSIM of 0.86 although every window agrees: overlap decides where SSIM is uncertain
        return flagged_by_both or similarity.ssim > config.ssim or similarity.overlap >= 0.99

    def _classify_different(self, similarity: PixelSimilarity) -> FindingKind:
        """The kind of a pair that is kept: the same background or layout with other content, or nothing in common."""
        config = self._config
        is_template = similarity.overlap > config.template_overlap or similarity.ssim >= config.template_ssim
        return "template" if is_template else "different"

    def _compare_clips(self, pair: Candidate, a: Features, b: Features) -> PairFinding:
        short_is_left = a.duration_s <= b.duration_s
        short, long = (a, b) if short_is_left else (b, a)
        config = self._config
        alignment = best_alignment(
            short, long, radius=config.hamming, threshold=self._threshold, min_aligned=config.aligned
        )
        if alignment is None or alignment.share < config.frames:
            share = 0.0 if alignment is None else alignment.share
            return self._make_finding(pair, "different", reason=f"{share:.0%} of the aligned frames are near")
        clips = self._get_medium(self._left, pair.left), self._get_medium(self._right, pair.right)
        short_clip, long_clip = clips if short_is_left else clips[::-1]
        motion_offset_s = offset_by_motion(
            self._get_motion(short_clip), self._get_motion(long_clip), min_aligned=config.aligned
        )
        finding = self._make_finding(pair, "different")
        for offset_s in dict.fromkeys(
            [alignment.offset_s if motion_offset_s is None else motion_offset_s, alignment.offset_s]
        ):
            finding = self._compare_aligned(pair, compare_aligned_frames(short_clip, long_clip, offset_s), offset_s)
            if finding.is_duplicate:
                break
        return finding

    def _compare_aligned(self, pair: Candidate, frames: list[PixelSimilarity], offset_s: float) -> PairFinding:
        """Temporal consistency: enough of the aligned frames match."""
        num_same = sum(self._is_same_frame(similarity) for similarity in frames)
        median = PixelSimilarity(*(float(np.median(values)) for values in zip(*frames, strict=True)))
        is_near = num_same >= self._config.frames * len(frames)
        kind: FindingKind = "near" if is_near else self._classify_different(median)
        reason = f"{num_same} of {len(frames)} aligned frames match"
        return self._make_finding(pair, kind, median, offset_s=offset_s, reason=reason)

    def _get_motion(self, clip: Medium) -> Motion:
        return get_or_compute(self._motion_by_hash, clip.sha256, lambda: compute_motion(clip), MAX_CACHED_CLIPS)

    def _is_same_frame(self, similarity: PixelSimilarity) -> bool:
        config = self._config
        agrees = similarity.overlap >= config.overlap or (
            similarity.overlap >= config.clip_overlap and similarity.ssim > config.clip_ssim
        )
        return agrees and similarity.colour >= config.colour

    def _compare_image_with_clip(self, pair: Candidate, a: Features, b: Features) -> PairFinding:
        """Whether an image is one of a clip's frames."""
        image_is_left = a.kind == "image"
        image, clip = (a, b) if image_is_left else (b, a)
        sides = (self._left, pair.left), (self._right, pair.right)
        image_side, clip_side = sides if image_is_left else sides[::-1]
        frame = self._get_medium(*image_side).frame(0)
        picture = ComparisonImage.from_frame(frame)
        clip_medium = self._get_medium(*clip_side)
        by_hash = float(clip.dense_times_s[np.bitwise_count(clip.dense_hashes ^ image.key_hashes[0]).argmin()])
        cosines = clip.embeddings.astype(np.float32) @ image.embeddings[0].astype(np.float32)
        by_embedding = float(clip.key_times_s[cosines.argmax()])
        best, best_time_s = NO_SIMILARITY, by_hash
        for seconds, radius_s in ((by_hash, 0.125), (by_embedding, 0.5)):
            nearest = near_frames(frame, clip_medium, seconds, radius_s=radius_s)[0]
            similarity = compare_images(picture, ComparisonImage.from_frame(nearest))
            if similarity.overlap > best.overlap:
                best, best_time_s = similarity, seconds
            if self._is_same_frame(best):
                reason = "the image is a frame of the clip"
                return self._make_finding(pair, "near", best, offset_s=best_time_s, reason=reason)
        return self._make_finding(pair, self._classify_different(best), best, offset_s=best_time_s)

    def _get_image(self, side: MediaCollection, number: int) -> ComparisonImage:
        def compute() -> ComparisonImage:
            return ComparisonImage.from_frame(side.items[number].open().frame(0))

        return get_or_compute(self._images_by_hash, side.features[number].sha256, compute, MAX_CACHED_IMAGES)

    def _get_medium(self, side: MediaCollection, number: int) -> Medium:
        sha256 = side.features[number].sha256
        return get_or_compute(self._media_by_hash, sha256, side.items[number].open, MAX_CACHED_CLIPS)

    @staticmethod
    def _make_finding(
        pair: Candidate,
        kind: FindingKind,
        similarity: PixelSimilarity = NO_SIMILARITY,
        *,
        offset_s: float | None = None,
        reason: str = "",
    ) -> PairFinding:
        distance = min(pair.distance, pair.mirror_distance) if kind == "flip" else pair.distance
        return PairFinding(
            pair.left, pair.right, kind, distance, pair.cosine, similarity.ssim, similarity.overlap, offset_s, reason
        )
