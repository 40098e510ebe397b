"""The bench of a query of phase 3 beside its rollouts, at a size that a test can wait for."""

from __future__ import annotations

from benchmarks import bench_vote
from pixelis.cli.index_files import make_key_maker


def test_a_query_is_keyed_searched_and_voted_on():
    (row,) = bench_vote.rows(make_key_maker(), memories=2000)
    assert row.name == "key, search among 2,000 and vote of 8 rollouts"
    assert 0 < row.ours_cpu_s < 0.34  # the paper's, with 600 times as many memories
    assert all(float(part.split()[-1]) > 0 for part in row.note.removeprefix("ms: ").split(", "))
