"""Nodes that call tools: arguments from templates, results for templates and messages, and every policy of a node."""

from __future__ import annotations

import threading
import time

import pytest

from agentflow.errors import WorkflowError
from agentflow.runtime.binding import bind
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.runs import RunStore
from agentflow.tools import Toolbox
from tests.stored import lose

SHOP = """
workflow: shop
inputs: {order: string, names: {type: list, default: [ink, pen]}}
defaults: {channel: cache}
agents: {a: {model: MODEL}}
nodes:
  read: {agent: a, prompt: "{{ inputs.order }}", max_new_tokens: 3}
  price:
    tool: price
    map: {over: inputs.names}
    with: {name: "{{ item }}", options: {place: "{{ index }}", told: "{{ nodes.read.text }}"}}
  total: {tool: add, with: {numbers: "{{ nodes.price.values }}"}}
  say: {agent: a, prompt: "so {{ nodes.total.sum }}", max_new_tokens: 3}
edges:
  - {from: read, to: price}
  - {from: price, to: total}
  - {from: total, to: say}
  - {from: read, to: say}
outputs: {total: "{{ nodes.total.value }}", prices: "{{ nodes.price.values }}", said: "{{ nodes.say.text }}"}
"""
HANGS = 300.0
"""Seconds that a call takes which nobody waits for."""


class Shop:
    """Tools that count their calls, and misbehave when they are told to."""

    def __init__(self):
        self.calls = []
        self.failing = 0
        self.slow = 0.0
        self.together = threading.Barrier(2)

    def tools(self):
        def price(name: str, options: dict[str, object]) -> int:
            self.calls.append((name, options["place"]))
            if self.slow:
                time.sleep(self.slow)
            if self.failing:
                self.failing -= 1
                raise LookupError(f"no {name}")
            return len(name)

        def add(numbers: list[int]) -> dict[str, object]:
            self.calls.append(tuple(numbers))
            return {"sum": sum(numbers), "text": f"{sum(numbers)} in all"}

        def meet(name: str, options: dict[str, object]) -> int:
            self.together.wait(timeout=20)
            return 1

        return [price, add, meet]


@pytest.fixture
def shop():
    return Shop()


@pytest.fixture
def run(flow, engines, shop):
    def go(*changes, store=None, items=None):
        text = SHOP
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        events = []
        binding = bind(flow(text), Toolbox(shop.tools()))
        runner = Orchestrator(binding, engines, listeners=[events.append], store=store)
        result = runner.run(items or [("x", {"order": "red", "names": ["ink", "paper"]})])[0]
        return result, events

    return go


def test_arguments_come_from_templates_and_results_go_to_templates(run, shop):
    result, _ = run()
    assert result.errors == {}
    assert shop.calls[-1] == (3, 5)
    assert sorted(shop.calls[:2]) == [("ink", 0), ("paper", 1)]
    assert result.outputs["total"] == {"sum": 8, "text": "8 in all"}
    assert result.outputs["prices"] == [3, 5]


def test_a_tools_receiver_is_sent_its_text_and_stands_on_the_other_senders_cache(run):
    result, _ = run()
    sent = {m.sender: m for m in result.nodes["say"][0].messages}
    assert sent["total"].channel == "text"
    assert sent["total"].bytes == len("8 in all")
    assert sent["read"].channel == "cache"
    assert result.nodes["say"][0].reused > 0


def test_calls_run_beside_one_another(run):
    result, _ = run(("tool: price", "tool: meet"))
    assert result.errors == {}
    assert result.outputs["total"]["sum"] == 2


def test_a_failing_tool_is_tried_again_and_its_kind_of_error_is_tool(run, shop):
    shop.failing = 1
    result, events = run(("tool: price", "tool: price\n    retry: {count: 1, on: tool}"))
    assert result.errors == {}
    (retried,) = [e for e in events if e.kind == "node_retried"]
    assert "LookupError: no " in retried.data["error"]


def test_errors_of_another_kind_are_not_tried_again(run, shop):
    shop.failing = 1
    result, _ = run(("tool: price", "tool: price\n    retry: {count: 1, on: timeout}"))
    assert any("LookupError" in error for error in result.errors.values())


def test_a_fallback_stands_in_for_a_tool(run, shop):
    shop.failing = 9
    result, _ = run(
        ("tool: add, with", 'tool: add, on_error: {fallback: "none"}, when: "false", with'),
        ("map: {over: inputs.names}\n", 'map: {over: inputs.names}\n    on_error: {fallback: "0"}\n'),
        ("so {{ nodes.total.sum }}", "so"),
        ('total: "{{ nodes.total.value }}", prices: "{{ nodes.price.values }}"', 'p: "{{ nodes.price.texts }}"'),
    )
    assert result.errors == {}
    assert result.outputs["p"] == ["0", "0"]
    assert "x/total" in result.skipped


