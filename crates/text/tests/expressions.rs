//! Every construct that published chat templates use, one at a time, against what Jinja2 makes of it
//! (`fixtures/text/expressions.json`, see `tools/oracle/template_expressions.py`).

use std::path::Path;

use calypte_text::{ChatTemplate, TextError};
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Deserialize)]
struct File {
    variables: Map<String, Value>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    /// Template.
    t: String,
    /// What it renders to.
    r: Option<String>,
    /// Or how Python fails.
    e: Option<String>,
}

/// Rare constructs that are refused, by name, though Jinja2 has them.
const REFUSED: &[&str] = &[
    "{{ '%s=%d' % ('a', 3) }}",
    "{{ 'é'.encode('utf-8') }}",
    "{{ +i }}",
    "{{ dict([('a', 1)]) }}",
    "{{ l|random is number }}",
    "{{ 'a b c d'|wordcount }}",
    "{{ 'abcdef'|truncate(5, true, '..') }}",
    "{{ 'abc'|center(7) }}|",
    "{{ 'x=1&y'|urlencode }} {{ {'a': 'b c'}|urlencode }}",
    "{{ '<a>x</a> y'|striptags }}",
    "{{ {'a': 1}|xmlattr }}",
    "{% for a, b in ['xy'] %}{{ a }}{{ b }}{% endfor %}",
    "{{ cycler('a', 'b').next() }}",
    "{{ joiner(',')() }}|",
    "{{ s is callable }}",
];

/// What Python stops at and the engine here does not: it orders values of different types, and nothing is in `none`.
const LENIENT: &[&str] = &[
    "{{ 'a' < 1 }}",
    "{{ n < 1 }}",
    "{{ 1 in 'a1' }}",
    "{{ n|list }}",
    "{{ n|list|length }}",
    "{{ n|join(',') }}",
    "{{ n|sort }}",
    "{{ m|sort }}",
];

/// What is different without an error on either side: internals that no chat template prints.
const DIFFERENT: &[&str] = &["{{ range(3) }}", "{{ lipsum is defined }}", "{{ self is defined }}"];

fn render(template: &str, variables: &Map<String, Value>) -> Result<String, TextError> {
    let now_seconds = 1_795_943_107;
    ChatTemplate::new(template, "", "")?.with_time(now_seconds).render(&[], None, false, variables)
}

#[test]
fn constructs_render_as_in_jinja2() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/text/expressions.json");
    let file: File = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut wrong = Vec::new();
    for case in &file.cases {
        let listed = |list: &[&str]| list.contains(&case.t.as_str());
        let got = render(&case.t, &file.variables);
        let as_expected = match (&case.r, &got) {
            (Some(expected), Ok(got)) => (expected == got) != listed(DIFFERENT),
            (Some(_), Err(_)) => listed(REFUSED),
            (None, Ok(_)) => listed(LENIENT),
            (None, Err(_)) => true,
        };
        if !as_expected {
            wrong.push(format!("{}\n  expected {:?} {:?}\n  got      {got:?}", case.t, case.r, case.e));
        }
    }
    let cases = file.cases.len();
    assert!(wrong.is_empty() && cases > 400, "{} of {cases}:\n{}", wrong.len(), wrong.join("\n"));
}
