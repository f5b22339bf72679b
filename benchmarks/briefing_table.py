"""Kept share against likelihood and score: latent briefing and every other way to send less, on the same items.

    python -m benchmarks.briefing_table reading --data dev.jsonl.gz -n 100 --set paragraphs=5 --set split_half=reporting
    python -m benchmarks.briefing_table private_facts -n 200 --set facts=8 --set questions=1

As `agentflow compare` with many arms, with two differences that make it several times faster: the answers of all
arms of an item are decoded as one batch, so seconds are not told, and queries on the whole cache are computed once for
all arms. The reference of paired figures and of KL is the whole cache. Stopped, it goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from agentflow.channels.base import Task
from agentflow.channels.registry import make_channel
from agentflow.cli.specs import task_settings
from agentflow.evaluation.controls import answer_node, label
from agentflow.evaluation.inputs import inputs_of, task_of
from agentflow.evaluation.machine import describe_machine
from agentflow.evaluation.measure import row_of
from agentflow.evaluation.probe import AnswerProbe
from agentflow.evaluation.report.write import write_reports
from agentflow.evaluation.rows import Arm, Comparison, Row
from agentflow.models.engine import Engine
from agentflow.runtime.agent import Turnplan, close_turn, deliver, plan_turn
from agentflow.runtime.results import ItemResult
from agentflow.runtime.scheduler import Unit
from agentflow.tasks.base import Item
from agentflow.workflow.loader import load_workflow
from agentflow.workflow.schema import Workflow
from agentflow.workflow.templates import evaluate, render
from benchmarks.common import engine

SHARES = (0.5, 0.2, 0.1, 0.05)
GOALS = (0.3, 0.15)
KEPT = {"gaps": "keep", "refit": "both", "ridge": 0.1}
PUBLISHED = {"head_weights": "uniform", "first_layer": 0.0, "scored_by": "turn", "smooth": 1, "prior": "none", **KEPT}
BATCH = 12


def arms_of_the_table(shares: Sequence[float], *, short: bool) -> list[Arm]:
    """The whole cache first; then every compaction at every share.

    Args:
        short: leave out the published scoring and gaps, the shares of the goals and the thresholds.
    """
    ours = "latent_briefing"
    kept = [{"threshold": "ratio", "ratio": share, "least": 1} for share in shares]
    goal = [] if short else [{"threshold": "ratio", "ratio": share, "least": 1} for share in GOALS]
    arms: list[tuple[str, dict[str, Any]]] = [("cache", {})]
    arms += [(ours, k) for k in (*kept, *goal)]
    arms += [(ours, {**k, "refit": "none"}) for k in kept]
    arms += [(ours, {**k, "score": "own"}) for k in kept]
    arms += [(ours, {**k, "score": "random"}) for k in kept]
    arms += [(ours, {**k, **KEPT}) for k in goal]
    arms += [(ours, {**k, **PUBLISHED}) for k in goal]
    arms += [] if short else [(ours, {"t": float(t), "least": 1}) for t in (-1, 0, 1, 2, 4)]
    arms += [("retrieval", {"limit": "ratio", "ratio": k["ratio"], "least": 1}) for k in (*kept, *goal)]
    arms += [("summary", {"max_tokens": 48})]
    return [Arm(named(name, settings), "channel", name, settings) for name, settings in arms]


def named(channel: str, settings: dict[str, Any]) -> str:
    """A short name: what all arms of a kind share is left out."""
    if settings.items() >= PUBLISHED.items():
        return f"published scoring {settings['ratio']}"
    if settings.items() >= KEPT.items():
        return f"gaps kept, β too {settings['ratio']}"
    kind = {"own": "blind to the task", "random": "random positions"}.get(str(settings.get("score")), channel)
    if settings.get("refit") == "none":
        kind = f"{kind}, no refit"
    if "ratio" in settings:
        return f"{kind} {settings['ratio']}"
    return f"{kind} t={settings['t']:g}" if "t" in settings else label(channel, {})


class Scene:
    """One item: what its sender has to say, and the tasks of its receivers."""

    def __init__(self, workflow: Workflow, inputs: dict[str, Any], ours: Engine) -> None:
        (self.edge,) = workflow.edges
        self.workflow, self.engine = workflow, ours
        self.context = {"inputs": inputs, "nodes": {}}
        sender = workflow.nodes[self.edge.sender]
        plan = self._plan(self.edge.sender, render(sender.prompt, self.context), [])
        self.sent, self.message = close_turn(self.edge.sender, ours, plan, ours.generate([plan.request])[0])

    def tasks(self) -> list[Task]:
        """One for each child of the receiver."""
        node = self.workflow.nodes[self.edge.receiver]
        system = self.workflow.agents[node.agent].system
        if node.map is None:
            return [Task(render(node.prompt, self.context), system, self.engine)]
        over = node.map.over if isinstance(node.map.over, list) else evaluate(node.map.over, self.context)
        prompts = [render(node.prompt, self.context | {node.map.item: each, "index": n}) for n, each in enumerate(over)]
        return [Task(prompt, system, self.engine) for prompt in prompts]

    def plans(self, arm: Arm) -> list[Turnplan]:
        """Send the message over the arm's channel to each receiver."""
        channel = make_channel(arm.channel, arm.settings)
        return [
            self._plan(self.edge.receiver, task.prompt, [deliver(channel, self.message, task)[1]])
            for task in self.tasks()
        ]

    def _plan(self, node: str, prompt: str, deliveries: list[Any]) -> Turnplan:
        return plan_turn(
            self.engine,
            system=self.workflow.agents[self.workflow.nodes[node].agent].system,
            prompt=prompt,
            deliveries=deliveries,
            settings=self.workflow.effective(node),
            seed=0,
            keep_cache=True,
            reuse=False,
            cancelled=lambda: False,
        )


