"""Names of models: embedded checkpoints, folders, hub ids, and what is none of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pixelis.core.errors import ConfigError
from pixelis.policy import model_names
from pixelis.policy.checkpoint import load_checkpoint
from pixelis.policy.model_names import embedded_checkpoints, find_checkpoint, hash_weights


@pytest.mark.parametrize("name", ["nano-rtf", "nanorft", "nano_rft"])
def test_a_misspelt_name_gets_the_nearest_one_and_the_list(name: str):
    with pytest.raises(
        ConfigError, match=rf"no model '{name}' \(did you mean 'nano-rft'\?\): want .* one of nano-"
    ) as caught:
        find_checkpoint(name)
    assert "\n" not in str(caught.value)


def test_a_name_like_no_other_gets_the_list_alone():
    with pytest.raises(ConfigError, match="no model 'gpt': want a folder"):
        find_checkpoint("gpt")


def test_the_wheel_has_one_checkpoint_and_a_clone_has_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert list(embedded_checkpoints()) == sorted(embedded_checkpoints())
    monkeypatch.setattr(model_names, "CLONE_CHECKPOINTS", tmp_path / "absent")
    assert list(embedded_checkpoints()) == ["nano-rft"]


def test_a_folder_that_does_not_exist_is_not_taken_for_a_hub_id():
    with pytest.raises(ConfigError, match="no folder 'runs/mine/policy' here"):
        load_checkpoint("runs/mine/policy")


def test_a_server_has_no_weights_here():
    with pytest.raises(ConfigError, match="behind a server has no weights here"):
        find_checkpoint("openai:http://127.0.0.1:8000/v1#any")


def test_a_hub_that_does_not_answer_is_reported_at_once(monkeypatch: pytest.MonkeyPatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(ConfigError, match="the hub does not answer"):
        load_checkpoint("nobody/nothing")


def test_weights_are_hashed_file_after_file(tmp_path: Path):
    for name, content in (("b.safetensors", b"two"), ("a.safetensors", b"one"), ("config.json", b"{}")):
        (tmp_path / name).write_bytes(content)
    assert hash_weights(str(tmp_path)) == hashlib.sha256(b"onetwo").hexdigest()
    assert hash_weights("nobody/nothing") == "hub:nobody/nothing"


def test_the_former_name_of_a_checkpoint_still_works():
    assert find_checkpoint("nano-winding") == find_checkpoint("nano-sft-verbose")
