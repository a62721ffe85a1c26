"""text/templates.json: chat templates and what they render to.

    {now, templates: {name: text}, cases: [{template (a name), messages, add_generation_prompt, extra, rendered | error}]}

Rendered by the library's own template environment (trim_blocks, lstrip_blocks, loop controls, tojson without HTML
escaping, raise_exception). `extra` holds the other variables (tools, bos_token, ...). strftime_now is pinned to NOW.
The templates are written for this project in the manner of the common chat formats; between them they use what real
ones use: namespaces, macros, loop variables, slices, string methods, tests, filters, tojson with options, break.
"features-rare" holds what published templates hardly ever use (Python's way of printing lists, numbers and None).
"""
import datetime
import os

import jinja2
from transformers.utils.chat_template_utils import _compile_jinja_template

import oracle as o
from make_text import write_json

NOW = datetime.datetime(2026, 11, 29, 9, 5, 7)

T = {}
T["chatml"] = """{% for message in messages %}
{% if loop.first and message['role'] != 'system' %}
{{ '<|im_start|>system\\nBe helpful.<|im_end|>\\n' }}
{% endif %}
{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{% endif %}
"""
T["chatml-tools"] = """{%- set lead = messages[0].content if messages[0].role == 'system' else none %}
{%- if tools %}
    {{- '<|im_start|>system\\n' ~ (lead ~ '\\n\\n' if lead is not none else '') ~ 'Functions you may call, one JSON object a line:\\n<tools>' }}
    {%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif lead is not none %}
    {{- '<|im_start|>system\\n' ~ lead ~ '<|im_end|>\\n' }}
{%- endif %}
{%- set state = namespace(question=-1) %}
{%- for m in messages[::-1] %}
    {%- if state.question == -1 and m.role == 'user' and m.content is string and not m.content.startswith('<tool_response>') %}
        {%- set state.question = messages | length - loop.index %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- set body = m.content if m.content is string else '' %}
    {%- if m.role == 'tool' %}
        {%- if loop.previtem is not defined or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' ~ body ~ '\\n</tool_response>' }}
        {%- if loop.nextitem is not defined or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
    {%- elif m.role == 'assistant' %}
        {%- set thought = m.reasoning_content or '' %}
        {%- if not thought and '</think>' in body %}
            {%- set halves = body.split('</think>') %}
            {%- set thought, body = halves[0].split('<think>')[-1].strip('\\n'), halves[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > state.question and thought %}{{- '<think>\\n' ~ thought.rstrip('\\n') ~ '\\n</think>\\n\\n' }}{% endif %}
        {{- body }}
        {%- for call in m.tool_calls or [] %}
            {%- set f = call.function or call %}
            {{- '' if loop.first and not body else '\\n' }}
            {{- '<tool_call>\\n{"name": ' ~ f.name | tojson ~ ', "arguments": ' ~ (f.arguments if f.arguments is string else f.arguments | tojson) ~ '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif m.role == 'user' or not loop.first %}
        {{- '<|im_start|>' ~ m.role ~ '\\n' ~ body ~ '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' ~ ('<think>\\n\\n</think>\\n\\n' if enable_thinking is defined and enable_thinking is false else '') }}{% endif %}"""