def rows_of(scene: Scene, item: Item, arms: Sequence[Arm], task: Any) -> list[Row]:
    """All arms of an item; answers are decoded together."""
    plans = [(arm, scene.plans(arm)) for arm in arms]
    units = [(arm, child, plan) for arm, each in plans for child, plan in enumerate(each)]
    units.sort(key=lambda u: len(u[2].request.token_ids))  # alike in length: little padding
    probes: dict[str, AnswerProbe] = {}
    results: dict[tuple[str, int], Any] = {}
    reference: dict[int, Tensor] = {}
    node, answers = scene.edge.receiver, [a[0] for a in item.answers]
    units = [u for u in units if u[0].name == "cache"] + [u for u in units if u[0].name != "cache"]
    for start in range(0, len(units), BATCH):
        part = units[start : start + BATCH]
        said = scene.engine.generate([plan.request for _, _, plan in part])
        for (arm, child, plan), answer in zip(part, said, strict=True):
            first = arm.name == "cache"
            probe = probes.setdefault(arm.name, AnswerProbe(node, answers, reference=reference, keep=first))
            probe(Unit(item.id, node, child), scene.engine, plan, answer)
            reference.update(probe.distributions)
            results[arm.name, child] = close_turn(node, scene.engine, plan, answer)[0]
    rows = []
    for arm, each in plans:
        nodes = {scene.edge.sender: [scene.sent], node: [results[arm.name, n] for n in range(len(each))]}
        result = ItemResult(item.id, nodes, {}, {})
        rows.append(row_of(task, item, arm, node, result, scene.workflow, probes[arm.name], 0))
    return rows


def export(file: Path, workflow: Workflow, items: Sequence[Item], ours: Engine) -> None:
    """The exact tokens of each item, one JSON object a line: `context`, `question`, `answer`."""
    with file.open("w", encoding="utf-8") as out:
        for item in items:
            scene = Scene(workflow, inputs_of(workflow, item), ours)
            for child, plan in enumerate(scene.plans(Arm("cache", "channel", "cache"))):
                assert plan.request.prefix is not None
                context = plan.foundation.token_ids[: plan.request.prefix.next_position]
                answer = ours.tokenizer(item.answers[child][0], add_special_tokens=False)["input_ids"]
                tokens = {"context": context, "question": plan.request.token_ids, "answer": answer}
                out.write(json.dumps({"id": f"{item.id}-{child}", **tokens}) + "\n")


def remember_queries(ours: Engine) -> None:
    """Queries on one cache are the same for all arms; they are computed once an item."""
    known: dict[tuple[int, int, tuple[int, ...]], Any] = {}
    compute = ours.queries

    def queries(cache: Any, token_ids: Sequence[int]) -> Any:
        key = (cache.keys[0].data_ptr(), len(cache), tuple(token_ids))
        if key not in known:
            if len(known) > 8:
                known.clear()
            known[key] = (cache, compute(cache, token_ids))  # the cache stays alive, or its address could come again
        return known[key][1]

    ours.queries = queries  # type: ignore[method-assign]


def main() -> None:
    """Run what is missing, and report on what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workflow")
    parser.add_argument("--data", type=Path)
    parser.add_argument("-n", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shares", default=SHARES, type=lambda text: [float(part) for part in text.split(",")])
    parser.add_argument("--short", action="store_true", help="fewer arms: no published scoring or gaps, no thresholds")
    parser.add_argument("--export", action="store_true", help="write the items' tokens for kvpress_peer, run nothing")
    chosen = parser.parse_args()
    workflow = load_workflow(chosen.workflow).with_channel("cache")
    task = task_of(workflow, None, task_settings(chosen.set))
    items = task.items(data=chosen.data, limit=chosen.n, seed=chosen.seed)
    ours = engine("smollm2-135m")
    arms = arms_of_the_table(chosen.shares, short=chosen.short)
    if chosen.export:
        export(chosen.out, workflow, items, ours)
        return
    machine = describe_machine([ours])
    remember_queries(ours)
    chosen.out.mkdir(parents=True, exist_ok=True)
    file = chosen.out / "rows.jsonl"
    rows = [Row.from_json(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
    done, start = {row.item for row in rows}, time.perf_counter()
    assert answer_node(workflow) == workflow.edges[0].receiver
    for number, item in enumerate(items, start=1):
        if item.id in done:
            continue
        fresh = rows_of(Scene(workflow, inputs_of(workflow, item), ours), item, arms, task)
        with file.open("a", encoding="utf-8") as out:
            out.write("".join(json.dumps(row.to_json(), ensure_ascii=False) + "\n" for row in fresh))
        rows += fresh
        print(f"{number} of {len(items)} items, {time.perf_counter() - start:,.0f} s", flush=True)
    comparison = Comparison(
        workflow.name, task.name, task.settings.model_dump(), task.metrics, task.primary, "cache",
        tuple(arms), tuple(i.id for i in items), tuple(rows), chosen.seed, machine,
        "python -m benchmarks.briefing_table " + " ".join(sys.argv[1:]),
    )  # fmt: skip
    print(write_reports(comparison, chosen.out))


if __name__ == "__main__":
    main()
