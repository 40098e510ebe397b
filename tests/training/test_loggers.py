"""Where metrics go. The fakes take the calls that wandb 0.31.0 and trackio 0.43.0 accepted in a trial run offline."""

import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from pixelis.core.config import load_config
from pixelis.core.errors import ConfigError
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.run_folder import MetricsLog, run_folder
from pixelis.training.grpo.rft_config import RftConfig
from pixelis.training.sft.sft_config import SftConfig
from pixelis.training.ttrl.ttrl_config import TtrlConfig


class FakeTracker(ModuleType):
    """A package whose runs record what is logged."""

    def __init__(self, name):
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self.errors = SimpleNamespace(Error=KeyError)
        self.started, self.rows, self.finished = [], [], 0

    def init(self, **settings):
        self.started.append(settings)
        return self

    def define_metric(self, name, step_metric):
        assert (name, step_metric) == ("*", "step")

    def log(self, values, step=None):
        self.rows.append((step, values))

    def finish(self):
        self.finished += 1


@pytest.fixture
def tracker(monkeypatch):
    def install(name):
        monkeypatch.setitem(sys.modules, name, fake := FakeTracker(name))
        return fake

    return install


def log_of(out, step, *loggers):
    config = SftConfig.model_validate({"corpus": "c", "lr": 0.5, "loggers": loggers})
    return MetricsLog(out, step, DistributedContext(), config)


def test_metrics_are_always_written_as_json_and_rows_after_the_saved_step_are_taken_again(tmp_path):
    log = log_of(tmp_path, 0)
    for step in (1, 2, 3):
        log.write(step, loss=1.0 / step, nats=float("nan"))
    log.close()
    log = log_of(tmp_path, 2)
    log.write(3, loss=0.25)
    log.close()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows[0] == {"step": 1, "loss": 1.0, "nats": None}
    assert [(row["step"], row["loss"]) for row in rows] == [(1, 1.0), (2, 0.5), (3, 0.25)]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]  # no tracker was named


def test_wandb_gets_finite_values_and_a_resumed_run_keeps_its_id(tracker, tmp_path):
    wandb = tracker("wandb")
    for step in (0, 2):
        log = log_of(tmp_path / "run", step, "wandb") if step else start(tmp_path / "run", "wandb")
        log.write(step - 3, loss=1.0, nats=float("inf"))
        log.close()
    first, second = wandb.started
    assert first["id"] == second["id"]
    assert (first["name"], first["project"], first["resume"], first["config"]["lr"]) == ("run", "pixelis", "allow", 0.5)
    assert wandb.rows == [(None, {"step": -3, "loss": 1.0}), (None, {"step": -1, "loss": 1.0})]
    assert wandb.finished == 2


def start(out, *loggers):
    out.mkdir()
    return log_of(out, 0, *loggers)


def test_trackio_gets_rows_by_their_steps(tracker, tmp_path, monkeypatch):
    trackio = tracker("trackio")
    monkeypatch.setenv("TRACKIO_PROJECT", "other")
    log = start(tmp_path / "run", "tensorboard", "trackio")
    log.write(7, loss=1.0, nats=float("nan"))
    log.close()
    assert trackio.started[0]["project"] == "other"
    assert trackio.started[0]["name"].startswith("run-")
    assert trackio.rows == [(7, {"loss": 1.0})]
    assert list((tmp_path / "run").glob("events.out.tfevents.*"))


def test_a_tracker_that_cannot_start_says_what_to_do(tracker, tmp_path, monkeypatch):
    wandb = tracker("wandb")
    monkeypatch.setattr(wandb, "init", lambda **settings: (_ for _ in ()).throw(KeyError("No API key configured.")))
    with pytest.raises(ConfigError, match=r"wandb cannot start \('No API key configured.'\); log in with"):
        log_of(tmp_path, 0, "wandb")


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_missing_package_is_named_before_the_folder_is_made(name, tmp_path, monkeypatch):
    monkeypatch.setattr("pixelis.training.common.loggers.find_spec", lambda name: None)
    config = SftConfig.model_validate({"corpus": "c", "loggers": [name]})
    with (
        pytest.raises(ConfigError, match=f"^{name} is not installed: pip install {name}$"),
        run_folder(config, tmp_path / "run", DistributedContext()),
    ):
        pass
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("model", "keys"), [(SftConfig, "corpus=c"), (RftConfig, "corpus=c"), (TtrlConfig, "")])
def test_an_unknown_logger_is_refused_in_all_three_phases(model, keys):
    overrides = [text for text in (keys, "policy=p" if model is not SftConfig else "", "loggers=[mlflow]") if text]
    with pytest.raises(ConfigError, match=r"loggers\.0.*'tensorboard', 'wandb' or 'trackio', not 'mlflow'"):
        load_config(model, None, overrides)


def test_only_the_main_process_logs(tmp_path):
    log = MetricsLog(tmp_path, 0, DistributedContext(rank=1, world_size=2))
    log.write(1, loss=1.0)
    log.close()
    assert not list(tmp_path.iterdir())
