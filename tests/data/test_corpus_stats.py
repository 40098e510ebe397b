"""`pixelis data stats` on a corpus whose figures were worked out by hand."""

import hashlib
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from pixelis import __version__
from pixelis.cli.data import app
from pixelis.core.geometry import TextSpan
from pixelis.data.corpus.corpus import Corpus, write_manifest
from pixelis.data.corpus.corpus_stats import (
    PAPER_USAGE,
    CorpusCounts,
    compute_stats,
    count_corpus,
    max_usage_gap,
    percent_over_threshold,
    reason_kind,
    stats_to_json,
)
from pixelis.data.corpus.record import Record, encode
from pixelis.data.corpus.shard import Shard, write_shard
from pixelis.items import Item, MediumFacts, Necessity
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.trace.schema import MediaRecord, StepDraft, seal_trace

OCR = ToolResult(
    tool="OCR",
    status="ok",
    text="EXIT",
    confidence=0.95,
    footprints=(TextSpan(text="EXIT", quad=((0.1, 0.1), (0.2, 0.1), (0.2, 0.2), (0.1, 0.2))),),
)
SEG = ToolResult(tool="SEG", status="ok", text="a region", confidence=0.9)
FAILED = ToolResult.failed("SEG", "found no region")


def sha256_of(words):
    return hashlib.sha256(words.encode()).hexdigest()


def record(number, split, results, *, accepted=True, answer="EXIT", seconds=0.0, shown="", passes=(), reasons=()):
    """A record with these results; a clip of so many seconds, or a picture, which `shown` may repeat."""
    frames, sha256 = 32 if seconds else 1, sha256_of(shown or f"{split} {number}")
    item = Item(
        id=f"{split}/{number}",
        family="motion" if seconds else "document",
        template="x",
        difficulty=1 + number % 2,
        seed=number,
        stem="What does it say?",
        answer="EXIT",
        answers=("EXIT",),
        scoring="exact",
        media=(MediumFacts(name="Image_0", sha256=sha256, width=8, height=8, frames=frames, duration_s=seconds),),
        necessity={"OCR": Necessity(required=number % 4 != 0, answer="EXIT", perturbed_answer="", test="masked")},
    )
    medium = MediaRecord(
        name="Image_0", kind="image", sha256=sha256, width=8, height=8, frame_count=frames, duration_s=seconds
    )
    trace = seal_trace(
        id=item.id,
        query=item.question,
        media=[medium],
        origin="teacher:test",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        steps=[StepDraft(call=ToolCall(tool=result.tool), result=result) for result in results],
        answer=answer,
        pixelis=__version__,
    )
    decisive = [result is OCR for result in results]
    steps = [
        {"tool": result.tool, "status": result.status, "decisive": used, "passed": passed}
        for result, used, passed in zip(results, decisive, passes or [None] * len(results), strict=True)
    ]
    acceptance = {"steps": steps, "reasons": list(reasons), "logic": float(accepted), "struct": 1.0, "visual": 1.0}
    return Record(split=split, ordinal=number, item=item, trace=trace, accepted=accepted, acceptance=acceptance)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    train = [
        record(0, "train", [SEG, OCR], passes=[True, None]),
        record(1, "train", [FAILED, SEG, OCR, OCR], seconds=8.0, passes=[None, True, None, None]),
        record(
            2,
            "train",
            [SEG],
            accepted=False,
            answer="IN",
            passes=[False],
            reasons=["step 1 (SEG) fails its check: iou 0.31"],
        ),
        record(3, "train", [OCR], seconds=12.0),
    ]
    test = [record(0, "test", [OCR], shown="train 0")]
    facts = []
    for split, records in (("train", train), ("test", test)):
        path = folder / "shards" / f"{split}-00000.zip"
        write_shard(path, [(encode(r), {}) for r in records])
        facts.append(Shard(path).facts())
    write_manifest(folder, {}, facts)
    return Corpus(folder)


@pytest.fixture(scope="module")
def rows(corpus):
    return {row.name: row for row in compute_stats(count_corpus(corpus))}


def test_trajectories_are_the_accepted_ones(rows):
    assert (rows["trajectories"].ours, rows["trajectories"].paper, rows["trajectories"].of) == (4, 76_000, 5)
    assert rows["accepted, %"].ours == pytest.approx(80.0)


def test_mean_steps_are_those_of_accepted_trajectories(rows):
    assert rows["steps a trajectory"].ours == pytest.approx((2 + 4 + 1 + 1) / 4)
    assert rows["steps a trajectory"].paper == 5.8


