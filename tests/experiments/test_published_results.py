"""The archives in docs/results match today's configurations, although some keys had other names when they were made."""

from pathlib import Path

import pytest

from experiments.common.paired_tests import select_parts
from experiments.common.result_archive import matches_fingerprint, read_fingerprint
from experiments.rft.reproduce_rft import ReproduceRftConfig, part_fingerprint
from experiments.ttrl.ttrl_runs import ReproduceTtrlConfig, TtrlExperiment, restore_exam, restore_stream
from pixelis.core.config import load_config
from pixelis.training.grpo.rft_config import RftConfig
from pixelis.training.ttrl.ttrl_config import TtrlConfig

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_every_published_part_of_phase_2_is_taken_and_another_learning_rate_is_not():
    config = load_config(ReproduceRftConfig, Path("configs/nano/reproduce_rft.yaml"))
    base = load_config(RftConfig, config.rft).model_copy(update={"steps": config.updates, "threads": config.threads})
    parts = {part.name: part for part in select_parts(config.variants, ())}
    archives = [a for a in sorted((RESULTS / "rft" / "parts").glob("*.zip")) if a.stem != "statistics"]
    assert len(archives) == 22
    for archive in archives:
        stored = read_fingerprint(archive)
        assert matches_fingerprint(stored, part_fingerprint(parts[archive.stem], config, base)), archive.stem
        changed = base.model_copy(update={"lr_floor": 0.3})
        is_rft = parts[archive.stem].variant.learn == "rft" and "lr_floor" not in parts[archive.stem].variant.change
        if is_rft:
            assert not matches_fingerprint(stored, part_fingerprint(parts[archive.stem], config, changed)), archive.stem


@pytest.mark.parametrize("lr", [None, 0.5])
def test_every_published_stream_and_exam_of_phase_3_is_taken_and_those_of_another_learning_rate_are_not(tmp_path, lr):
    config = load_config(ReproduceTtrlConfig, Path("configs/nano/reproduce_ttrl.yaml"))
    base = load_config(TtrlConfig, config.ttrl)
    base = base if lr is None else base.model_copy(update={"lr": lr})
    experiment = TtrlExperiment(config, base, tmp_path, RESULTS / "ttrl", None, print)
    parts = [part for part in select_parts(config.variants, ()) if lr is None or "lr" not in part.variant.change]
    published = {archive.stem for archive in (RESULTS / "ttrl" / "parts").glob("*.zip")}
    streams = [part for part in parts if f"{part.name}-stream" in published]
    taken = [part for part in streams if restore_stream(experiment, part)]
    assert taken == (streams if lr is None else [])
    exams = [part for part in taken if part.variant.asked]
    assert all(restore_exam(experiment, part, config.budget) for part in exams)
    assert len(taken) + len(exams) + 2 == (len(published) if lr is None else 2)  # memory and statistics
