"""Phase 3 on the shipped policy with real tools: rows before learning, updates bit for bit, SIGKILL, the guards."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from pixelis.cli import app
from pixelis.cli.adapt import describe_accuracy, format_nats
from pixelis.core.errors import ConfigError, MemoryFileError, TraceError
from pixelis.evaluation.streams import make_stream
from pixelis.media import MediaSet
from pixelis.memory.keys import KeyMaker
from pixelis.memory.memory_files import ROWS
from pixelis.policy.checkpoint import load_checkpoint
from pixelis.rollout.engine import rollout
from pixelis.rollout.episode import Limits, Query
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.training.common.distributed import DistributedContext, trainable_parameters
from pixelis.training.common.policy_update import accumulate_gradients, forward_logits, make_microbatches
from pixelis.training.ttrl import journal
from pixelis.training.ttrl.journal import (
    LEDGER,
    MEMORY,
    UNDONE,
    AdaptationJournal,
    append_lines,
    read_rows,
    repair_rows,
)
from pixelis.training.ttrl.stream_memory import START_WATERMARK_FILE
from pixelis.training.ttrl.train import adapt
from pixelis.training.ttrl.ttrl_config import TtrlConfig
from pixelis.training.ttrl.ttrl_export import export_policy_after, revert_adaptation
from pixelis.training.ttrl.ttrl_update import (
    UpdateBatch,
    apply_update,
    build_policy_state,
    collect_tensors,
    policy_loss,
    read_update,
    write_update,
)
from pixelis.weights.encoders.text_encoder import TextEncoder
from pixelis.weights.encoders.visual_encoder import VisualEncoder

RUNNER = Path(__file__).with_name("run_ttrl.py")
SHORT = {"steps": 4, "total_tokens": 700}


def stream(count, *, shifts=("lighting:3", "motion_blur:3")):
    return list(make_stream(["search", "space"], split="test", limit=-(-count // 2), shifts=shifts).items())[:count]


def settings(**changes):
    given = {
        "policy": "nano-sft", "group_size": 3, "lr": 1e-3, "eps": 1e-5, "vote": {"delta": 0.0, "max_entropy": 1.1},
        "limits": SHORT, "snapshot_every": 2, "max_drift": 5.0, "workers": 1, "batch": 1,
    }  # fmt: skip
    return TtrlConfig.model_validate(given | changes)


def loose(**changes):
    """For lessons that a policy before the present one has sampled."""
    return settings(logprob_tolerance=1e9, **changes)


@pytest.fixture(scope="module")
def keys():
    return KeyMaker(TextEncoder(), VisualEncoder())


@pytest.fixture(scope="module")
def lessons():
    """Real rollouts of the shipped policy."""
    loaded = load_checkpoint("nano-sft")
    made = stream(2)
    queries = [Query(m.item.id, m.item.question, MediaSet(m.media), m.item.seed) for m in made]
    with Toolbox(ToolboxConfig(seg="classical", isolate=False)) as toolbox:
        groups = rollout(loaded.policy, toolbox, queries, n=3, seed=1, limits=Limits(**SHORT))
    return [
        UpdateBatch(tuple(r.sequence for r in group), np.array([1.0, -0.5, 0.2]), np.array([True, True, True]), 3)
        for group in groups
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory, keys):
    """Two queries, a copy of everything, two more, with a memory; and the rows of all four."""
    folder = tmp_path_factory.mktemp("ttrl")
    items = stream(4)
    adapt(settings(), items[:2], folder / "run", keys=keys)
    shutil.copytree(folder / "run", folder / "after_two")
    adapt(settings(), items, folder / "run", keys=keys)
    return folder, items, read_rows(folder / "run" / LEDGER)


def content(folder):
    """Every file of a tree by its bytes, without locks and TensorBoard's files, which only grow."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = [path for path in files if path.name != ".lock" and not path.name.startswith("events.")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


# --- one update


def test_an_update_taken_again_from_disk_gives_the_same_bits(lessons, tmp_path):
    torch.set_num_threads(1)
    digests = []
    for again in (False, True):
        learner = build_policy_state(loose(), load_checkpoint("nano-sft"))
        for k, lesson in enumerate(lessons):
            write_update(tmp_path / f"{k}.safetensors", lesson)
            done = apply_update(loose(), learner, read_update(tmp_path / f"{k}.safetensors") if again else lesson)
            assert not done.refusal_reason
        digests.append(learner.digest())
    assert digests[0] == digests[1]


