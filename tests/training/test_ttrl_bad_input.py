"""Phase 3 and what goes wrong around it: an empty, poisoned or damaged memory, one rollout, nobody sure, leaks."""

import subprocess
import sys
from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np
import pytest

from pixelis.cli.index_files import media_from_sources
from pixelis.core.errors import ConfigError, MemoryFileError
from pixelis.core.provenance import write_json
from pixelis.dedup.evaluation_mask import EvaluationMask
from pixelis.dedup.media_collection import MediaItem
from pixelis.equations.calibration import Temperature
from pixelis.equations.ttrl import SummaryStatistics
from pixelis.evaluation.streams import make_stream
from pixelis.media import MediaSet
from pixelis.memory.builder import build_draft
from pixelis.memory.keys import Key, KeyMaker
from pixelis.memory.memory_head import MASK_FILE, MEMORY_HEAD_FILE
from pixelis.memory.memory_item import MemoryDraft, MemoryItem
from pixelis.memory.memory_store import MemoryConfig, MemoryStore
from pixelis.rewards.compute import compute_rewards
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.trace.plan import CallPlan, run_plan
from pixelis.training.ttrl import train
from pixelis.training.ttrl.journal import LEDGER, read_rows
from pixelis.training.ttrl.stream_memory import StreamMemory, copy_memory
from pixelis.training.ttrl.train import adapt, flip_answers
from pixelis.training.ttrl.ttrl_config import TtrlConfig
from pixelis.training.ttrl.ttrl_rows import variety
from pixelis.voting.fit_calibration import CALIBRATION_FILE as CALIBRATION
from pixelis.voting.fit_calibration import calibrator_to_dict
from pixelis.voting.vote import vote
from pixelis.weights.encoders.text_encoder import TextEncoder
from pixelis.weights.encoders.visual_encoder import VisualEncoder


@pytest.fixture(scope="module")
def keys():
    return KeyMaker(TextEncoder(), VisualEncoder())


@pytest.fixture(scope="module")
def items():
    return list(make_stream(["search"], split="test", limit=3, shifts=["lighting:3"]).items())


def settings(**changes):
    given = {
        "policy": "nano-sft", "group_size": 2, "lr": 1e-3, "eps": 1e-5, "vote": {"delta": 0.0, "max_entropy": 1.1},
        "limits": {"steps": 3, "total_tokens": 500}, "max_drift": 5.0, "workers": 1, "batch": 1,
    }  # fmt: skip
    return TtrlConfig.model_validate(given | changes)


def memory_at(folder, keys, answers, *, kind="auto"):
    """Random keys with fixed values; only the answers are ours to choose."""
    rng = np.random.default_rng(0)
    config = MemoryConfig.model_validate({"index": {"kind": kind}, "near_duplicate": None})
    visual = keys.visual.embed([]).shape[1]
    made = MemoryStore.create(
        folder, text_dimensions=keys.text.dimensions, visual_dimensions=visual, encoders=keys.fingerprint,
        config=config,
    )  # fmt: skip
    with made as memory:
        memory.add([
            MemoryDraft(
                MemoryItem(id=f"m{k}", answer=answer, value=0.3 + 0.1 * k, curiosity=0.1 * k, coherence=0.2),
                Key(rng.normal(size=keys.text.dimensions).astype("f4"), rng.normal(size=visual).astype("f4")),
            )
            for k, answer in enumerate(answers)
        ])  # fmt: skip
        if kind != "auto":
            memory.build_index()
    return folder


def test_an_empty_memory_has_no_neighbours_and_one_rollout_is_no_vote(items, keys, tmp_path):
    adapt(settings(group_size=1), items[:1], tmp_path / "run", keys=keys)
    (row,) = read_rows(tmp_path / "run" / LEDGER)
    assert row["neighbours"] == []
    assert row["value"] == 0.5
    assert row["why"] == "one rollout is no vote"
    assert not row["learnt"]
    assert row["baseline"] is None


