"""De-duplication of folders and lists with real files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pixelis.core.errors import ConfigError
from pixelis.dedup.calibrate import CALIBRATED_THRESHOLDS, calibrate, get_threshold
from pixelis.dedup.candidates import find_candidates
from pixelis.dedup.deduplicate import deduplicate
from pixelis.dedup.evaluation_mask import BlockList
from pixelis.dedup.media_collection import MediaItem, collect, list_items
from pixelis.dedup.media_features import FeatureCache, Features, compute_features
from pixelis.dedup.pixel_verify import DedupConfig
from pixelis.dedup.synthetic_duplicates import (
    VARIANTS,
    brighten,
    crop_border_5,
    flip_horizontal,
    render_slide,
    render_table,
    resize_half,
)
from pixelis.media import Image
from pixelis.weights.encoders.visual_encoder import VisualEncoder

pytestmark = pytest.mark.weights
Pixels = NDArray[np.uint8]
Save = Callable[[str, Pixels], Path]


def test_imagededups_own_folder_has_two_copies_and_a_mirror_image(encoder: VisualEncoder, realdata: Path) -> None:
    report = deduplicate(list_items(realdata / "dedup" / "mixed"), encoder)
    assert {(r.name, r.kept, r.kind) for r in report.removed} == {
        ("ukbench00120_gray.jpg", "ukbench00120.jpg", "near"),
        ("ukbench00120_resize.jpg", "ukbench00120.jpg", "near"),
    }
    assert [(f.name, f.kept) for f in report.flips] == [("ukbench00120_hflip.jpg", "ukbench00120.jpg")]
    assert "ukbench09268.jpg" in report.kept
    assert report.is_clean


def test_the_earliest_stays_and_a_chain_of_copies_has_one_head(
    encoder: VisualEncoder, pictures: dict[str, Pixels], save: Save, tmp_path: Path
) -> None:
    for name, pixels in {
        "c.png": resize_half(pictures["coffee"]),
        "a.png": pictures["coffee"],
        "b.png": brighten(pictures["coffee"]),
        "other.png": pictures["astronaut"],
    }.items():
        save(name, pixels)
    shutil.copy(tmp_path / "a.png", tmp_path / "again.png")
    (tmp_path / "list.txt").write_text("c.png\na.png\nb.png\n\nagain.png\nother.png\n")
    report = deduplicate(list_items(tmp_path / "list.txt"), encoder)
    assert report.kept == ["c.png", "other.png"]
    assert {(r.name, r.kept) for r in report.removed} == {
        ("a.png", "c.png"), ("b.png", "c.png"), ("again.png", "c.png"),
    }  # fmt: skip
    assert {r.name: r.kind for r in report.removed}["again.png"] == "exact"


def test_slides_and_tables_of_one_template_all_stay_unless_phash_is_trusted(encoder: VisualEncoder) -> None:
    items = [
        MediaItem(f"{make.__name__}{seed}", medium=Image.from_array(make(seed, template=5)))
        for make in (render_slide, render_table)
        for seed in range(4)
    ]
    report = deduplicate(items, encoder)
    assert len(report.kept) == 8
    assert report.candidates["template"] > 0
    literal = deduplicate(items, encoder, config=DedupConfig(trust_phash=True))
    assert len(literal.kept) < 8  # the paper's priority: a near pHash goes unseen


@pytest.mark.parametrize(("flips", "kept"), [("report", 2), ("remove", 1), ("ignore", 2)])
def test_mirror_images_are_reported_removed_or_ignored(
    flips: str, kept: int, encoder: VisualEncoder, pictures: dict[str, Pixels]
) -> None:
    coffee = pictures["coffee"]
    items = [
        MediaItem(n, medium=Image.from_array(np.array(p))) for n, p in (("a", coffee), ("b", flip_horizontal(coffee)))
    ]
    report = deduplicate(items, encoder, config=DedupConfig.model_validate({"flips": flips}))
    assert len(report.kept) == kept
    assert [f.name for f in report.flips] == ([] if flips == "ignore" else ["b"])


def test_what_was_dropped_once_is_blocked_at_a_later_add(
    encoder: VisualEncoder, pictures: dict[str, Pixels], save: Save, tmp_path: Path
) -> None:
    a, b = save("a.png", pictures["coffee"]), save("b.png", crop_border_5(pictures["coffee"]))
    path = tmp_path / "blocked.jsonl"
    deduplicate([MediaItem("a", a), MediaItem("b", b)], encoder, block_list=BlockList(path))
    assert len(BlockList(path)) == 1
    later = deduplicate([MediaItem("b", b)], encoder, block_list=BlockList(path))  # a is not even there
    assert [(r.name, r.kept, r.reason) for r in later.removed] == [("b", "a", "on the block list")]
    assert later.kept == []
    deduplicate([MediaItem("a", a), MediaItem("b", b)], encoder, block_list=BlockList(path))
    assert len(path.read_text().splitlines()) == 1


def test_a_spoilt_block_list_says_which_line(tmp_path: Path) -> None:
    path = tmp_path / "blocked.jsonl"
    path.write_text('{"sha256": "x"}\n')
    with pytest.raises(ConfigError, match=r"blocked.jsonl:1"):
        BlockList(path)


def test_bad_files_are_named_and_the_rest_is_done(
    encoder: VisualEncoder, pictures: dict[str, Pixels], save: Save, tmp_path: Path
) -> None:
    whole = save("in/whole.png", pictures["coffee"])
    (tmp_path / "in/cut.png").write_bytes(whole.read_bytes()[:5000])
    (tmp_path / "in/empty.jpg").write_bytes(b"")
    (tmp_path / "in/notes.txt").write_text("not a picture")
    (tmp_path / "in/.hidden.png").write_bytes(b"")
    report = deduplicate(list_items(tmp_path / "in"), encoder)
    assert report.kept == ["whole.png"]
    assert [u.name for u in report.unread] == ["cut.png", "empty.jpg"]
    assert "empty" in report.unread[1].reason
    assert [u.name for u in report.passed_over] == ["notes.txt"]
    assert not report.is_clean


def test_a_list_names_what_it_wants_and_a_missing_file_is_an_error(
    encoder: VisualEncoder, pictures: dict[str, Pixels], save: Save, tmp_path: Path
) -> None:
    save("a.png", pictures["coffee"])
    (tmp_path / "l.jsonl").write_text('{"id": "first", "path": "a.png"}\n{"id": "lost", "path": "no.png"}\n')
    report = deduplicate(list_items(tmp_path / "l.jsonl"), encoder)
    assert report.kept == ["first"]
    assert [u.name for u in report.unread] == ["lost"]
    (tmp_path / "bad.jsonl").write_text('{"id": "x"}\n')
    with pytest.raises(ConfigError, match=r"bad.jsonl:1"):
        list_items(tmp_path / "bad.jsonl")
    with pytest.raises(ConfigError, match="does not exist"):
        list_items(tmp_path / "nowhere")


def test_a_second_run_takes_features_from_the_cache_and_finds_the_same(
    encoder: VisualEncoder, pictures: dict[str, Pixels], save: Save, tmp_path: Path
) -> None:
    class Counting:
        fingerprint = encoder.fingerprint
        pictures = 0

        def embed(self, images: list[Pixels]) -> NDArray[np.float32]:
            self.pictures += len(images)
            return encoder.embed(images)

    items = [MediaItem(v, save(f"{v}.png", VARIANTS[v](pictures["coffee"]))) for v in ("resize", "gray", "crop5")]
    counting = Counting()
    first = deduplicate(items, counting, cache=FeatureCache(tmp_path / "c.sqlite"))
    assert counting.pictures == 3
    second = deduplicate(items, counting, cache=FeatureCache(tmp_path / "c.sqlite"))
    assert counting.pictures == 3
    assert json.dumps(first.as_dict()) == json.dumps(second.as_dict())


def test_a_file_that_is_no_cache_is_refused_and_a_torn_entry_is_computed_again(
    encoder: VisualEncoder, pictures: dict[str, Pixels], tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("these are notes, not a database, and long enough to be looked at" * 20)
    with pytest.raises(ConfigError, match="--cache"):
        FeatureCache(tmp_path / "notes.txt")
    cache = FeatureCache(tmp_path / "c.sqlite")
    features = compute_features(Image.from_array(np.array(pictures["moon"])), encoder)
    cache.put(features, encoder)
    cache._db.execute("UPDATE features SET value = ?", (features.to_bytes()[:100],))
    assert cache.get(features.sha256, encoder) is None


def test_features_survive_being_written(encoder: VisualEncoder, pictures: dict[str, Pixels]) -> None:
    features = compute_features(Image.from_array(np.array(pictures["coffee"])), encoder)
    again = Features.from_bytes(features.to_bytes())
    assert (again.sha256, again.phash, again.mirror_phash, again.kind) == (
        features.sha256,
        features.phash,
        features.mirror_phash,
        "image",
    )
    assert (again.embeddings == features.embeddings).all()
    assert (again.thumbnail == features.thumbnail).all()


def test_the_known_threshold_is_what_calibration_measures(encoder: VisualEncoder) -> None:
    measured = calibrate(encoder)
    assert CALIBRATED_THRESHOLDS[encoder.fingerprint] == pytest.approx(measured.threshold, abs=0.005)
    assert measured.recall >= 0.99


def test_another_encoder_is_calibrated_when_it_comes() -> None:
    class Grey:
        """Sixty-four grey values: a poor encoder without a stored threshold."""

        fingerprint = "grey-8x8"

        def embed(self, images: list[Pixels]) -> NDArray[np.float32]:
            import cv2

            small = [cv2.resize(i, (8, 8), interpolation=cv2.INTER_AREA).mean(axis=2).ravel() for i in images]
            rows = np.stack(small).astype(np.float32) + 1
            return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    assert 0.6 < get_threshold(Grey()) < 0.95


def test_no_more_than_its_share_of_candidates_is_kept_and_the_rest_is_counted(encoder: VisualEncoder) -> None:
    items = [MediaItem(str(seed), medium=Image.from_array(render_slide(seed, template=1))) for seed in range(6)]
    features = collect(items, encoder).features
    every = find_candidates(features, None, threshold=0.7)
    few = find_candidates(features, None, threshold=0.7, per_item=1)
    assert every.num_dropped == 0
    assert every.by_embedding == 15  # six look-alikes make fifteen pairs
    assert few.num_dropped >= 10
    assert {pair.left for pair in few.pairs} == {1, 2, 3, 4, 5}


def test_nothing_has_no_duplicates(encoder: VisualEncoder) -> None:
    report = deduplicate([], encoder)
    assert (report.kept, report.removed, report.is_clean) == ([], [], True)
