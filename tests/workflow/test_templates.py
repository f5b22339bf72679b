from __future__ import annotations

import time
from typing import Any

import pytest

from agentflow.errors import UserError
from agentflow.workflow import TemplateError, evaluate, names, render, render_value

CONTEXT: dict[str, Any] = {
    "inputs": {
        "question": "{{ 7 * 7 }} {% raw %}",
        "documents": [{"title": "T1", "text": "a"}, {"title": "T2", "text": "b"}],
        "n": 3,
    },
    "nodes": {"items": {"text": "node text"}, "read": {"text": "read text"}},
}


def test_prompts_are_filled_in() -> None:
    template = "{% for d in inputs.documents %}{{ d.title }}: {{ d.text }}\n{% endfor %}end\n"
    assert render(template, CONTEXT) == "T1: a\nT2: b\nend\n"


def test_values_are_never_rendered_again_nor_escaped() -> None:
    assert render("{{ inputs.question }}", CONTEXT) == "{{ 7 * 7 }} {% raw %}"
    assert render("{{ '<b> & \"' }}", CONTEXT) == '<b> & "'


def test_text_without_tags_is_returned_as_it_stands() -> None:
    assert render("a }} b\n", {}) == "a }} b\n"


def test_block_tags_on_their_own_lines_leave_no_blank_lines() -> None:
    template = "Passages:\n{% for d in inputs.documents %}\n  {{ d.title }}\n{% endfor %}\nEnd.\n"
    assert render(template, CONTEXT) == "Passages:\n  T1\n  T2\nEnd.\n"


def test_keys_come_before_methods_of_mappings() -> None:
    assert render("{{ nodes.items.text }}", CONTEXT) == "node text"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ inputs.documents | map(attribute='title') | join(', ') }}", "T1, T2"),
        ("{{ inputs.documents | join('; ', attribute='text') }}", "a; b"),
        ("{{ {'a': 'é<'} | tojson }}", '{"a": "é<"}'),
        ("{{ '%.2f' | format(3.14159) }} {{ '%s!' % 'x' }}", "3.14 x!"),
        ("{{ 'a' ~ 1 ~ 'b' }}", "a1b"),
        ("{{ 'banana'.replace('a', 'o') }} {{ 'banana' | replace('a', 'o', 1) }}", "bonono bonana"),
        ("{{ inputs.n * 2 + 1 }} {{ 2 ** 10 }} {{ 7 // 2 }} {{ 'ab' * 2 }} {{ [1] + [2] }}", "7 1024 3 abab [1, 2]"),
        ("{{ inputs.nothing | default('none') }}", "none"),
        ("{{ range(3) | list }} {{ dict(a=1).a }}", "[0, 1, 2] 1"),
        ("{% set ns = namespace(n=0) %}{% for d in [1, 2] %}{% set ns.n = ns.n + d %}{% endfor %}{{ ns.n }}", "3"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('a') }}{{ m('b') }}", "<a><b>"),
        ("{% for x in [1, [2, 3]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        ("{% for d in [7, 8] %}{{ loop.index }}/{{ loop.length }}{{ loop.cycle(7, 8) }} {% endfor %}", "1/27 2/28 "),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x }}{% filter upper %}b{% endfilter %}", "a1B"),
        ("{{ 'a b'.split()[1].upper() }} {{ 'x'.center(3) }}|", "B  x |"),
        ("{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}x{% endcall %}", "<x>"),
        ("{{ 1 in [1] }} {{ 'a' not in 'abc' }} {{ 1 < 2 < 3 }} {{ 3 is odd }}", "True False True True"),
        ("{{ 'abc'[::-1] }} {{ [3, 1] | sort | first }}", "cba 1"),
    ],
)  # fmt: skip
def test_the_language_works(template: str, text: str) -> None:
    assert render(template, CONTEXT) == text