def test_where_nobody_is_sure_nothing_is_given_learnt_or_remembered(items, keys, tmp_path):
    never = {
        "kind": "temperature",
        "calibrator": calibrator_to_dict(Temperature(1.0, 0.0)),
        "threshold": -1.0,
        "delta": None,
    }
    write_json(tmp_path / "run" / CALIBRATION, never)  # a threshold that no share reaches: every set is empty
    report = adapt(settings(batch=2), items[:2], tmp_path / "run", keys=keys)
    rows = read_rows(tmp_path / "run" / LEDGER)
    assert (report.answered, report.accepted, report.updates) == (0.0, 0, 1)  # the KL and EMA part of the step ran
    assert report.accuracy is None
    assert all(row["why"] in ("conformal set of 0 answers", "no rollout voted with weight") for row in rows)
    assert {row["memory"] for row in rows} == {0}
    assert max(row["drift"] for row in rows) < 1e-4


def test_wrong_answers_in_the_memory_do_not_vote_unless_they_are_asked_to(items, keys, tmp_path):
    clean = memory_at(tmp_path / "clean", keys, ["Grekin"] * 4)
    poisoned = memory_at(tmp_path / "poisoned", keys, ["Grekin", "wrong", "Grekin", "wrong"])
    found = {}
    for name, memory, votes in (("clean", clean, False), ("poisoned", poisoned, False), ("asked", poisoned, True)):
        config = settings(memory=str(memory), neighbours=4, neighbour_votes=votes)
        adapt(config, items[:1], tmp_path / f"run-{name}", keys=keys)
        (found[name],) = read_rows(tmp_path / f"run-{name}" / LEDGER)
    assert len(found["clean"]["neighbours"]) == 4
    # v of now, not the 0.3 to 0.6 that they came with: z of 0, 0.1, 0.2, 0.3 is symmetric, coherence has no spread
    assert found["clean"]["value"] == pytest.approx(0.5)
    assert found["poisoned"]["weights"] == found["clean"]["weights"]
    assert "wrong" not in found["poisoned"]["vote"]["scores"]
    assert "wrong" in found["asked"]["vote"]["scores"]


def test_the_exemplar_is_chosen_by_z_scores_of_what_is_remembered(items, keys, tmp_path, monkeypatch):
    """Items of a memory have curiosities 0, 0.1, 0.2, 0.3 and one coherence; an empty one tells nothing apart."""
    told, real = [], train.vote

    def heard(group, *given, curiosity, coherence, **others):
        told.append((curiosity, coherence))
        return real(group, *given, curiosity=curiosity, coherence=coherence, **others)

    raw = []
    monkeypatch.setattr(train, "vote", heard)
    monkeypatch.setattr(train, "compute_rewards", lambda *a, **k: raw.append(compute_rewards(*a, **k)) or raw[-1])
    memory = memory_at(tmp_path / "memory", keys, ["a"] * 4)
    for name, changes in (("empty", {}), ("full", {"memory": str(memory)})):
        adapt(settings(learn=False, **changes), items[:1], tmp_path / name, keys=keys)
    assert told[0] == ([0.0, 0.0], [0.0, 0.0])
    wanted = (raw[1].curiosity - 0.15) / np.sqrt(0.0125)  # variance (0.15² + 0.05²) / 2
    assert told[1][0] == pytest.approx(np.nan_to_num(wanted).tolist())
    assert told[1][1] == [0.0, 0.0]


def test_neighbours_with_the_answer_of_the_query_are_left_out_where_that_is_the_stress(items, keys, tmp_path):
    memory = memory_at(tmp_path / "memory", keys, ["Red", "blue", "red", "green"])
    config = settings(memory=str(memory), neighbours=2, stress={"mismatched_neighbours": True})
    (tmp_path / "run").mkdir()
    own = StreamMemory(config, tmp_path / "run", keys, None)
    try:
        found = own.nearest([_trace(items[0])], items[0], "red")
        assert {n.item.answer for n in found} == {"blue", "green"}
    finally:
        own.close()


