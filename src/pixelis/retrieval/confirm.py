"""From a flagged pair to a finding: the pixels decide (supp:index_whitelist_dedup, thresholds and priorities)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal, NamedTuple

import numpy as np

from pixelis.config import Config
from pixelis.errors import MediaError
from pixelis.media import Medium
from pixelis.retrieval.candidates import FAR, Candidate
from pixelis.retrieval.clips import Motion, best_alignment, best_frame, inspected, motion_of, offset_by_motion
from pixelis.retrieval.collection import Collection
from pixelis.retrieval.features import Features
from pixelis.retrieval.placing import fit
from pixelis.retrieval.similar import NOTHING, Likeness, View, likeness

FITS = 0.6
"""Correlation of thumbnails under which two pictures are not looked at; planted copies stay over 0.72."""
KEPT_VIEWS = 96
KEPT_CLIPS = 4

Kind = Literal["exact", "near", "flip", "template", "different", "unconfirmed"]
"""`template`: the same background or layout with other content. `unconfirmed`: a file could not be opened again."""


class DedupConfig(Config):
    """Thresholds of the pipeline; the paper's (tab:supp_dedup_thresholds) where it gives one that holds."""

    hamming: int = 8
    """pHash distance up to which stage 1 flags a pair."""
    cosine: float | None = None
    """Cosine from which stage 2 flags a pair; None: calibrated for the encoder (the paper's 0.93 is for CLIP)."""
    ssim: float = 0.92
    """Breaks a tie between the two stages."""
    clip_ssim: float = 0.90
    template_ssim: float = 0.75
    """SSIM from which a pair that is not the same is called `template`, and not `different`; both stay."""
    template_overlap: float = 0.25
    """Overlap over which it is called so too. The paper spares what is under both; here only sameness removes."""
    overlap: float = 0.97
    """Share of the local structure that must be the same: a table with one row of other numbers falls below."""
    clip_overlap: float = 0.90
    """The same for a clip's frame: between two samples things move, and codecs blur."""
    colour: float = 0.8
    """Share of coloured places that must keep their hue, unless one of the two is grey."""
    frames: float = 0.70
    """Share of aligned frames that must be near (temporal consistency)."""
    aligned: float = 0.5
    """Share of the shorter clip that must lie in the other one."""
    flips: Literal["report", "remove", "ignore"] = "report"
    """What is done with mirror images."""
    trust_phash: bool = False
    """The paper's priority, that a near pHash is removed unseen; it removes slides of one template."""
    per_item: int = 24
    """Candidates of one item that are looked at, nearest first, for each stage."""


class Finding(NamedTuple):
    """What became of a pair."""

    left: int
    right: int
    kind: Kind
    distance: int
    cosine: float
    ssim: float
    overlap: float
    offset_s: float | None = None
    """Where the shorter clip begins in the longer one, or when the clip shows the image."""
    reason: str = ""

    @property
    def is_duplicate(self) -> bool:
        return self.kind in ("exact", "near")


