"""The environment that templates expect, and what a hostile one is kept from."""

import re
import time

import pytest

from haaw.errors import BadInputError
from haaw.tokenizers import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<b>&'\"é"}]


def render(source: str) -> str:
    return ChatTemplate(source, bos_token="<s>").render(MESSAGES)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ messages[1].content | tojson }}", '"<b>&\'\\"é"'),
        ("{{ {'b': 1, 'a': [true, none]} | tojson(indent=2) }}", '{\n  "b": 1,\n  "a": [\n    true,\n    null\n  ]\n}'),
        ("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}"
         "{{ i }}{% endfor %}", "013"),
        ("a\n{% if true %}\n  b\n{% endif %}\nc", "a\n  b\nc"),
        ("  {% if true %}x{% endif %}", "x"),
        ("[{{ nothing }}]", "[]"),
        ("{{ nothing is defined }}{{ tools is none }}", "FalseTrue"),
        ("{% generation %}said{% endgeneration %}", "said"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f('a') ~ f('b') ~ 1 }}", "<a><b>1"),
        ("{{ messages | map(attribute='role') | join(', ') }}", "user, assistant"),
        ("{{ 'ab' * 2 }}{{ 2 ** 5 }}{{ 7 % 3 }}{{ 'n%s' % 1 }}{{ '%s' | format(2) }}", "abab321n12"),
        ("{{ messages[0]['content'].replace('h', 'H') | trim }}{{ '-'.join(['a', 'b']) }}", "Hia-b"),
        ("{{ bos_token }}{{ eos_token }}", "<s>"),
        ("{{ messages[:1] | length }}{{ messages[1:] | length }}", "11"),
    ],
)  # fmt: skip
def test_templates_find_what_transformers_gives_them(source: str, text: str) -> None:
    assert render(source) == text


@pytest.mark.oracle
def test_renders_are_those_of_transformers() -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    for source in (
        "{%- for m in messages %}\n    {{- m.role }}: {{ m.content | trim }}\n{% endfor %}",
        "{% if not tools %}\n  none\n{% endif %}{{ messages | tojson(indent=4) }}",
        "{% for m in messages %}{{ loop.index0 }}{{ loop.last }}{{ m.get('x', 'y') }}{% endfor %}\n\n",
        "{{ messages[0].missing }}|{{ messages[-1]['content'][1:] }}|{{ 'A' if messages else 'B' }}",
    ):
        theirs = utils._compile_jinja_template(source).render(messages=MESSAGES, tools=None, bos_token="<s>")
        assert render(source) == theirs


def test_the_date_is_that_of_the_render() -> None:
    assert re.fullmatch(r"\d\d \w+ \d{4}", render("{{ strftime_now('%d %B %Y') }}"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses these messages: roles must alternate"),
        ("{{ nothing | tojson }}", "not JSON serializable"),
        ("{{ nothing.more }}", "'nothing' is undefined"),
        ("{{ messages[0].content.nope() }}", "nope"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ messages | unknown_filter }}", "unknown_filter"),
        ("{% if %}", r"not valid: .*line 1"),
        ("{% include 'x' %}", "failed"),
        ("{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}", "too deeply"),
    ],
)
def test_a_failure_carries_the_template_s_own_message(source: str, message: str) -> None:
    """S30: template problems surfaced as internal errors, or a helper was missing."""
    with pytest.raises(BadInputError, match=message):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages['__class__'] }}",
        "{{ messages | attr('__class__') }}",
        "{{ messages | map(attribute='__class__') | list }}",
        "{{ raise_exception.__globals__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ ''.format_map({}).__class__ }}",
        "{{ self.__init__ }}",
    ],
)
def test_a_template_reaches_nothing_but_its_values(source: str) -> None:
    with pytest.raises(BadInputError, match="chat template"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ range(10 ** 9) | list }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% macro f(n) %}{% if n %}{% set a = f(n - 1) %}{% set b = f(n - 1) %}{% endif %}{% endmacro %}{{ f(90) }}",
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ 10 ** 10 * 'a' }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"
        "{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=2) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x | replace('a', 'aaaa') %}"
        "{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x.replace('a', 'aaaa') %}"
        "{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x.join([ns.x, ns.x]) %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] | join(ns.x) %}"
        "{% endfor %}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ 'a' | center(999999999) }}",
        "{{ 'a' | indent(999999999, true) }}",
        "{{ 'a'.ljust(999999999) }}",
        "{{ 'a'.zfill(99999) }}",
        "{{ [1] | batch(999999999, 0) | list }}",
        "{{ messages | tojson(indent=999999999) }}",
        "{{ strftime_now('%999999999d') }}",
        "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
        "{{ lipsum(n=99999) }}",
    ],
)
def test_a_hostile_template_ends_soon_and_stays_small(source: str) -> None:
    start_s = time.process_time()
    with pytest.raises(BadInputError, match="chat template"):
        render(source)
    assert time.process_time() - start_s < 6


def test_a_source_that_is_no_template_text_is_refused() -> None:
    with pytest.raises(BadInputError, match="must be a string, not int"):
        ChatTemplate(3)  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match="1000001 characters"):
        ChatTemplate("x" * 1_000_001)


def test_a_failed_render_does_not_harm_the_next() -> None:
    template = ChatTemplate("{% for i in range(n) %}{% for j in range(n) %}{% endfor %}{% endfor %}done")
    with pytest.raises(BadInputError):
        template.render(MESSAGES, variables={"n": 1_000})
    assert template.render(MESSAGES, variables={"n": 2}) == "done"