def test_what_was_remembered_of_the_very_same_picture_is_no_neighbour(items, keys, tmp_path):
    (tmp_path / "run").mkdir()
    own = StreamMemory(settings(), tmp_path / "run", keys, None)
    try:
        own.rollback(0)
        traces = [_trace(made) for made in items]
        assert all(own.add_exemplar(trace, made, 0.1, 0.2) for trace, made in zip(traces, items, strict=True))
        assert {n.item.id for n in own.nearest(traces[:1], items[0], None)} == {made.item.id for made in items[1:]}
        key = own.keys.key_for_rollouts(traces[:1], MediaSet(items[0].media))
        shown = build_draft(traces[0], MediaSet(items[0].media), keys, mask=None, item_id="again").item
        rng = np.random.default_rng(0)
        for k in range(20):  # twenty questions more about the same picture, all nearer than the others
            near = Key(*(half + 0.3 * rng.normal(size=half.shape).astype("f4") / 30 for half in (key.text, key.visual)))
            own.memory.add([MemoryDraft(shown.model_copy(update={"id": f"again-{k}"}), near)])
        assert {n.item.id for n in own.nearest(traces[:1], items[0], None)} == {made.item.id for made in items[1:]}
    finally:
        own.close()


def test_flipped_votes_go_to_another_answer_of_the_group():
    said = ["red", "blue", "Red", None]
    assert flip_answers(said, 0.0, np.random.default_rng(0)) == said
    assert flip_answers(said, 1.0, np.random.default_rng(0)) == ["blue", "red", "blue", None]  # "Red" is "red"
    assert flip_answers(said[:1], 1.0, np.random.default_rng(0)) == ["unsure"]
    # 30 % of 2,000 votes, give or take three standard deviations of a binomial (20.5)
    many = flip_answers(["red", "blue"] * 1000, 0.3, np.random.default_rng(0))
    assert abs(sum(a != b for a, b in zip(many, ["red", "blue"] * 1000, strict=True)) - 600) < 62


def test_the_variety_of_a_group_is_the_entropy_of_its_tool_sequences():
    def group(*tools):
        return SimpleNamespace(vote_result=SimpleNamespace(ballots=[SimpleNamespace(tools=own) for own in tools]))

    assert variety(group(("SEG",), ("SEG",), ("OCR",), ("OCR",))) == pytest.approx(0.5)  # ln 2 / ln 4
    assert variety(group(("SEG",), ("SEG",))) == 0.0
    assert variety(group(("SEG",), ())) == pytest.approx(1.0)
    assert variety(group(("SEG",))) == 0.0


def test_the_search_key_under_a_retrieval_shift_is_another_one_of_the_same_thing(items, keys, tmp_path):
    memory = memory_at(tmp_path / "memory", keys, ["a", "b"])
    near = {}
    for shift in (False, True):
        (tmp_path / f"run-{shift}").mkdir()
        config = settings(memory=str(memory), neighbours=2, stress={"retrieval_shift": shift})
        own = StreamMemory(config, tmp_path / f"run-{shift}", keys, None)
        near[shift] = {n.row: n.similarity for n in own.nearest([_trace(items[0])], items[0], None)}
        own.close()
    assert near[True] != near[False]
    assert near[True] == pytest.approx(near[False], abs=0.1)


def _trace(made):
    plan = CallPlan.model_validate(
        {"question": made.item.question, "steps": [{"tool": "ZOOM", "args": {"scale": 2.0}}]}
    )
    with Toolbox(ToolboxConfig(seg="classical", isolate=False)) as toolbox:
        return run_plan(plan, MediaSet(made.media), toolbox, created_at=datetime(2026, 1, 1, tzinfo=UTC)).trace


