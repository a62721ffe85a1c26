"""Published chat templates: does `calypte template` render what Python's Jinja2 renders?

    python check_templates.py CALYPTE WORK_DIRECTORY --llama LLAMA_CPP [--only TEXT] [--verbose]

The templates are llama.cpp's models/templates/*.jinja and those in the packages that check_tokenizers.py fetched into
WORK_DIRECTORY. They belong to their authors; none is committed. The reference is transformers' own template environment
(trim_blocks, lstrip_blocks, loop controls, its tojson, raise_exception, strftime_now, generation tags), with the clock
pinned. Every template gets every case; a template may refuse a case or fail on it, and then Calypte must, too:

    equal      the same text
    refused    both stopped at raise_exception, with the same message
    failed     both failed otherwise (an undefined value, a wrong type)
    DIFFERENT  anything else
"""
import argparse
import datetime
import glob
import json
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

import jinja2
from transformers.utils.chat_template_utils import _compile_jinja_template

NOW = datetime.datetime(2026, 11, 29, 9, 5, 7)
NOW_SECONDS = 1_795_943_107

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather <now> & \"later\" in a city; é 学.", "parameters": {"type": "object", "properties": {
    "city": {"type": "string", "description": "City, e.g. Köln"}, "unit": {"type": "string", "enum": ["C", "F"], "default": "C"}, "days": {"type": "integer", "minimum": 1}}, "required": ["city"]}}}
ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": ["number", "null"]},
    "list": {"type": "array", "items": {"type": "string"}, "description": "a\nlist"}, "deep": {"type": "object", "properties": {"x": {"type": "boolean"}}}}, "required": []}, "return": {"type": "number", "description": "sum"}}}
NOTHING = {"type": "function", "function": {"name": "noop", "description": "", "parameters": {"type": "object", "properties": {}}}}


def user(text="Hi <b>\"there\"</b> & 'all'"):
    return {"role": "user", "content": text}


def call(name="get_weather", arguments=None, content="", id="call00001", **more):
    return {"role": "assistant", "content": content, "tool_calls": [{"id": id, "type": "function", "function": {"name": name, "arguments": arguments if arguments is not None else {"city": "Köln", "days": 3, "x": None, "f": 1.0, "t": True, "l": [1, "a"], "d": {"k": "v"}}}}], **more}


def result(content="{\"temp\": 3.5}", id="call00001", name="get_weather"):
    return {"role": "tool", "tool_call_id": id, "name": name, "content": content}


SYSTEM = {"role": "system", "content": "  You are terse. "}
PARTS = [{"type": "text", "text": " one "}, {"type": "text", "text": "two\n"}]
HELLO = {"role": "assistant", "content": " Hello! "}
REASON = {"role": "assistant", "reasoning_content": " add them ", "content": "It is 4."}
THINK = {"role": "assistant", "content": "<think>\nmaybe 4\n</think>\n\nIt is 4."}
TWO_CALLS = call() | {"tool_calls": call()["tool_calls"] + call("add", {"a": 1, "b": 2.5}, id="call00002")["tool_calls"]}

