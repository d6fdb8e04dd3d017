"""When iterations are captured as graphs, with stand-ins for CUDA: what a graph computes needs a GPU and is not tested here."""

import contextlib

import pytest
import torch
from torch_models import EOS, tiny_model

from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.torch.decode_step import DecodeStep, GraphedStep, Inputs
from rlhfless.engine.torch.model import DecoderModel


class Graph:
    """Of a capture: the pool that it was asked to use, or a new one."""

    pools = 0

    def begin(self, pool):
        if pool is None:
            Graph.pools += 1
        self.of = pool or (0, Graph.pools)

    def pool(self):
        return self.of


class Stream:
    def __init__(self, device=None):
        pass

    def wait_stream(self, other):
        pass


@pytest.fixture
def captured(monkeypatch):
    """The pools of all captures, in their order."""
    pools = []

    @contextlib.contextmanager
    def graph(graph, pool, stream):
        graph.begin(pool)
        pools.append(graph.pool())
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    return pools


@torch.inference_mode()
def test_graphs_are_captured_once_a_shape_and_anew_where_addresses_change(captured):
    source = tiny_model()
    model = DecoderModel(source, 600)
    step, cache = GraphedStep(model, Sampling(), [EOS]), model.new_cache()
    cache.reserve_rows(4)

    def captures(rows, width, columns=1):
        before = len(captured)
        step.prepare(cache, rows, width, columns)
        return len(captured) - before

    assert [captures(4, 10), captures(4, 256), captures(2, 10), captures(4, 257), captures(4, 10)] == [1, 0, 1, 1, 0]
    assert [captures(4, 10, 3), captures(4, 256, 3), captures(4, 10, 5)] == [1, 0, 1]
    assert len(set(captured)) == 1, "graphs of one cache share a pool"
    cache.reserve_rows(8)
    assert [captures(4, 10), captures(4, 10)] == [1, 0], "the cache has moved"
    model.load(tiny_model(seed=1))
    assert captures(4, 10) == 0, "other weights are copied over those in use"
    model.free()
    model.load(source)
    assert [captures(4, 10), captures(4, 10)] == [1, 0], "the weights are elsewhere"
    cache = model.new_cache()
    cache.reserve_rows(4)
    assert captures(4, 10) == 1, "another cache, wherever it lies"
    step.release()
    assert captures(4, 10) == 1
    assert len(set(captured)) == 5, "no pool is used again once its graphs are gone"


@pytest.mark.parametrize("columns", [1, 3])
@torch.inference_mode()
def test_a_replay_reads_what_is_given_and_what_it_drew_outlives_the_next(captured, monkeypatch, columns):
    """The stand-in computes anew from the graph's own inputs, over its rounded width, into the graph's own outputs."""
    model = DecoderModel(tiny_model(), 600)
    step, plain = GraphedStep(model, Sampling(), [EOS]), DecodeStep(model, Sampling(), [EOS])
    cache, same = model.new_cache(), model.new_cache()
    cache.reserve_rows(4)
    same.reserve_rows(4)
    step.prepare(cache, 4, 10, columns)
    ((key, (graph, fixed, drawn)),) = step._graphs.items()
    assert key == (4, columns, 256)

    def replay():
        for mine, new in zip(drawn[:2], plain(cache, fixed, 256, 0, columns)[:2], strict=True):
            mine.copy_(new)

    monkeypatch.setattr(graph, "replay", replay, raising=False)
    given, found, expected = torch.Generator().manual_seed(0), [], []
    for position in range(3):
        at = torch.tensor([position * columns] * 3 + [cache.spare])[:, None] + torch.arange(columns)
        inputs = Inputs(
            torch.randint(1, 32, (4 * columns,), generator=given),
            at.clamp(max=cache.spare).flatten(),
            torch.rand(4 * columns, 32, generator=given),
            torch.tensor([True, False, True, False]).repeat_interleave(columns) if position == 1 else None,
        )
        found.append(step(cache, inputs, 10, 1, columns))
        expected.append(plain(same, inputs, 10, 1, columns))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.ids[: 3 * columns], other.ids[: 3 * columns])
        torch.testing.assert_close(one.logprobs[: 3 * columns], other.logprobs[: 3 * columns])