T["llama3"] = """{%- macro part(role, text) %}<|start_header_id|>{{ role }}<|end_header_id|>{{ '\\n\\n' ~ text ~ '<|eot_id|>' }}{% endmacro %}
{{- bos_token }}
{%- if date_string is not defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}
{%- set system, turns = '', messages %}
{%- if messages[0]['role'] == 'system' %}{% set system, turns = messages[0]['content'] | trim, messages[1:] %}{% endif %}
{{- part('system', 'Today: ' ~ date_string ~ '\\n\\n' ~ system) }}
{%- if tools is defined and tools is not none %}
    {%- for t in tools %}{{ t | tojson(indent=4) ~ '\\n\\n' }}{% endfor %}
{%- endif %}
{%- for m in turns %}
    {%- if 'tool_calls' in m %}
        {%- if m.tool_calls | length != 1 %}{{ raise_exception('only one call may be made in a turn') }}{% endif %}
        {%- set f = m['tool_calls'][0]['function'] %}
        {{- part('assistant', '{"name": "' ~ f.name ~ '", "parameters": ' ~ f.arguments | tojson ~ '}') }}
    {%- elif m.role in ['tool', 'ipython'] %}
        {{- part('ipython', m.content | tojson if m.content is mapping else m.content) }}
    {%- else %}
        {{- part(m['role'], m['content'] | trim) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
"""
T["glm4"] = """{%- macro plain(c) -%}
{%- if c is none -%}
{%- elif c is string -%}{{ c }}
{%- elif c is iterable and c is not mapping -%}
{%- for piece in c -%}{%- if piece is string -%}{{ piece }}{%- elif piece.type == 'text' -%}{{ piece.text }}{%- endif -%}{%- endfor -%}
{%- else -%}{{ c }}{%- endif -%}
{%- endmacro -%}
{%- set quiet = enable_thinking is defined and not enable_thinking -%}
[gMASK]<sop>
{%- if tools -%}
<|system|>
# Functions
<tools>
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
</tools>
{%- endif -%}
{%- set mark = namespace(asked=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set mark.asked = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
{%- set text = plain(m.content) -%}
{%- if m.role == 'system' -%}<|system|>
{{ text }}
{%- elif m.role == 'user' -%}<|user|>
{{ text }}{{ '/nothink' if quiet and not text.endswith('/nothink') }}
{%- elif m.role == 'tool' -%}
{{- '<|observation|>' if loop.first or messages[loop.index0 - 1].role != 'tool' -}}
{{- '\\n<tool_response>\\n' ~ text ~ '\\n</tool_response>' -}}
{%- else -%}
<|assistant|>{{ '\\n<think>' ~ (m.reasoning_content.strip() if m.reasoning_content and loop.index0 > mark.asked) ~ '</think>' }}
{{- '\\n' ~ text.strip() if text.strip() }}
{%- for call in m.tool_calls or [] %}{% set f = call.function or call %}

<tool_call>{{ f.name }}
{% for name, value in f.arguments.items() %}
<arg_key>{{ name }}</arg_key>
<arg_value>{{ value if value is string else value | tojson(ensure_ascii=False) }}</arg_value>
{% endfor %}
</tool_call>
{%- endfor -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{{ '\\n<think></think>' if quiet }}{%- endif -%}"""
T["mistral"] = """{%- set system = messages[0]['content'] if messages[0]['role'] == 'system' %}
{%- set turns = messages[1:] if messages[0]['role'] == 'system' else messages %}
{{- bos_token }}
{%- for m in turns %}
    {%- if m['role'] not in ['user', 'assistant'] %}{{ raise_exception('no such role: ' ~ m['role']) }}{% endif %}
    {%- if loop.index0 is even != (m['role'] == 'user') %}{{ raise_exception('user and assistant must take turns') }}{% endif %}
    {%- if m['role'] == 'assistant' %}
        {{- ' ' + m['content'] | trim + eos_token }}
    {%- else %}
        {{- '[INST] ' + (system + '\\n\\n' if loop.last and system else '') + m['content'] + '[/INST]' }}
    {%- endif %}
{%- endfor %}
"""
T["gemma-like"] = """{{ bos_token }}
{%- set system = messages[0]['content'] ~ '\\n\\n' if messages[0]['role'] == 'system' else '' %}
{% for m in messages %}
  {% if m['role'] == 'system' %}
    {% continue %}
  {% endif %}
  {{- '<start_of_turn>' ~ {'assistant': 'model'}.get(m['role'], m['role']) ~ '\\n' -}}
  {% if m['role'] == 'user' and system %}{{ system }}{% set system = '' %}{% endif %}
  {%- for piece in ([{'type': 'text', 'text': m['content']}] if m['content'] is string else m['content']) %}
    {%- if piece['type'] != 'text' %}{% continue %}{% endif %}
    {{- piece['text'] | trim }}
    {%- if piece.get('stop', false) %}{% break %}{% endif %}
  {%- endfor %}
  {{- '<end_of_turn>' }}
{% endfor %}
{%- if add_generation_prompt %}
{{ '<start_of_turn>model\\n' }}
{%- endif %}
"""
T["features"] = """{#- comments vanish -#}
{%- set names = messages | map(attribute='role') | list -%}
{{ names | join(', ') }}|{{ names | unique | list | length }}|{{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{% for n in names | reject('equalto', 'system') %}{{ loop.index }}/{{ loop.length }}:{{ n | upper }}{{ "" if loop.last else ";" }}{% endfor %}

{{ {'k': 'v"<>&é', 'n': [1.5, {}], 'e': []} | tojson }}
{{ {'b': 1, 'a': {'x': [1, 2]}} | tojson(indent=2) }}
{{ missing is defined }} {{ missing | default('d') }} {{ '' or 'fallback' }} {{ missing }}|{{ none | default('x', true) }}
{{ " a b ".strip() }}|{{ "abcabc".replace("b", "-") }}|{{ "a,b,c".split(",")[1:] | join('+') }}|{{ "abc"[::-1] }}|{{ "x".join(["1", "2"]) }}|{{ "a" in "cat" }}|{{ 3 in [1, 2] }}|{{ "abc"[-1] }}
{% set outer = 1 %}{% for i in range(3) %}{% set outer = outer + i %}{% endfor %}{{ outer }} {% set ns = namespace(n=1) %}{% for i in range(1, 6, 2) %}{% set ns.n = ns.n * (i + 1) %}{% endfor %}{{ ns.n }}
{%- for k, v in {'one': 1, 'two': 2}.items() %} {{ k }}={{ v }}{% else %}none{% endfor %}{% for x in [] %}{% else %} empty{% endfor %}{% for m in messages if m.role != 'user' %} {{ loop.index0 }}{{ m.role }}{% endfor %}
{% macro hi(name, mark='!') %}hi {{ name }}{{ mark }}{% endmacro %}{{ hi('you') }}{{ hi('me', mark='?') }} {% if 1 < 2 <= 2 and not false %}yes{% elif x %}no{% endif %} {% raw %}{{ raw }}{% endraw %} {{- '   tight' -}}   
   {% generation %}{{ messages[-1].content }}{% endgeneration %} {{ strftime_now('%Y-%m-%d') }} {{ messages | length > 1 }} {{ 'é<' | length }} {{ [1, 2] | first + 3 }} {{ 'x' ~ 1 }} {{ 'a' if false }}.
"""
T["features-rare"] = """{{ "%s-%03d" | format("x", 7) }} {{ 7 // 2 }} {{ 7 / 2 }} {{ 2 ** 5 }} {{ -7 % 3 }} {{ 1.0 }} {{ true }} {{ none }} {{ [1, 'a', none, true] }} {{ {'k': 'v"<>&', 'n': [1.5]} }}
{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }} {{ "Title case".title() }}|{{ "ab" * 2 }}
{% filter upper %}filtered {{ 'text' }}{% endfilter %} {{ ('a', 'b') | last }} {{ [3, 1, 2] | sort | first }} {{ "a\\nb" | indent(2) }} {{ 'abc' | capitalize }} {{ [1, 2] + [3] }} {{ 5 | string + '5' }} {{ '7' | int + 1 }} {{ 'x' ~ none }} {{ strftime_now('%H:%M:%S %A %-d %B') }}
"""

