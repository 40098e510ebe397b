"""A checkpoint is enough by itself, and a broken one says what is wrong in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pixelis.core.errors import ConfigError
from pixelis.media import MediaSet
from pixelis.policy import chat_format
from pixelis.policy.checkpoint import ModelCard, load_checkpoint, save_checkpoint
from pixelis.policy.model import Policy
from pixelis.policy.sequence import TokenSequence


@pytest.fixture
def folder(policy: Policy, tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "tiny", policy, ModelCard(name="tiny", corpus="abc"), {"box": torch.nn.Linear(3, 4)})
    return tmp_path / "tiny"


@torch.no_grad()
def test_a_checkpoint_opened_again_says_the_same(policy: Policy, media: MediaSet, folder: Path):
    loaded = load_checkpoint(str(folder))
    sequence = TokenSequence()
    sequence.append_context(
        chat_format.render_prompt("Read the red panel.", media, policy.style, []), policy.tokenizer, policy.image_config
    )
    again = TokenSequence()
    again.append_context(
        chat_format.render_prompt("Read the red panel.", media, loaded.policy.style, []),
        loaded.policy.tokenizer,
        policy.image_config,
    )
    assert again.ids == sequence.ids
    ours, theirs = (p(p.collate([own])).hidden for p, own in ((policy, sequence), (loaded.policy, again)))
    assert torch.equal(ours, theirs)
    assert (loaded.card.name, loaded.card.corpus, loaded.policy.image_config) == ("tiny", "abc", policy.image_config)
    assert set(loaded.heads) == {"box.weight", "box.bias"}


def test_nothing_in_it_is_a_pickle(folder: Path):
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    assert {"model.safetensors", "heads.safetensors", "tokenizer.json", "config.json", "pixelis.json"} <= names
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pth", ".pkl"))]


@pytest.mark.parametrize(
    "name", ["model.safetensors", "tokenizer.json", "config.json", "pixelis.json", "heads.safetensors"]
)
def test_a_file_that_is_cut_off_is_one_clear_line(folder: Path, name: str):
    path = folder / name
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigError, match=name) as caught:
        load_checkpoint(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_missing_file_is_one_clear_line(folder: Path, name: str):
    (folder / name).unlink()
    with pytest.raises(ConfigError) as caught:
        load_checkpoint(str(folder))
    assert "\n" not in str(caught.value)


def test_our_own_checkpoint_without_its_card_is_not_taken_for_somebody_elses(folder: Path):
    (folder / "pixelis.json").unlink()
    with pytest.raises(ConfigError, match=r"pixelis\.json is missing"):
        load_checkpoint(str(folder))


def test_a_tensor_that_is_missing_is_named_and_not_filled_at_random(folder: Path):
    weights = load_file(folder / "model.safetensors")
    lost = next(name for name in weights if name.endswith("q_proj.weight"))
    save_file({name: value for name, value in weights.items() if name != lost}, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=r"1 tensors are missing, the first .*q_proj"):
        load_checkpoint(str(folder))


def test_the_smallest_size_of_pictures_is_the_models_own(folder: Path):
    path = folder / "preprocessor_config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"size": {"shortest_edge": 65536, "longest_edge": 16777216}}))
    assert load_checkpoint(str(folder)).policy.image_config.least_pixels == 65536


def test_a_gpu_that_is_not_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no GPU that torch can use here"):
        load_checkpoint("nano-sft", device="cuda")


def test_a_card_that_breaks_off_is_told_in_a_few_words(folder: Path):
    card = folder / "pixelis.json"
    card.write_bytes(card.read_bytes()[:40])
    with pytest.raises(ConfigError, match=r"not the card of a checkpoint \(Invalid JSON: EOF [^\[]*\)$"):
        load_checkpoint(str(folder))
