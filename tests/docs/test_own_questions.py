"""docs/tutorials/own_questions.md: every command of the page, run in its order on pictures that are drawn here."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import yaml
from click.testing import Result
from PIL import Image, ImageDraw, ImageFont
from typer.testing import CliRunner

from pixelis.cli import app
from pixelis.data.corpus.corpus import Corpus
from pixelis.policy.checkpoint import load_checkpoint

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorials" / "own_questions.md").read_text(encoding="utf-8")
COMMANDS = [line[2:] for line in PAGE.splitlines() if line.startswith("$ ")]
FONT = ROOT / "src" / "pixelis" / "world" / "assets" / "DejaVuSansMono-Bold.ttf"
TINY = {
    "nano": {
        "hidden": 48, "layers": 5, "heads": 2, "head_dim": 16, "mlp": 96, "vision_hidden": 16, "vision_layers": 1,
        "vocabulary": 300,
    },
    "threads": 1, "workers": 1, "dynamics_epochs": 2, "epochs": 50, "lr": 1e-2, "batch_tokens": 4096,
    "examples": "examples",
}  # fmt: skip
"""What differs from configs/nano/own.yaml so that a test can wait for it."""


class Done(NamedTuple):
    """The page after its last command."""

    folder: Path
    said: dict[str, Result]

    def score(self, command: str, task: str) -> tuple[float, int]:
        """Score and items of a row of the table that a command printed."""
        row = next(line.split() for line in self.said[command].output.splitlines() if line.startswith(task))
        return float(row[1]), int(row[-1])


def picture(path: Path, word: str, *, square: str = "red") -> None:
    """A word above on the left, a square below on the right, where the page says that they are."""
    image = Image.new("RGB", (240, 160), "white")
    draw = ImageDraw.Draw(image)
    draw.text((26, 22), word, fill="black", font=ImageFont.truetype(str(FONT), 34))
    draw.rectangle((144, 80, 215, 143), fill=square)
    image.save(path)


def questions(folder: Path) -> list[str]:
    """The page's own lines, and enough of their kind for a corpus."""
    rows = re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)[1].splitlines()
    (folder / "pictures").mkdir()
    picture(folder / "pictures" / "shop.png", "OPEN")
    picture(folder / "pictures" / "yard.png", "42")
    for place, colour in (("mill", "green"), ("oak", "blue"), ("hill", "orange"), ("lake", "purple")):
        picture(folder / "pictures" / f"{place}.png", place.upper(), square=colour)
        rows.append(json.dumps({"media": f"{place}.png", "question": f"What colour is at {place}?", "answer": colour}))
        rows.append(json.dumps({"media": f"{place}.png", "question": f"Is this {place}?", "answer": True}))
    return rows


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Done:
    folder = tmp_path_factory.mktemp("own")
    rows = questions(folder)
    (folder / "mine.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "exam.jsonl").write_text("\n".join(rows[-2:]) + "\n")
    (folder / "configs" / "nano").mkdir(parents=True)
    shipped = yaml.safe_load((ROOT / "configs" / "nano" / "own.yaml").read_text())
    (folder / "configs" / "nano" / "own.yaml").write_text(yaml.safe_dump(shipped | TINY))
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        said = {}
        for command in COMMANDS:
            words = shlex.split(command)
            assert words[0] == "pixelis"
            more = ["epochs=2"] if "init=" in command else []
            said[command] = CliRunner().invoke(app, [*words[1:], *more], catch_exceptions=False)
            assert said[command].exit_code == 0, f"{command}\n{said[command].output}"
    torch.set_num_threads(before)
    return Done(folder, said)


def test_the_three_commands_lead_from_questions_to_scores(done):
    build, train, score = COMMANDS[:3]
    corpus = Corpus(done.folder / "corpus" / "mine")
    assert len(corpus) == 11
    splits = [row.split for row in corpus.rows()]
    assert {"train", "dev", "test"} <= set(splits)
    assert "next: pixelis train sft configs/nano/own.yaml corpus=corpus/mine -o runs/mine" in done.said[build].output
    assert "have an answer but no tool calls" in done.said[build].output
    assert "next: pixelis eval corpus/mine -m runs/mine/policy" in done.said[train].output
    percent, items = done.score(score, "corpus/mine:test")
    assert 0.0 <= percent <= 100.0
    assert items == splits.count("test")
    report = json.loads((done.folder / "scores" / "mine" / "report.json").read_text())
    assert report["report"]["tasks"][0]["name"] == "corpus/mine:test"


def test_what_was_trained_on_is_learnt_by_heart(done):
    percent, _ = done.score(COMMANDS[3], "corpus/mine:train")
    assert percent >= 50.0


def test_items_that_are_in_no_corpus_are_scored_beside_a_split(done):
    command = next(c for c in COMMANDS if c.startswith("pixelis eval exam"))
    assert done.score(command, "exam.items.jsonl")[1] == 2
    assert done.score(command, "corpus/mine:dev")[1] > 0


def test_a_checkpoint_keeps_its_tokenizer_when_it_learns_further(done):
    first, further = (done.folder / "runs" / name / "policy" for name in ("mine", "further"))
    assert (first / "tokenizer.json").read_bytes() == (further / "tokenizer.json").read_bytes()
    tokens = load_checkpoint(str(further)).policy.tokenizer
    assert tokens.decode(tokens.encode("Zwölf Kängurus")) == "Zwölf Kängurus"  # words it never met
