"""Workflows on a Ray cluster of two nodes: the same answers, and nothing lost with an actor or a node."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentflow.errors import ModelError
from agentflow.evaluation.compare import CompareOptions, compare
from agentflow.kv.cache import KVCache
from agentflow.models.engine import Engine
from agentflow.models.loading import load_model
from agentflow.models.pool import EnginePool
from agentflow.models.requests import Request, Sampling
from agentflow.models.spec import ModelSpec
from agentflow.models.tally import tallied
from agentflow.runtime.executors.actors.views import Shipped
from agentflow.runtime.executors.ray import RayCluster
from agentflow.runtime.flow import load_workflow
from agentflow.runtime.options import RunOptions
from agentflow.tasks.registry import make_task
from agentflow.workflow.loader import parse_workflow
from tests.adapters.samples import bundle_of
from tests.cli.conftest import FACTS as CLI_FACTS
from tests.cli.conftest import save_tiny
from tests.clusters import CPUS, add_node
from tests.kv.samples import random_cache
from tests.stored import lines
from tests.tiny import words

ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
from agentflow.runtime.executors.actors import crew as crews  # noqa: E402
from agentflow.runtime.executors.actors import room as rooms  # noqa: E402
from agentflow.runtime.executors.actors.crew import Crew, Member  # noqa: E402
from agentflow.runtime.executors.actors.engine import ActorEngine  # noqa: E402
from agentflow.runtime.executors.actors.room import Take, require_room, take_of  # noqa: E402

FACTS = """\
workflow: facts
inputs: {facts: list, questions: list}
agents: {a: {model: {source: FOLDER, actors: {count: 2}}}}
nodes:
  read: {agent: a, prompt: "{{ inputs.facts | join(' ') }}", max_new_tokens: 0}
  answer: {agent: a, prompt: "{{ question }}", map: {over: inputs.questions, as: question}, max_new_tokens: NEW}
  last: {agent: a, prompt: "And?", max_new_tokens: 6}
edges:
  - {from: read, to: answer, channel: cache}
  - {from: answer, to: last, channel: CHANNEL}
