"""The vote over rollouts with real traces: what every weight is made of, who is one vote, what is pooled."""

from datetime import UTC, datetime
from functools import partial

import numpy as np
import pytest
from PIL import Image

from pixelis.equations.calibration import Temperature
from pixelis.equations.voting import answer_entropy
from pixelis.media import MediaSet, open_media
from pixelis.policy.sequence import TokenSequence
from pixelis.rollout.episode import Rollout
from pixelis.tools.toolbox import Toolbox, ToolboxConfig, builtin_thresholds
from pixelis.trace.plan import CallPlan, run_plan
from pixelis.voting import vote as voting
from pixelis.voting.vote import ReliabilityWindow, VoteSettings, label_tool_sequences, to_vote_record

vote = partial(voting.vote, thresholds=builtin_thresholds())
BLUE, RED = (20, 40, 220), (220, 30, 30)


@pytest.fixture(scope="module")
def media(tmp_path_factory):
    """A blue square on the left and a red one on the right."""
    pixels = np.full((120, 240, 3), 245, dtype=np.uint8)
    pixels[40:80, 30:70] = BLUE
    pixels[40:80, 160:200] = RED
    path = tmp_path_factory.mktemp("vote") / "two.png"
    Image.fromarray(pixels).save(path)
    return MediaSet((open_media(path),))


@pytest.fixture(scope="module")
def toolbox():
    with Toolbox(ToolboxConfig(seg="classical", isolate=False, cache=False)) as box:
        yield box


@pytest.fixture(scope="module")
def rolled(media, toolbox):
    """A rollout that makes real calls; its sampled tokens have the log-probabilities that are given."""

    def make(answer, *calls, confidence=0.9, nats=0.1):
        steps = [{"tool": tool, "args": args} for tool, args in calls]
        plan = CallPlan.model_validate(
            {"question": "Which?", "answer": answer, "answer_confidence": confidence, "steps": steps}
        )
        trace = run_plan(plan, media, toolbox, created_at=datetime(2026, 1, 1, tzinfo=UTC)).trace
        ledger = TokenSequence()
        for step in range(1, len(steps) + 2):
            ledger.append_sampled(5, -nats, "action" if step <= len(steps) else "answer", step)
        return Rollout("q", 0, ledger, trace, "answered", 0, {})

    return make


def looks_at(colour, box=None):
    seg = ("SEG", {"target": f"{colour} square"})
    return (seg,) if box is None else (seg, ("PROP", {"box": box, "attributes": ["colour"]}))


LEFT, RIGHT = [0.12, 0.33, 0.29, 0.67], [0.66, 0.33, 0.83, 0.67]


def test_the_weights_are_the_products_of_their_terms(rolled):
    group = [rolled("blue", *looks_at("blue", LEFT), nats=0.2), rolled("blue", *looks_at("blue", LEFT), confidence=0.5)]
    decision = vote(group, VoteSettings(duplicate_over=1.1), calibration=Temperature(2.0, 0.0))
    for ballot in decision.ballots:
        want = np.exp(-ballot.entropy) * ballot.calibrated * ballot.fidelity * ballot.reliability
        assert ballot.weight == pytest.approx(want)
    assert decision.ballots[0].entropy == pytest.approx(0.2)
    raw = decision.ballots[1].raw
    odds = np.sqrt(raw / (1 - raw))  # sigmoid(logit(p) / 2)
    assert decision.ballots[1].calibrated == pytest.approx(odds / (1 + odds))
    assert decision.answer == "blue"


def test_the_same_chain_many_times_is_one_vote(rolled):
    same = [rolled("red", *looks_at("red", RIGHT), confidence=0.6) for _ in range(5)]
    other = [rolled("blue", *looks_at("blue", LEFT)), rolled("blue", *looks_at("blue"))]
    assert vote([*same, *other], VoteSettings(reliability=False)).answer == "blue"
    assert vote([*same, *other], VoteSettings(weighted=False, behaviour=False, reliability=False)).answer == "red"


