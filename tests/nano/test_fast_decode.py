"""The lean way through the layers is the model's own."""

import pytest
import torch

from pixelis.nano import fast_decode
from pixelis.nano.fast_attention import attend, attend_shared, find_shared_prefix
from pixelis.nano.fast_decode import Decoder, single_thread
from pixelis.nano.nano_model import NanoConfig, build_nano
from pixelis.policy.kv_cache import RowCache
from pixelis.rollout.engine import rollout
from pixelis.rollout.episode import Limits


@torch.no_grad()
def test_one_token_through_the_lean_decoder_is_one_token_through_the_layers(policy):
    caches = [RowCache.for_model(policy.language, 5) for _ in range(2)]
    ids = torch.randint(0, 300, (5, 7), generator=torch.Generator().manual_seed(0))
    counts, where = torch.tensor([7, 3, 5, 7, 1]), torch.arange(7).expand(3, 5, 7)
    for cache in caches:
        policy.forward_tokens(ids, where, cache=cache, mask=cache.prepare(slice(0, 5), counts, 7))
    lean, own = Decoder(policy), Decoder(policy)
    assert lean.is_fast
    own.is_fast = False
    for k in range(4):
        hidden = [read(ids[:4, k], counts[:4] + k, cache) for read, cache in zip((lean, own), caches, strict=True)]
        torch.testing.assert_close(hidden[0], hidden[1], atol=1e-5, rtol=1e-5)
    assert torch.equal(caches[0].lengths, caches[1].lengths)
    torch.testing.assert_close(caches[0].keys[-1][:4, :, :5], caches[1].keys[-1][:4, :, :5])


def test_a_model_that_decodes_through_its_own_layers_says_the_same(policy, queries, helpers, monkeypatch):
    limits = Limits(turn_tokens=10, reminders=1)
    both = []
    for most in (fast_decode.MAX_FUSED_PARAMETERS, 0):
        monkeypatch.setattr(fast_decode, "MAX_FUSED_PARAMETERS", most)
        groups = rollout(policy, helpers.answering(), queries, n=2, seed=4, limits=limits)
        both.append([one.sequence.ids for group in groups for one in group])
    assert both[0] == both[1]


@torch.no_grad()
def test_rows_of_one_cache_move_without_losing_anything(policy):
    one = RowCache.for_model(policy.language, 3)
    ids, where = torch.arange(12).view(3, 4), torch.arange(4).expand(3, 3, 4)
    policy.forward_tokens(ids, where, cache=one, mask=one.prepare(slice(0, 3), torch.tensor([4, 2, 3]), 4))
    before = [one.keys[1][k, :, : int(one.lengths[k])].clone() for k in range(3)]
    one.swap(0, 1)
    other = RowCache.for_model(policy.language, 4)
    other.copy_row(one, 1, 1)
    other.copy_row(other, 1, 2)  # within one cache
    assert one.lengths.tolist() == [2, 4, 3]
    assert torch.equal(one.keys[1][0, :, :2], before[1])
    assert other.lengths.tolist() == [0, 4, 4, 0]
    assert torch.equal(other.keys[1][2, :, :4], before[0])


@pytest.mark.parametrize("change", ["half", "bias"])
def test_other_arithmetic_goes_through_the_layers(tokens, change):
    model = build_nano(NanoConfig(hidden=64, heads=2, mlp=64, vision_hidden=32), tokens, seed=0)
    assert Decoder(model).is_fast
    if change == "half":
        model.bfloat16()
    else:
        layer = model.language.layers[0]
        layer.mlp.down_proj = torch.nn.Linear(64, 64)
    assert not Decoder(model).is_fast


def test_attention_over_what_a_group_shares_is_attention_over_all_of_it():
    rows, heads, kv, size, reach, common = 5, 4, 2, 8, 30, 20
    generator = torch.Generator().manual_seed(0)
    cache = RowCache(1, rows, kv, size, dtype=torch.float32, device=torch.device("cpu"))
    cache.reserve(reach)
    for store in (*cache.keys, *cache.values):
        store.copy_(torch.randn(store.shape, generator=generator))
        store[[2, 4], :, :common] = store[[0, 0], :, :common]  # rows 0, 2, 4 and rows 1, 3 have one prompt each
        store[3, :, :common] = store[1, :, :common]
    queries = torch.randn(kv, rows, heads // kv, size, generator=generator)
    bias = torch.zeros(rows, 1, reach)
    bias[1, :, 25:] = -torch.inf
    keys, values = (store.transpose(0, 1)[:, :, :reach] for store in (cache.keys[0], cache.values[0]))
    result = find_shared_prefix([7, 8, 7, 8, 7], common, cache)
    whole = attend(queries, keys, values, bias)
    torch.testing.assert_close(attend_shared(queries, keys, values, bias, result, 0), whole)
    assert find_shared_prefix([1, 2, 3], common, cache) is None


def test_threads_are_as_they_were_after_one_of_them_has_worked_alone():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with single_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)
