"""`pixelis data dedup` and `audit` on a corpus, whose media are rendered on demand."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from pixelis import __version__
from pixelis.cli import data_dedup
from pixelis.data.corpus.corpus import write_manifest
from pixelis.data.corpus.record import Record, Split, encode
from pixelis.data.corpus.shard import Shard, write_shard
from pixelis.media import MediaSet
from pixelis.trace.media_records import record_media
from pixelis.trace.schema import seal_trace
from pixelis.world import generate

pytestmark = pytest.mark.weights
app = typer.Typer()
app.command("dedup")(data_dedup.dedup)
app.command("audit")(data_dedup.audit)


def record(split: Split, ordinal: int, seed: int) -> bytes:
    made = generate("choice", seed=seed, difficulty=1, template_id="choice.count")
    trace = seal_trace(
        id=made.item.id,
        query=made.item.question,
        media=record_media(MediaSet(made.media)),
        origin="teacher:test",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        steps=[],
        pixelis=__version__,
    )
    return encode(Record(split=split, ordinal=ordinal, item=made.item, trace=trace, accepted=True))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two pictures in train, two in test, of which one is the first of train."""
    splits: dict[Split, list[int]] = {"train": [3, 4], "test": [5, 3]}
    facts = []
    for split, seeds in splits.items():
        path = tmp_path / "corpus" / "shards" / f"{split}-00000.zip"
        write_shard(path, ((record(split, k, seed), {}) for k, seed in enumerate(seeds)))
        facts.append(Shard(path).facts())
    write_manifest(tmp_path / "corpus", {"config": {}}, facts)
    return tmp_path / "corpus"


def test_a_picture_that_two_splits_share_is_found_by_the_names_of_its_items(corpus: Path, tmp_path: Path) -> None:
    cache = ["--cache", str(tmp_path / "c.sqlite"), "--json"]
    whole = CliRunner().invoke(app, ["dedup", str(corpus), *cache])
    assert whole.exit_code == 0
    assert [r["name"] for r in json.loads(whole.stdout)["removed"]] == ["choice.count/1/3/Image_0"]
    split = CliRunner().invoke(app, ["dedup", f"{corpus}:train", *cache])
    assert len(json.loads(split.stdout)["kept"]) == 2
    both = CliRunner().invoke(app, ["audit", f"{corpus}:train", f"{corpus}:test", "--canaries", "1", *cache])
    assert both.exit_code == 1
    report = json.loads(both.stdout)
    assert [(r["name"], r["kind"]) for r in report["removed"]] == [("choice.count/1/3/Image_0", "exact")]
    assert report["canaries"]["recall"] == 1.0
