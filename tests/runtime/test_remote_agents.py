"""Agents on remote models: which channels reach them and leave them, and all that holds for any other agent."""

from __future__ import annotations

import json
import threading
import time

import pytest

from agentflow.errors import WorkflowError
from agentflow.evaluation.compare import compare
from agentflow.models.pool import EnginePool
from agentflow.runtime.binding import bind
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.results import NodeResult
from agentflow.runtime.runs import RunStore, read_events
from agentflow.tasks.registry import make_task
from agentflow.tools import Toolbox
from agentflow.workflow.loader import parse_workflow
from tests import endpoint as served
from tests.tiny import make_engine, tiny_engine, tiny_model

PLAN = "the code of room seven is blue . the code of room nine is red . remember who is in paris ."
TEXT = """
workflow: planned
inputs: {question: string}
agents:
  planner: {model: REMOTE, system: plan well}
  worker: {model: LOCAL, system: answer}
nodes:
  plan: {agent: planner, prompt: "plan for {{ inputs.question }}", max_new_tokens: 40}
  work: {agent: worker, prompt: "{{ inputs.question }}", max_new_tokens: 4}
edges:
  - {from: plan, to: work, channel: CHANNEL}
outputs: {plan: "{{ nodes.plan.text }}", answer: "{{ nodes.work.text }}"}
"""
ITEMS = [("one", {"question": "what is the code of room seven ?"})]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    served.make_quick(monkeypatch)


@pytest.fixture
def server():
    with served.endpoint() as found:
        found.script = [served.say(PLAN)]
        yield found


@pytest.fixture
def written(server):
    """A workflow from a text, where REMOTE is the endpoint and LOCAL a tiny model."""

    def make(text=TEXT, channel="text", **settings):
        remote = json.dumps({"model": "planner", "remote": {"url": server.url, "name": "m", **settings}})
        text = text.replace("REMOTE", remote).replace("LOCAL", "{source: tests/tiny, model: tiny}")
        return parse_workflow(text.replace("CHANNEL", channel), "planned.yaml")

    return make


def go(workflow, *, items=ITEMS, engines=None, tools=None, **more):
    events = []
    pool = engines or EnginePool(factory=lambda spec: tiny_engine())
    runner = Orchestrator(bind(workflow, tools), pool, listeners=[events.append], **more)
    return runner.run(items), events


def fresh():
    """An engine that has computed nothing yet."""
    engine = make_engine(tiny_model("llama"), "tiny-llama-0")
    return EnginePool(factory=lambda spec: engine)


@pytest.mark.parametrize(
    ("channel", "arrived"),
    [
        ("text", "text"),
        ("{name: text, scope: answer}", "text"),
        ("{name: summary, max_tokens: 6}", "summary"),
        ("{name: retrieval, least: 4}", "retrieval"),
        ("{name: latent_briefing, least: 4}", "latent_briefing"),
        ("{name: auto, latent_briefing: {least: 4}}", "latent_briefing"),
    ],
)
def test_a_remote_sender_is_heard_over_every_channel_that_words_can_take(written, server, channel, arrived):
    (result,), _ = go(written(channel=channel), engines=fresh())
    assert not result.errors
    assert result.outputs["plan"] == PLAN
    (message,) = result.nodes["work"][0].messages
    assert message.channel == arrived
    assert result.nodes["plan"][0].prefilled == 12
    assert result.nodes["plan"][0].generated == 3
    assert len(server.asked) == 1
    if arrived == "latent_briefing":  # its words were read by the receiver's model
        assert message.prefilled >= message.tokens > message.kept > 0


def test_the_receiver_over_latent_briefing_stands_on_its_own_reading_of_the_senders_conversation(written):
    kept_all = "{name: latent_briefing, threshold: ratio, ratio: 1.0, refit: none}"
    (briefed,), _ = go(written(channel=kept_all), engines=fresh())
    (read,), _ = go(written(channel="text"), engines=fresh())
    assert briefed.outputs == read.outputs
    assert briefed.nodes["work"][0].prefilled < read.nodes["work"][0].prefilled


