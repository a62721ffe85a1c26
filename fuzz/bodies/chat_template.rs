//! Chat templates.

use calypte_text::{ChatTemplate, Message, TextError};
use serde_json::{Map, json};

/// Whatever the bytes are: no panic, neither here nor in the thread that renders; an error that says something, or the
/// same prompt every time.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let template = match ChatTemplate::new(text, "<s>", "</s>") {
        Ok(template) => template.with_time(1_700_000_000),
        Err(error) => return check_error(&error),
    };
    let messages = [
        Message::new("system", "Be brief."),
        Message::new("user", "Hi <|im_end|>\n"),
        Message { role: "assistant".to_owned(), content: None, other: tool_call() },
        Message {
            role: "user".to_owned(),
            content: Some(json!([{ "type": "text", "text": "and?" }])),
            other: Map::new(),
        },
    ];
    let tools =
        json!([{ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } }]);
    for tools in [None, Some(&tools)] {
        let render = || template.render(&messages, tools, true, &Map::new());
        match (render(), render()) {
            (Ok(a), Ok(b)) => assert_eq!(a, b),
            (Err(a), Err(b)) => {
                check_error(&a);
                assert_eq!(a.to_string(), b.to_string());
            }
            (a, b) => panic!("once {a:?}, once {b:?}"),
        }
    }
}

fn tool_call() -> Map<String, serde_json::Value> {
    let call =
        json!([{ "id": "1", "type": "function", "function": { "name": "f", "arguments": { "x": 1.5 } } }]);
    Map::from_iter([("tool_calls".to_owned(), call)])
}

fn check_error(error: &TextError) {
    let text = error.to_string();
    assert!(text.len() > 10, "says nothing: {text}");
    assert!(!text.contains("rendering failed inside"), "the template engine panicked: {text}");
}