def test_where_all_abstain_only_the_average_moves(lessons):
    moved = []
    for mask in (False, True):
        learner = build_policy_state(settings(), load_checkpoint("nano-sft"))
        before = {k: v.clone() for k, v in learner.policy.state_dict().items()}
        lesson = lessons[0]._replace(masks=np.full(3, mask), advantages=lessons[0].advantages * mask)
        done = apply_update(settings(), learner, lesson)
        assert done.stats.kl == pytest.approx(0.0, abs=1e-6)  # the policy is still its own average
        moved.append(max(float((v - before[k]).abs().max()) for k, v in learner.policy.state_dict().items()))
    # AdamW's first step is lr = 1e-3 where there is a gradient; rounding, 1e-7, is 1 % of ε + itself
    assert moved[0] < 3e-5
    assert moved[1] > 5e-4


def test_rollouts_that_are_not_read_count_in_the_mean(lessons):
    """The objective is a mean over all: with three more that say nothing its gradient is half. KL is 0 at the start."""
    found = []
    for asked in (3, 6):
        learner = build_policy_state(settings(), load_checkpoint("nano-sft"))
        parts = make_microbatches(lessons[0].sequences, learner.policy, 4096)
        loss = partial(policy_loss, settings(), lessons[0]._replace(rollout_count=asked))
        anchor_logits = [forward_logits(learner.ema_policy, part) for part in parts]
        accumulate_gradients(
            settings(grad_norm=1e9), learner.policy, anchor_logits.__getitem__, parts, np.ones(3, dtype=bool), loss,
            0.2, DistributedContext(),
        )  # fmt: skip
        found.append(next(v.grad for k, v in learner.policy.named_parameters() if k.endswith("up_proj.weight")))
    assert float(found[0].abs().max()) > 1e-4
    assert torch.allclose(found[1], found[0] / 2, atol=1e-6)


def test_abstention_after_learning_leaves_the_moments_alone(lessons):
    """AdamW would go on in the direction of the accepted query, by 1e-3 in every weight; the KL alone says little."""
    config = loose()
    learner = build_policy_state(config, load_checkpoint("nano-sft"))
    apply_update(config, learner, lessons[0])
    before = {name: value.clone() for name, value in collect_tensors(learner).items()}
    done = apply_update(config, learner, lessons[1]._replace(masks=np.zeros(3, dtype=bool), advantages=np.zeros(3)))
    assert not done.refusal_reason
    assert done.stats.kl > 0.0
    after = collect_tensors(learner)
    moments = [name for name in before if not name.startswith(("policy.", "average."))]
    assert moments
    assert all(torch.equal(after[name], before[name]) for name in moments)
    moved = sum(float((after[n] - before[n]).square().sum()) for n in before if n.startswith("policy.")) ** 0.5
    assert 0.0 < moved <= 1e-3 * 1.01  # lr times a gradient whose norm is clipped to 1


def test_a_rollout_that_the_update_reads_otherwise_is_refused(lessons):
    learner = build_policy_state(settings(), load_checkpoint("nano-sft"))
    assert apply_update(settings(), learner, lessons[0]).stats.logprob_mismatch < 1e-4
    digest = learner.digest()
    with pytest.raises(TraceError, match="nats from the recomputed one"):
        apply_update(settings(), learner, lessons[0])
    assert learner.digest() == digest


def test_a_batch_far_from_its_average_is_not_learnt_from(lessons):
    config = loose(kl_to_ema=False, kl={"max": 1e-4})
    learner = build_policy_state(config, load_checkpoint("nano-sft"))
    assert not apply_update(config, learner, lessons[0]).refusal_reason
    before = {name: value.clone() for name, value in collect_tensors(learner).items()}
    assert "KL to the start" in apply_update(config, learner, lessons[0]).refusal_reason
    assert all(
        torch.equal(value, before[name]) for name, value in collect_tensors(learner).items() if "average" not in name
    )
    learner.pid = replace(learner.pid, beta=1.0)
    abstained = lessons[0]._replace(masks=np.zeros(3, dtype=bool), advantages=np.zeros(3))
    back = [apply_update(config, learner, abstained) for _ in range(2)]  # what teaches nothing leads back
    assert not any(done.refusal_reason for done in back)
    assert back[1].stats.kl < back[0].stats.kl


