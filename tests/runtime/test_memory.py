"""Agents whose memory is bounded: each policy at its right numbers, in loops that grow, over text and over caches."""

from __future__ import annotations

import json

import pytest
import torch

from agentflow.channels.base import Message, Task
from agentflow.channels.registry import make_channel
from agentflow.errors import WorkflowError
from agentflow.kv.payload import Turn
from agentflow.models.chat import append_turn, conversation, render
from agentflow.models.pool import EnginePool
from agentflow.models.requests import Request
from agentflow.runtime.binding import bind
from agentflow.runtime.kept import read_results
from agentflow.runtime.options import RunOptions
from agentflow.runtime.orchestrator import Orchestrator
from agentflow.runtime.rehearsal import rehearse
from agentflow.runtime.results import NodeResult
from agentflow.runtime.runs import RunStore
from agentflow.workflow.loader import parse_workflow
from tests.tiny import make_engine, tiny_model

LIMIT, NEW = 150, 6
SYSTEM, PROMPT = "remember the room", "what is the code of room {} and who is red or blue"
GROWING = f"""
workflow: growing
inputs: {{rounds: {{type: integer, default: 6}}}}
agents:
  a: {{model: MODEL, max_new_tokens: {NEW}, system: {SYSTEM}, memory: {{max_tokens: {LIMIT}, policy: POLICY}}}}
nodes:
  act:
    loop:
      max: 8
      until: "round + 1 == inputs.rounds"
      nodes: {{actor: {{agent: a, prompt: "{PROMPT.format("{{ round }}")}"}}}}
      edges: [{{from: actor, to: actor, channel: CHANNEL}}]
outputs: {{said: "{{{{ nodes.act.rounds | map(attribute='actor.text') | list }}}}"}}
"""


def growing(policy, channel="cache"):
    return GROWING.replace("POLICY", policy).replace("CHANNEL", channel)


def fresh():
    """An engine that has computed nothing yet."""
    return make_engine(tiny_model("llama", max_position_embeddings=4096), "tiny")


@pytest.fixture
def run(flow):
    """Run a workflow; its result, its events, and every turn with its answer."""

    def go(text, *, engine=None, **more):
        inputs = more.pop("inputs", {"rounds": 6})
        events, turns = [], {}
        engine = engine or fresh()
        runner = Orchestrator(
            bind(flow(text)),
            EnginePool(factory=lambda spec: engine),
            listeners=[events.append],
            probe=lambda unit, engine, plan, answer: turns.update({unit.node: (plan, answer)}),
            **more,
        )
        return runner.run([("x", inputs)])[0], events, turns

    return go


def rounds(result) -> list[NodeResult]:
    return [found[0] for name, found in result.nodes.items() if name.startswith("act")]


def remembered(events):
    return [(event.node, event.data) for event in events if event.kind == "memory"]


def dropped_by_hand(most):
    """The same conversation without a runtime: whole exchanges go until what is left fits; nothing is ever cached."""
    engine, turns, told = fresh(), (), []
    for number in range(most):
        left = conversation(SYSTEM, PROMPT.format(number), turns)
        gone = 0
        while len(ids := render(engine.tokenizer, left, reply=True)) + NEW > LIMIT:
            left = (left[0], *left[3:])  # a question and its answer
            gone += 2
        answer = engine.generate([Request(tuple(ids), max_new_tokens=NEW)])[0]
        turns = append_turn(left, Turn("assistant", answer.text))
        told.append((left, answer.token_ids, gone))
    return told


def test_a_conversation_that_fits_is_left_as_it_is(run):
    limited, events, _ = run(growing("fail"), inputs={"rounds": 3})
    free, _, _ = run(
        growing("fail").replace(f", memory: {{max_tokens: {LIMIT}, policy: fail}}", ""), inputs={"rounds": 3}
    )
    assert limited.errors == {}
    assert limited.outputs == free.outputs
    assert remembered(events) == []
    assert [turn.memory for turn in rounds(limited)] == [None] * 3


