"""The public API: lazy and documented, with media in every form, and answers that can be shown and saved."""

from __future__ import annotations

import ast
import html
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pixelis
from pixelis.api import to_medium
from pixelis.core.errors import ConfigError, MediaError
from pixelis.trace.codec import read

PACKAGE = Path(pixelis.__file__).parent
SIGN = PACKAGE / "demo" / "astronaut_sign.jpg"
QUESTION = "What does the sign say?"


@pytest.fixture(scope="module")
def policy() -> Iterator[pixelis.LoadedPolicy]:
    with pixelis.load_policy(tools=pixelis.ToolboxConfig(seg="classical", isolate=False)) as loaded:
        yield loaded


def test_importing_the_package_loads_nothing_heavy():
    heavy = "{'torch', 'cv2', 'numpy', 'PIL', 'transformers', 'onnxruntime', 'pydantic'}"
    code = f"import sys, pixelis; dir(pixelis); assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_tools_and_traces_open_without_torch():
    names = "Toolbox, Seg, Zoom, Trk, Ocr, Temp, Prop, Trace, read_traces, Corpus, open_media, metrics"
    code = f"import sys; from pixelis import {names}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_without_torch_what_needs_it_names_its_extra():
    code = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
import pixelis
for attempt in (lambda: pixelis.train_sft, lambda: pixelis.ask({str(SIGN)!r}, "What?")):
    try:
        attempt()
    except pixelis.PixelisError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [
        "pixelis.train_sft needs torch: pip install 'pixelis[train]'",
        "the policy nano-rft needs torch: pip install 'pixelis[policy]'",
    ]


def test_every_public_name_is_there_documented_and_seen_by_type_checkers():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.asname or alias.name for node in block.body for alias in node.names}
    assert sorted(typed | {"__version__"}) == sorted(pixelis.__all__)
    assert set(pixelis.__all__) <= set(dir(pixelis))
    for name in typed:
        assert inspect.getdoc(getattr(pixelis, name)), name
    assert (PACKAGE / "py.typed").exists()
    with pytest.raises(AttributeError, match="no attribute 'aks'"):
        pixelis.aks  # noqa: B018


def test_a_warm_policy_answers_about_paths_bytes_pillow_pictures_and_arrays_alike(policy):
    pixels = np.asarray(Image.open(SIGN).convert("RGB"))
    forms = [SIGN, str(SIGN), SIGN.read_bytes(), Image.open(SIGN), pixels, pixelis.open_media(SIGN), [SIGN]]
    answers = [policy.ask(form, QUESTION) for form in forms]
    assert {answer.answer for answer in answers} == {"FOR SALE"}
    assert pixelis.ask(SIGN, QUESTION, model=policy).trace.answer == "FOR SALE"
    assert [len(policy.ask([SIGN, pixels], QUESTION).trace.media), len(answers[0].trace.media)] == [2, 1]


def test_pixels_of_every_usual_form_are_a_picture():
    grey = np.full((20, 30), 90, np.uint8)
    assert to_medium(grey).frame(0).shape == (20, 30, 3)
    assert (to_medium(grey[:, :, None]).frame(0) == 90).all()
    clear = np.dstack([grey, grey, grey, np.zeros_like(grey)])
    assert (to_medium(clear).frame(0) == 255).all()  # nothing opaque on white
    upright = Image.new("RGB", (30, 20))
    upright.getexif()[0x0112] = 6  # turned by a quarter
    assert to_medium(upright).size == (20, 30)
    colours = np.zeros((4, 4, 3), np.uint8)
    medium = to_medium(colours)
    colours[:] = 255  # the caller's array stays writable, and is not the medium's
    assert not medium.frame(0).any()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros((4, 4, 3)), "float64"),
        (np.zeros((2, 4, 4, 3), np.uint8), "Clip.from_frames"),
        (np.zeros((4, 4, 2), np.uint8), r"not \(4, 4, 2\)"),
        (np.zeros((0, 4, 3), np.uint8), r"not \(0, 4, 3\)"),
        (b"no picture", "not a picture"),
        ((PACKAGE / "demo" / "cockatoo.mp4").read_bytes(), "pass its path"),
        (7, "this is a int"),
        ("no/such.jpg", "cannot be opened"),
    ],
)
def test_what_is_no_medium_is_refused_in_a_sentence(value, words):
    with pytest.raises(MediaError, match=words):
        pixelis.ask(value, QUESTION)


def test_a_question_is_checked_before_anything_is_loaded():
    with pytest.raises(ConfigError, match="the question is empty"):
        pixelis.ask(SIGN, "  ", model="no-such-model")


def test_an_answer_has_a_short_repr_and_a_page_for_notebooks(policy):
    answer = policy.ask(SIGN, QUESTION)
    assert re.fullmatch(r"<Answer 'FOR SALE', confidence \d\.\d\d, \d+ calls?>", repr(answer))
    frame = answer._repr_html_()
    assert frame.startswith("<iframe ")
    assert 'sandbox="allow-scripts"' in frame
    (page,) = re.findall(r'srcdoc="([^"]*)"', frame)
    page = html.unescape(page)
    assert page.startswith("<!doctype html>")
    assert "FOR SALE" in page
    silent = pixelis.Answer(*answer)._replace(answer=None, reason="the samples do not agree")
    assert repr(pixelis.Answer(*silent)).startswith("<Answer no answer: the samples do not agree, confidence")


def test_a_saved_answer_is_a_page_with_its_pictures_and_a_sealed_trace(policy, tmp_path):
    pixels = np.asarray(Image.open(SIGN).convert("RGB"))
    page = policy.ask(pixels, QUESTION).save(tmp_path / "pages" / "sign.html")
    assert "data:image/jpeg;base64" in page.read_text()  # pixels that never were a file are in the page
    assert "media missing" not in page.read_text()
    (trace,) = read(page.with_suffix(".jsonl"))
    assert trace.answer == "FOR SALE"
    assert trace.media[0].path is None
    (again,) = pixelis.read_traces(page.with_suffix(".jsonl"))
    assert again == trace
    notes = tmp_path / "notes.html"
    notes.write_text("my notes")
    with pytest.raises(pixelis.PixelisError, match="no evidence page"):
        policy.ask(SIGN, QUESTION).save(notes)
    assert notes.read_text() == "my notes"


def test_evaluating_by_name_scores_held_out_questions():
    scored = pixelis.evaluate("search", limit=1, without_tools=True)
    assert scored.overall.items == 1
    with pytest.raises(ConfigError, match="no task 'serach'"):
        pixelis.evaluate("serach")