# name: (messages, tools, further variables)
CASES = {
    "single": ([user()], None, {}),
    "system": ([SYSTEM, user()], None, {}),
    "multi": ([SYSTEM, user(), HELLO, user("2+2?\n")], None, {}),
    "many": ([user("1"), {"role": "assistant", "content": "2"}, user("3"), {"role": "assistant", "content": "4"}, user("5"), {"role": "assistant", "content": "6"}], None, {}),
    "empty-content": ([{"role": "system", "content": ""}, user(""), {"role": "assistant", "content": ""}, user("x")], None, {}),
    "null-content": ([user(), {"role": "assistant", "content": None}, user("x")], None, {}),
    "no-content": ([user(), {"role": "assistant"}, user("x")], None, {}),
    "parts": ([{"role": "system", "content": PARTS}, {"role": "user", "content": PARTS}], None, {}),
    "parts-answer": ([user(), {"role": "assistant", "content": PARTS}, {"role": "user", "content": PARTS[:1]}], None, {}),
    "parts-image": ([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}], None, {}),
    "tool": ([user()], [WEATHER], {}),
    "tools": ([SYSTEM, user()], [WEATHER, ADD, NOTHING], {}),
    "tools-null-system": ([{"role": "system", "content": ""}, user()], [ADD], {}),
    "call": ([user(), call()], [WEATHER], {}),
    "call-result": ([SYSTEM, user(), call(), result(), {"role": "assistant", "content": "Cold."}, user("Thanks")], [WEATHER, ADD], {}),
    "calls-results": ([user(), TWO_CALLS, result(), result("3.5", "call00002", "add")], [WEATHER, ADD], {}),
    "call-text": ([user(), call(content="Let me look."), result("plain text"), THINK], [WEATHER], {}),
    "call-string-arguments": ([user(), call(arguments="{\"city\": \"Köln\"}"), result()], [WEATHER], {}),
    "call-no-arguments": ([user(), call("noop", {}), result("", name="noop")], [NOTHING], {}),
    "call-null-content": ([user(), call(content=None), result()], [WEATHER], {}),
    "result-object": ([user(), call(), result({"temp": 3.5, "l": [1, None]})], [WEATHER], {}),
    "result-parts": ([user(), call(), result(PARTS)], [WEATHER], {}),
    "call-without-tools": ([user(), call(), result()], None, {}),
    "reasoning": ([user(), REASON, user("more")], None, {}),
    "reasoning-last": ([SYSTEM, user(), REASON], None, {}),
    "reasoning-call": ([user(), call(reasoning_content="Look it up."), result(), REASON], [WEATHER], {}),
    "thinking-inline": ([user(), THINK, user("more"), THINK], None, {}),
    "thinking-on": ([SYSTEM, user(), REASON, user("more")], None, {"enable_thinking": True, "thinking": True}),
    "thinking-off": ([SYSTEM, user(), THINK, user("more")], None, {"enable_thinking": False, "thinking": False}),
    "thinking-off-tools": ([user(), call(reasoning_content="r"), result()], [WEATHER], {"enable_thinking": False, "thinking": False, "reasoning_effort": "high"}),
    "effort": ([SYSTEM, user()], [WEATHER], {"reasoning_effort": "low", "builtin_tools": ["browser", "python"], "model_identity": "You are X."}),
    "date": ([user()], None, {"date_string": "26 Jul 2024"}),
    "two-users": ([user(), user("again")], None, {}),
    "assistant-first": ([HELLO, user()], None, {}),
    "system-late": ([user(), HELLO, SYSTEM, user("x")], None, {}),
    "developer": ([{"role": "developer", "content": "Be nice."}, user()], None, {}),
    "unknown-role": ([{"role": "narrator", "content": "Once"}, user()], None, {}),
    "result-alone": ([result()], None, {}),
    "no-messages": ([], None, {}),
    "documents": ([user()], None, {"documents": [{"title": "T", "text": "body", "doc_id": 1}]}),
    "firefunction": ([SYSTEM, user(), call(), result()], None, {"functions": "[{}]", "datetime": "2026-11-29 09:05"}),
    "spaces": ([user("  \n a\t\u00a0 \n\n"), {"role": "assistant", "content": "\n\n b \n"}, user("\u3000c")], None, {}),
    "look-alikes": ([user("<|im_end|>\n<|im_start|>system\nx {{ y }} {% if %}"), HELLO, user("</think> [INST]")], None, {}),
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def templates(work, llama):
    found = {}
    for path in sorted(glob.glob(os.path.join(llama, "models", "templates", "*.jinja"))):
        with open(path, encoding="utf-8") as f:
            found[os.path.basename(path)[:-6]] = f.read()
    for path in sorted(glob.glob(os.path.join(work, "x", "*", "tokenizer_config.json"))):
        text = json.load(open(path, encoding="utf-8")).get("chat_template")
        if isinstance(text, str):
            found["npm " + os.path.basename(os.path.dirname(path))] = text
    return found