def test_the_decisive_step_rate_is_over_calls_that_succeeded(rows):
    row = rows["decisive-step rate, train"]  # six succeed; the four of OCR are in the answer, of SEG nothing is used
    assert (row.ours, row.paper, row.of) == (pytest.approx(4 / 6), 0.86, 6)
    assert rows["decisive-step rate, dev"].ours is None


def test_clip_durations_have_a_mean_and_a_spread(rows):
    assert rows["clip duration, s, mean"].ours == pytest.approx(10.0)
    assert rows["clip duration, s, spread"].ours == pytest.approx(2.0)
    assert (rows["clip duration, s, mean"].paper, rows["clip duration, s, spread"].paper) == (11.8, 6.4)


def test_tool_usage_is_in_per_cent_of_calls(rows, corpus):
    assert rows["usage of SEG, train, %"].ours == pytest.approx(100 * 3 / 7)
    assert rows["usage of OCR, train, %"].ours == pytest.approx(100 * 4 / 7)
    assert max_usage_gap(list(rows.values())) == pytest.approx(100 * 4 / 7 - 20.2)


def test_the_papers_usage_adds_up():
    for column in range(3):
        assert sum(shares[column] for shares in PAPER_USAGE.values()) == pytest.approx(100.0, abs=0.4)


def test_calls_that_miss_are_counted_over_what_has_a_reference(rows):
    assert (rows["calls of SEG that miss, %"].ours, rows["calls of SEG that miss, %"].of) == (pytest.approx(100 / 3), 3)
    assert (rows["calls of OCR that miss, %"].ours, rows["calls of OCR that miss, %"].paper) == (None, 7.5)


def test_the_literal_reading_of_the_threshold_stands_beside_ours(rows):
    # document: logic 1, 0, 1 has mean 2/3 and spread 0.471, so that 0.4 z = 0.283 for the right ones: under 0.65
    literal = rows["S(τ) over τ₀ if z-scored per task, %"]
    assert (literal.ours, literal.of) == (0.0, 5)
    assert (rows["accepted, %"].ours, rows["accepted, %"].of) == (pytest.approx(80.0), 5)


@pytest.mark.parametrize(("wrong", "over"), [(2, 0.0), (3, 25.0)])
def test_the_literal_reading_lets_in_what_is_rare_in_its_task(wrong, over):
    # one right among n has z = √(n - 1): 0.4 √2 = 0.566 among three, 0.4 √3 = 0.693 among four, on each side of 0.65
    counts = CorpusCounts()
    for number in range(wrong + 1):
        counts.add(record(number, "train", [OCR], accepted=number == 0))
    assert percent_over_threshold(counts) == pytest.approx(over)


def test_reasons_are_counted_without_their_numbers():
    assert reason_kind("S = 0.512 is under 0.65: the answer is wrong") == "the answer is wrong"
    assert reason_kind("S = 0.61 is under 0.65: logic 0.50, struct 0.70, visual 0.66") == "S(τ) is under τ₀"
    assert reason_kind("its media carry a visible watermark") == "its media carry a visible watermark"


def test_items_that_need_a_tool(rows):
    assert rows["items that need a tool, %"].ours == pytest.approx(60.0)


def test_a_medium_in_two_splits_is_seen(rows):
    assert (rows["media in two splits"].ours, rows["media in two splits"].of) == (1, 4)


def test_families_and_difficulties_are_told_apart(corpus):
    content = stats_to_json(corpus, count_corpus(corpus))
    assert content["families"]["document"] == {
        "records": 3, "accepted": 0.6667, "right": 0.6667, "steps": 1.333, "tool_needed": 0.3333,
    }  # fmt: skip
    assert content["difficulties"]["2"]["records"] == 2
    assert content["reasons"] == {"a step of SEG that carries the answer fails": 1}


def test_the_spread_of_two_values_by_hand():
    stats = {stat.name: stat for stat in compute_stats(CorpusCounts(clip_durations=[3.0, 7.0]))}
    assert [stats[f"clip duration, s, {name}"].ours for name in ("mean", "spread")] == [5.0, 2.0]
    assert stats["clip duration, s, mean"].of == 2
    assert stats["steps a trajectory"].ours is None


def test_the_verb_prints_both_columns_and_json(corpus):
    import json

    shown = CliRunner().invoke(app, ["stats", str(corpus.folder)])
    assert shown.exit_code == 0
    assert "11.80" in shown.output
    assert corpus.manifest.corpus[:40] in shown.output.replace("\n", "")
    content = json.loads(CliRunner().invoke(app, ["stats", str(corpus.folder), "--json"]).output)
    assert content["corpus"] == corpus.manifest.corpus