outputs: {answers: "{{ nodes.answer.texts }}", last: "{{ nodes.last.text }}"}
"""
INPUTS = {
    "facts": ["The code of the red room is seven.", "Who is in london?"],
    "questions": [f"What is the code of room {n}?" for n in range(6)],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


def spec_of(folder: Path, **actors: Any) -> ModelSpec:
    return ModelSpec(model="tiny", source=str(folder), actors=actors)


@pytest.fixture(scope="module")
def afar(cluster: Any) -> Iterator[RayCluster]:
    with RayCluster() as found:
        yield found


@pytest.fixture(scope="module")
def two(afar: RayCluster, folder: Path) -> ActorEngine:
    """An engine on two actors, one on each node."""
    found = afar.engine(spec_of(folder, count=2))
    assert isinstance(found, ActorEngine)
    return found


@pytest.fixture(scope="module")
def local(folder: Path) -> Engine:
    return Engine(load_model(ModelSpec(model="tiny", source=str(folder))))


def some_requests(count: int, prefix: KVCache | None = None, new: int = 10, **more: Any) -> list[Request]:
    return [
        Request(
            tuple(words(5 + n, seed=n)), prefix, max_new_tokens=new, sampling=Sampling(float(n % 2), seed=n), **more
        )
        for n in range(count)
    ]


def tokens(engine: Engine, requests: list[Request]) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in engine.generate(requests)]


def test_actors_answer_as_an_engine_of_this_process_does(two: ActorEngine, local: Engine) -> None:
    ids = tuple(words(40))
    mine, theirs = local.prefill(ids), two.prefill(ids)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(mine.keys, theirs.keys, strict=True))
    with tallied() as here:
        expected = tokens(local, some_requests(7, mine))
    with tallied() as there:
        assert tokens(two, some_requests(7, theirs)) == expected
    assert vars(here) == vars(there)
    assert tokens(two, some_requests(3, mine.before(20))) == tokens(local, some_requests(3, mine.before(20)))
    assert tokens(two, some_requests(5)) == tokens(local, some_requests(5))
    kept = two.generate([Request((3, 4), theirs, max_new_tokens=4, keep_cache=True)])[0].cache
    assert kept.next_position == 45
    assert two.fingerprint == local.fingerprint
    assert two.attention_scale == local.attention_scale
    assert (two.vocabulary, two.max_positions) == (local.vocabulary, local.max_positions)
    for a, b in zip(two.queries(theirs, ids[:6]), local.queries(mine, ids[:6]), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    assert two.score(theirs, (3,), (4, 5)).nll == pytest.approx(local.score(mine, (3,), (4, 5)).nll, abs=1e-4)
    assert two.likelihoods(theirs, 3, [(4,), (5, 6)]) == pytest.approx(
        local.likelihoods(mine, 3, [(4,), (5, 6)]), abs=1e-4
    )
    chosen = Request((3,), theirs, choices=((4,), (5, 6)))
    assert two.generate([chosen])[0].token_ids == local.generate([chosen])[0].token_ids


def test_work_is_shared_out_and_a_receiver_is_placed_near_its_cache_while_that_pays(
    two: ActorEngine, local: Engine
) -> None:
    assert len({member.node for member in two.crew.members}) == 2
    here = ray.get_runtime_context().get_node_id()
    [near] = [member for member in two.crew.members if member.node == here]
    [far] = [member for member in two.crew.members if member.node != here]
    two.generate(some_requests(4))
    assert all(member.load == 0 for member in two.crew.members)
    served: list[str] = []
    begin = two.crew.begin

    def noted(*arguments: Any) -> Member | None:
        member = begin(*arguments)
        served.append(member.node if member else "")
        return member

    two.crew.begin = noted  # type: ignore[method-assign]
    try:
        two.generate(some_requests(4))
        assert sorted(set(served)) == sorted([near.node, far.node])
        for busy, expected in ((0, near), (150, near), (400, far)):  # moving 2,000 positions costs 200 tokens
            cache = local.prefill(words(2000, seed=busy))
            assert two._nodes_of(two.shelf.hold(cache)) == [here]
            near.load += busy
            served.clear()
            two.generate([Request((3,), cache, max_new_tokens=2)])
            near.load -= busy
            assert served == [expected.node]
        assert set(two._nodes_of(two.shelf.hold(cache))) == {near.node, far.node}
    finally:
        two.crew.begin = begin  # type: ignore[method-assign]


def test_what_needs_the_model_in_this_process_is_refused_with_a_way_out(
    two: ActorEngine, folder: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "facts.yaml", folder, channel="{name: cache, recompute: 0.5}")
    result = load_workflow(path, engines=EnginePool(factory=lambda spec: two)).run(INPUTS)
    [told] = result.errors.values()
    assert "is on Ray actors and can't be used to recompute positions (`recompute`) from here" in str(told)
    assert "--executor local" in str(told)
    with pytest.raises(ModelError, match="trained against"):
        two.logits(some_requests(1), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_cache_is_mapped_from_the_store_and_not_copied(cluster: Any, dtype: torch.dtype) -> None:
    cache = random_cache(40_000, dtype=dtype)
    shipped: Shipped = ray.get(ray.put(Shipped.of(cache)))
    assert len(shipped.blocks) > len(shipped.forms)
    got = shipped.cache()
    assert all(torch.equal(a, b) for a, b in zip((*got.keys, *got.values), (*cache.keys, *cache.values), strict=True))
    starts = {block.ctypes.data for block in shipped.blocks}
    assert {tensor.data_ptr() for tensor in (*got.keys, *got.values, got.positions)} <= starts


def test_text_is_heard_while_it_is_written_and_a_call_that_is_not_wanted_ends(two: ActorEngine, local: Engine) -> None:
    heard: dict[int, list[str]] = {0: [], 1: []}
    asked = [
        Request(tuple(words(5, seed=n)), max_new_tokens=300, on_token=heard[n].append, sampling=Sampling(1.0, seed=n))
        for n in range(2)
    ]
    answers = two.generate(asked)
    assert ["".join(heard[n]) for n in range(2)] == [answer.text for answer in answers]
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    start = time.monotonic()
    long = [Request((3,), max_new_tokens=4000, cancelled=stop.is_set)]
    assert two.generate(long)[0].finish == "cancelled"
    assert time.monotonic() - start < 30


def write(path: Path, folder: Path, *, channel: str = "cache", new: int = 12) -> Path:
    path.write_text(FACTS.replace("FOLDER", str(folder)).replace("CHANNEL", channel).replace("NEW", str(new)))
    return path


@pytest.mark.parametrize(
    "channel",
    ["text", "summary", "retrieval", "cache", "latent_briefing", "{name: cache, bits: 8}", "c2c"],
)
def test_a_workflow_gives_the_same_results_and_events_as_in_one_process(
    two: ActorEngine, local: Engine, folder: Path, tmp_path: Path, channel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path / "cache"))
    bundle_of(tmp_path / "cache" / "adapters" / "pair", local, local)
    path = write(tmp_path / "facts.yaml", folder, channel=channel)
    found: dict[str, Any] = {}
    for name, engine in (("here", local), ("there", two)):
        events: list[str] = []
        flow = load_workflow(path, engines=EnginePool(factory=lambda spec, engine=engine: engine))
        listen = [lambda event, events=events: events.append(event.kind)]
        result = flow.run(INPUTS, options=RunOptions(reuse=False), runs=tmp_path / name, listeners=listen)
        assert not result.errors
        [run] = (tmp_path / name).iterdir()
        again = flow.resume(run, listeners=listen)
        assert again.outputs == result.outputs
        assert events.count("node_reused") == 8
        kept = {unit: json.loads(line)["key"] for unit, line in lines(run).items()}
        found[name] = result.outputs, sorted(kind for kind in events if kind != "node_token"), kept
    assert found["here"] == found["there"]


def test_a_comparison_measures_on_a_cluster_what_it_measures_here(two: ActorEngine, local: Engine) -> None:
    workflow = parse_workflow(CLI_FACTS.replace("{model: tiny}", "{model: {source: tests/tiny, model: tiny}}"))
    task = make_task("private_facts", {"facts": 2, "questions": 2})
    here, there = (
        compare(
            workflow,
            task,
            task.items(data=None, limit=1, seed=0),
            ["text", "cache"],
            EnginePool(factory=lambda spec, engine=engine: engine),
            options=CompareOptions(controls=("no message",)),
        ).rows
        for engine in (local, two)
    )
    assert [(r.arm, r.answers, r.prefilled, r.reused, r.error) for r in there] == [
        (r.arm, r.answers, r.prefilled, r.reused, r.error) for r in here
    ]
    assert [r.nll for r in there] == pytest.approx([r.nll for r in here], abs=1e-4)
    assert [r.kl for r in there] == pytest.approx([r.kl for r in here], abs=1e-4)


def until(true: Callable[[], object], limit: float = 60.0) -> None:
    end = time.monotonic() + limit
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_killed_node_loses_nothing_and_what_was_finished_is_not_done_again(
    cluster: Any, two: ActorEngine, local: Engine, folder: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "facts.yaml", folder, channel="retrieval", new=800)
    expected = load_workflow(path, engines=EnginePool(factory=lambda spec: local)).run(INPUTS)
    [node] = cluster.worker_nodes
    assert node.node_id in {member.node for member in two.crew.members}
    before, finished = two.crew.lost, []

    def listen(event: Any) -> None:
        if event.kind == "node_finished":
            finished.append((event.node, event.child))
            if event.node == "read":
                threading.Timer(0.3, cluster.remove_node, [node, False]).start()

    flow = load_workflow(path, engines=EnginePool(factory=lambda spec: two))
    result = flow.run(INPUTS, runs=tmp_path / "runs", listeners=[listen])
    assert not result.errors
    assert result.outputs == expected.outputs
    assert two.crew.lost > before
    assert sorted(finished, key=str) == [*(("answer", n) for n in range(6)), ("last", None), ("read", None)]
    assert any("lost" in text for node in result.nodes["answer"] for text in node.warnings)
    [run] = (tmp_path / "runs").iterdir()
    again: list[str] = []
    assert flow.resume(run, listeners=[lambda event: again.append(event.kind)]).outputs == expected.outputs
    assert again.count("node_reused") == 8
    add_node(cluster)
    until(lambda: two.crew.begin(0.0) and all(member.loading is None for member in two.crew.members))


def kill(member: Member) -> None:
    os.kill(ray.get(member.handle.process.remote()), signal.SIGKILL)


def test_what_a_killed_actor_was_at_work_on_is_answered_by_another_and_that_is_told(
    two: ActorEngine, local: Engine
) -> None:
    asked = some_requests(6, new=400)
    expected = tokens(local, asked)
    heard, before = [""] * 6, two.crew.lost

    def listener(n: int) -> Callable[[str], None]:
        return lambda text: heard.__setitem__(n, heard[n] + text)

    threading.Timer(0.5, kill, [two.crew.members[1]]).start()
    answers = two.generate([replace(request, on_token=listener(n)) for n, request in enumerate(asked)])
    assert [answer.token_ids for answer in answers] == expected
    assert heard == [answer.text for answer in answers]
    assert two.crew.lost == before + 1
    assert sorted({len(answer.warnings) for answer in answers}) == [0, 1]
    assert "lost" in next(answer.warnings[0] for answer in answers if answer.warnings)
    until(lambda: two.crew.begin(0.0) and all(member.loading is None for member in two.crew.members))


def test_what_a_cluster_can_never_hold_is_refused_at_once(cluster: Any, afar: RayCluster, folder: Path) -> None:
    for actors, wrong in (
        ({"cpus": 5}, "An actor of 'tiny' with 5 CPUs can't be placed: the cluster has 2 nodes with 4 CPUs; 4 CPUs."),
        ({"count": 9}, "9 actors of 'tiny', 1 CPU each, can't be placed: the"),
        ({"gpus": 1}, "An actor of 'tiny' with 1 CPU and 1 GPU can't be placed: the"),
    ):
        with pytest.raises(ModelError) as told:
            afar.engine(spec_of(folder, **actors))
        assert wrong in told.value.what
        assert "`actors`" in str(told.value.fix)
    spec = spec_of(folder, cpus=3)
    with pytest.raises(ModelError, match="An actor of 'tiny' with 3 CPUs can't be placed beside those"):
        require_room(spec, take_of(spec), [(2, Take(3.0, 0.0))])


def test_a_gpu_is_taken_where_there_are_some_and_nothing_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, cpu = spec_of(folder), spec_of(folder).model_copy(update={"device": "cpu"})
    some, none = spec_of(folder, gpus=0.5), spec_of(folder, gpus=0)
    monkeypatch.setattr(rooms, "nodes", lambda: [{"CPU": 1.0}])
    assert [take_of(spec).gpus for spec in (plain, cpu, some, none)] == [0, 0, 0.5, 0]
    monkeypatch.setattr(rooms, "nodes", lambda: [{"CPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}])
    assert [take_of(spec).gpus for spec in (plain, cpu, some, none)] == [1, 0, 0.5, 0]


def test_a_program_that_is_connected_is_not_connected_elsewhere(cluster: Any) -> None:
    with pytest.raises(ModelError, match="already"):
        RayCluster("127.0.0.1:1")


def test_what_can_t_be_loaded_there_is_told_as_it_is_here(afar: RayCluster, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no transformers model"):
        afar.engine(ModelSpec(model="none", source=str(tmp_path)))


def test_actors_that_die_while_they_load_are_not_started_for_ever(
    cluster: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dying:
        def place(self) -> str:
            return ""

        def load(self, *arguments: Any) -> None:
            os._exit(1)

    monkeypatch.setattr(crews, "ModelActor", Dying)
    with pytest.raises(ModelError, match="3 actors of 'tiny' died one after the other"):
        Crew(spec_of(folder), Take(1.0, 0.0))


def test_nodes_with_other_weights_are_found_out(cluster: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Different:
        def place(self) -> str:
            return ""

        def load(self, *arguments: Any) -> Any:
            return SimpleNamespace(fingerprint=os.getpid(), dtype="float32", node="")

    monkeypatch.setattr(crews, "ModelActor", Different)
    with pytest.raises(ModelError, match="different weights for 'tiny'"):
        Crew(spec_of(folder, count=2), Take(1.0, 0.0))


@pytest.mark.slow
def test_what_kills_every_actor_is_not_asked_for_ever(
    two: ActorEngine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Poisoned:
        def place(self) -> str:
            return ""

        def load(self, *arguments: Any) -> Any:
            return SimpleNamespace(fingerprint=1, dtype=1, node="")

        def generate(self, *arguments: Any) -> None:
            os._exit(1)

        score = generate

    monkeypatch.setattr(crews, "ModelActor", Poisoned)
    crew = Crew(spec_of(folder), Take(1.0, 0.0))
    crew._seen, placeholder = two.crew.seen, crew._seen
    try:
        engine = ActorEngine(crew.spec, crew, two.shelf)
        crew._seen = placeholder
        with pytest.raises(ModelError, match="3 actors of 'tiny' were lost over the same request"):
            engine.generate([Request((3,))])
        with pytest.raises(ModelError, match="3 actors of 'tiny' were lost over the same request"):
            engine.score(None, (3,), (4,))
        assert crew.lost == 6
    finally:
        crew.close()


@pytest.mark.slow
def test_who_has_no_place_yet_is_waited_for_and_that_is_told(
    cluster: Any, two: ActorEngine, afar: RayCluster, folder: Path
) -> None:
    class Taking:
        def there(self) -> bool:
            return True

    free = 2 * CPUS - len(two.crew.members)
    until(lambda: ray.available_resources()["CPU"] == free)
    others = [ray.remote(Taking).options(num_cpus=1).remote() for _ in range(free)]
    ray.get([other.there.remote() for other in others])
    said: list[str] = []
    made: list[Engine] = []
    spec = spec_of(folder)
    waiting = threading.Thread(
        target=lambda: made.append(ActorEngine(spec, Crew(spec, Take(1.0, 0.0), tell), two.shelf))
    )

    def tell(text: str, share: float | None) -> None:
        said.append(text)

    waiting.start()
    until(lambda: said and said[-1] == "waiting for 1 CPU to start tiny: others have what the cluster has")
    for other in others:
        ray.kill(other)
    waiting.join(60)
    assert made[0].prefill((3, 4)).next_position == 2