def test_a_damaged_index_and_a_foreign_memory_are_refused_before_anything_runs(items, keys, tmp_path):
    damaged = memory_at(tmp_path / "damaged", keys, ["a"] * 40, kind="hnsw-text")
    (index,) = damaged.glob("index*.faiss")
    index.write_bytes(index.read_bytes()[:-7] + b"garbage")
    with pytest.raises(MemoryFileError, match="damaged") as refused:
        adapt(settings(memory=str(damaged)), items[:1], tmp_path / "run", keys=keys)
    assert "\n" not in str(refused.value)
    foreign = MemoryStore.create(tmp_path / "foreign", text_dimensions=3, visual_dimensions=3, encoders="others")
    foreign.close()
    with pytest.raises(MemoryFileError, match="other encoders"):
        adapt(settings(memory=str(tmp_path / "foreign")), items[:1], tmp_path / "run2", keys=keys)
    with pytest.raises(ConfigError, match="neighbours=0"):
        adapt(settings(), items[:1], tmp_path / "run3")


def test_a_run_whose_memory_lost_its_head_is_told_and_keeps_the_rest(keys, tmp_path):
    own = settings(memory=str(memory_at(tmp_path / "given", keys, ["a"] * 3)))
    StreamMemory(own, tmp_path / "run", keys, None).close()
    folder = tmp_path / "run" / "memory"
    before = sorted(path.name for path in folder.iterdir())
    (folder / MEMORY_HEAD_FILE).unlink()
    with pytest.raises(MemoryFileError, match=f"lost its {MEMORY_HEAD_FILE}"):
        StreamMemory(own, tmp_path / "run", keys, None)
    assert sorted(path.name for path in folder.iterdir()) == [name for name in before if name != MEMORY_HEAD_FILE]


def test_evaluation_media_are_answered_and_neither_learnt_from_nor_remembered(items, keys, tmp_path):
    mask = EvaluationMask.build([MediaItem("test/1", medium=items[0].media[0])], keys.visual)
    adapt(settings(), items[:2], tmp_path / "run", keys=keys, mask=mask)
    first, second = read_rows(tmp_path / "run" / LEDGER)
    assert "evaluation media" in first["why"]
    assert first["vote"]["ballots"]
    assert (first["learnt"], first["remembered"], first["memory"]) == (False, False, 0)
    assert (first["updates"], first["kl"]) == (0, None)  # not even the KL is taken on it
    assert second["leak"] == ""
    assert second["updates"] == 1
    assert EvaluationMask.load(tmp_path / "run" / "memory" / MASK_FILE).digest == mask.digest  # for `index audit`
    with pytest.raises(
        ConfigError, match="begun with an evaluation mask"
    ):  # without it the next one would be learnt from
        adapt(settings(), items[:2], tmp_path / "run", keys=keys)


def test_a_memory_that_was_built_without_the_mask_of_a_run_is_named(items, keys, tmp_path):
    given = memory_at(tmp_path / "given", keys, ["a"] * 3)
    mask = EvaluationMask.build([MediaItem("test/1", medium=items[0].media[0])], keys.visual)
    for folder in ("run", "other"):  # another folder does not help
        (tmp_path / folder).mkdir()
        with pytest.raises(ConfigError, match=r"given was built without an evaluation mask, and here another is given"):
            StreamMemory(settings(memory=str(given)), tmp_path / folder, keys, mask)


def test_evaluation_media_say_nothing_about_who_is_reliable(items, keys, tmp_path, monkeypatch):
    """What later votes weigh, and what a run that goes on reads off its rows, is the same."""
    windows = []
    monkeypatch.setattr(
        train, "vote", lambda *given, window, **more: windows.append(window) or vote(*given, window=window, **more)
    )
    mask = EvaluationMask.build([MediaItem("test/1", medium=items[0].media[0])], keys.visual)
    adapt(settings(), items[:2], tmp_path / "run", keys=keys, mask=mask)
    first, second = read_rows(tmp_path / "run" / LEDGER)
    assert windows[0] is None
    assert (first["labels"], list(windows[1].rows)) == ({}, [second["labels"]])


def test_without_encoders_the_very_same_evaluation_media_are_still_refused(items, keys, tmp_path):
    mask = EvaluationMask.build([MediaItem("test/1", medium=items[0].media[0])], keys.visual)
    (tmp_path / "run").mkdir()
    own = StreamMemory(settings(neighbours=0), tmp_path / "run", None, mask)
    try:
        assert "shows test/1, which is evaluation media" in own.leak_reason(items[0])
        assert own.leak_reason(items[1]) == ""
    finally:
        own.close()


