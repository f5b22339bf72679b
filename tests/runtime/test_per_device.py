"""Models of one device work side by side, or no more of them than is said."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest

from agentflow.errors import ModelError
from agentflow.models.pool import EnginePool
from agentflow.models.spec import ModelSpec
from agentflow.runtime import places
from agentflow.runtime.binding import bind
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.places import Places, devices_of
from tests.tiny import make_engine, tiny_model

THREE = """
workflow: three
agents:
  a: {model: {source: tests/a, model: a, device: cpu}, max_new_tokens: 3}
  b: {model: {source: tests/b, model: b, device: cpu}, max_new_tokens: 3}
  c: {model: {source: tests/c, model: c, device: cpu}, max_new_tokens: 3}
nodes:
  first: {agent: a, prompt: red, map: {over: [one, two, three]}}
  second: {agent: b, prompt: blue, map: {over: [one, two, three]}}
  third: {agent: c, prompt: "{{ nodes.second.text }}"}
edges: [{from: second, to: third}]
outputs: {said: "{{ nodes.first.texts }} {{ nodes.third.text }}"}
"""


class Watched:
    """Engines whose calls are counted while they are under way; two are made to meet where they may."""

    def __init__(self, meet: bool) -> None:
        self.at_work = self.most = 0
        self._lock, self._meeting = threading.Lock(), threading.Event()
        self._meet = meet

    def pool(self) -> EnginePool:
        engines = {name: make_engine(tiny_model(seed=n), name) for n, name in enumerate("abc")}
        for engine in engines.values():
            engine.generate = self._watching(engine.generate)
        return EnginePool(factory=lambda spec: engines[spec.model])

    def _watching(self, generate):
        def watched(requests):
            with self._counted():
                if self._meet and not self._meeting.wait(20):
                    raise TimeoutError("nobody else came")
                return generate(requests)

        return watched

    @contextmanager
    def _counted(self):
        with self._lock:
            self.at_work += 1
            self.most = max(self.most, self.at_work)
            if self.at_work == 2:
                self._meeting.set()
        yield
        with self._lock:
            self.at_work -= 1


def run(per_device, *, meet=False, batch=8):
    watched = Watched(meet)
    options = RunOptions(per_device=per_device, max_batch=batch)
    result = Orchestrator(bind_three(), watched.pool(), options=options).run([("x", {}), ("y", {})])
    assert [one.errors for one in result] == [{}, {}]
    return [one.outputs for one in result], watched.most


def bind_three():
    from agentflow.workflow.loader import parse_workflow

    return bind(parse_workflow(THREE))


@pytest.mark.parametrize("batch", [1, 8])
def test_models_of_one_device_wait_for_one_another_where_it_takes_one_at_a_time(batch):
    free, most = run(None, meet=True)
    assert most >= 2
    limited, most = run(1, batch=batch)
    assert most == 1
    assert limited == free


def test_two_may_work_where_two_are_allowed():
    _, most = run(2, meet=True)
    assert most == 2


def test_a_device_that_is_full_stops_no_other_one(monkeypatch):
    monkeypatch.setattr(places, "devices_of", lambda spec: frozenset([spec.device]))
    a, b, c = (ModelSpec(model=name, source=name, device=on) for name, on in (("a", "x"), ("b", "x"), ("c", "y")))
    found = Places([a, b, c], 1)
    assert found.has_room(a, [])
    assert not found.has_room(b, [a])
    assert found.has_room(c, [a])
    assert Places([a, b, c], None).has_room(b, [a])
    assert Places([a, b, c], 2).has_room(b, [a])


def test_a_model_on_several_gpus_takes_a_place_at_each(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    spread = ModelSpec(model="large", source="large", device_map="auto")
    second = ModelSpec(model="small", source="small", device="cuda:1")
    assert devices_of(spread) == {"cuda:0", "cuda:1"}
    assert devices_of(ModelSpec(model="any", source="any", device="cuda")) == {"cuda:0"}
    assert not Places([spread, second], 1).has_room(second, [spread])


def test_a_device_that_is_not_there_is_told_before_anything_runs():
    with pytest.raises(ModelError, match="Unknown device 'abacus'"):
        Places([ModelSpec(model="a", source="a", device="abacus")], 1)
