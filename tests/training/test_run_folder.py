"""The clock of a run, and its folder."""

from types import SimpleNamespace

import numpy as np
import pytest

from pixelis.core.errors import ConfigError
from pixelis.training.common.run_folder import write_config
from pixelis.training.grpo.rft_config import RftConfig
from pixelis.training.sft.sft_config import SftConfig
from pixelis.training.sft.sft_state import RunClock, SftState
from pixelis.training.ttrl.ttrl_config import TtrlConfig


def test_a_second_step_before_the_next_round_is_timed_from_the_first(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("pixelis.training.sft.sft_state.time", SimpleNamespace(monotonic=lambda: now[0]))
    state = SftState(np.random.default_rng(0), np.zeros(1))
    clock = RunClock(state)
    for seconds in (2.0, 3.0):
        now[0] += seconds
        clock.end_step(10)
    assert state.training_s == 5.0  # not 2 + 5
    assert clock.tokens_per_s == 4.0


def test_time_left_is_estimated_without_the_warmup_tasks(monkeypatch):
    monkeypatch.setattr("pixelis.training.sft.sft_state.time", SimpleNamespace(monotonic=lambda: 0.0))
    state = SftState(np.random.default_rng(0), np.zeros(20), seconds=400.0, warmup_task_s=300.0, visited=10, epochs=2.0)
    assert RunClock(state).progress(1.0).seconds_left == 300.0  # 10 s an example, 30 to come


def test_a_run_that_failed_before_its_first_row_leaves_its_folder_to_another(tmp_path):
    one, other = (RftConfig.model_validate({"policy": name, "corpus": "c"}) for name in ("nano-foo", "nano-sft"))
    (tmp_path / ".lock").touch()
    write_config(one, tmp_path / "config.yaml")
    write_config(other, tmp_path / "config.yaml")
    assert "policy: nano-sft" in (tmp_path / "config.yaml").read_text()
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="holds a run with another policy"):
        write_config(one, tmp_path / "config.yaml")


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    given = RftConfig.model_validate({"policy": "nano-sft", "corpus": "c"})
    (tmp_path / "policy").mkdir()
    with pytest.raises(ConfigError, match="is not empty and holds no run of this kind"):
        write_config(given, tmp_path / "config.yaml")
    assert not (tmp_path / "config.yaml").exists()
    (tmp_path / "policy").rmdir()
    (tmp_path / ".config.yaml.x.part").touch()  # a process was killed while it wrote its first file: that is ours
    write_config(given, tmp_path / "config.yaml")
    for words in ("mine: 1\n", "- a\n", "a: [\n", ""):
        (tmp_path / "config.yaml").write_text(words)
        with pytest.raises(ConfigError, match="holds no run of this kind"):
            write_config(given, tmp_path / "config.yaml")
        assert (tmp_path / "config.yaml").read_text() == words


def test_a_key_that_differs_is_named_with_those_above_it(tmp_path):
    write_config(TtrlConfig(), tmp_path / "config.yaml")
    (tmp_path / "ledger.jsonl").touch()
    other = TtrlConfig.model_validate({"vote": {"delta": 0.2}, "lr": 1e-3})
    with pytest.raises(ConfigError, match=r"another lr, vote\.delta:"):
        write_config(other, tmp_path / "config.yaml")


def test_a_run_from_before_a_key_existed_resumes_with_its_default(tmp_path):
    given = RftConfig.model_validate({"policy": "nano-sft", "corpus": "c"})
    write_config(given, tmp_path / "config.yaml")
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    lines = (tmp_path / "config.yaml").read_text().splitlines(keepends=True)
    (tmp_path / "config.yaml").write_text("".join(line for line in lines if not line.startswith("temperature")))
    with pytest.raises(ConfigError, match="holds a run with another temperature"):
        write_config(given.model_copy(update={"temperature": 0.6}), tmp_path / "config.yaml")
    write_config(given, tmp_path / "config.yaml")
    assert "temperature: 1.0" in (tmp_path / "config.yaml").read_text()


def test_a_run_folder_with_the_keys_of_earlier_releases_is_resumed(tmp_path):
    config = SftConfig.model_validate({"corpus": "c", "warmup_task_steps": 5, "examples_folder": "e"})
    write_config(config, tmp_path / "config.yaml")
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    resolved = (tmp_path / "config.yaml").read_text()
    old = resolved.replace("warmup_task_steps", "drill_steps").replace("examples_folder", "examples")
    (tmp_path / "config.yaml").write_text(old.replace("loggers:\n- tensorboard\n", ""))
    write_config(config, tmp_path / "config.yaml")
    assert (tmp_path / "config.yaml").read_text() == resolved
    (tmp_path / "config.yaml").write_text(old.replace("drill_steps: 5", "drill_steps: 6"))
    with pytest.raises(ConfigError, match="another warmup_task_steps"):
        write_config(config, tmp_path / "config.yaml")
    assert SftConfig.model_validate({"corpus": "c", "drill_steps": 5, "examples": "e"}) == config
