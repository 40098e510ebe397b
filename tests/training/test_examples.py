"""Records as tokens: what is written, what may be hidden, what the heads are asked for."""

import numpy as np
import pytest

from pixelis.core.geometry import Box, Span
from pixelis.media import MediaSet
from pixelis.media.image import Image
from pixelis.nano.nano_model import NANO_STYLE
from pixelis.nano.quoting import expand_quotes, find_quote, last_ocr_lines
from pixelis.policy.chat_format import format_call_text
from pixelis.policy.images import ImageProcessorConfig, ProcessedImage
from pixelis.policy.sequence import ImageSpan, check_sequence
from pixelis.policy.tokenizer import PolicyTokenizer, train_tokenizer
from pixelis.training.dataset.examples import ACTION, ANSWER, COLUMNS, PROMPT, example_from_record, footprint_weights
from pixelis.training.dataset.prepared_examples import PreparedExamples, chunk_path, corpus_texts, prepare, tool_schemas

OPTICS = ImageProcessorConfig(patch=8)


def record_of(corpus, entry):
    return corpus.find(entry.id)


def test_an_example_spells_the_calls_and_the_answer_of_its_trace(corpus, tokens, train):
    number = next(k for k, entry in enumerate(train.entries) if entry.accepted)
    example, trace = train[number], record_of(corpus, train.entries[number]).trace
    for k, step in enumerate(trace.steps, start=1):
        words = tokens.decode(example.ids[(example.kinds == ACTION) & (example.step_of == k)])
        assert words == f"<tool_call>{format_call_text(step.call)}</tool_call><|im_end|>"
    assert tokens.decode(example.ids[example.kinds == ANSWER]) == f"<answer> {trace.answer}</answer><|im_end|>"
    check_sequence(example.sequence, tokens)


def test_an_answer_that_was_read_is_quoted_where_the_tokenizer_can(corpus):
    schemas = tool_schemas()
    able = PolicyTokenizer(train_tokenizer(corpus_texts(corpus), schemas, vocabulary=300, quotes=True))
    quoted = 0
    for record in corpus.records(split="train", accepted=True):
        lines = last_ocr_lines(step.result for step in record.trace.steps)
        quote = find_quote(record.trace.answer, lines)
        example = example_from_record(record, corpus.media(record), able, NANO_STYLE, OPTICS, schemas)
        said = able.decode(example.ids[example.kinds == ANSWER])
        assert said == f"<answer>{quote or f' {record.trace.answer}'}</answer><|im_end|>"  # a quote has no space
        assert expand_quotes(said, lines).replace("> ", ">") == f"<answer>{record.trace.answer}</answer><|im_end|>"
        quoted += quote is not None
    assert quoted > 0


def test_a_head_reads_at_the_token_that_opens_the_call(tokens, train):
    for number in range(len(train)):
        example = train[number]
        assert {tokens.decode([example.ids[at]]) for at in example.steps.opens} <= {"<tool_call>"}


def test_what_is_on_disk_is_what_was_made(corpus, tokens, train):
    record = record_of(corpus, train.entries[0])
    made = example_from_record(record, corpus.media(record), tokens, NANO_STYLE, OPTICS, tool_schemas())
    kept = train[0]
    assert (made.id, made.family, made.difficulty, made.accepted) == (
        kept.id,
        kept.family,
        kept.difficulty,
        kept.accepted,
    )
    for name in ("ids", "kinds", "step_of", "output_of"):
        assert np.array_equal(getattr(made, name), getattr(kept, name))
    for a, b in ((getattr(made.steps, name), getattr(kept.steps, name)) for name in COLUMNS):
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    for a, b in zip(made.image_spans, kept.image_spans, strict=True):
        assert a.start == b.start
        assert a.image.name == b.image.name
        assert np.array_equal(a.image.pixels, b.image.pixels)


def test_feedback_dropout_may_hide_a_result_but_not_the_turn_around_it(tokens, train):
    example = train[next(k for k, entry in enumerate(train.entries) if entry.accepted)]
    hidden = tokens.decode(example.ids[example.output_of == 0])
    assert "tool_response" not in hidden
    assert "im_start" not in hidden
    assert len(hidden) > 5


def test_an_answer_without_tools_is_the_prompt_and_the_answer(tokens, train):
    number = next(k for k, entry in enumerate(train.entries) if entry.accepted)
    whole, short = train[number], train[number].without_tools()
    assert set(short.kinds.tolist()) == {PROMPT, ANSWER}
    assert len(short) == train.entries[number].tokens_without_tools
    assert tokens.decode(short.ids[short.kinds == ANSWER]) == tokens.decode(whole.ids[whole.kinds == ANSWER])
    check_sequence(short.sequence, tokens)


def test_what_was_refused_teaches_its_right_answer_only(corpus, tokens, train):
    record = record_of(corpus, train.entries[0])
    refused = record.model_copy(update={"accepted": False, "trace": record.trace.model_copy(update={"answer": "no"})})
    example = example_from_record(refused, corpus.media(record), tokens, NANO_STYLE, OPTICS, tool_schemas())
    assert len(example.steps) == 0
    answer = tokens.decode(example.ids[example.kinds == ANSWER])
    assert answer == f"<answer> {record.item.answer}</answer><|im_end|>"


def test_examples_that_are_there_are_not_made_again_and_lost_ones_are(corpus, tokens, tmp_path):
    def make():
        return prepare(corpus, "dev", tokens, NANO_STYLE, OPTICS, workers=1, folder=tmp_path)

    first = make()
    path = chunk_path(first.root, "dev", 0)
    content, when = path.read_bytes(), path.stat().st_mtime_ns
    make()
    assert path.stat().st_mtime_ns == when
    path.unlink()
    again = make()
    assert path.read_bytes() == content
    assert isinstance(again, PreparedExamples)
    assert len(again) == len(first) > 0


@pytest.fixture
def square():
    """A picture of 4 x 4 tokens after ten words."""
    picture = ProcessedImage("Image_0", np.zeros((64, 64, 3), dtype=np.uint8), 4, 4)
    return [ImageSpan(10, picture)], MediaSet((Image.from_array(np.zeros((64, 64, 3), dtype=np.uint8)),))


def test_a_small_box_is_grown_by_a_cell_before_it_is_pooled(square):
    places, media = square
    at, weights = footprint_weights((Box(x0=0.0, y0=0.0, x1=0.5, y1=0.5),), places, media)
    assert sorted(at) == [10, 11, 12, 14, 15, 16, 18, 19, 20]  # 2 x 2 cells become 3 x 3 at the corner
    assert weights == pytest.approx([1 / 9] * 9)


def test_without_a_footprint_a_step_has_looked_at_everything(square):
    places, media = square
    at, weights = footprint_weights((), places, media)
    assert sorted(at) == list(range(10, 26))
    assert weights.sum() == pytest.approx(1.0)


def test_a_span_is_looked_up_on_the_nearest_frame_that_is_shown(corpus, train):
    number = next(k for k, entry in enumerate(train.entries) if entry.family == "motion")
    example, media = train[number], corpus.media(record_of(corpus, train.entries[number]))
    places = [place for place in example.image_spans if example.kinds[place.start] == PROMPT]
    at, _ = footprint_weights((Span(media="Video_0", start_s=0.0, end_s=0.0),), places, media)
    first = min(places, key=lambda place: place.start)
    assert sorted(at) == list(range(first.start, first.start + first.image.token_count))
