import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelis.core.geometry import Box, Span, TextSpan
from pixelis.equations.behaviour import (
    aligned_overlap,
    duplicate_groups,
    name_similarity,
    similarities,
    similarity,
)
from pixelis.equations.visfid import DecisiveStep


def seg(x0, tool="SEG"):
    return DecisiveStep(tool, (Box(x0=x0, y0=0.0, x1=x0 + 0.2, y1=0.2),))


def test_names_are_compared_by_edit_distance():
    # SEG OCR to SEG ZOOM OCR is one insertion, the longer has three
    assert name_similarity(["SEG", "OCR"], ["SEG", "ZOOM", "OCR"]) == pytest.approx(2 / 3)
    assert name_similarity([], []) == 1.0
    assert name_similarity([], ["SEG"]) == 0.0
    # names are whole: SEG and SEX would differ by one action, not by one letter
    assert name_similarity(["SEG"], ["SEX"]) == 0.0


def test_aligned_overlap_by_hand():
    # the diagonal has probability 1 in each of its cells, each detour p = e^-5/(1 + 2 e^-5): 2 / (2 + 2p)
    p = np.exp(-5) / (1 + 2 * np.exp(-5))
    assert aligned_overlap(np.eye(2)) == pytest.approx(1 / (1 + p))
    assert aligned_overlap(np.zeros((0, 0))) == 1.0
    assert aligned_overlap(np.zeros((0, 2))) == 0.0


def test_a_chain_is_like_itself():
    chain = [seg(0.0), seg(0.5, "ZOOM"), DecisiveStep("TEMP", (Span(start_s=0, end_s=1),))]
    ours = similarity(chain, chain)
    assert (ours.similarity, ours.names, ours.footprints) == (1.0, 1.0, 1.0)


def test_the_footprints_are_held_against_the_geometric_mean_of_both_chains_with_themselves():
    # one step against it and another: both pairs are aligned, (1 + 0) / 2; by themselves 1 and 1 / (1 + p)
    p = np.exp(-5) / (1 + 2 * np.exp(-5))
    assert similarity([seg(0.0)], [seg(0.0), seg(0.7)]).footprints == pytest.approx(0.5 * np.sqrt(1 + p), abs=1e-12)


def test_equal_tools_on_other_places_are_half_alike():
    ours = similarity([seg(0.0)], [seg(0.7)])
    assert (ours.names, ours.footprints, ours.similarity) == (1.0, 0.0, 0.5)


def test_the_same_place_with_another_tool_counts_as_footprint():
    ours = similarity([seg(0.0)], [seg(0.0, "ZOOM")])
    assert (ours.names, ours.footprints) == (0.0, 1.0)


def test_the_weight_of_names_is_an_argument():
    # shifted by half the width: IoU 1/3; 0.75 x 1 + 0.25 / 3
    assert similarity([seg(0.0)], [seg(0.1)], weight_names=0.75).similarity == pytest.approx(0.75 + 0.25 / 3)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        similarity([seg(0.0)], [seg(0.0)], weight_names=2.0)


def test_empty_chains_are_alike_and_unlike_any_other():
    assert similarity([], []).similarity == 1.0
    assert similarity([], [seg(0.0)]).similarity == 0.0
    assert similarities([], 0) == ()
    with pytest.raises(ValueError, match="the exemplar is rollout -1 of 1"):
        similarities([[]], -1)


def test_the_group_form_equals_the_pairs():
    chains = [[seg(0.0), seg(0.3)], [seg(0.05)], [], [seg(0.3, "ZOOM"), seg(0.0)]]
    for j, ours in enumerate(similarities(chains, 0)):
        assert ours.similarity == pytest.approx(similarity(chains[j], chains[0]).similarity, abs=1e-12)


def test_near_duplicates_share_a_group():
    # shift 0.01 of 0.2: 0.19 / 0.21 = 0.905 > 0.85; shift 0.05: 0.15 / 0.25 = 0.6
    chains = [[seg(0.0)], [seg(0.01)], [seg(0.05)], [seg(0.0, "ZOOM")]]
    assert duplicate_groups(chains, ["A"] * 4) == (0, 0, 2, 3)
    assert duplicate_groups(chains, ["A", "B", "A", "A"]) == (0, 1, 2, 3)


def test_an_overlap_of_exactly_the_threshold_is_no_duplicate():
    for overlap, groups in ((0.85, (0, 1)), (0.8501, (0, 0))):
        scores = np.array([[1.0, overlap], [overlap, 1.0]])
        assert duplicate_groups([[seg(0.0)], [seg(0.1)]], ["A", "A"], scores=scores) == groups


def test_duplicate_groups_are_closed_whatever_the_order():
    # 0.00 ~ 0.01 ~ 0.02 although 0.00 and 0.02 overlap by 0.18 / 0.22 = 0.82 only
    places = [0.0, 0.02, 0.01]
    assert len(set(duplicate_groups([[seg(x)] for x in places], ["A"] * 3))) == 1
    assert len(set(duplicate_groups([[seg(x)] for x in sorted(places)], ["A"] * 3))) == 1


def test_chains_without_steps_keep_their_votes():
    assert duplicate_groups([[], []], ["A", "A"]) == (0, 1)
    with pytest.raises(ValueError, match="2 chains, but 1 answers"):
        duplicate_groups([[], []], ["A"])


steps = st.one_of(
    st.builds(seg, st.floats(0.0, 0.8).map(lambda x: round(x, 3)), st.sampled_from(["SEG", "ZOOM"])),
    st.builds(
        lambda words: DecisiveStep("OCR", (TextSpan(text=words, quad=((0, 0), (1, 0), (1, 1), (0, 1))),)),
        st.text("abc 12", max_size=6),
    ),
    st.builds(
        lambda a, b: DecisiveStep("TEMP", (Span(start_s=min(a, b), end_s=max(a, b)),)),
        st.integers(0, 9),
        st.integers(0, 9),
    ),
    st.builds(lambda v: DecisiveStep("PROP", properties=(("colour", v),)), st.sampled_from(["red", "blue"])),
)
chains = st.lists(steps, max_size=6)


@settings(max_examples=150)
@given(chains, chains)
def test_similarity_is_symmetric_and_lies_between_zero_and_one(a, b):
    there, back = similarity(a, b), similarity(b, a)
    assert there == back
    assert all(0.0 <= term <= 1.0 for term in there)
    assert similarity(a, a).similarity == 1.0