def test_beyond_the_guard_a_step_that_leads_back_is_taken(lessons):
    config = loose(kl_to_ema=False, lr=1e-2, max_drift=1e-6)
    learner = build_policy_state(loose(), load_checkpoint("nano-sft"))
    far = apply_update(loose(), learner, lessons[0]).drift
    assert far > config.max_drift
    learner.pid = replace(learner.pid, beta=1.0)
    abstained = lessons[0]._replace(masks=np.zeros(3, dtype=bool), advantages=np.zeros(3))
    done = apply_update(config, learner, abstained)  # the KL to the start is all that it follows
    assert not done.refusal_reason
    assert config.max_drift < done.drift < far


def test_the_kl_is_told_rollout_by_rollout(lessons):
    """Two queries in one update: the second has the KL that it has alone."""
    found = []
    first, second = (lesson._replace(masks=np.zeros(3, dtype=bool), advantages=np.zeros(3)) for lesson in lessons)
    both = UpdateBatch(first.sequences + second.sequences, np.zeros(6), np.zeros(6, dtype=bool), 6)
    for lesson in (both, second):
        learner = build_policy_state(loose(), load_checkpoint("nano-sft"))
        apply_update(loose(), learner, lessons[0])
        found.append(apply_update(loose(), learner, lesson))
    whole, alone = found
    assert whole.stats.rollout_kls.sum() / whole.stats.rollout_tokens.sum() == pytest.approx(whole.stats.kl)
    assert whole.stats.rollout_kls[3:].sum() / whole.stats.rollout_tokens[3:].sum() == pytest.approx(
        alone.stats.kl, rel=1e-3
    )
    assert alone.stats.kl != pytest.approx(whole.stats.kl, rel=1e-2)


def test_the_average_is_rho_of_itself_and_the_rest_of_the_policy(lessons):
    config = settings(rho=0.75)
    learner = build_policy_state(config, load_checkpoint("nano-sft"))
    before = {name: value.clone() for name, value in learner.ema_policy.named_parameters()}
    apply_update(config, learner, lessons[0])
    now = dict(learner.policy.named_parameters())
    for name, value in learner.ema_policy.named_parameters():
        torch.testing.assert_close(value, 0.75 * before[name] + 0.25 * now[name], rtol=0, atol=1e-6)


def test_an_update_that_drifts_too_far_is_refused_and_leaves_everything_as_it_was(lessons):
    """After a step that was taken, so that there are moments to be left alone."""
    config = loose(lr=1e-6, max_drift=0.01)
    learner = build_policy_state(config, load_checkpoint("nano-sft"))
    assert not apply_update(config, learner, lessons[0]).refusal_reason
    learner.optimizer.param_groups[0]["lr"] = 0.5
    before = {k: v.clone() for k, v in collect_tensors(learner).items()}
    done = apply_update(config, learner, lessons[0])
    assert "over 0.01" in done.refusal_reason
    after = collect_tensors(learner)
    assert after.keys() == before.keys()
    assert sum(name.startswith("exp_avg.") for name in before) == len(trainable_parameters(learner.policy))
    for name, value in before.items():
        if not name.startswith("average."):  # π_EMA follows the policy that stayed
            assert torch.equal(after[name], value), name


def test_less_entropy_is_what_adaptation_without_a_vote_learns(lessons):
    config = loose(objective="entropy", lr=1e-4, kl={"beta": 1e-3, "adaptive": False})
    learner = build_policy_state(config, load_checkpoint("nano-sft"))
    nats = [apply_update(config, learner, lessons[0]).stats.entropy for _ in range(3)]
    assert nats[2] < nats[0]


