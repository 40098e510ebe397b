"""The small random nano of the rollout tests, with its tokenizer and its queries."""

from tests.rollout.conftest import helpers, one_thread, policy, queries, tokens, toolbox

__all__ = ["helpers", "one_thread", "policy", "queries", "tokens", "toolbox"]