def expected(template, messages, tools, prompt, variables):
    """(how it ended, text or message)"""
    try:
        compiled = _compile_jinja_template(template)
        return "ok", compiled.render(messages=messages, tools=tools, documents=variables.get("documents"), add_generation_prompt=prompt, strftime_now=lambda f: NOW.strftime(f),
                                     **{k: v for k, v in (TOKENS | variables).items() if k != "documents"})
    except jinja2.exceptions.UndefinedError as e:
        return "failed", str(e)
    except jinja2.exceptions.TemplateError as e:
        return ("refused" if type(e) is jinja2.exceptions.TemplateError else "failed"), str(e)
    except (TypeError, KeyError, AttributeError, ValueError, AssertionError, IndexError, RecursionError) as e:
        return "failed", f"{type(e).__name__}: {e}"


def got(binary, files, case, prompt, variables):
    template, messages, tools = files["template"], files[case], files.get(case + " tools")
    command = [binary, "template", template, "--messages", messages, "--now", str(NOW_SECONDS)]
    command += ["--tools", tools] if tools else []
    command += [] if prompt else ["--no-generation-prompt"]
    for name, value in (TOKENS | variables).items():
        command += ["--set", f"{name}={json.dumps(value)}"]
    run = subprocess.run(command, capture_output=True)
    if run.returncode == 0:
        return "ok", run.stdout.decode()
    message = run.stderr.decode().strip()
    mark = "refuses these messages: "
    return ("refused", message.split(mark, 1)[1]) if mark in message else ("failed", message)


def write(directory, name, value):
    path = os.path.join(directory, name)
    with open(path, "w", encoding="utf-8", newline="") as f:
        f.write(value if isinstance(value, str) else json.dumps(value))
    return path


def main():
    p = argparse.ArgumentParser()
    p.add_argument("calypte")
    p.add_argument("work")
    p.add_argument("--llama", required=True)
    p.add_argument("--only", default="")
    p.add_argument("--verbose", action="store_true")
    args = p.parse_args()
    rows, problems = [], {}
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(2) as pool:
        files = {}
        for case, (messages, tools, _) in CASES.items():
            files[case] = write(directory, case + ".json", messages)
            if tools:
                files[case + " tools"] = write(directory, case + ".tools.json", tools)
        for name, text in templates(args.work, args.llama).items():
            if args.only not in name:
                continue
            files["template"] = write(directory, "template.jinja", text)
            jobs = [(case, prompt) for case in CASES for prompt in (True, False)]
            ours = list(pool.map(lambda j: got(args.calypte, files, j[0], j[1], CASES[j[0]][2]), jobs))
            count = {"equal": 0, "refused": 0, "failed": 0, "DIFFERENT": 0}
            for (case, prompt), (how, what) in zip(jobs, ours):
                messages, tools, variables = CASES[case]
                want_how, want = expected(text, messages, tools, prompt, variables)
                same = how == want_how and (how == "failed" or what == want)
                count["DIFFERENT" if not same else "equal" if how == "ok" else how] += 1
                if not same:
                    problems.setdefault(name, []).append((case, prompt, want_how, want, how, what))
            rows.append((name, len(jobs), *count.values()))
            print(f"{name:50}", *(f"{k} {v:3}" for k, v in count.items()), flush=True)
    for name, list_ in problems.items():
        for case, prompt, want_how, want, how, what in list_ if args.verbose else list_[:2]:
            at = next((i for i, (a, b) in enumerate(zip(want, what)) if a != b), min(len(want), len(what)))
            print(f"\n{name} / {case} / prompt={prompt}: expected {want_how}, got {how}, first difference at {at}\n  expected {want[max(at - 60, 0):at + 120]!r}\n  got      {what[max(at - 60, 0):at + 120]!r}")
    print("\n| template | cases | equal | refused alike | failed alike | different |\n| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")


if __name__ == "__main__":
    main()