def test_beside_lora_only_adapters_are_learnt_and_kept_and_frozen_weights_are_shared(lessons):
    config = settings(lora={"rank": 4, "alpha": 8})
    learner = build_policy_state(config, load_checkpoint("nano-sft"))
    frozen = {name: value for name, value in learner.policy.named_parameters() if not value.requires_grad}
    others = dict(learner.ema_policy.named_parameters())
    assert frozen
    assert all(others[name] is value for name, value in frozen.items())
    first = apply_update(config, learner, lessons[0])
    assert first.stats.kl == pytest.approx(0.0, abs=1e-6)
    assert first.drift > 0.0  # the start has no adapters, the policy now has some that do something
    assert all("lora_" in name for name in collect_tensors(learner))
    again = build_policy_state(config, load_checkpoint("nano-sft"))
    apply_update(config, again, lessons[0])
    assert again.digest() == learner.digest()


def test_old_states_are_dropped_once_they_take_too_much_room(lessons, tmp_path):
    config = loose(snapshot_every=1, keep_bytes=70_000_000)  # a state of nano is 28 MB: two fit
    home = AdaptationJournal(tmp_path / "run", config, build_policy_state(config, load_checkpoint("nano-sft")))
    kept = AdaptationJournal(tmp_path / "canary", config, build_policy_state(config, load_checkpoint("nano-sft")))
    kept.last_good_row = 1  # canary questions stood there: a fall goes back to it
    for own in (home, kept):
        for _ in range(4):
            own.apply(lessons[0])
            own.acknowledge([{"memory": 0}])
    assert home.total_bytes() <= config.keep_bytes
    assert kept.revert(1)["updates"] == 1
    home.revert(3)
    with pytest.raises(TraceError, match=r"keeps states from update 3 on \(keep_bytes\): 1 is gone"):
        home.revert(1)


def test_within_a_batch_there_is_no_way_back(lessons, tmp_path):
    home = AdaptationJournal(tmp_path, loose(), build_policy_state(loose(), load_checkpoint("nano-sft")))
    for _ in range(2):
        home.apply(lessons[0])
        home.acknowledge([{"memory": 0}, {"memory": 0}, {"memory": 0}])
    with pytest.raises(TraceError, match="rows 4 to 6 are one batch: go back to 3 or 6"):
        home.revert(5)
    with pytest.raises(TraceError, match="rows 1 to 3 are one batch: go back to 0 or 3"):
        home.revert(1)
    assert home.revert(3)["updates"] == 1


def test_a_way_back_over_a_damaged_file_is_told_and_leaves_everything_as_it_was(lessons, tmp_path):
    config = loose(snapshot_every=2)
    home = AdaptationJournal(tmp_path, config, build_policy_state(config, load_checkpoint("nano-sft")))
    for query in range(1, 6):
        home.apply(lessons[query % 2])
        home.acknowledge([{"query": query, "memory": 0}])
    damaged = tmp_path / "updates" / "00000003.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:100])
    before = content(tmp_path)
    again = AdaptationJournal(
        tmp_path, config, build_policy_state(config, load_checkpoint("nano-sft"))
    )  # state 4 and update 5 are whole
    with pytest.raises(TraceError, match=r"00000003\.safetensors cannot be read"):
        again.revert(3)
    assert content(tmp_path) == before
    whole = build_policy_state(config, load_checkpoint("nano-sft"))
    assert AdaptationJournal(tmp_path, config, whole).rows == home.rows
    assert whole.digest() == home.policy_state.digest()
    (tmp_path / "updates" / "00000005.safetensors").unlink()  # the end of the run is lost, row 2 is not
    with pytest.raises(TraceError, match=r"00000005\.safetensors cannot be read"):
        AdaptationJournal(tmp_path, config, build_policy_state(config, load_checkpoint("nano-sft")))
    last = AdaptationJournal(tmp_path, config, build_policy_state(config, load_checkpoint("nano-sft")), restore=False)
    assert last.revert(2)["weights"] == home.rows[1]["weights"] == last.policy_state.digest()


def test_a_revert_that_was_killed_and_is_done_again_writes_its_rows_once(lessons, tmp_path, monkeypatch):
    home = AdaptationJournal(tmp_path, loose(), build_policy_state(loose(), load_checkpoint("nano-sft")))
    for query in (1, 2):
        home.apply(lessons[0])
        home.acknowledge([{"query": query, "memory": 0}])

    def killed(path, lines):
        append_lines(path, lines)
        raise KeyboardInterrupt

    monkeypatch.setattr(journal, "append_lines", killed)
    with pytest.raises(KeyboardInterrupt):
        home.revert(1)
    assert len(read_rows(tmp_path / UNDONE)) == 1
    monkeypatch.undo()
    again = AdaptationJournal(tmp_path, loose(), build_policy_state(loose(), load_checkpoint("nano-sft")))
    assert len(again.rows) == 2
    again.revert(1)
    assert [row["updates"] for row in read_rows(tmp_path / UNDONE)] == [2]
    assert not (tmp_path / journal.REVERTING).exists()