def test_what_a_trace_is_worth_is_told_by_all_that_is_remembered_now(items, keys, tmp_path):
    (tmp_path / "run").mkdir()
    own = StreamMemory(settings(), tmp_path / "run", keys, None)
    try:
        own.rollback(0)
        traces = [_trace(made) for made in items[:2]]
        assert own.add_exemplar(traces[0], items[0], 7.0, 3.0)
        (first,) = [SimpleNamespace(item=item) for _, item in own.memory.items()]
        assert own.neighbourhood_value([first]) == 0.5  # alone it is neither curious nor coherent
        assert own.add_exemplar(traces[1], items[1], 9.0, 5.0)
        # means 8 and 4, spreads 1 and 1: the first is sigmoid(-2), the second sigmoid(2)
        both = [SimpleNamespace(item=item) for _, item in own.memory.items()]
        assert [own.neighbourhood_value([one]) for one in both] == pytest.approx([0.119203, 0.880797], abs=1e-6)
        assert (
            own.neighbourhood_value([SimpleNamespace(item=both[0].item.model_copy(update={"curiosity": None}))]) == 0.5
        )
        # a chain of one call has no coherence, and is told by its curiosity alone: sigmoid(1)
        single = SimpleNamespace(item=both[1].item.model_copy(update={"coherence": None, "value": 0.03}))
        assert own.neighbourhood_value([single]) == pytest.approx(0.731059, abs=1e-6)
        own.rollback(1)
        assert own.neighbourhood_value([first]) == 0.5
    finally:
        own.close()


def test_until_enough_is_remembered_phase_2_says_what_is_usual(items, keys, tmp_path):
    (tmp_path / "run").mkdir()
    own = StreamMemory(settings(), tmp_path / "run", keys, None, SummaryStatistics(8.0, 1.0, 4.0, 1.0))
    try:
        own.rollback(0)
        assert own.add_exemplar(_trace(items[0]), items[0], 7.0, 3.0)
        (first,) = [SimpleNamespace(item=item) for _, item in own.memory.items()]
        assert own.neighbourhood_value([first]) == pytest.approx(0.119203, abs=1e-6)  # sigmoid(-2)
        own._curiosity, own._coherence = [7.0] * 32, [3.0] * 32
        assert own.neighbourhood_value([first]) == 0.5
    finally:
        own.close()


def test_a_stream_needs_no_answers(items, keys, tmp_path):
    nobody = [made._replace(item=made.item.model_copy(update={"answer": "", "answers": ("",)})) for made in items[:2]]
    report = adapt(settings(), nobody, tmp_path / "run", keys=keys)
    rows = read_rows(tmp_path / "run" / LEDGER)
    assert (report.queries, report.accuracy) == (2, None)
    assert [row["score"] for row in rows] == [None, None]
    adapt(settings(), items[:2], tmp_path / "known", keys=keys)
    known = read_rows(tmp_path / "known" / LEDGER)
    assert [row["weights"] for row in rows] == [row["weights"] for row in known]  # the same is learnt


def test_a_memory_that_only_others_may_write_becomes_a_run_s_own(keys, tmp_path):
    given = memory_at(tmp_path / "given", keys, ["a"] * 3)
    for path in (*given.rglob("*"), given):
        path.chmod(path.stat().st_mode & ~0o222)
    copy_memory(given, tmp_path / "own")
    assert all(path.stat().st_mode & 0o200 for path in (tmp_path / "own", *(tmp_path / "own").rglob("*")))


def test_evaluation_without_media_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="it contains no media, so nothing would be masked"):
        media_from_sources([tmp_path / "empty"])


def test_whoever_names_a_memory_that_is_none_sees_one_line(tmp_path):
    command = [sys.executable, "-c", "from pixelis.cli import main; main()", "adapt", "search", f"memory={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert "holds no memory" in done.stderr
    assert "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("error:")]) == 1