@pytest.mark.parametrize(
    ("template", "fragment"),
    [
        ("{{ question }}", "'question' is not defined"),
        ("{{ inputs.qestion }}", "there is no 'qestion' here. Did you mean 'question'?"),
        ("{{ inputs.documents[9] }}", "there is no '9' in a list of 2"),
        ("{{ inputs.documents[0].titel }}", "Did you mean 'title'?"),
        ("a\n\n{{ nope }}", "line 3 of the template: 'nope' is not defined"),
        ("{{ 1 / 0 }}", "the template failed: division by zero"),
        ("{{ 1 + 'a' }}", "the template failed: unsupported operand"),
        ("{% for x in y %}", "{% for %} is never closed. Add {% endfor %}."),
        ("{{ x y }}", "expected '}}', got 'y'"),
        ("{{ x", "unexpected end of text"),
        ("{% foo %}", "unknown tag 'foo'"),
        ("{{ 'a' | uper }}", "unknown filter 'uper'. Did you mean 'upper'?"),
        ("{{ 1 is evn }}", "Did you mean 'even'?"),
        ("{% include 'secrets' %}", "can't read other files"),
        ("{% import 'a' as b %}", "can't read other files"),
        ("{% from 'a' import b %}", "can't read other files"),
        ("{% extends 'a' %}", "can't read other files"),
        ("{{ [1, 2] | random }}", "unknown filter 'random'"),
        ("{{ lipsum() }}", "'lipsum' is not defined"),
    ],
)
def test_mistakes_are_told_with_their_place(template: str, fragment: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render(template, CONTEXT, where="flow.yaml:3:4")
    assert str(caught.value).startswith("flow.yaml:3:4: ")
    assert fragment in str(caught.value)
    assert isinstance(caught.value, UserError)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__'] }}",
        "{{ inputs | attr('__class__') }}",
        "{{ inputs.documents.append(1) }}",
        "{{ inputs.update({'a': 1}) }}",
        "{{ inputs.pop('n') }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '{a}'.format_map({'a': 1}) }}",
        "{{ range.__init__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ (1).to_bytes(4, 'big') }}",
        "{{ ''.encode().hex() }}",
        "{{ self._TemplateReference__context }}",
        "{{ dict.mro() }}",
        "{{ render.__globals__ }}",
        "{% macro m() %}{% endmacro %}{{ m.__globals__ }}",
        "{% macro m() %}{% endmacro %}{{ m._func }}",
        "{% for x in [1] %}{{ loop.__init__ }}{% endfor %}",
    ],
)
def test_attacks_on_python_are_refused(template: str) -> None:
    with pytest.raises(TemplateError):
        render(template, CONTEXT)
    assert CONTEXT["inputs"]["n"] == 3


GROW = "{% set ns = namespace(s=START) %}{% for i in range(100) %}BODY{% endfor %}END"