# --- a stream


def test_rows_say_what_was_answered_before_anything_was_learnt_from_it(run, tmp_path, keys):
    _, items, rows = run
    assert [row["query"] for row in rows] == [1, 2, 3, 4]
    assert len({row["weights"] for row in rows}) > 1
    assert {row["shift"] for row in rows} == {"lighting:3", "motion_blur:3"}
    assert max(row["gap"] for row in rows) < 1e-4
    for row in rows:
        assert row["kl_query"] == pytest.approx(row["kl"], abs=1e-9)  # one query an update
        assert (row["advantage"] is None) == (row["positive"] is None) == (not row["learnt"])
    adapt(settings(learn=False, greedy=True), items[:1], tmp_path / "still", keys=keys)
    (untouched,) = read_rows(tmp_path / "still" / LEDGER)
    assert untouched["why"] == "learning is off"
    assert untouched["greedy"] in (0.0, 1.0)
    ballots = [[(b["answer"], b["tools"]) for b in row["vote"]["ballots"]] for row in (rows[0], untouched)]
    assert ballots[0] == ballots[1]


def test_revert_gives_back_every_byte(run, tmp_path):
    folder, _, rows = run
    shutil.copytree(folder / "run", tmp_path / "run")
    row = revert_adaptation(tmp_path / "run", 2)
    assert row == rows[1]
    now, before = content(tmp_path / "run"), content(folder / "after_two")
    assert now.pop(UNDONE).count(b"\n") == 2
    assert now["metrics.jsonl"].count(b"\n") == 2  # a row a query, cut as well
    changed = [name for name in now.keys() | before.keys() if now.get(name) != before.get(name)]
    assert changed in ([], ["policy/pixelis.json"])  # the card names the command and the time
    learners = []
    for where in (tmp_path / "run", folder / "after_two"):
        home = AdaptationJournal(where, settings(), build_policy_state(settings(), load_checkpoint("nano-sft")))
        learners.append((home.policy_state.digest(), home.policy_state.pid, home.rows))
    assert learners[0] == learners[1]


@pytest.mark.parametrize(
    ("name", "damage", "query", "told"),
    [
        (f"{MEMORY}/{ROWS}", lambda content: content + b"\x07" * 64, 2, "damaged"),
        (f"{MEMORY}/{ROWS}", lambda content: b"", 4, "cannot go back to"),
        (START_WATERMARK_FILE, lambda content: b"a few\n", 0, "want the number of rows"),
    ],
)
def test_a_revert_that_meets_a_damaged_memory_changes_nothing(run, tmp_path, name, damage, query, told):
    folder, _, rows = run
    assert rows[3]["memory"] > 0
    shutil.copytree(folder / "run", tmp_path / "run")
    path = tmp_path / "run" / name
    path.write_bytes(damage(path.read_bytes()))
    before = content(tmp_path / "run")
    with pytest.raises(MemoryFileError, match=told):
        revert_adaptation(tmp_path / "run", query)
    after = content(tmp_path / "run")
    assert {name for name in before | after if before.get(name) != after.get(name)} == set()


def test_what_was_reverted_goes_on_to_the_same_rows(run, tmp_path, keys):
    folder, items, rows = run
    shutil.copytree(folder / "run", tmp_path / "run")
    revert_adaptation(tmp_path / "run", 3)
    adapt(settings(), items, tmp_path / "run", keys=keys)
    again = read_rows(tmp_path / "run" / LEDGER)
    assert [r["weights"] for r in again] == [r["weights"] for r in rows]
    assert [r["memory"] for r in again] == [r["memory"] for r in rows]
    assert [r["value"] for r in again] == [r["value"] for r in rows]