def test_flips_of_equal_chains_do_not_outvote_them(rolled):
    """Eight that looked at one place say "blue"; three are heard to say something else. They stay one vote, of most."""
    group = [rolled("blue", *looks_at("blue", LEFT)) for _ in range(8)]
    clean = vote(group)
    for heard in (["red"] * 3 + ["blue"] * 5, ["blue", "red", "blue", "red", "blue", "green", "blue", "blue"]):
        result = vote(group, answer_overrides=heard)
        assert result.answer == "blue"
        assert result.consensus.accepted
        assert [b.fidelity for b in result.ballots] == [b.fidelity for b in clean.ballots]
        # the gates, and what teaches, see what was heard
        assert [b.answer for b in result.ballots] == heard
        assert result.consensus.agreement == 5 / 8
        assert result.consensus.entropy == pytest.approx(answer_entropy(heard))
    assert vote(group, answer_overrides=["red"] * 5 + ["blue"] * 3).answer == "red"
    hard = VoteSettings(weighted=False, behaviour=False, reliability=False)
    assert vote(group, hard, answer_overrides=["red"] * 3 + ["blue"] * 5).consensus.margin == pytest.approx(2 / 8)


def test_what_was_said_before_it_was_flipped_is_known_to_nobody(rolled):
    """Of eight that looked at one place five say "two" and three "six": what is heard decides, in one vote."""
    group = [rolled(answer, *looks_at("blue", LEFT)) for answer in ["two"] * 5 + ["six"] * 3]
    heard = ["six"] * 2 + ["two"] * 3 + ["six"] * 3
    result = vote(group, answer_overrides=heard)
    assert (result.answer, result.consensus.majority, result.consensus.agreement) == ("six", "six", 5 / 8)
    assert len({ballot.group for ballot in result.ballots}) == 1
    assert result.consensus.margin == 1.0
    silent = vote(
        [*group, *(rolled(None, *looks_at("blue", LEFT)) for _ in range(9))], answer_overrides=[*heard, *[None] * 9]
    )
    assert silent.answer == "six"  # those who found nothing are no voice of that vote


def test_a_chain_that_wandered_before_it_looked_is_less_like_the_exemplar(rolled):
    """Both decide by PROP of one place; the other first looked for a red square that is of no use to its answer."""
    group = [rolled("blue", *looks_at("blue", LEFT)), rolled("blue", *looks_at("red"), *looks_at("blue", LEFT))]
    decision = vote(group)
    assert decision.exemplar.rollout == 0
    assert decision.similarity[0] == pytest.approx(1.0)
    assert decision.similarity[1] < 0.9


def test_a_chain_that_nobody_else_made_has_the_lower_fidelity(rolled):
    group = [rolled("blue", *looks_at("blue", LEFT)) for _ in range(3)] + [rolled("blue", *looks_at("red", RIGHT))]
    ballots = vote(group, VoteSettings(duplicate_over=1.1)).ballots  # copies count
    assert ballots[0].fidelity > 0.9
    assert ballots[3].fidelity < 0.5  # its region overlaps nobody's


def test_nobody_answers_and_one_alone(rolled):
    none = vote([rolled(None, *looks_at("blue"))])
    assert none.answer is None
    assert not none.consensus.accepted
    assert none.exemplar.rollout is None
    assert np.isnan(none.similarity).all()
    alone = vote([rolled("Blue", *looks_at("blue", LEFT))])
    assert (alone.answer, alone.consensus.margin, alone.exemplar.rollout) == ("Blue", 1.0, 0)
    assert vote([]).answer is None


def test_reliabilities_are_pooled_over_queries(rolled):
    """SEG>PROP and OCR give the usual answer in ten queries, SEG alone another one: it loses its weight."""
    window = ReliabilityWindow()
    for _ in range(10):
        window.add({"SEG>PROP": 0, "OCR": 0, "SEG": 1})
    group = [
        rolled("blue", *looks_at("blue", LEFT)),
        rolled("blue", *looks_at("blue", LEFT)),
        rolled("red", *looks_at("red")),
    ]
    decision = vote(group, window=window)
    assert decision.reliability_source == "dawid-skene"
    assert decision.ballots[0].reliability > decision.ballots[2].reliability
    assert len(window.rows) == 11
    assert vote(group).reliability_source == "agreement"