ROUND = TEXT.replace("from: plan, to: work", "from: work, to: plan").replace("plan for", "check")


@pytest.mark.parametrize(
    "channel",
    ["text", "{name: text, scope: answer}", "{name: summary, by: sender, max_tokens: 6}", "retrieval", "auto"],
)
def test_a_remote_receiver_is_told_in_words(written, server, channel):
    (result,), _ = go(written(ROUND, channel))
    assert not result.errors
    said = result.outputs["answer"]
    (asked,) = server.asked
    told = "\n".join(message["content"] for message in asked["messages"])
    if channel in ("text", "auto"):
        assert [m["role"] for m in asked["messages"]] == ["system", "user", "assistant", "user"]
        assert asked["messages"][2]["content"].strip() == said
        assert asked["messages"][3]["content"].endswith("check what is the code of room seven ?")
    elif "answer" in channel:
        assert f"Message from work:\n{said}" in told
    assert "plan well" in told


REFUSED = {
    "cache": (TEXT, "cache", "11:37", "'planner' is remote: it gives its words, and no cache. These fit here"),
    "c2c": (TEXT, "c2c", "11:37", "'planner' is remote: it gives its words, and no cache"),
    "by the sender": (TEXT, "{name: summary, by: sender}", "11:37", "can't write it; say `by: receiver`"),
    "by the receiver": (ROUND, "summary", "11:37", "can't write it; say `by: sender`"),
    "briefed": (ROUND, "latent_briefing", "11:37", "'planner' is remote: it takes words, and no cache"),
    "cache back": (ROUND, "cache", "11:37", "it takes words, and no cache. These fit here, the best first: text."),
    "choose": (TEXT.replace("max_new_tokens: 40", "choose: \"['a', 'b']\""), "text", "8:76", "`output:` with a schema"),
    "silent": (TEXT.replace("tokens: 40", "tokens: 0"), "text", "8:84", "it keeps no cache, so it has to speak"),
    "memory": (
        TEXT.replace("plan well}", "plan well, memory: {max_tokens: 100}}"),
        "text",
        "5:",
        "agents.planner.memory: 'planner' is remote, and its tokens can't be counted here",
    ),
    "silent agent": (
        TEXT.replace(", max_new_tokens: 40", "").replace("plan well}", "plan well, max_new_tokens: 0}"),
        "text",
        "5:",
        "agents.planner.max_new_tokens: 'planner' is remote",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_remote_model_can_not_do_is_refused_where_it_is_written(written, case):
    text, channel, place, words = REFUSED[case]
    with pytest.raises(WorkflowError) as error:
        bind(written(text, channel))
    assert str(error.value).startswith(f"planned.yaml:{place}")
    assert words in str(error.value)


def test_auto_is_the_best_channel_that_words_can_take(written):
    for text, wanted, reason in ((TEXT, "latent_briefing", "gives its words"), (ROUND, "text", "takes words")):
        (settled,) = bind(written(text, "auto")).settled
        assert settled.channel == wanted
        assert reason in settled.why


def test_an_answer_that_is_not_the_json_asked_for_is_asked_for_again(written, server):
    schema = "{type: object, required: [n], properties: {n: {type: integer}}}"
    text = TEXT.replace("max_new_tokens: 40", f"max_new_tokens: 40, output: {{schema: {schema}}}")
    server.script = [served.say("seven"), served.say('{"n": "x"}'), served.say('{"n": 7}')]
    (result,), _ = go(written(text))
    plan = result.nodes["plan"][0]
    assert (plan.value, plan.generated, plan.prefilled) == ({"n": 7}, 9, 36)
    assert [len(asked["messages"]) for asked in server.asked] == [2, 4, 6]
    assert len({asked["seed"] for asked in server.asked}) == 3
    assert "That is not the JSON" in server.prompts[-1]
    server.script = [served.say("seven")]
    (result,), _ = go(written(text))
    assert "no answer that fits its schema" in result.errors["one/plan"]


@pytest.mark.parametrize("channel", ["text", "{name: latent_briefing, least: 4}"])
def test_finished_turns_of_a_remote_agent_are_not_asked_again(written, server, tmp_path, channel):
    store = RunStore.create(tmp_path, "planned", {})
    (whole,), _ = go(written(channel=channel), engines=fresh(), store=store)
    changed = TEXT.replace('prompt: "{{ inputs.question }}"', 'prompt: "so {{ inputs.question }}"')
    (again,), events = go(written(channel=channel), engines=fresh(), store=RunStore.open(store.folder))
    assert again.outputs == whole.outputs
    assert not [e for e in events if e.kind == "node_finished"]
    (result,), events = go(written(changed, channel), engines=fresh(), store=RunStore.open(store.folder))
    assert [e.node for e in events if e.kind == "node_finished"] == ["work"]
    assert result.outputs["plan"] == PLAN
    assert len(server.asked) == 1
    (other,), _ = go(written(changed, channel), engines=fresh())
    assert other.outputs == result.outputs  # the stored words give the same message
    server.script = [served.say("another plan")]
    (new,), _ = go(written(changed, channel, extra={"top_a": 1}), engines=fresh(), store=RunStore.open(store.folder))
    assert new.outputs["plan"] == "another plan"


FAN = """
workflow: fan
inputs: {questions: list}
agents:
  asker: {model: REMOTE}
  worker: {model: LOCAL}
nodes:
  ask: {agent: asker, map: {over: inputs.questions, as: q}, prompt: "{{ q }}", max_new_tokens: 8}
  work: {agent: worker, prompt: "go", max_new_tokens: 2, when: "inputs.questions | length < 9"}
edges: [{from: ask, to: work, channel: {name: text, scope: answer}}]
outputs: {all: "{{ nodes.ask.texts }}"}
"""


def test_children_are_asked_side_by_side_and_a_slow_one_holds_back_no_other(written, server):
    slow = threading.Event()

    def answer(handler, body):
        if body["messages"][-1]["content"] == "slow":
            slow.wait(20)
        elif body["messages"][-1]["content"] == "last":
            slow.set()
        served.say(lambda prompt: f"re {prompt}", pause=0.02)(handler, body)

    server.script = [answer]
    questions = ["slow", *"abcdefgh", "last"]
    (result,), _ = go(written(FAN, max_concurrency=3), items=[("one", {"questions": questions})])
    assert result.outputs["all"] == [f"re {q}" for q in questions]
    assert server.most_at_once == 3


def test_calls_of_tools_wait_for_no_remote_model(written, server):
    called = threading.Event()

    def note() -> str:
        called.set()
        return "noted"

    def answer(handler, body):
        assert called.wait(20)
        served.say("fine")(handler, body)

    server.script = [answer]
    text = FAN.replace("nodes:\n", "nodes:\n  note: {tool: note}\n")
    with Toolbox([note]) as tools:
        (result,), _ = go(written(text, max_concurrency=40), items=[("one", {"questions": ["q"] * 24})], tools=tools)
    assert result.outputs == {"all": ["fine"] * 24}
    assert len(server.asked) == 24


def test_a_failure_ends_its_own_unit_and_what_depends_on_it(written, server):
    server.script = [
        lambda h, b: served.status(500, "")(h, b) if b["messages"][-1]["content"] == "b" else served.say("ok")(h, b)
    ]
    items = [(name, {"questions": [name]}) for name in "abc"]
    results, events = go(written(FAN, max_retries=1), items=items)
    assert [bool(r.errors) for r in results] == [False, True, False]
    assert "gave no answer in 2 tries: 500 Internal Server Error (2 times)" in results[1].errors["b/ask[0]"]
    assert [e.kind for e in events if e.node == "ask"].count("node_started") == 3


def test_a_silent_server_counts_as_a_timeout_for_retry(written, server):
    server.script = [served.hang(), served.status(400, ""), served.say("late")]
    retried = TEXT.replace("max_new_tokens: 40", "max_new_tokens: 40, retry: {count: 2, on: timeout}")
    (result,), events = go(written(retried, silence=0.2, max_retries=0))
    assert "400 Bad Request" in result.errors["one/plan"]  # which is of another kind
    assert next(e.data["error"] for e in events if e.kind == "node_retried").count("not a word for 0.2 s") == 1
    assert len({asked["seed"] for asked in server.asked}) == 2


def test_a_nodes_timeout_ends_the_answer_or_fails_the_node_that_minds(written, server):
    server.script = [served.stall("half a plan")]
    timed = TEXT.replace("max_new_tokens: 40", "max_new_tokens: 40, timeout: 0.4")
    (result,), _ = go(written(timed))
    assert (result.outputs["plan"], result.nodes["plan"][0].finish) == ("half a plan", "deadline")
    minded = timed.replace("timeout: 0.4", "timeout: 0.4, on_error: {fallback: no plan}")
    (result,), events = go(written(minded, channel="{name: latent_briefing, least: 4}"))
    assert result.outputs["plan"] == "no plan"
    assert not result.errors
    assert next(e.data["text"] for e in events if e.kind == "warning").startswith("fallback: no whole answer within")


def test_a_run_that_is_called_off_does_not_wait_for_the_server(written, server):
    server.script = [served.hang()]
    runner = Orchestrator(bind(written()), EnginePool(factory=lambda spec: tiny_engine()))
    threading.Timer(0.5, runner.cancel).start()
    start = time.monotonic()
    (result,) = runner.run(ITEMS)
    assert time.monotonic() - start < 10
    assert "cancelled" in result.errors["one/plan"]


def test_what_should_be_known_about_an_answer_is_told_and_stored(written, server, tmp_path):
    server.script = [served.status(429, {"error": {"message": "slow down"}}), served.say(PLAN, usage=None)]
    store = RunStore.create(tmp_path, "planned", {})
    (result,), events = go(written(), store=store)
    told = (
        "asked 2 times: 429 Too Many Requests: slow down",
        "its endpoint does not count tokens: the numbers are estimates",
    )
    assert result.nodes["plan"][0].warnings == told
    assert tuple(e.data["text"] for e in events if e.kind == "warning") == told
    assert [e["data"]["text"] for e in read_events(store.folder) if e["kind"] == "warning"] == list(told)
    (again,), _ = go(written(), store=RunStore.open(store.folder))
    assert again.nodes == result.nodes
    assert NodeResult.from_json(json.loads(json.dumps(result.nodes["plan"][0].to_json()))) == result.nodes["plan"][0]


COMPARED = """
workflow: compared
inputs: {facts: list, question: string}
agents:
  reader: {model: READS}
  answerer: {model: ANSWERS}
nodes:
  read: {agent: reader, prompt: "{{ inputs.facts | join(' ') }}", max_new_tokens: 8}
  answer: {agent: answerer, prompt: "{{ inputs.question }}", max_new_tokens: 4}
edges: [{from: read, to: answer, channel: text}]
task: {name: private_facts, answer: answer}
"""


def compared(written, server, text, channels, **more):
    task = make_task("private_facts", {"facts": 2, "questions": 1})
    items = task.items(data=None, limit=2, seed=0)
    workflow = written(
        text.replace("inputs: {facts: list, question: string}", "inputs: {facts: list, questions: list}").replace(
            "inputs.question }}", "inputs.questions[0] }}"
        )
    )
    return compare(workflow, task, items, channels, EnginePool(factory=lambda spec: tiny_engine()), **more)


def test_a_comparison_asks_a_remote_sender_once_for_each_item(written, server):
    text = COMPARED.replace("READS", "REMOTE").replace("ANSWERS", "LOCAL")
    found = compared(written, server, text, ["text", "retrieval", "latent_briefing"])
    assert not [row.error for row in found.rows if row.error]
    assert len(server.asked) == 2
    assert all(row.nll is not None for row in found.rows)


def test_a_comparison_with_a_remote_receiver_has_scores_and_no_likelihoods(written, server):
    text = COMPARED.replace("READS", "LOCAL").replace("ANSWERS", "REMOTE")
    found = compared(written, server, text, ["text", "retrieval"])
    assert not [row.error for row in found.rows if row.error]
    assert all(row.nll is None and row.scores for row in found.rows)
    assert found.machine["models"]["planner"]["device"] == server.url