def test_fail_says_who_needs_how_much_and_what_can_be_done(run):
    result, _, turns = run(growing("fail"))
    (failed,) = [unit for unit, error in result.errors.items() if "memory" in error]
    plan, answer = turns[list(turns)[-1]]
    needed = (
        len(
            render(
                fresh().tokenizer,
                conversation(SYSTEM, PROMPT.format(len(turns)), (*plan.turns, Turn("assistant", answer.text))),
                reply=True,
            )
        )
        + NEW
    )
    assert failed == f"x/act[{len(turns)}]/actor"
    error = result.errors[failed]
    assert f"The memory of the agent 'a' holds {LIMIT} tokens, and '{failed}' needs {needed}, the longest" in error
    assert error.startswith("<text>:5:")
    assert error.endswith("Raise it, send the agent less, or choose another `policy`.")


@pytest.mark.parametrize(("channel", "reuse"), [("cache", True), ("cache", False), ("text", True), ("text", False)])
def test_drop_oldest_goes_on_as_if_the_oldest_exchanges_had_never_been(run, channel, reuse):
    result, events, turns = run(growing("drop_oldest", channel), options=RunOptions(reuse=reuse))
    assert result.errors == {}
    by_hand = dropped_by_hand(6)
    assert [plan.turns for plan, _ in turns.values()] == [left for left, _, _ in by_hand]
    assert [answer.token_ids for _, answer in turns.values()] == [said for _, said, _ in by_hand]
    assert [turn.memory.dropped if turn.memory else 0 for turn in rounds(result)] == [gone for _, _, gone in by_hand]
    assert sum(gone for _, _, gone in by_hand) >= 4
    for turn in rounds(result):
        assert turn.prefilled + turn.reused + NEW <= LIMIT
    told = remembered(events)
    assert told
    assert told[0][1]["dropped"] == 2
    assert all(data["tokens"] > LIMIT >= data["held"] for _, data in told)


def test_of_a_shortened_conversation_only_what_agrees_with_the_cache_is_not_computed_again(run):
    result, _, turns = run(growing("drop_oldest"), options=RunOptions(reuse=False))
    plans = [plan for plan, _ in turns.values()]
    for before, plan, turn in zip(plans, plans[1:], rounds(result)[1:], strict=False):
        if turn.memory is not None:
            pairs = zip(before.foundation.token_ids, plan.foundation.token_ids, strict=False)
            agreeing = next(n for n, (one, other) in enumerate(pairs) if one != other)
            assert agreeing > len(render(fresh().tokenizer, (Turn("system", SYSTEM),), reply=False))
            assert turn.reused == agreeing


@pytest.mark.parametrize("channel", ["cache", "text"])
def test_compact_keeps_what_fits_and_goes_on_behind_the_whole_conversation(run, channel):
    result, events, turns = run(growing("compact", channel))
    assert result.errors == {}
    tokenizer = fresh().tokenizer
    compacted = 0
    for (plan, _), turn in zip(turns.values(), rounds(result), strict=True):
        ids = render(tokenizer, plan.turns, reply=True)
        prefix, suffix = plan.request.prefix, plan.request.token_ids
        assert plan.foundation.token_ids == tuple(ids)
        assert turn.prefilled == len(suffix)
        if turn.memory is None:
            continue
        compacted += 1
        assert (turn.memory.kept, turn.memory.held) == (len(prefix), LIMIT)
        assert len(prefix) + len(suffix) + NEW == LIMIT
        assert prefix.next_position == len(ids) - len(suffix)  # the new turn follows all that was said
        assert prefix.next_rotary == len(prefix)  # and its keys stand right behind those that are left
        assert torch.equal(prefix.rotary_positions, torch.arange(len(prefix)))
        assert bool((prefix.positions.diff() > 0).all())
        assert prefix.positions[:4].tolist() == [0, 1, 2, 3]
        assert set(turn.memory.stats) >= {"kept_share", "output_error"}
        assert turn.all_prefilled > turn.prefilled  # scoring is paid for
    assert compacted >= 2
    assert len(remembered(events)) == compacted
    assert [len(plan.turns) for plan, _ in turns.values()] == [2, 4, 6, 8, 10, 12]