def test_a_fallback_of_a_tool_reaches_its_receivers(run, shop):
    result, _ = run(
        ("tool: add, with: {numbers: \"{{ nodes.price.values }}\"}",
         "tool: add, on_error: {fallback: nothing}, with: {numbers: \"{{ nodes.price.texts }}\"}"),
        ("so {{ nodes.total.sum }}", "so"),
    )  # fmt: skip
    assert result.errors == {}
    assert [m.bytes for m in result.nodes["say"][0].messages if m.sender == "total"] == [len("nothing")]


def test_a_call_that_takes_too_long_is_given_up(run, shop):
    shop.slow = HANGS
    start = time.monotonic()
    result, _ = run(("tool: price", "tool: price\n    timeout: 0.3"))
    assert time.monotonic() - start < HANGS
    assert any("no result within 0.3 s" in error for error in result.errors.values())


def test_a_timeout_is_an_error_of_its_kind(run, shop):
    shop.slow = HANGS
    result, events = run(
        ("tool: price", "tool: price\n    timeout: 0.2\n    retry: {count: 1, on: timeout}\n    on_error: skip")
    )
    assert len([e for e in events if e.kind == "node_retried"]) == 2
    assert result.skipped == {f"x/price[{child}]": "no result within 0.2 s" for child in (0, 1)}


def test_an_argument_of_the_wrong_type_is_an_error_of_the_node(run):
    result, _ = run(("{{ nodes.price.values }}\"}}", "{{ nodes.price.texts }}\"}}"))  # fmt: skip
    assert "[0]: input should be a valid integer" in result.errors["x/total"]


def test_a_call_that_hangs_does_not_keep_the_run_from_being_stopped(flow, engines, shop):
    shop.slow = HANGS

    def stop(event):
        if event.kind == "node_started" and event.node == "price":
            runner.cancel()

    runner = Orchestrator(bind(flow(SHOP), Toolbox(shop.tools())), engines, listeners=[stop])
    start = time.monotonic()
    result = runner.run([("x", {"order": "red", "names": ["ink"]})])[0]
    assert time.monotonic() - start < HANGS
    assert result.errors["x/price[0]"] == "cancelled"


def test_a_finished_call_is_never_repeated_unless_tool_or_arguments_change(run, shop, tmp_path):
    first, _ = run(store=RunStore.create(tmp_path, "shop", {}))
    folder = next(tmp_path.iterdir())
    before = list(shop.calls)
    again, events = run(store=RunStore.open(folder))
    assert shop.calls == before
    assert {e.node for e in events if e.kind == "node_reused"} == {"read", "price", "total", "say"}
    assert again.outputs == first.outputs

    lose(folder, lambda unit: unit.node == "say")  # its message has to be made from the stored result
    third, _ = run(store=RunStore.open(folder))
    assert shop.calls == before
    assert third.outputs == first.outputs

    run(store=RunStore.open(folder), items=[("x", {"order": "red", "names": ["ink", "pencils"]})])
    assert shop.calls[len(before) :] == [("pencils", 1), (3, 7)]


# -- what is told before anything runs -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("tool: price", "tool: prise", "nodes.price.tool: unknown tool 'prise'. Did you mean 'price'?"),
        ("{numbers:", "{number:", "nodes.total.with.number: the tool 'add' takes no argument 'number'. Did you mean"),
        ('with: {numbers: "{{ nodes.price.values }}"}', "with: {}", "needs the argument 'numbers'. Add `numbers: ...`"),
        ('"{{ nodes.price.values }}"}}', "[1, two]}}", r"with.numbers: .*\[1\]: input should be a valid int"),
        ("{from: total, to: say}", "{from: total, to: say, channel: cache}", "'total' is a tool and has a text"),
        ("{from: read, to: price}", "{from: read, to: price, channel: cache}", "'price' is a tool and takes"),
        ('"{{ item }}"', '"{{ itm }}"', "nodes.price.with.name: unknown name 'itm' in the template"),
        ('"{{ nodes.read.text }}"', '"{{ nodes.say.text }}"', "no edge leads from 'say' to 'price'"),
        ("tool: price\n", "tool: price\n    prompt: x\n", "nodes.price.prompt: unknown key 'prompt'"),
        ("tool: price\n", "tool: price\n    timeut: 3\n", "'timeut'. Did you mean 'timeout'"),
    ],
)  # fmt: skip
def test_misuse_of_a_tool_is_told_at_its_place_before_anything_runs(flow, shop, old, new, words):
    assert SHOP.count(old) == 1
    with pytest.raises(WorkflowError, match=words) as caught:
        bind(flow(SHOP.replace(old, new)), Toolbox(shop.tools()))
    assert str(caught.value).startswith("<text>:")


def test_edges_at_a_tool_stay_text_when_others_are_compared(flow, shop):
    workflow = flow(SHOP).with_channel("latent_briefing")
    binding = bind(workflow, Toolbox(shop.tools()))
    assert [c.name for c in binding.channels] == ["text", "text", "text", "latent_briefing"]
    assert [c.name for c in binding.compared] == ["latent_briefing"]
