"""The mask, the audit with its interval and canaries, and the two verbs."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import typer
from numpy.typing import NDArray
from typer.testing import CliRunner

from pixelis.cli import data_dedup
from pixelis.core.errors import ConfigError, LeakageError
from pixelis.dedup import candidates, pixel_verify
from pixelis.dedup import evaluation_mask as mask_module
from pixelis.dedup.audit_selfcheck import PlantedItem, render_pan, self_check, tally_results
from pixelis.dedup.evaluation_mask import EvaluationMask
from pixelis.dedup.leakage_audit import audit_leakage
from pixelis.dedup.media_collection import MediaItem
from pixelis.dedup.media_features import FeatureCache, Features
from pixelis.dedup.synthetic_duplicates import VARIANTS, crop_border_10, jpeg_quality_10, reencode_clip, render_slide
from pixelis.media import Clip, Image
from pixelis.weights.encoders.visual_encoder import VisualEncoder

pytestmark = pytest.mark.weights
Pixels = NDArray[np.uint8]
Save = Callable[[str, Pixels], Path]


def image(pixels: Pixels) -> Image:
    return Image.from_array(np.array(pixels))


@pytest.fixture(scope="module")
def mask(encoder: VisualEncoder, pictures: dict[str, Pixels]) -> EvaluationMask:
    clip = Clip.from_frames(render_pan(pictures["rocket"], 1), fps=12)
    items = [
        MediaItem("eval/coffee", medium=image(pictures["coffee"])),
        MediaItem("eval/slide", medium=image(render_slide(0))),
        MediaItem("eval/clip", medium=clip),
    ]
    return EvaluationMask.build(items, encoder)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_mask_refuses_every_changed_copy(
    variant: str, mask: EvaluationMask, encoder: VisualEncoder, pictures: dict[str, Pixels]
) -> None:
    with pytest.raises(LeakageError, match="eval/coffee"):
        mask.check_medium(image(VARIANTS[variant](pictures["coffee"])), encoder)


def test_the_mask_lets_strangers_and_other_slides_pass(
    mask: EvaluationMask, encoder: VisualEncoder, pictures: dict[str, Pixels]
) -> None:
    for pixels in (pictures["astronaut"], render_slide(1)):
        medium = image(pixels)
        assert mask.check_medium(medium, encoder).sha256 == medium.sha256


def test_the_mask_refuses_a_trimmed_clip_and_one_of_its_frames(
    mask: EvaluationMask, encoder: VisualEncoder, tmp_path: Path
) -> None:
    clip = mask.media.items[2].open()
    with pytest.raises(LeakageError, match="eval/clip"):
        mask.check_medium(reencode_clip(clip, tmp_path / "t.mp4", start=0.2, end=0.8, crf=28), encoder)
    with pytest.raises(LeakageError, match="eval/clip"):
        mask.check_medium(image(jpeg_quality_10(clip.frame(24))), encoder)


def test_a_hash_alone_is_enough_to_be_refused(mask: EvaluationMask) -> None:
    sha256 = mask.media.features[0].sha256
    assert sha256 in mask
    with pytest.raises(LeakageError, match="trace 7 shows eval/coffee"):
        mask.check_hashes(["0" * 64, sha256], label="trace 7")
    mask.check_hashes(["0" * 64])


def test_a_mask_that_was_saved_refuses_the_same_and_blocks_what_it_cannot_confirm(
    encoder: VisualEncoder, pictures: dict[str, Pixels], save: Save, tmp_path: Path
) -> None:
    original = save("eval.png", pictures["coffee"])
    EvaluationMask.build([MediaItem("eval.png", original)], encoder).save(tmp_path / "m" / "mask.zip")
    loaded = EvaluationMask.load(tmp_path / "m" / "mask.zip")
    copy = image(crop_border_10(pictures["coffee"]))
    with pytest.raises(LeakageError, match="changed copy"):
        loaded.check_medium(copy, encoder)
    original.unlink()
    with pytest.raises(LeakageError, match="unconfirmed"):
        loaded.check_medium(copy, encoder)


def test_a_mask_with_a_hole_is_no_mask(encoder: VisualEncoder, tmp_path: Path) -> None:
    with pytest.raises(LeakageError, match=r"1 evaluation media cannot be masked.*gone.png"):
        EvaluationMask.build([MediaItem("gone.png", tmp_path / "gone.png")], encoder)
    (tmp_path / "junk.zip").write_bytes(b"junk")
    with pytest.raises(ConfigError, match="not an evaluation mask"):
        EvaluationMask.load(tmp_path / "junk.zip")


def test_a_mask_has_the_same_bytes_whenever_it_is_saved_and_is_whole_or_not_there(
    mask: EvaluationMask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask.save(tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    loaded = EvaluationMask.load(tmp_path / "a.zip")
    loaded.save(tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()

    def fails(features: Features) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Features, "to_bytes", fails)
    with pytest.raises(ConfigError, match="cannot be written"):
        mask.save(tmp_path / "a.zip")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.zip", "b.zip"]
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def forged(path: Path, **members: bytes) -> Path:
    """A saved mask with some members replaced."""
    with zipfile.ZipFile(path) as archive:
        content = {info.filename: archive.read(info) for info in archive.infolist()}
    content |= {name.replace("_", "."): new for name, new in members.items()}
    with zipfile.ZipFile(path.with_name("forged.zip"), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, new in content.items():
            archive.writestr(name, new)
    return path.with_name("forged.zip")


@pytest.mark.parametrize(
    "head",
    [
        b"[]", b"7", b"{}", b"{", b"null", b"\xff", b"[" * 200_000, b'{"version": "new"}', b'{"version": null}',
        b'{"version": 1, "encoder": 3, "threshold": 0.7, "config": {}, "items": []}',
        b'{"version": 1, "encoder": "e", "threshold": NaN, "config": {}, "items": []}',
        b'{"version": 1, "encoder": "e", "threshold": 0.7, "config": {"no": 1}, "items": []}',
        b'{"version": 1, "encoder": "e", "threshold": 0.7, "config": {}, "items": [{"name": 5}]}',
        b'{"version": 1, "encoder": "e", "threshold": 0.7, "config": {}, "items": 9}',
    ],
)  # fmt: skip
def test_a_malformed_head_of_a_mask_is_one_line(head: bytes, mask: EvaluationMask, tmp_path: Path) -> None:
    mask.save(tmp_path / "mask.zip")
    with pytest.raises(ConfigError, match="is not an evaluation mask") as caught:
        EvaluationMask.load(forged(tmp_path / "mask.zip", mask_json=head))
    assert len(str(caught.value).splitlines()) == 1
    newer = forged(tmp_path / "mask.zip", mask_json=b'{"version": 2, "what": "ever"}')
    with pytest.raises(ConfigError, match="mask version 2, this build reads up to 1"):
        EvaluationMask.load(newer)


def npz(features: Features, name: str, header: dict[str, object] | None, data: bytes = b"") -> bytes:
    """The features with one array replaced by another, whose header may be wrong."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(features.to_bytes())) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            content = old.read(info)
            if info.filename == f"{name}.npy" and header is not None:
                stream = io.BytesIO()
                np.lib.format.write_array_header_1_0(stream, header)  # type: ignore[arg-type]
                content = stream.getvalue() + data
            elif info.filename == f"{name}.npy":
                continue
            new.writestr(info.filename, content)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "header", "data"),
    [
        ("embeddings", {"descr": "<f2", "fortran_order": False, "shape": (10**6, 10**6)}, b""),
        ("key_hashes", {"descr": "<u8", "fortran_order": False, "shape": (2**40,)}, b"12345678"),
        ("key_hashes", {"descr": "<u8", "fortran_order": False, "shape": (2,)}, bytes(16)),
        ("duration", {"descr": "<f8", "fortran_order": False, "shape": (0,)}, b""),
        ("head", {"descr": "|O", "fortran_order": False, "shape": (4,)}, bytes(32)),
        ("thumbnail", {"descr": "|u1", "fortran_order": False, "shape": (1, 1)}, b"1"),
        ("dense_times", None, b""),
    ],
)
def test_an_array_that_says_it_is_huge_or_another_is_refused_before_memory_is_asked_for(
    name: str, header: dict[str, object] | None, data: bytes, mask: EvaluationMask, tmp_path: Path
) -> None:
    import tracemalloc

    mask.save(tmp_path / "mask.zip")
    path = forged(tmp_path / "mask.zip", **{"0_npz": npz(mask.media.features[0], name, header, data)})
    tracemalloc.start()
    with pytest.raises(ConfigError, match="is not an evaluation mask"):
        EvaluationMask.load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 2**20


