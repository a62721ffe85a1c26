//! Templates against what Python renders, and templates that mean harm.

use super::*;
use serde_json::json;

fn render(template: &str, context: serde_json::Value) -> Result<String, TextError> {
    let messages: Vec<Message> = serde_json::from_value(json!([
        {"role": "user", "content": "Hi <b>&\"é\"</b>", "n": 1},
        {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"z": 1.0, "a": [true, null]}}}]},
    ]))
    .unwrap();
    let extra = context.as_object().cloned().unwrap_or_default();
    ChatTemplate::new(template, "<s>", "</s>")?.with_time(0).render(&messages, None, true, &extra)
}

fn check(template: &str, expected: &str) {
    assert_eq!(
        render(template, json!({"x": "  a\u{1f} ", "d": {"b": 2, "a": "é😀"}})).unwrap(),
        expected,
        "{template}"
    );
}

/// The error must contain `expected`.
fn check_error(template: &str, expected: &str) {
    match render(template, json!({})) {
        Ok(text) => panic!("{template} rendered to {} bytes", text.len()),
        Err(error) => assert!(error.to_string().contains(expected), "{template}: {error}"),
    }
}

#[test]
fn renders_as_jinja2_does() {
    check(
        "{{ bos_token }}{% for m in messages %}\n  {{ m.role }}\n{% endfor %}{{ eos_token }}",
        "<s>  user\n  assistant\n</s>",
    );
    check("{{ messages[0].content|tojson }}", r#""Hi <b>&\"é\"</b>""#);
    check("{{ messages[1].tool_calls[0].function.arguments|tojson }}", r#"{"z": 1.0, "a": [true, null]}"#);
    check(
        "{{ d|tojson(ensure_ascii=true, separators=(',', ':'), sort_keys=True) }}",
        r#"{"a":"\u00e9\ud83d\ude00","b":2}"#,
    );
    check(
        "{{ {'a': [1, {}], 'b': []}|tojson(indent=2) }}",
        "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}",
    );
    check("{{ [1, 2]|tojson(indent=0) }}", "[\n1,\n2\n]");
    check("{{ x.strip() }}|{{ x.lstrip() }}|{{ x|trim }}|", "a|a\u{1f} |a\u{1f}|");
    check(
        "{{ 'a,b,c'.rsplit(',', 1) }}{{ 'ab'.removeprefix('a') }}{{ 'ab'.removesuffix('b') }}",
        "['a,b', 'c']ba",
    );
    check(
        "{{ messages[0].get('name', 'none') }} {{ 'content' in messages[1] }} {{ messages[1].content is none }}",
        "none True True",
    );
    check("{{ strftime_now('%d %b %Y') }}", "01 Jan 1970");
    check("a\n{%- generation %} b {%- endgeneration %}\nc", "a bc");
    check(
        "{% set ns = namespace(n=0) %}{% for i in range(9) %}{% if i == 5 %}{% break %}{% endif %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
        "10",
    );
    check(
        "{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }} {{ missing is defined }}",
        "True True True False",
    );
    check("{{ messages[::-1][0].role }} {{ messages|length }} {{ missing }}", "assistant 2 ");
    check(
        "{{ messages|map(attribute='role')|join('+') }} {{ messages|selectattr('role', 'equalto', 'user')|list|length }}",
        "user+assistant 1",
    );
    check(
        "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in d|dictsort %}{{ k }}{% endfor %}",
        "b=2;a=é😀;ab",
    );
    check("{%- macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, b=3) }}", "1213");
    check("x\n\n", "x\n");
}

#[test]
fn errors_say_what_and_where() {
    check_error("a\nb {{ x|nonesuch }}", "line 2: unknown filter");
    check_error("a\n\n{% nonesuch %}", "line 3");
    check_error("{{ 'a'.nonesuch() }}", "nonesuch");
    check_error("\n{{ missing.attribute }}", "line 2");
    check_error("{{ raise_exception('only two roles') }}", "refuses these messages: only two roles");
    check_error(
        "{% macro f() %}{{ raise_exception('inside') }}{% endmacro %}{{ f() }}",
        "refuses these messages: inside",
    );
    check_error("{{ missing|tojson }}", "not JSON serializable");
    check_error("{{ strftime_now('%Q') }}", "%Q");
    check_error("{% include 'other' %}", "other");
    check_error("{{ {}|tojson(nonesuch=1) }}", "nonesuch");
}

#[test]
fn hostile_templates_are_stopped() {
    check_error(
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "units of work",
    );
    check_error("{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}", "units of work");
    check_error("{{ ('x' * 1000000) * 1000000 }}", "units of work");
    check_error(
        "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "units of work",
    );
    check_error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion");
    check_error("{% include 'chat_template' %}", "recursion");
    check_error(&"{% if true %}".repeat(10_000), "line 1");
    check_error(&format!("{{{{ {}1{} }}}}", "(".repeat(10_000), ")".repeat(10_000)), "line 1");
    check_error(&" ".repeat(TEMPLATE_BYTES_MAX + 1), "expected at most");
}

/// Values nested as deep as fuel allows: dropped, printed, compared, serialised.
#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    let nest =
        "{% set ns = namespace(x=[]) %}{% for i in range(LEVELS) %}{% set ns.x = [ns.x] %}{% endfor %}";
    let endless = "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% for j in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{% endfor %}";
    check_error(endless, "units of work");
    let levels = |n: usize| nest.replace("LEVELS", &n.to_string());
    for use_it in [
        "",
        "{{ ns.x == [ns.x] }}",
        "{{ ns.x }}",
        "{{ ns.x|tojson }}",
        "{{ ns.x|string|length }}",
        "{{ [ns.x, ns.x]|unique|list|length }}",
        "{{ [ns.x, [ns.x]]|sort|length }}",
        "{{ ns.x ~ 'a' }}",
    ] {
        // Whether it succeeds or is refused does not matter: it must come back.
        let _ = render(&format!("{}{use_it}", levels(90_000)), json!({}));
    }
}

/// What the engine would panic on or allocate without end is refused by name; everything near it still works.
#[test]
fn format_strings_are_looked_through() {
    check("{{ '%s %5.2f%% %-4d|'|format('ü', 2.5, 7) }}", "ü  2.50% 7   |");
    check("{{ '%(a)s 100%%(примерно)'|format({'a': 'ü'}) }}", "ü 100%(примерно)");
    check("{{ '{} {{[é]}} {:é>5}|{x[a]:<4096}'.format(1, 2, x={'a': ''})|trim }}", "1 {[é]} éééé2|");
    check("{{ '%4096s'|format('')|length }} {{ '%.4096f'|format(3)|length }}", "4096 4098");
    check_error("a\n{{ '%(ключ)s'|format({}) }}", "line 2: invalid operation: format: a key contains 'к'");
    check_error("{{ '%(key'|format({}) }}", "incomplete format key");
    check_error("{{ '%(é'|format({}) }}", "a key contains 'é'");
    check_error("{{ '%d %(a%é)s'|format(1) }}", "a key contains 'é'");
    check_error("{{ '{x[é]}'.format(x={}) }}", "a key contains 'é'");
    check_error("{{ '{x.a[b].c[é'.format(x={}) }}", "a key contains 'é'");
    for format in ["%70000s", "%.70000f", "%-070000.1f", "%#+99999999999999999999d", "%(a)70000s"] {
        check_error(&format!("{{{{ '{format}'|format(3) }}}}"), "expected at most 4096");
    }
    for format in ["{:70000}", "{:>99999999999}", "{:}>70000}", "{0:0.70000f}", "{a.b[c]:+#070000,.1f}"] {
        check_error(&format!("{{{{ '{format}'.format(3) }}}}"), "expected at most 4096");
    }
}

#[test]
fn messages_keep_their_fields() {
    for text in [
        r#"{"role":"user","content":null}"#,
        r#"{"role":"assistant","tool_calls":[]}"#,
        r#"{"role":"user","content":[{"type":"text","text":"a"}],"name":"n"}"#,
    ] {
        let message: Message = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&message).unwrap(), text);
    }
}

#[test]
fn tool_arguments_become_objects() {
    let check = |arguments: serde_json::Value, expected: serde_json::Value| {
        let mut message: Message = serde_json::from_value(
            json!({"role": "assistant", "tool_calls": [{"function": {"arguments": arguments}}]}),
        )
        .unwrap();
        message.parse_tool_arguments();
        assert_eq!(message.other["tool_calls"][0]["function"]["arguments"], expected);
    };
    check(json!("{\"b\": 1, \"a\": 2}"), json!({"b": 1, "a": 2}));
    check(json!("[1]"), json!("[1]"));
    check(json!("not json"), json!("not json"));
    check(json!({"a": 1}), json!({"a": 1}));
}