class Confirmer:
    """Looks at flagged pairs of two collections (or of one with itself) and keeps what it has opened for the next."""

    def __init__(
        self, left: Collection, right: Collection, config: DedupConfig, threshold: float, *, thorough: bool = False
    ) -> None:
        self._thorough = thorough  # look whatever the stages say: what an inspector does
        self._left, self._right, self._config, self._threshold = left, right, config, threshold
        self._views: OrderedDict[str, View] = OrderedDict()
        self._media: OrderedDict[str, Medium] = OrderedDict()
        self._motions: OrderedDict[str, Motion] = OrderedDict()

    def __call__(self, pair: Candidate) -> Finding:
        a, b = self._left.features[pair.left], self._right.features[pair.right]
        kinds = {a.kind, b.kind}
        try:
            if kinds == {"image"}:
                return self._images(pair, a, b)
            return self._clips(pair, a, b) if kinds == {"clip"} else self._frame_of_clip(pair, a, b)
        except MediaError as error:
            return self._finding(pair, "unconfirmed", NOTHING, reason=str(error))

    def _images(self, pair: Candidate, a: Features, b: Features) -> Finding:
        distance = (a.whole ^ b.whole).bit_count()
        cosine = float(a.embeddings[0].astype(np.float32) @ b.embeddings[0].astype(np.float32))
        pair = pair._replace(distance=distance, cosine=cosine)
        if self._config.trust_phash and distance <= self._config.hamming:
            return self._finding(pair, "near", NOTHING, reason="pHash alone")
        mirror_near = pair.mirror_distance <= self._config.hamming and self._config.flips != "ignore"
        if not (mirror_near or self._thorough) and fit(a.thumbnail, b.thumbnail) < FITS:
            return self._finding(pair, "different", NOTHING, reason="neither fits into the other")
        view_a, view_b = self._view(self._left, pair.left), self._view(self._right, pair.right)
        straight = NOTHING
        if self._thorough or distance <= self._config.hamming or cosine >= self._threshold:
            straight = likeness(view_a, view_b)
            if self._same(pair, straight):
                return self._finding(pair, "near", straight)
        if mirror_near:
            mirrored = likeness(view_a.mirrored, view_b)
            if mirrored.overlap >= self._config.overlap and mirrored.colour >= self._config.colour:
                return self._finding(pair, "flip", mirrored)
        return self._finding(pair, self._apart(straight), straight)

    def _same(self, pair: Candidate, found: Likeness) -> bool:
        """Structure and colour must agree; where only one stage flagged the pair, SSIM or the whole of it as well."""
        config = self._config
        if found.overlap < config.overlap or found.colour < config.colour:
            return False
        both_stages = pair.distance <= config.hamming and pair.cosine >= self._threshold
        # JPEG 10 on noise has an SSIM of 0.86 and every window the same: overlap speaks where SSIM is unsure
        return both_stages or found.ssim > config.ssim or found.overlap >= 0.99

    def _apart(self, found: Likeness) -> Kind:
        """What to call a pair that stays: the same background or layout with other content, or nothing in common."""
        alike = found.overlap > self._config.template_overlap or found.ssim >= self._config.template_ssim
        return "template" if alike else "different"

    def _clips(self, pair: Candidate, a: Features, b: Features) -> Finding:
        short_is_left = a.duration_s <= b.duration_s
        short, long = (a, b) if short_is_left else (b, a)
        config = self._config
        at = best_alignment(short, long, radius=config.hamming, threshold=self._threshold, least=config.aligned)
        if at is None or at.share < config.frames:
            share = 0.0 if at is None else at.share
            return self._finding(pair, "different", NOTHING, reason=f"{share:.0%} of the aligned frames are near")
        opened = self._medium(self._left, pair.left), self._medium(self._right, pair.right)
        small, large = opened if short_is_left else opened[::-1]
        moved = offset_by_motion(self._motion(small), self._motion(large), least=config.aligned)
        finding = self._finding(pair, "different", NOTHING)
        for offset_s in dict.fromkeys([at.offset_s if moved is None else moved, at.offset_s]):
            finding = self._stretch(pair, inspected(small, large, offset_s), offset_s)
            if finding.is_duplicate:
                break
        return finding

    def _stretch(self, pair: Candidate, frames: list[Likeness], offset_s: float) -> Finding:
        """Temporal consistency: enough of the aligned frames show the same."""
        same = sum(self._same_frame(found) for found in frames)
        middle = Likeness(*(float(np.median(values)) for values in zip(*frames, strict=True)))
        kind: Kind = "near" if same >= self._config.frames * len(frames) else self._apart(middle)
        reason = f"{same} of {len(frames)} aligned frames show the same"
        return self._finding(pair, kind, middle, offset_s=offset_s, reason=reason)

    def _motion(self, clip: Medium) -> Motion:
        if clip.sha256 not in self._motions:
            self._motions[clip.sha256] = motion_of(clip)
            if len(self._motions) > KEPT_CLIPS:
                self._motions.popitem(last=False)
        return self._motions[clip.sha256]

    def _same_frame(self, found: Likeness) -> bool:
        config = self._config
        agrees = found.overlap >= config.overlap or (
            found.overlap >= config.clip_overlap and found.ssim > config.clip_ssim
        )
        return agrees and found.colour >= config.colour

    def _frame_of_clip(self, pair: Candidate, a: Features, b: Features) -> Finding:
        """Whether an image is one of a clip's frames."""
        image_is_left = a.kind == "image"
        image, clip = (a, b) if image_is_left else (b, a)
        sides = (self._left, pair.left), (self._right, pair.right)
        image_side, clip_side = sides if image_is_left else sides[::-1]
        frame = self._medium(*image_side).frame(0)
        opened = self._medium(*clip_side)
        by_hash = float(clip.dense_times_s[np.bitwise_count(clip.dense_hashes ^ image.key_hashes[0]).argmin()])
        cosines = clip.embeddings.astype(np.float32) @ image.embeddings[0].astype(np.float32)
        by_embedding = float(clip.key_times_s[cosines.argmax()])
        best, when = NOTHING, by_hash
        for seconds, reach_s in ((by_hash, 0.125), (by_embedding, 0.5)):
            found = likeness(View.of(frame), View.of(best_frame(frame, opened, seconds, reach_s=reach_s)))
            if found.overlap > best.overlap:
                best, when = found, seconds
            if self._same_frame(best):
                return self._finding(pair, "near", best, offset_s=when, reason="the image is a frame of the clip")
        return self._finding(pair, self._apart(best), best, offset_s=when)

    def _view(self, side: Collection, number: int) -> View:
        key = side.features[number].sha256
        if key not in self._views:
            self._views[key] = View.of(side.items[number].open().frame(0))
            if len(self._views) > KEPT_VIEWS:
                self._views.popitem(last=False)
        self._views.move_to_end(key)
        return self._views[key]

    def _medium(self, side: Collection, number: int) -> Medium:
        key = side.features[number].sha256
        if key not in self._media:
            self._media[key] = side.items[number].open()
            if len(self._media) > KEPT_CLIPS:
                self._media.popitem(last=False)
        self._media.move_to_end(key)
        return self._media[key]

    @staticmethod
    def _finding(
        pair: Candidate, kind: Kind, found: Likeness, *, offset_s: float | None = None, reason: str = ""
    ) -> Finding:
        near = min(pair.distance, pair.mirror_distance) if kind == "flip" else pair.distance
        return Finding(
            pair.left, pair.right, kind, min(near, FAR), pair.cosine, found.ssim, found.overlap, offset_s, reason
        )