SYS = {"role": "system", "content": "  You are terse. "}
U1, A1, U2 = {"role": "user", "content": "Hi <b>\"there\"</b> & 'all'"}, {"role": "assistant", "content": " Hello! "}, {"role": "user", "content": "2+2?\n"}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds <two> numbers & \"more\" é 学", "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number", "default": 1.5}}, "required": ["a"]}}}]
CALL = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2.0, "note": "é<>", "deep": {"k": [None, True]}}}}]}
CALL2 = {"role": "assistant", "content": "Two:", "tool_calls": CALL["tool_calls"] * 2}
RES = {"role": "tool", "content": "{\"sum\": 4}"}
THINK = {"role": "assistant", "content": "<think>\nmaybe 4\n</think>\n\nIt is 4."}
REASON = {"role": "assistant", "reasoning_content": " add them ", "content": "4"}
PARTS = {"role": "user", "content": [{"type": "text", "text": " one "}, {"type": "image"}, {"type": "text", "text": "two", "stop": True}, {"type": "text", "text": "three"}]}
B = {"bos_token": "<s>", "eos_token": "</s>"}

CASES = [
    ("chatml", [U1], True, {}), ("chatml", [SYS, U1, A1, U2], True, {}), ("chatml", [SYS, U1, A1], False, {}),
    ("chatml-tools", [SYS, U1, A1, U2], True, {}), ("chatml-tools", [SYS, U1], True, {"tools": TOOLS, "enable_thinking": False}),
    ("chatml-tools", [U1, CALL, RES, RES, THINK, U2], True, {"tools": TOOLS}), ("chatml-tools", [U1, CALL2, RES, REASON], False, {"tools": TOOLS}),
    ("llama3", [SYS, U1, A1, U2], True, B), ("llama3", [U1], False, B | {"date_string": "26 Jul 2024", "tools": None}),
    ("llama3", [U1, CALL, {"role": "tool", "content": {"sum": 4}}], True, B | {"tools": TOOLS}), ("llama3", [U1, CALL2], True, B | {"tools": None}),
    ("glm4", [U1], True, {}), ("glm4", [SYS, U1, A1, U2], True, {"enable_thinking": False}), ("glm4", [SYS, PARTS, CALL, RES, RES, REASON], False, {"tools": TOOLS}),
    ("glm4", [U1, REASON, U2, CALL2, RES], True, {"tools": TOOLS, "enable_thinking": True}), ("glm4", [U1, {"role": "assistant", "content": None}], False, {}),
    ("mistral", [SYS, U1, A1, U2], False, B), ("mistral", [U1, A1, U2], True, B), ("mistral", [U1, U2], False, B), ("mistral", [U1, RES], False, B),
    ("gemma-like", [SYS, U1, A1, U2], True, B), ("gemma-like", [PARTS, A1, PARTS], True, B),
    ("features", [SYS, U1, A1, U2], True, {}), ("features-rare", [U1], True, {}),
]


def render(name, messages, gen, **extra):
    return _compile_jinja_template(T[name]).render(
        messages=messages, add_generation_prompt=gen, strftime_now=lambda f: NOW.strftime(f), **extra)


def main():
    out = []
    for name, messages, gen, extra in CASES:
        row = {"template": name, "messages": messages, "add_generation_prompt": gen, "extra": extra}
        try:
            row["rendered"] = render(name, messages, gen, **extra)
        except jinja2.exceptions.TemplateError as e:
            row["error"] = str(e)
        out.append(row)
    write_json(os.path.join(o.FIXTURES, "text"), "templates.json", {"now": NOW.isoformat(), "templates": T, "cases": out})
    for r in out:
        print(f"--- {r['template']}\n{r.get('rendered', 'ERROR ' + r.get('error', ''))}")


if __name__ == "__main__":
    main()