def test_rows_that_a_killed_run_had_not_acknowledged_are_counted_when_it_goes_on(run, tmp_path, keys):
    folder, items, _ = run
    shutil.copytree(folder / "run", tmp_path / "run")
    with (tmp_path / "run" / LEDGER).open("ab") as file:  # two of a batch of three, the second torn
        file.write(json.dumps({"query": 5, "until": 7}).encode() + b'\n{"query": 6, "unt')
    report = adapt(settings(), items, tmp_path / "run", keys=keys)
    assert (report.dropped, report.queries) == (2, 4)
    assert adapt(settings(), items, tmp_path / "run", keys=keys).dropped == 0


def test_the_policy_after_a_row_is_written_and_the_run_stays(run, tmp_path):
    folder, _, _ = run
    export_policy_after(folder / "run", 2, tmp_path / "policy")
    written, wanted = (
        (where / "model.safetensors").read_bytes() for where in (tmp_path / "policy", folder / "after_two" / "policy")
    )
    assert written == wanted
    assert len(read_rows(folder / "run" / LEDGER)) == 4


def test_a_row_that_is_not_there_and_a_folder_that_is_none_are_told(run, tmp_path):
    folder, _, _ = run
    with pytest.raises(TraceError, match="has 4 rows: it cannot go back to 99"):
        revert_adaptation(folder / "run", 99)
    with pytest.raises(ConfigError, match="is not an adaptation"):
        revert_adaptation(tmp_path, 1)


def test_rows_are_listed_shown_and_reverted_from_the_command_line(run, tmp_path):
    folder, _, rows = run
    shutil.copytree(folder / "run", tmp_path / "run")
    where = ["-o", str(tmp_path / "run")]

    def said(*words):
        done = CliRunner().invoke(app, ["adapt", *words, *where])
        assert done.exit_code == 0, done.output
        return done.output

    listed = json.loads(said("log", "--last", "2", "--json"))
    assert [row["query"] for row in listed] == [3, 4]
    assert "vote" not in listed[0]
    assert rows[3]["weights"][:8] in said("log")
    assert json.loads(said("show", "1", "--json")) == rows[0]
    shown = said("show", "1", "--page", str(tmp_path / "vote.html"))
    assert rows[0]["question"][:20] in shown
    assert "VisFid" in (tmp_path / "vote.html").read_text()
    assert "to row 3:" in said("revert", "3")
    assert [row["query"] for row in json.loads(said("log", "--json"))] == [1, 2, 3]


def test_the_live_view_counts_given_answers_alone_as_the_end_does():
    given, held_back, unknown = ({"score": 1.0, "answered": True}, {"score": 0.0, "answered": False},
                                 {"score": None, "answered": True})  # fmt: skip
    assert describe_accuracy([given, held_back, unknown, given | {"score": 0.5}]) == "75.0 % of the answers"
    assert describe_accuracy([held_back]) == "no answer yet"
    assert describe_accuracy([unknown]) == "no references"


@pytest.mark.parametrize(
    ("kl", "words"),
    [
        (0.0, "0.0000 nats"),
        (-3e-9, "<0.0001 nats"),
        (4.9e-5, "<0.0001 nats"),
        (5e-5, "0.0001 nats"),
        (0.01234, "0.0123 nats"),
    ],
)
def test_a_kl_too_small_for_four_decimals_is_not_called_nothing(kl, words):
    assert format_nats(kl) == words


def test_a_stream_needs_no_verb(tmp_path):
    done = CliRunner().invoke(app, ["adapt", "search", "--shift", "fog:1", "-o", str(tmp_path / "run")])
    assert isinstance(done.exception, ConfigError)
    assert "no shift 'fog'" in str(done.exception)


def test_questions_of_calibration_and_canaries_are_no_stream(tmp_path):
    done = CliRunner().invoke(
        app, ["adapt", "search", "canary.items_per_family=4", "--split", "dev-cal", "-o", str(tmp_path / "run")]
    )
    assert isinstance(done.exception, ConfigError)
    assert "choose another --split" in str(done.exception)
    assert not (tmp_path / "run").exists()


