"""Memory over chain length: what one small run holds, and the line through several."""

from pathlib import Path

import pytest

from benchmarks.bench_memory import MemoryMeasurement, draw, fit_line, measure
from pixelis.nano.nano_model import NanoConfig

SMALL = NanoConfig(hidden=32, layers=5, heads=2, head_dim=16, mlp=64, vision_hidden=16, vision_layers=1)
STRAIGHT = [
    MemoryMeasurement(chain, 64, 100 * chain, 450.0, 500.0 + 40.0 * chain, 25.0 * chain) for chain in (2, 4, 12)
]


def test_a_longer_chain_has_more_tokens_and_a_larger_cache():
    short, long = (measure(chain, SMALL, queries=2, samples=2) for chain in (1, 6))
    assert short.sequences == long.sequences == 4
    assert long.tokens > 2 * short.tokens
    assert long.cache_mb > short.cache_mb
    # rows · tokens · (keys and values · layers · kv heads · head size · 4 bytes), and at most a quarter in vain
    wanted = 4 * long.tokens * 2 * 5 * 2 * 16 * 4 / 1e6
    assert wanted <= long.cache_mb + 0.01 <= 1.3 * wanted + 0.1
    assert long.peak_mb >= long.before_mb > 0


def test_peaks_on_a_line_give_it_back_with_r2_one():
    fit = fit_line(STRAIGHT)
    assert fit.slope_mb == pytest.approx(40.0)
    assert fit.start_mb == pytest.approx(500.0)
    assert fit.r2 == pytest.approx(1.0)


def test_the_figure_says_how_much_a_call_takes(tmp_path: Path):
    draw(STRAIGHT, tmp_path / "memory.svg")
    assert "40 MB a call" in (tmp_path / "memory.svg").read_text(encoding="utf-8")
