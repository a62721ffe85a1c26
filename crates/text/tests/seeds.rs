//! The bodies of the fuzz targets over the committed seeds, whole and damaged in a few places.

#[path = "../../../fuzz/bodies/chat_template.rs"]
mod chat_template;
#[path = "../../../fuzz/bodies/seeds.rs"]
mod seeds;
#[path = "../../../fuzz/bodies/tokenizer.rs"]
mod tokenizer;

use seeds::each_seed;

#[test]
fn chat_templates() {
    each_seed("chat_template", chat_template::run);
}

#[test]
fn tokenizers() {
    each_seed("tokenizer", tokenizer::run);
}