def test_nothing_that_is_learnt_knows_the_right_answers(run, tmp_path, keys):
    """The same queries with no answer and no references: nothing is scored, and the weights are the same bits."""
    _, items, rows = run
    assert any(row["learnt"] for row in rows[:2])
    nothing = {"answers": ("",), "answer": "", "references": (), "evidence": ()}
    unlabelled = [made._replace(item=made.item.model_copy(update=nothing)) for made in items[:2]]
    report = adapt(settings(), unlabelled, tmp_path / "run", keys=keys)
    again = read_rows(tmp_path / "run" / LEDGER)
    assert [row["weights"] for row in again] == [row["weights"] for row in rows[:2]]
    assert report.accuracy is None
    assert {row["score"] for row in again} == {None}


def test_another_stream_is_not_gone_on_with(run, keys):
    folder, items, _ = run
    with pytest.raises(ConfigError, match="answered another stream: its query 1 was"):
        adapt(settings(), items[1:], folder / "run", keys=keys)


def test_sigkill_twenty_times_and_nothing_acknowledged_is_lost(tmp_path):
    """Killed at random moments; what was acknowledged stays, and the whole is the same as without."""
    config = settings(
        group_size=2,
        batch=2,
        limits={"steps": 4, "total_tokens": 600},
        neighbours=2,
        cache_path=str(tmp_path / "cache"),
    )
    (tmp_path / "config.json").write_text(config.model_dump_json())
    command = [sys.executable, str(RUNNER), str(tmp_path / "config.json"), str(tmp_path), "4", "20"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["rows"] == found["wanted"]
    assert len({weights for weights, _, _ in found["rows"]}) > 1  # something was learnt
    assert found["rows"][-1][1] > 0  # and something remembered
    assert content(tmp_path / "run" / "memory") == content(tmp_path / "whole" / "memory")
    assert found["landed"] >= 15  # the others had ended before they were killed
    assert max(found["seen"]) > 0


def test_a_last_batch_that_is_not_whole_is_taken_away(tmp_path):
    rows = [{"query": k, "until": until} for k, until in ((1, 2), (2, 2), (3, 5), (4, 5))]
    (tmp_path / LEDGER).write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"query": 5, "unt')
    assert repair_rows(tmp_path / LEDGER) == rows[:2]
    assert (tmp_path / LEDGER).read_text() == "".join(json.dumps(row) + "\n" for row in rows[:2])


def test_a_ledger_whose_last_line_was_cut_off_is_read_without_it(tmp_path):
    (tmp_path / LEDGER).write_text(json.dumps({"query": 1}) + "\n" + '{"query": 2, "ans')
    assert repair_rows(tmp_path / LEDGER) == [{"query": 1}]
    assert (tmp_path / LEDGER).read_text() == json.dumps({"query": 1}) + "\n"


def test_a_torn_page_at_the_end_of_a_ledger_is_dropped_and_one_in_the_middle_is_told(tmp_path):
    """A power cut may leave zeros where the last rows were to stand, and a line's end after them."""
    path, rows = tmp_path / LEDGER, [json.dumps({"query": k}).encode() for k in (1, 2)]
    path.write_bytes(rows[0] + b"\n" + bytes(40) + b"\n" + bytes(9) + b"\n")
    assert repair_rows(path) == [{"query": 1}]
    assert path.read_bytes() == rows[0] + b"\n"
    path.write_bytes(rows[0] + b"\n" + bytes(40) + b"\n" + rows[1] + b"\n")
    with pytest.raises(TraceError, match="jsonl:2 is not a row"):
        repair_rows(path)
    for last in (b"5", rows[1].replace(b"}", b"?"), b'{"query": 2, "seal": "0"}'):  # no process leaves a line so
        path.write_bytes(rows[0] + b"\n" + last + b"\n")
        with pytest.raises(TraceError, match="jsonl:2 is not a row"):
            repair_rows(path)
        assert path.read_bytes() == rows[0] + b"\n" + last + b"\n"


def test_whoever_only_reads_a_ledger_leaves_a_batch_that_is_being_written_alone(tmp_path):
    path = tmp_path / LEDGER
    whole, begun = [{"query": k, "until": 2} for k in (1, 2)], {"query": 3, "until": 4}
    content = "".join(json.dumps(row) + "\n" for row in (*whole, begun)) + '{"query": 4, "un'
    path.write_text(content)
    assert read_rows(path) == whole
    assert path.read_text() == content
    assert repair_rows(path) == whole
    assert path.read_text() == "".join(json.dumps(row) + "\n" for row in whole)
