"""Rollouts read again: what they share is read once, and nothing else changes."""

import copy

import numpy as np
import pytest
import torch

from pixelis.policy.chat_format import TextPiece, render_prompt
from pixelis.policy.model import Policy
from pixelis.policy.sequence import TokenSequence
from pixelis.rewards.features import ReferenceOutput
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.policy_update import make_microbatches
from pixelis.training.grpo.rft_config import RftConfig
from pixelis.training.grpo.train import grpo_step


def spoken(policy, corpus, words, *, number=0):
    """The prompt of a record, and words of which each token was sampled with log-probability −1."""
    record = corpus[number]
    ledger = TokenSequence()
    ledger.append_context(
        render_prompt(record.item.question, corpus.media(record), policy.style, []),
        policy.tokenizer,
        policy.image_config,
    )
    start = ledger.append_context([TextPiece(words, "thought", 1)], policy.tokenizer, policy.image_config)
    ledger.logprobs[start:] = [-1.0] * (len(ledger) - start)
    return ledger


def test_what_rollouts_say_alike_is_predicted_once(policy, corpus):
    ledgers = [spoken(policy, corpus, words) for words in ("red", "the left one", "red")]
    (part,) = make_microbatches(ledgers, policy, 10_000)
    assert part.rollout_indices == (0, 1, 2)
    first, second, third = (own.tolist() for own in part.logit_indices.split(list(part.token_counts)))
    assert first == third
    assert first[0] == second[0]  # the place after the prompt predicts the first word of all three
    assert set(first[1:]).isdisjoint(second[1:])
    assert len(part.logit_positions) == len({*first, *second})


def test_the_same_words_about_another_picture_are_not_shared(policy, corpus):
    """Token by token the same; one pixel of the picture differs, and with it all that comes after."""
    ledgers = [spoken(policy, corpus, "red") for _ in range(2)]
    place = ledgers[1].image_spans[0]
    pixels = place.image.pixels.copy()
    pixels.flat[0] = 255 - pixels.flat[0]
    ledgers[1].image_spans[0] = place._replace(image=place.image._replace(pixels=pixels))
    assert ledgers[0].ids == ledgers[1].ids
    (part,) = make_microbatches(ledgers, policy, 10_000)
    first, second = (own.tolist() for own in part.logit_indices.split(list(part.token_counts)))
    assert set(first).isdisjoint(second)
    assert len(part.batch.images) == len(ledgers[0].image_spans) + 1


def test_a_step_is_the_one_that_reads_each_of_them(policy, corpus, monkeypatch):
    """The same update from a tree of rollouts and from a row for each."""
    config = RftConfig(policy="", corpus=corpus.folder, logprob_tolerance=1e9)
    advantages = np.array([1.0, -0.5, 0.25, np.nan])
    ledgers = [spoken(policy, corpus, words) for words in ("red", "the left one", "red", "red")]
    after, batch = [], Policy.collate
    for apart in (False, True):
        own, anchor = copy.deepcopy(policy), copy.deepcopy(policy).eval()
        if apart:
            monkeypatch.setattr(Policy, "collate", lambda self, some, share_prefixes: batch(self, some))
        parts = make_microbatches(ledgers, own, 10_000)
        assert [part.batch.prefix_tree is None for part in parts] == [apart]
        with torch.no_grad():
            read = [(part, anchor(part.batch).hidden.flatten(0, 1)[part.logit_positions]) for part in parts]
        anchored = [(part, ReferenceOutput(hidden, None)) for part, hidden in read]
        optimizer = torch.optim.SGD(own.parameters(), lr=1.0)
        done = grpo_step(config, own, anchor, optimizer, anchored, advantages, 0.2, DistributedContext())
        after.append((done, torch.cat([p.detach().flatten() for p in own.parameters()])))
    (one, shared), (other, separate) = after
    assert one.entropy == pytest.approx(other.entropy, rel=1e-5)
    assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-5)
    assert (shared - separate).abs().max() < 1e-6
    assert not torch.equal(shared, torch.cat([p.detach().flatten() for p in policy.parameters()]))