def test_compact_does_what_latent_briefing_would_have_sent(run):
    engine = fresh()
    result, _, turns = run(growing("compact"), engine=engine)
    at = next(n for n, turn in enumerate(rounds(result)) if turn.memory)
    before, (plan, _) = turns[f"act[{at - 1}]/actor"], turns[f"act[{at}]/actor"]
    history = append_turn(before[0].turns, Turn("assistant", before[1].text))
    known = (*before[0].foundation.token_ids, *before[1].token_ids)[: before[1].cache.next_position]
    message = Message("actor", history, before[1].text, known, before[1].cache, engine)
    room = rounds(result)[at].memory.kept
    channel = make_channel("latent_briefing", {"threshold": "top_k", "top_k": room})
    sent = channel.send(message, Task(PROMPT.format(at), SYSTEM, engine)).body.cache
    assert torch.equal(sent.positions, plan.request.prefix.positions)
    for ours, theirs in zip(plan.request.prefix.values, sent.values, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_compacted_turn_equals_a_full_one_where_everything_would_have_been_kept(run):
    """One token below the whole: one position is dropped, and the answer's first distribution hardly moves."""
    engine = fresh()
    free, _, turns = run(growing("fail").replace(str(LIMIT), "4000"), engine=engine, inputs={"rounds": 4})
    whole = turns["act[3]/actor"][0].foundation.length + NEW
    limited, _, near = run(growing("compact").replace(str(LIMIT), str(whole - 1)), inputs={"rounds": 4})
    memory = rounds(limited)[3].memory
    assert memory.of - memory.kept == 1
    full, small = (
        engine.score(plan.request.prefix, plan.request.token_ids, (5,), keep_distribution=True).distribution
        for plan in (turns["act[3]/actor"][0], near["act[3]/actor"][0])
    )
    other = engine.score(None, (7,), (5,), keep_distribution=True).distribution
    assert (full - small).abs().max() < 0.5 * (full - other).abs().max()
    assert rounds(free)[2].text == rounds(limited)[2].text


def test_a_prompt_that_alone_is_too_long_is_an_error_whatever_the_policy(run):
    long = growing("drop_oldest").replace(" and who is red or blue", " and who is red or blue" * 40)
    for policy, told in (("drop_oldest", "without any earlier turn"), ("compact", "for its newest turn alone")):
        result, _, _ = run(long.replace("drop_oldest", policy))
        (error, *_) = result.errors.values()
        assert told in error
        assert "Raise it, shorten the prompt, or lower `max_new_tokens`." in error


def test_an_agent_that_is_full_can_be_answered_for(run):
    text = growing("fail").replace('blue"}', 'blue", on_error: {fallback: "my memory is full"}}')
    result, _, _ = run(text)
    assert result.errors == {}
    assert "my memory is full" in result.outputs["said"]


SHARED = f"""
workflow: shared
agents:
  reader: {{model: MODEL, max_new_tokens: 0, system: {SYSTEM}}}
  small: {{extends: reader, max_new_tokens: {NEW}, memory: {{max_tokens: 60, policy: POLICY}}}}
  large: {{extends: reader, max_new_tokens: {NEW}}}
nodes:
  read:
    agent: reader
    prompt: the code of room one is seven, the code of room two is red, paris is blue, london is green
  few: {{agent: small, prompt: "what is the code of room {{{{ item }}}}", map: {{over: [one, two, three]}}}}
  all: {{agent: large, prompt: "what is the code of room one"}}
  then: {{agent: large, prompt: "and what is the question"}}
edges:
  - {{from: read, to: few, channel: cache}}
  - {{from: read, to: all, channel: cache}}
  - {{from: all, to: then, channel: cache}}
outputs: {{few: "{{{{ nodes.few.texts }}}}", then: "{{{{ nodes.then.text }}}}"}}
"""


@pytest.mark.parametrize("policy", ["compact", "drop_oldest"])
@pytest.mark.parametrize("overlap", ["off", "on"])
def test_a_conversation_that_several_share_is_cut_for_those_alone_whose_memory_is_small(run, policy, overlap):
    result, _, _ = run(SHARED.replace("POLICY", policy), options=RunOptions(overlap=overlap), inputs={})
    free, _, _ = run(SHARED.replace(", memory: {max_tokens: 60, policy: POLICY}", ""), inputs={})
    assert result.errors == free.errors == {}
    assert result.outputs["then"] == free.outputs["then"]
    assert result.nodes["all"][0].reused == free.nodes["all"][0].reused
    assert [turn.memory.policy for turn in result.nodes["few"]] == [policy] * 3
    for turn in result.nodes["few"]:
        assert turn.prefilled + turn.reused + NEW == turn.memory.held
        assert turn.memory.tokens > 60 >= turn.memory.held
    alone, _, _ = run(SHARED.replace("POLICY", policy), options=RunOptions(max_batch=1), inputs={})
    assert alone.outputs == result.outputs


@pytest.mark.parametrize("policy", ["compact", "drop_oldest"])
@pytest.mark.parametrize("channel", ["cache", "text"])
def test_a_loop_that_forgets_resumes_in_the_middle_to_the_same_end(run, tmp_path, flow, policy, channel):
    text = growing(policy, channel)
    whole, _, _ = run(text, store=RunStore.create(tmp_path, "loop", {}))
    (folder,) = tmp_path.iterdir()
    log = folder / "results.jsonl"
    wanted = {unit: (record.answer, record.result.memory) for unit, record in read_results(folder).items()}
    gone = ["act[4]/actor", "act[5]/actor"]
    kept = [line for line in log.read_text().splitlines() if json.loads(line)["node"] not in gone]
    log.write_text("".join(f"{line}\n" for line in kept))
    again, events, _ = run(text, store=RunStore.open(folder))
    assert [e.node for e in events if e.kind == "node_finished"] == gone
    assert [node for node, _ in remembered(events)] == gone  # what was done before is not told again
    assert again.outputs == whole.outputs
    found = {unit: (record.answer, record.result.memory) for unit, record in read_results(folder).items()}
    assert {unit: answer for unit, (answer, _) in found.items()} == {
        unit: answer for unit, (answer, _) in wanted.items()
    }
    for unit, (_, memory) in found.items():
        before = wanted[unit][1]
        assert (memory and (memory.dropped, memory.kept)) == (before and (before.dropped, before.kept))

    other = bind(flow(text.replace(str(LIMIT), str(LIMIT + 1))))
    told = rehearse(other, [("x", {"rounds": 6})], seed=0, stored=read_results(folder))
    assert (told[0].verdict, told[0].because) == ("runs", "asked otherwise now: memory")


def test_what_a_reader_was_given_is_the_oldest_turn_of_who_goes_on_with_it(run):
    text = SHARED.replace("POLICY", "drop_oldest")
    _, _, turns = run(text, inputs={}, options=RunOptions(max_batch=1))
    plan, _ = turns["few"]
    assert [turn.role for turn in plan.turns] == ["system", "user"]
    assert plan.turns[1].content == "what is the code of room three"  # and not merged with what was read


def test_answers_with_a_schema_are_asked_for_again_within_a_compacted_conversation(run):
    text = SHARED.replace("POLICY", "compact").replace(
        "map: {over: [one, two, three]}", "output: {schema: {type: object}, attempts: 2}, on_error: skip"
    )
    result, _, _ = run(text.replace("{{ nodes.few.texts }}", "none").replace("{{ item }}", "one"), inputs={})
    assert result.errors == {}
    assert "no answer that fits its schema" in result.skipped["x/few"]


def problems(text):
    with pytest.raises(WorkflowError) as caught:
        bind(parse_workflow(text))
    return str(caught.value)


def test_a_memory_that_can_never_hold_a_turn_is_refused_before_the_run(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    config = {"model_type": "mistral", "max_position_embeddings": 128, "sliding_window": 12}
    (folder / "config.json").write_text(json.dumps(config))
    text = growing("compact").replace("MODEL", f"{{source: '{folder}', model: small}}")
    told = problems(text)
    assert "<text>:5:" in told
    assert "agents.a.memory.max_tokens: the model 'small' has 128 positions, fewer than 150. Write 128 or less" in told
    assert "agents.a.memory.policy: 'small' has sliding-window layers, whose positions can't be dropped" in told
    told = problems(text.replace(str(LIMIT), "6").replace("compact", "fail"))
    assert "'act.actor' may answer with 6 tokens, which leaves no room for what it is asked. Raise it, or lower" in told
    told = problems(text.replace("compact", "drop_oldes"))
    assert "agents.a.memory.policy" in told
    assert "drop_oldest" in told
