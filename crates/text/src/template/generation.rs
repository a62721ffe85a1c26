//! `{% generation %}`, which marks the assistant's words for training and means nothing here.

/// Replaces the tags by an `if` that is always taken, so that white space around them is treated as around any block, and
/// lines keep their numbers.
pub(super) fn strip_tags(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        out.push_str(before);
        rest = match tag.find("%}").and_then(|end| replacement(&tag[..end]).map(|new| (new, end))) {
            Some((new, end)) => {
                out.push_str(&new);
                &tag[end..]
            }
            None => tag,
        };
    }
    out + rest
}

/// What to write instead of the inside of a block tag.
fn replacement(inside: &str) -> Option<String> {
    let is_mark = |c: char| c == '-' || c == '+';
    let word = inside.trim_start_matches(is_mark).trim_end_matches(is_mark).trim();
    let new = match word {
        "generation" => "if true",
        "endgeneration" => "endif",
        _ => return None,
    };
    Some(inside.replacen(word, new, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(template: &str, expected: &str) {
        assert_eq!(strip_tags(template), expected);
    }

    #[test]
    fn replaces_only_the_tags() {
        check("a{% generation %}b{% endgeneration %}c", "a{% if true %}b{% endif %}c");
        check("{%- generation -%}x{%+endgeneration\n-%}", "{%- if true -%}x{%+endif\n-%}");
        check(
            "{% if generation %}{{ generation }}{% endif %}",
            "{% if generation %}{{ generation }}{% endif %}",
        );
        check("{% set x = 1 %}{% gen", "{% set x = 1 %}{% gen");
        check("{%", "{%");
    }
}
