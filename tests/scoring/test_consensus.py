"""The vote over rollouts with real traces: what every weight is made of, who is one vote, what is pooled."""

from datetime import UTC, datetime

import numpy as np
import pytest
from PIL import Image

from pixelis.equations.calibration import Temperature
from pixelis.equations.voting import answer_entropy
from pixelis.media import MediaSet, open_media
from pixelis.policy.ledger import Ledger
from pixelis.rollout.episode import Rollout
from pixelis.scoring.consensus import VoteSettings, Window, decide, labelled, record_of
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.trace.running import Plan, run_plan

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
        plan = Plan.model_validate(
            {"question": "Which?", "answer": answer, "answer_confidence": confidence, "steps": steps}
        )
        trace = run_plan(plan, media, toolbox, created_at=datetime(2026, 1, 1, tzinfo=UTC)).trace
        ledger = Ledger()
        for step in range(1, len(steps) + 2):
            ledger.say(5, -nats, "action" if step <= len(steps) else "answer", step)
        return Rollout("q", 0, ledger, trace, "answered", 0, {})

    return make


def looks_at(colour, box=None):
    seg = ("SEG", {"target": f"{colour} square"})
    return (seg,) if box is None else (seg, ("PROP", {"box": box, "attributes": ["colour"]}))


LEFT, RIGHT = [0.12, 0.33, 0.29, 0.67], [0.66, 0.33, 0.83, 0.67]


def test_the_weights_are_the_products_of_their_terms(rolled):
    group = [rolled("blue", *looks_at("blue", LEFT), nats=0.2), rolled("blue", *looks_at("blue", LEFT), confidence=0.5)]
    decision = decide(group, VoteSettings(duplicate_over=1.1), calibration=Temperature(2.0, 0.0))
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
    assert decide([*same, *other], VoteSettings(reliability=False)).answer == "blue"
    assert decide([*same, *other], VoteSettings(weighted=False, behaviour=False, reliability=False)).answer == "red"


def test_flips_of_equal_chains_do_not_outvote_them(rolled):
    """Eight that looked at one place say "blue"; three are heard to say something else. They stay one vote, of most."""
    group = [rolled("blue", *looks_at("blue", LEFT)) for _ in range(8)]
    clean = decide(group)
    for heard in (["red"] * 3 + ["blue"] * 5, ["blue", "red", "blue", "red", "blue", "green", "blue", "blue"]):
        vote = decide(group, heard=heard)
        assert vote.answer == "blue"
        assert vote.consensus.accepted
        assert [b.fidelity for b in vote.ballots] == [b.fidelity for b in clean.ballots]
        # the gates, and what teaches, see what was heard
        assert [b.answer for b in vote.ballots] == heard
        assert vote.consensus.agreement == 5 / 8
        assert vote.consensus.entropy == pytest.approx(answer_entropy(heard))
    assert decide(group, heard=["red"] * 5 + ["blue"] * 3).answer == "red"
    hard = VoteSettings(weighted=False, behaviour=False, reliability=False)
    assert decide(group, hard, heard=["red"] * 3 + ["blue"] * 5).consensus.margin == pytest.approx(2 / 8)


def test_what_was_said_before_it_was_flipped_is_known_to_nobody(rolled):
    """Of eight that looked at one place five say "two" and three "six": what is heard decides, in one vote."""
    group = [rolled(answer, *looks_at("blue", LEFT)) for answer in ["two"] * 5 + ["six"] * 3]
    heard = ["six"] * 2 + ["two"] * 3 + ["six"] * 3
    vote = decide(group, heard=heard)
    assert (vote.answer, vote.consensus.majority, vote.consensus.agreement) == ("six", "six", 5 / 8)
    assert len({ballot.group for ballot in vote.ballots}) == 1
    assert vote.consensus.margin == 1.0
    silent = decide([*group, *(rolled(None, *looks_at("blue", LEFT)) for _ in range(9))], heard=[*heard, *[None] * 9])
    assert silent.answer == "six"  # those who found nothing are no voice of that vote


def test_a_chain_that_wandered_before_it_looked_is_less_like_the_exemplar(rolled):
    """Both decide by PROP of one place; the other first looked for a red square that is of no use to its answer."""
    group = [rolled("blue", *looks_at("blue", LEFT)), rolled("blue", *looks_at("red"), *looks_at("blue", LEFT))]
    decision = decide(group)
    assert decision.exemplar.rollout == 0
    assert decision.similarity[0] == pytest.approx(1.0)
    assert decision.similarity[1] < 0.9


def test_a_chain_that_nobody_else_made_has_the_lower_fidelity(rolled):
    group = [rolled("blue", *looks_at("blue", LEFT)) for _ in range(3)] + [rolled("blue", *looks_at("red", RIGHT))]
    ballots = decide(group, VoteSettings(duplicate_over=1.1)).ballots  # copies count
    assert ballots[0].fidelity > 0.9
    assert ballots[3].fidelity < 0.5  # its region overlaps nobody's


def test_nobody_answers_and_one_alone(rolled):
    none = decide([rolled(None, *looks_at("blue"))])
    assert none.answer is None
    assert not none.consensus.accepted
    assert none.exemplar.rollout is None
    assert np.isnan(none.similarity).all()
    alone = decide([rolled("Blue", *looks_at("blue", LEFT))])
    assert (alone.answer, alone.consensus.margin, alone.exemplar.rollout) == ("Blue", 1.0, 0)
    assert decide([]).answer is None