def grow(body: str, end: str = "", start: str = "'ab'") -> str:
    return GROW.replace("START", start).replace("BODY", body).replace("END", end)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10 ** 10 }}",
        "{{ 10 ** 10 * 'a' }}",
        "{{ [1] * 10 ** 9 }}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '%*d' % (10 ** 10, 1) }}",
        "{{ '%.10000000000f' | format(1) }}",
        "{{ 'a'.center(10 ** 10) }}",
        "{{ 'a'.ljust(10 ** 10) }}",
        "{{ 'a'.zfill(10 ** 10) }}",
        "{{ 'a\\tb'.expandtabs(10 ** 10) }}",
        "{{ 'a' | indent(10 ** 10) }}",
        "{{ [1] | batch(10 ** 9, 'x') | list }}",
        "{{ [1] | slice(10 ** 9) | list }}",
        "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}",
        "{{ ('x' * 1000000) | replace('x', 'y' * 1000000) }}",
        "{{ ('x' * 1000000).join(['a'] * 100000) }}",
        "{{ (['a'] * 100000) | join('x' * 1000000) }}",
        "{{ range(10 ** 8) }}",
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% for a in range(100000) %}{{ 'x' * 100 }}{% endfor %}",
        "{% for a in range(1000) %}{{ range(100000) | list }}{% endfor %}",
        "{% for a in range(1000) %}{% set x = range(100000) | map('string') | list %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% for x in [[1]] recursive %}{{ loop(range(100000)) }}{% endfor %}",
        "{% set x = range(100000) | list %}{% for a in x %}{% if -1 in x %}{% endif %}{% endfor %}",
        "{% set x = range(100000) | list %}{% for a in x %}{% if a is in x %}{% endif %}{% endfor %}",
        "{% set x = range(100000) | list %}{% for a in x %}{% set y = x[:] %}{% endfor %}",
        "{% set x = range(100000) | list %}{% for a in x %}{% set y = x.count(a) %}{% endfor %}",
        "{% set x = 'x' * 4000000 %}{% for a in range(100000) %}{% set y = x.upper() %}{% endfor %}",
        "{% set x = range(100000) | list %}{{ x | select('in', x) | list | length }}",
        grow("{% set ns.s = ns.s ~ ns.s %}"),
        grow("{% set ns.s = ns.s + ns.s %}"),
        grow("{% set ns.s = ns.s * 2 %}"),
        grow("{% set ns.s = ns.s * ns.s %}", start="3"),
        grow("{% set ns.s = ns.s + ns.s %}", start="[1]"),
        grow("{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}"),
        grow("{% set ns.s = [ns.s, ns.s] %}", "{{ ns.s }}"),
        grow("{% set ns.s = [ns.s, ns.s] %}", "{{ ns.s | tojson }}"),
        grow("{% set ns.s = [ns.s, ns.s] %}", "{{ ns.s | string | length }}"),
        grow("{% set ns.s = [ns.s, ns.s] %}", "{{ '%s' % ns.s }}"),
        grow("{% set ns.s = {'a': ns.s, 'b': ns.s} %}", "{{ ns.s ~ '' }}"),
        "{{ " + "(" * 5000,
        "{{ " + "1+" * 5000 + "1 }}",
        "{{ " + "9" * 5000 + " }}",
        "{% for a in [1] %}" * 30 + "{% endfor %}" * 30,
    ],
)
def test_bombs_are_refused_quickly(template: str) -> None:
    begin = time.monotonic()
    with pytest.raises(TemplateError):
        render(template, CONTEXT)
    assert time.monotonic() - begin < 10


def test_large_honest_prompts_are_rendered() -> None:
    documents = [{"title": f"T{n}", "text": "word " * 2000} for n in range(300)]
    template = "{% for d in documents %}{{ d.title }}: {{ d.text | trim }}\n{% endfor %}"
    assert len(render(template, {"documents": documents})) > 2_900_000


def test_names_are_found_without_running() -> None:
    template = (
        "{{ inputs['a'] }} {% for n in nodes.read.texts %}{{ n.nodes.no }}{{ other.inputs }}{% endfor %}"
        "{% if inputs.b is defined %}{{ nodes['x'].text | default(inputs.c) }}{% endif %} nodes.plain"
    )
    expected = {("inputs", "a"), ("inputs", "b"), ("inputs", "c"), ("nodes", "read"), ("nodes", "x")}
    assert names(template) == expected
    assert names("no tags: inputs.a") == set()


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("inputs.documents", CONTEXT["inputs"]["documents"]),
        ("{{ inputs.documents }}", CONTEXT["inputs"]["documents"]),
        ("{{- inputs.n -}}", 3),
        ("-1", -1),
        ("{{ -1 }}", -1),
        ("inputs.documents | map(attribute='title') | list", ["T1", "T2"]),
        ("[1, 2] + [3]", [1, 2, 3]),
        ("none", None),
    ],
)
def test_expressions_give_values(expression: str, value: Any) -> None:
    assert evaluate(expression, CONTEXT) == value


@pytest.mark.parametrize(
    "expression",
    ["inputs.nope", "nope", "1 2", "", "x |", "[1] * 10 ** 9", "''.__class__", "1) %}{{ 2", "a }}{{ b"],
)
def test_wrong_expressions_are_refused(expression: str) -> None:
    with pytest.raises(TemplateError):
        evaluate(expression, CONTEXT)


def test_a_template_of_one_expression_may_keep_its_type() -> None:
    assert render_value("{{ inputs.documents }}", CONTEXT) == CONTEXT["inputs"]["documents"]
    assert render_value("{{ inputs.n }}{{ inputs.n }}", CONTEXT) == "33"
    assert render_value("n: {{ inputs.n }}", CONTEXT) == "n: 3"
    assert render_value("plain", CONTEXT) == "plain"