def test_seven_that_agree_are_not_silenced_by_what_their_tools_did_once(rolled):
    """Once SEG>PROP gave another answer than the others; now seven rollouts of it agree against one of SEG."""
    window = ReliabilityWindow()
    window.add({"SEG>PROP": 1, "SEG": 0, "OCR": 0})
    group = [rolled("blue", *looks_at("blue", LEFT)) for _ in range(7)] + [rolled("red", *looks_at("red"))]
    seldom = vote(group, window=window)
    assert seldom.reliability_source == "agreement"
    assert seldom.ballots[0].reliability == pytest.approx(6.01 / 7.02)  # 6 of the 7 others say the same
    assert seldom.ballots[7].reliability == 0.1  # 0.01 / 7.02, raised to the floor
    assert seldom.answer == "blue"


def test_a_tool_sequence_has_its_own_reliability_once_it_answered_often_enough(rolled):
    window = ReliabilityWindow()
    for _ in range(4):
        window.add({"SEG>PROP": 0, "OCR": 0})
    group = [rolled("blue", *looks_at("blue", LEFT)), rolled("red", *looks_at("red"))]
    decision = vote(group, window=window)
    assert [b.reliability_by for b in decision.ballots] == ["dawid-skene", "agreement"]
    assert decision.reliability_source == "mixed"
    # five labels of class 0: near (5 + 2) / (5 + 3) of class 0 and 2 / 3 of class 1, which never was
    assert decision.ballots[0].reliability == pytest.approx((7 / 8 + 2 / 3) / 2, abs=0.01)


def test_a_window_forgets(rolled):
    window = ReliabilityWindow(size=3)
    for _ in range(9):
        window.add({"SEG": 0})
    assert len(window.rows) == 3


def test_a_sequence_is_labelled_by_whether_it_mostly_gave_the_most_frequent_answer():
    pairs = [("A", "x"), ("A", "y"), ("A", "x"), ("B", "y"), ("C", None), ("B", "x"), ("D", "y")]
    # x three times, y three times: the tie goes by spelling to x; A gave x in 2 of 3, B in 1 of 2, D never
    assert label_tool_sequences(pairs) == {"A": 0, "B": 0, "D": 1}
    assert label_tool_sequences([("A", None)]) == {}


def test_the_exemplar_is_a_short_chain_of_the_winners(rolled):
    group = [
        rolled("red", *looks_at("red")),
        rolled("blue", *looks_at("blue", LEFT)),
        rolled("blue", *looks_at("blue"), *looks_at("blue", LEFT), *looks_at("red", RIGHT)),
        rolled("blue", *looks_at("blue", LEFT)),
    ]
    decision = vote(group)
    assert decision.exemplar.rollout == 1
    assert decision.similarity[1] == pytest.approx(1.0)
    assert decision.similarity[2] < decision.similarity[3]


def test_a_conformal_set_of_two_abstains(rolled):
    group = [rolled("blue", *looks_at("blue", LEFT)), rolled("red", *looks_at("red", RIGHT), confidence=0.6)]
    free = vote(group, VoteSettings(delta=0.0))
    assert free.consensus.accepted
    held = vote(group, VoteSettings(delta=0.0), threshold=0.9)
    assert not held.consensus.accepted
    assert "conformal set" in held.consensus.reason


def test_the_record_says_every_term_and_what_would_have_flipped_it(rolled):
    group = [rolled("blue", *looks_at("blue", LEFT)), rolled("red", *looks_at("red", RIGHT), confidence=0.6)]
    record = to_vote_record(vote(group, VoteSettings(delta=0.0)))
    assert set(record["ballots"][0]) >= {"entropy", "raw", "calibrated", "fidelity", "reliability", "weight"}
    assert record["flips"]
    assert record["flips"][0]["answer"] == "red"


def test_answers_from_elsewhere_vote_with_their_weights_and_are_no_ballots(rolled):
    group = [rolled("red", *looks_at("red", RIGHT))]
    alone = vote(group)
    beside = vote(group, external_votes=[("Blue", 0.8), ("blue", 0.4)])
    weight = alone.ballots[0].weight
    assert beside.consensus.answer == "blue"
    assert beside.answer == "Blue"  # as the heavier of the two spells it: no rollout gave it
    # what the rollout has of all weights, 1.2 of which came from elsewhere
    assert beside.consensus.scores["red"] == pytest.approx(weight / (weight + 1.2))
    assert len(beside.ballots) == 1
    assert beside.exemplar.rollout is None
