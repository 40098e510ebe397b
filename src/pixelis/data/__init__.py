"""The CoTA corpus: teachers, acceptance, splits, curriculum (sec:data)."""
