//! The bodies of the fuzz targets over the committed seeds, whole and damaged in a few places.

#[path = "../../../fuzz/bodies/config_json.rs"]
mod config_json;
#[path = "../../../fuzz/bodies/gguf_header.rs"]
mod gguf_header;
#[path = "../../../fuzz/bodies/places.rs"]
mod places;
#[path = "../../../fuzz/bodies/safetensors_header.rs"]
mod safetensors_header;
#[path = "../../../fuzz/bodies/seeds.rs"]
mod seeds;

use seeds::each_seed;

#[test]
fn safetensors_headers() {
    each_seed("safetensors_header", safetensors_header::run);
}

#[test]
fn gguf_headers() {
    each_seed("gguf_header", gguf_header::run);
}

#[test]
fn configurations() {
    each_seed("config_json", config_json::run);
}
