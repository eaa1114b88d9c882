"""Writes chat_templates.json: small templates that use the Jinja subset of kvant, and what Jinja2 renders for them.

Usage: make_chat_templates.py [OUTPUT]; needs the Python package 'jinja2'.
"""

# ruff: noqa: E501 - a template reads best on one line.
import json
import sys
from pathlib import Path

from compare_chat_templates import expected

MESSAGES = [
    {"role": "system", "content": "  Be brief.\n"},
    {"role": "user", "content": 'What\'s "up"?\n\u00e9\u3000'},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nNot much."},
    {"role": "user", "content": "a,b,,c"},
]

TEMPLATES = {
    "text only": "hello\n",
    "trailing newlines": "hello\n\n",
    "blocks eat their line": "a\n  {% if true %}\n  b\n  {% endif %}\nc\n",
    "output keeps its line": "a\n  {{ 1 }}\n\nb",
    "minus on all sides": "a \n {%- if true -%} \n b \n {%- endif -%} \n c {{- ' d ' -}} e",
    "plus keeps": "a\n  {%+ if true +%}\n b{% endif %}",
    "comments": "a\n  {# gone #}\nb {#- gone -#} c\n{# x #}d",
    "carriage returns": "a\r\n{% if true %}\r\nb\r{% endif %}",
    "nested if": "{% if 0 %}a{% elif '' %}b{% elif [] %}c{% else %}d{% endif %}",
    "chat": "{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "loop fields": "{% for x in [5,6,7] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}"
    "{{ loop.previtem is defined }}{{ loop.nextitem }}{{ loop.depth }};{% endfor %}",
    "loop else, filter, break": "{% for x in [] %}a{% else %}none{% endfor %}{% for x in range(9) if x % 2 %}{% if x > 5 %}{% break %}{% endif %}{{ x }}{% endfor %}"
    "{% for x in [1,2,3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "loop over pairs": "{% for k, v in {'a': 1, 'b': [2, 'x']}.items() %}{{ k }}={{ v }} {% endfor %}{% for k in {'z': 1} %}{{ k }}{% endfor %}",
    "loop cycle": "{% for x in range(4) %}{{ loop.cycle('a', 'b', 'c') }}{% endfor %}",
    "set does not leave loops": "{% set x = 1 %}{% for i in [1,2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}",
    "set leaves if": "{% if true %}{% set y = 2 %}{% endif %}{{ y }}",
    "namespace": "{% set ns = namespace(n=0, seen=false) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.n = ns.n + 1 %}{% set ns.seen = true %}{% endif %}{% endfor %}{{ ns.n }}{{ ns.seen }}",
    "set block and tuple": "{% set a, b = 1, 'two' %}{{ a }}{{ b }}{% set c %}<{{ a }}>{% endset %}{{ c | length }}{{ c }}",
    "macro": "{% macro tag(name, body='-', n=2) %}<{{ name }}>{{ body * n }}</{{ name }}>{% endmacro %}{{ tag('a') }}{{ tag('b', n=1, body='x') }}{{ tag('c', 'y') | upper }}",
    "macro sees globals": "{% set g = 'G' %}{% macro m() %}{{ g }}{{ bos_token }}{% endmacro %}{% for i in [1] %}{{ m() }}{% endfor %}",
    "recursive macro": "{% macro down(n) %}{{ n }}{% if n > 0 %}{{ down(n - 1) }}{% endif %}{% endmacro %}{{ down(3) }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.role[0] }}{% endgeneration %}{% endfor %}",
    "arithmetic": "{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 1.5 + 1 }} {{ 4 / 2 }} {{ -3 | abs }} {{ 10 - 2 - 3 }} {{ 1e3 if false else 2.50 }}",
    "comparison": "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ 1 == 1.0 }} {{ 'a' != 'b' }} {{ 3 >= 3 }} {{ true == 1 }} {{ [1, 2] == [1, 2] }} {{ none == false }}",
    "logic": "{{ not true or true and false }} {{ '' or 'x' }} {{ 'a' and 'b' }} {{ not not 1 }} {{ 1 if x else 2 }} [{{ 'yes' if x }}]",
    "membership": "{{ 'b' in 'abc' }} {{ 1 in [1] }} {{ 'k' in {'k': 1} }} {{ 'z' not in 'abc' }} {{ not 'a' in 'abc' }} {{ 'content' in messages[0] }}",
    "concatenation": "{{ 'a' ~ 1 ~ none ~ true ~ 1.0 }} {{ 'a' + 'b' ~ 'c' }} {{ 'a' 'b' }} {{ [1] + [2] }} {{ '-' * 3 }}",
    "literals": "{{ [1, 'a', none, true, (1,), (1, 2), {'k': \"it's\"}] }} {{ \"a\\n\\t\\\"\\\\\\u00e9\\x41\\q\" }} {{ () }} {{ {} }}",
    "indices": "{{ messages[-1].content }} {{ messages[9] is defined }} {{ 'h\u00e9llo'[1] }} {{ [1,2,3][-2] }} {{ {'a': 1}['b'] is undefined }} {{ messages[0]['role'] }}",
    "slices": "{{ [1,2,3,4][1:] }} {{ [1,2,3,4][:-1] }} {{ [1,2,3,4][::-1] }} {{ 'h\u00e9llo'[1:3] }} {{ 'hello'[::2] }} {{ [1,2,3][5:] }} {{ 'abc'[-2:] }} {{ messages[1:] | length }}",
    "text filters": "{{ ' x ' | trim }}|{{ 'aXb' | upper }}|{{ 'AXb' | lower }}|{{ 'hELLO' | capitalize }}|{{ 'a-b-c' | replace('-', '+') }}|{{ 12 | string | length }}|{{ '\u00e9\u00e9' | length }}|{{ 'xxaxx' | trim('x') }}",
    "list filters": "{{ [3,1,2] | join(', ') }} {{ [1,2] | first }} {{ [1,2] | last }} {{ 'abc' | list }} {{ 'abc' | reverse }} {{ [2,1,3] | sort }} {{ ['b','A','c'] | sort(reverse=true) }} {{ [1,1,2] | unique | list }} {{ [1,2] | length }}",
    "default": "{{ x | default('d') }} {{ '' | default('d') }} {{ '' | default('d', true) }} {{ none | default('d') }} {{ x | d(boolean=true, default_value=3) }}",
    "tojson": "{{ messages | tojson }}\n{{ {'a': [1, none, true, 2.5, \"q'\\\"\"], 'b': {}} | tojson(indent=2) }}\n{{ [] | tojson(indent=4) }} {{ {'a': 1, 'b': 2} | tojson(separators=(',', ':')) }}",
    "numbers": "{{ '12' | int + 1 }} {{ 'x' | int }} {{ 3.9 | int }} {{ '2.5' | float }} {{ 7 | float }} {{ true | int }}",
    "indent filter": "{{ 'a\\nb\\n\\nc' | indent(2) }}|{{ 'a\\nb' | indent(3, true) }}",
    "select": "{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', 'eq', 'user') | map(attribute='role') | join(',') }} {{ [0,1,2] | select('odd') | list }}"
    " {{ ['a', ' b '] | map('trim') | join('|') }} {{ messages | map(attribute='role') | unique | list }}",
    "dict": "{% set d = {'b': 1, 'a': 2} %}{{ d | dictsort }} {{ d.items() | list }} {{ d.keys() | list }} {{ d.values() | list }} {{ d.get('a') }} {{ d.get('z', 9) }} {{ d.get('z') }} {{ dict(x=1) }} {{ d | items | list }}",
    "tests": "{{ x is defined }} {{ x is not defined }} {{ none is none }} {{ 'a' is string }} {{ {} is mapping }} {{ [] is iterable }} {{ [] is sequence }} {{ 1 is number }} {{ 1 is integer }} {{ 1.5 is float }}"
    " {{ true is true }} {{ 1 is true }} {{ false is false }} {{ true is boolean }} {{ 3 is odd }} {{ 4 is even }} {{ 6 is divisibleby 3 }} {{ 6 is divisibleby(4) }} {{ 1 is eq 1 }} {{ 2 is in [1, 2] }} {{ tools is none }}",
    "string methods": "{{ ' a '.strip() }}|{{ 'xax'.lstrip('x') }}|{{ 'xax'.rstrip('x') }}|{{ 'abc'.startswith('ab') }}|{{ 'abc'.endswith(('x', 'c')) }}|{{ 'a,b,,c'.split(',') }}|{{ ' a  b '.split() }}|{{ 'a b c'.split(' ', 1)[1] }}"
    "|{{ 'aa'.replace('a', 'b') }}|{{ 'aaa'.replace('a', 'b', 2) }}|{{ 'ab'.upper() }}|{{ 'AB'.lower() }}|{{ 'hello wORLD'.title() }}|{{ 'hELLO'.capitalize() }}",
    "message text": "{{ messages[2].content.split('</think>')[-1].lstrip('\\n') }}|{{ messages[1].content | trim }}|{{ messages[3].content.split(',') | join('+') }}|{{ (messages[0].content | trim)[:2] }}",
    "undefined prints nothing": "[{{ x }}][{{ messages[0].nothing }}][{% for i in x %}a{% endfor %}][{{ x | length }}]",
    "undefined fields fail": "{{ x.y }}",
    "undefined arithmetic fails": "{{ x + 1 }}",
    "raise": "{{ raise_exception('Conversation roles must alternate') }}",
    "min and max": "{{ [3, 1, 2] | min }}{{ [3, 1, 2] | max }}{{ ['b', 'A', 'a'] | min }}{{ ['b', 'B'] | max }}[{{ [] | max }}]{{ 'bca' | min }}",
    "min of mixed types fails": "{{ [1, 'a'] | min }}",
    "format": "{{ '<{}|{}>'.format(1, messages[0].role) }}{{ '{1}{0}{{}}'.format('a', 'b') }}",
    "format with too few arguments fails": "{{ '{}{}'.format(1) }}",
    "lists cannot be changed": "{% set x = [1] %}{{ x.append(2) }}",
    "nor shortened": "{% set x = [1] %}{% if messages %}{{ x.pop(0) }}{% endif %}",
    "raise is not reached": "{% if false %}{{ raise_exception('no') }}{% endif %}ok",
    "date": "{{ strftime_now('%d %b %Y') }} {{ strftime_now is defined }}",
    "braces": "{{ {'a': {'b': 1}}['a']['b'] }} {% if {'a': 1} %}x{% endif %} } }} {",
    "negative and filters": "{{ -1 | abs }} {{ (-5) | abs }} {{ 2 - 3 | abs }} {{ 'a' ~ 'b' | upper }} {{ 1 + 2 | string | length }}",
    "mixed types fail": "{{ 'a' + 1 }}",
    "order of none fails": "{{ none < 1 }}",
}


def main() -> None:
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("chat_templates.json")
    cases = []
    for name, source in TEMPLATES.items():
        request = {"messages": MESSAGES, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
        cases.append({"name": name, "template": source, "expected": expected(source, request)})
    lines = ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
    output.write_text(f'{{"messages": {json.dumps(MESSAGES)},\n"cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
