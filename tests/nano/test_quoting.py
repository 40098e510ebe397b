"""Answers that were read are quoted by one token, which is expanded before anything else reads it."""

from datetime import UTC, datetime

import pytest

from pixelis.core.geometry import TextSpan
from pixelis.media import MediaSet
from pixelis.nano.nano_model import NANO_STYLE
from pixelis.nano.quoting import ALL, FIRST, LAST, expand_quotes, find_quote, last_ocr_lines
from pixelis.policy.chat_format import render_answer
from pixelis.policy.images import ImageProcessorConfig
from pixelis.policy.sequence import TokenSequence
from pixelis.policy.tokenizer import PolicyTokenizer, train_tokenizer
from pixelis.rollout.episode import NOTHING_TO_QUOTE, Episode, Limits, Query
from pixelis.tools.results import Execution, ToolResult
from pixelis.trace.recorder import TraceRecorder

LINES = ("Chapter III", "of cats", "and dogs")


def read(*lines: str, tool: str = "OCR", status: str = "ok") -> ToolResult:
    where = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))
    spans = tuple(TextSpan(media="Image_0", label=line, text=line, quad=where) for line in lines)
    return ToolResult(tool=tool, status=status, text="read", footprints=spans)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tokens() -> PolicyTokenizer:
    return PolicyTokenizer(train_tokenizer(["The sign says EXIT here."] * 40, [], vocabulary=300, quotes=True))


def test_what_counts_is_the_last_call_that_read_anything():
    results = [read("old"), read(*LINES), read("a view", tool="ZOOM"), read(), read("x", status="failed")]
    assert last_ocr_lines(results) == LINES
    assert last_ocr_lines([read("a view", tool="ZOOM")]) == ()


@pytest.mark.parametrize(
    ("answer", "lines", "quote"),
    [
        ("Chapter III of cats and dogs", LINES, ALL), ("Chapter III", LINES, FIRST), ("and dogs", LINES, LAST),
        ("EXIT", ("EXIT",), ALL), ("of cats", LINES, None), ("exit", ("EXIT",), None), ("", (), None),
    ],
)  # fmt: skip
def test_the_widest_quote_that_means_the_answer_is_taken(answer, lines, quote):
    assert find_quote(answer, lines) == quote
    if quote:
        assert expand_quotes(f"It says {quote}.", lines) == f"It says {answer}."


def test_the_last_turn_has_the_quote_for_the_answer_and_where_the_thought_names_it(tokens):
    sequence = TokenSequence()
    sequence.append_context(
        render_answer("EXIT it is: EXIT.", "EXIT", NANO_STYLE, step=2, quote=ALL), tokens, ImageProcessorConfig(patch=8)
    )
    assert tokens.decode(sequence.ids) == f"EXIT it is: {ALL}.\n<answer>{ALL}</answer><|im_end|>"
    assert sequence.ids.count(tokens.control_ids[ALL]) == 2
    assert {sequence.kinds[k] for k, t in enumerate(sequence.ids) if t == tokens.control_ids[ALL]} == {
        "thought",
        "answer",
    }
    spelt = TokenSequence()
    spelt.append_context(
        render_answer("Seen.", "EXIT", NANO_STYLE, step=2, quote=ALL), tokens, ImageProcessorConfig(patch=8)
    )
    assert tokens.decode(spelt.ids) == f"Seen.\n<answer>{ALL}</answer><|im_end|>"


def test_a_name_inside_another_word_is_no_quote(tokens):
    sequence = TokenSequence()
    sequence.append_context(
        render_answer("Not 312 but 12, in 1.12.", "12", NANO_STYLE, step=2, quote=LAST),
        tokens,
        ImageProcessorConfig(patch=8),
    )
    assert tokens.decode(sequence.ids).startswith(f"Not 312 but {LAST}, in 1.12.\n")
    sequence = TokenSequence()
    sequence.append_context(
        render_answer("It is 312.", "12", NANO_STYLE, step=2, quote=LAST), tokens, ImageProcessorConfig(patch=8)
    )
    assert tokens.decode(sequence.ids) == f"It is 312.\n<answer>{LAST}</answer><|im_end|>"


def test_letters_that_look_like_a_quote_are_letters(tokens):
    assert tokens.control_ids[ALL] in tokens.encode(ALL, control=True)
    assert tokens.control_ids[ALL] not in tokens.encode(f"a sign with {ALL} on it")
    assert not PolicyTokenizer(train_tokenizer(["x"], [], vocabulary=300)).has_quote_tokens


def episode_after(result: ToolResult | None, tokens: PolicyTokenizer, words: str) -> Episode:
    """An episode that has seen a result and says its last words."""
    episode = Episode(
        Query("q", "What?", MediaSet(())),
        0,
        TokenSequence(),
        TraceRecorder(MediaSet(())),
        deadline=1e9,
        prompt_tokens=0,
    )
    if result is not None:
        call = tokens.encode('<tool_call>{"name": "OCR", "arguments": {}}</tool_call><|im_end|>', control=True)
        episode.add_turn(call, [-0.1] * len(call), tokens)
        episode.sequence.ids.clear()
        for part in (episode.sequence.kinds, episode.sequence.steps, episode.sequence.logprobs):
            part.clear()
        episode.add_result(Execution(result, {}), [])
    ids = tokens.encode(words, control=True)
    episode.add_turn(ids, [-0.1] * len(ids), tokens)
    return episode


def test_a_quoted_answer_is_put_in_words_and_its_probability_is_that_of_its_tokens(tokens):
    episode = episode_after(read(*LINES), tokens, f"It says {FIRST}.\n<answer>{FIRST}</answer><|im_end|>")
    assert episode.end_reason(Limits()) == "answered"
    rolled = episode.to_rollout("answered", name="x", created_at=datetime.now(UTC))
    assert rolled.answer == "Chapter III"
    assert rolled.trace.answer_thought == "It says Chapter III."
    # <answer>, the quote, </answer> and the end: four tokens at −0.1 each
    assert rolled.trace.answer_confidence == pytest.approx(2.718281828**-0.4)


@pytest.mark.parametrize("result", [None, read()], ids=["no call", "nothing found"])
def test_a_quote_of_nothing_is_no_answer_and_the_policy_is_told(tokens, result):
    episode = episode_after(result, tokens, f"<answer>{ALL}</answer><|im_end|>")
    assert episode.end_reason(Limits()) is None
    assert episode.parse_error_count == 1
    assert any(getattr(piece, "text", "") == NOTHING_TO_QUOTE for piece in episode.retry_prompt())


def test_an_answer_in_words_stays_as_it_is(tokens):
    assert episode_after(read(*LINES), tokens, "<answer>EXIT</answer><|im_end|>").turn.answer == "EXIT"