def test_a_member_of_a_mask_that_is_too_long_is_refused_unread(
    mask: EvaluationMask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask.save(tmp_path / "mask.zip")
    monkeypatch.setattr(mask_module, "MAX_FEATURE_BYTES", 1000)
    with pytest.raises(ConfigError, match=r"0.npz states \d+ bytes; at most 1000"):
        EvaluationMask.load(tmp_path / "mask.zip")
    monkeypatch.setattr(mask_module, "MAX_HEAD_BYTES", 100)
    with pytest.raises(ConfigError, match=r"mask.json states \d+ bytes; at most 100"):
        EvaluationMask.load(tmp_path / "mask.zip")


def test_the_mask_asks_with_its_own_settings_and_makes_its_tables_once(
    encoder: VisualEncoder, pictures: dict[str, Pixels], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pixelis.dedup.pixel_verify import DedupConfig

    items = [MediaItem(name, medium=image(pictures[name])) for name in ("coffee", "rocket", "chelsea")]
    mask = EvaluationMask.build(items, encoder, config=DedupConfig(per_item=2, flips="ignore"))
    asked, sizes = [], []
    find, rows = candidates.find_candidates, candidates.embedding_rows
    monkeypatch.setattr(pixel_verify, "find_candidates", lambda *a, **k: asked.append(k) or find(*a, **k))
    monkeypatch.setattr(candidates, "embedding_rows", lambda f: sizes.append(len(f)) or rows(f))
    for name in ("moon", "astronaut", "camera"):
        mask.check_medium(image(pictures[name]), encoder)
    assert [(k["per_item"], k["flips"]) for k in asked] == [(2, False)] * 3
    assert sorted(sizes) == [1, 1, 1, 3]  # each medium on its own, the three of evaluation once


def test_a_mask_that_removes_mirror_images_refuses_one(encoder: VisualEncoder, pictures: dict[str, Pixels]) -> None:
    from pixelis.dedup.pixel_verify import DedupConfig
    from pixelis.dedup.synthetic_duplicates import flip_horizontal

    items = [MediaItem("coffee", medium=image(pictures["coffee"]))]
    strict = EvaluationMask.build(items, encoder, config=DedupConfig(flips="remove"))
    with pytest.raises(LeakageError, match="flip"):
        strict.check_medium(image(flip_horizontal(pictures["coffee"])), encoder)


@pytest.mark.parametrize(("most", "planted"), [(0, 0), (1, 7 + 4), (8, 7 + 4)])
def test_as_many_canaries_as_were_asked_for_and_clips_only_where_some_were(
    most: int, planted: int, encoder: VisualEncoder, pictures: dict[str, Pixels], tmp_path: Path
) -> None:
    from pixelis.dedup.leakage_audit import canary_items
    from pixelis.dedup.media_collection import collect

    clip = Clip.from_frames(render_pan(pictures["rocket"], 1), fps=12)
    right = collect([MediaItem("e/c", medium=clip), MediaItem("e/p", medium=image(pictures["coffee"]))], encoder)
    assert len(canary_items(right, np.random.default_rng(0), most, tmp_path)) == planted


def test_a_mask_of_another_encoder_is_refused(mask: EvaluationMask, pictures: dict[str, Pixels]) -> None:
    class Other:
        fingerprint = "other"

        def embed(self, images: list[Pixels]) -> NDArray[np.float32]:
            raise AssertionError

    with pytest.raises(ConfigError, match="another encoder"):
        mask.check_medium(image(pictures["moon"]), Other())


def test_an_audit_names_the_leaks_and_gives_the_exact_interval(
    encoder: VisualEncoder, pictures: dict[str, Pixels], tmp_path: Path
) -> None:
    evaluation = [
        MediaItem("e/coffee", medium=image(pictures["coffee"])),
        MediaItem("e/slide", medium=image(render_slide(0))),
    ]
    train = [
        MediaItem("t/same", medium=image(pictures["coffee"])),
        MediaItem("t/cropped", medium=image(crop_border_10(pictures["coffee"]))),
        *(MediaItem(f"t/slide{seed}", medium=image(render_slide(seed))) for seed in (1, 2)),
        *(MediaItem(f"t/{name}", medium=image(pictures[name])) for name in ("astronaut", "chelsea", "moon")),
    ]
    report = audit_leakage(train, evaluation, encoder, rng=np.random.default_rng(0), canaries=2, workspace=tmp_path)
    assert {(r.name, r.kept, r.kind) for r in report.removed} == {
        ("t/same", "e/coffee", "exact"),
        ("t/cropped", "e/coffee", "near"),
    }
    assert report.exact == 1
    assert report.train == {"images": 7, "clips": 0}
    assert report.residual is not None
    assert (report.residual.found, report.residual.inspected) == (0, 5)
    assert report.residual.high == pytest.approx(1 - 0.025 ** (1 / 5))  # Clopper-Pearson by hand for 0 of 5
    assert report.canaries is not None
    assert (report.canaries.found, report.canaries.planted) == (14, 14)  # seven changes of two pictures
    assert not report.is_clean


def test_the_residual_finds_what_thresholds_that_are_too_strict_left_behind(
    encoder: VisualEncoder, pictures: dict[str, Pixels], tmp_path: Path
) -> None:
    from pixelis.dedup.pixel_verify import DedupConfig

    deaf = DedupConfig(cosine=0.999, hamming=0)
    train = [MediaItem("t", medium=image(crop_border_10(pictures["coffee"])))]
    evaluation = [MediaItem("e", medium=image(pictures["coffee"]))]
    report = audit_leakage(
        train, evaluation, encoder, rng=np.random.default_rng(0), config=deaf, canaries=1, workspace=tmp_path
    )
    assert report.removed == []
    assert report.residual is not None
    assert (report.residual.found, report.residual.names) == (1, ["t"])
    assert report.canaries is not None
    assert report.canaries.recall < 0.98  # the canaries say so too
    assert not report.is_clean


def test_the_self_check_counts_a_wrong_original_against_both_figures() -> None:
    from pixelis.dedup.calibrate import ThresholdCalibration

    train = [
        PlantedItem(MediaItem("a#x"), "a", "x"),
        PlantedItem(MediaItem("b#x"), "b", "x"),
        PlantedItem(MediaItem("c"), None, "unrelated"),
        PlantedItem(MediaItem("d"), None, "unrelated"),
        PlantedItem(MediaItem("a#flip"), "a", "flip"),
    ]
    found = {"a#x": "a", "b#x": "a", "c": "b"}
    check = tally_results(train, found, {"a#flip"}, ThresholdCalibration(0.7, 1, 1.0, 0.0))
    assert (check.planted, check.found, check.unrelated, check.wrong) == (2, 1, 2, 2)
    assert (check.recall, check.precision) == pytest.approx((1 / 2, 1 / 3))
    assert check.flips == (1, 1)


def test_a_small_self_check_reaches_the_promised_figures(encoder: VisualEncoder, tmp_path: Path) -> None:
    more = [MediaItem(f"slide{seed}", medium=image(render_slide(seed, template=9))) for seed in (0, 1)]
    others = [MediaItem(f"slide{seed}", medium=image(render_slide(seed, template=9))) for seed in range(10, 14)]
    check = self_check(encoder, workspace=tmp_path, extra_originals=more, extra_unrelated=others, built_in=False)
    assert check.recall >= 0.98
    assert check.precision >= 0.98
    assert (check.planted, check.unrelated) == (14, 4)


app = typer.Typer()
app.command("dedup")(data_dedup.dedup)
app.command("audit")(data_dedup.audit)


def test_the_verbs_print_json_write_a_report_and_leave_with_a_status(
    pictures: dict[str, Pixels], save: Save, tmp_path: Path
) -> None:
    save("train/a.png", pictures["coffee"])
    save("train/b.png", crop_border_10(pictures["coffee"]))
    save("eval/e.png", pictures["astronaut"])
    cache = ["--cache", str(tmp_path / "c.sqlite")]
    out = tmp_path / "report.json"
    done = CliRunner().invoke(app, ["dedup", str(tmp_path / "train"), "-o", str(out), "--json", *cache])
    assert done.exit_code == 0
    assert [r["name"] for r in json.loads(done.stdout)["removed"]] == ["b.png"]
    written = json.loads(out.read_text())
    assert written["commit"]
    assert written["config"]["hamming"] == 8
    both = [str(tmp_path / "train"), str(tmp_path / "eval"), "--json", "--canaries", "1", *cache]
    clean = CliRunner().invoke(app, ["audit", *both])
    assert clean.exit_code == 0
    assert json.loads(clean.stdout)["canaries"]["recall"] == 1.0
    save("train/leak.png", jpeg_quality_10(pictures["astronaut"]))
    (tmp_path / "train/broken.png").write_bytes(b"nothing")
    leaking = CliRunner().invoke(app, ["audit", *both])
    assert leaking.exit_code == 1
    report = json.loads(leaking.stdout)
    assert [(r["name"], r["kept"]) for r in report["removed"]] == [("leak.png", "e.png")]
    assert [u["name"] for u in report["unread"]] == ["broken.png"]
    words = CliRunner().invoke(app, ["dedup", str(tmp_path / "train"), *cache])
    assert words.exit_code == 1
    assert "unreadable: broken.png" in words.stdout


def test_the_verbs_close_what_they_opened_however_they_end(
    pictures: dict[str, Pixels], save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Path] = []
    close = FeatureCache.close
    monkeypatch.setattr(FeatureCache, "close", lambda self: closed.append(self.path) or close(self))
    save("train/a.png", pictures["coffee"])
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.md").write_text("no media")
    cache = tmp_path / "c.sqlite"
    train, empty = str(tmp_path / "train"), str(tmp_path / "empty")
    assert CliRunner().invoke(app, ["dedup", train, "--cache", str(cache)]).exit_code == 0
    assert closed == [cache]
    assert CliRunner().invoke(app, ["audit", train, empty, "--cache", str(cache)]).exit_code == 1
    assert closed == [cache] * 2


def test_an_audit_of_nothing_is_no_clean_bill(pictures: dict[str, Pixels], save: Save, tmp_path: Path) -> None:
    save("train/a.png", pictures["coffee"])
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "notes.md").write_text("no media")
    cache = ["--cache", str(tmp_path / "c.sqlite")]
    done = CliRunner().invoke(app, ["audit", str(tmp_path / "train"), str(tmp_path / "eval"), *cache])
    assert isinstance(done.exception, ConfigError)
    assert "no evaluation medium can be read" in str(done.exception)
    assert CliRunner().invoke(app, ["audit", "a", "b", "--inspect", "-1"]).exit_code == 2


def test_an_audit_without_its_two_arguments_says_what_it_wants() -> None:
    done = CliRunner().invoke(app, ["audit"])
    assert isinstance(done.exception, ConfigError)
    assert "TRAIN and EVAL" in str(done.exception)