def test_reliabilities_are_pooled_over_queries(rolled):
    """SEG>PROP and OCR give the usual answer in ten queries, SEG alone another one: it loses its weight."""
    window = Window()
    for _ in range(10):
        window.add({"SEG>PROP": 0, "OCR": 0, "SEG": 1})
    group = [
        rolled("blue", *looks_at("blue", LEFT)),
        rolled("blue", *looks_at("blue", LEFT)),
        rolled("red", *looks_at("red")),
    ]
    decision = decide(group, window=window)
    assert decision.pooled == "dawid-skene"
    assert decision.ballots[0].reliability > decision.ballots[2].reliability
    assert len(window.rows) == 11
    assert decide(group).pooled == "agreement"


def test_seven_that_agree_are_not_silenced_by_what_their_tools_did_once(rolled):
    """Once SEG>PROP gave another answer than the others; now seven rollouts of it agree against one of SEG."""
    window = Window()
    window.add({"SEG>PROP": 1, "SEG": 0, "OCR": 0})
    group = [rolled("blue", *looks_at("blue", LEFT)) for _ in range(7)] + [rolled("red", *looks_at("red"))]
    seldom = decide(group, window=window)
    assert seldom.pooled == "agreement"
    assert seldom.ballots[0].reliability == pytest.approx(6.01 / 7.02)  # 6 of the 7 others say the same
    assert seldom.ballots[7].reliability == 0.1  # 0.01 / 7.02, raised to the floor
    assert seldom.answer == "blue"


def test_a_tool_sequence_has_its_own_reliability_once_it_answered_often_enough(rolled):
    window = Window()
    for _ in range(4):
        window.add({"SEG>PROP": 0, "OCR": 0})
    group = [rolled("blue", *looks_at("blue", LEFT)), rolled("red", *looks_at("red"))]
    decision = decide(group, window=window)
    assert [b.reliability_by for b in decision.ballots] == ["dawid-skene", "agreement"]
    assert decision.pooled == "mixed"
    # five labels of class 0: near (5 + 2) / (5 + 3) of class 0 and 2 / 3 of class 1, which never was
    assert decision.ballots[0].reliability == pytest.approx((7 / 8 + 2 / 3) / 2, abs=0.01)


def test_a_window_forgets(rolled):
    window = Window(size=3)
    for _ in range(9):
        window.add({"SEG": 0})
    assert len(window.rows) == 3


def test_a_sequence_is_labelled_by_whether_it_mostly_gave_the_most_frequent_answer():
    pairs = [("A", "x"), ("A", "y"), ("A", "x"), ("B", "y"), ("C", None), ("B", "x"), ("D", "y")]
    # x three times, y three times: the tie goes by spelling to x; A gave x in 2 of 3, B in 1 of 2, D never
    assert labelled(pairs) == {"A": 0, "B": 0, "D": 1}
    assert labelled([("A", None)]) == {}


def test_the_exemplar_is_a_short_chain_of_the_winners(rolled):
    group = [
        rolled("red", *looks_at("red")),
        rolled("blue", *looks_at("blue", LEFT)),
        rolled("blue", *looks_at("blue"), *looks_at("blue", LEFT), *looks_at("red", RIGHT)),
        rolled("blue", *looks_at("blue", LEFT)),
    ]
    decision = decide(group)
    assert decision.exemplar.rollout == 1
    assert decision.similarity[1] == pytest.approx(1.0)
    assert decision.similarity[2] < decision.similarity[3]


def test_a_conformal_set_of_two_abstains(rolled):
    group = [rolled("blue", *looks_at("blue", LEFT)), rolled("red", *looks_at("red", RIGHT), confidence=0.6)]
    free = decide(group, VoteSettings(delta=0.0))
    assert free.consensus.accepted
    held = decide(group, VoteSettings(delta=0.0), threshold=0.9)
    assert not held.consensus.accepted
    assert "conformal set" in held.consensus.reason


def test_the_record_says_every_term_and_what_would_have_flipped_it(rolled):
    group = [rolled("blue", *looks_at("blue", LEFT)), rolled("red", *looks_at("red", RIGHT), confidence=0.6)]
    record = record_of(decide(group, VoteSettings(delta=0.0)))
    assert set(record["ballots"][0]) >= {"entropy", "raw", "calibrated", "fidelity", "reliability", "weight"}
    assert record["flips"]
    assert record["flips"][0]["answer"] == "red"


def test_answers_from_elsewhere_vote_with_their_weights_and_are_no_ballots(rolled):
    group = [rolled("red", *looks_at("red", RIGHT))]
    alone = decide(group)
    beside = decide(group, outside=[("Blue", 0.8), ("blue", 0.4)])
    weight = alone.ballots[0].weight
    assert beside.consensus.answer == "blue"
    assert beside.answer == "Blue"  # as the heavier of the two spells it: no rollout gave it
    # what the rollout has of all weights, 1.2 of which came from elsewhere
    assert beside.consensus.scores["red"] == pytest.approx(weight / (weight + 1.2))
    assert len(beside.ballots) == 1
    assert beside.exemplar.rollout is None
