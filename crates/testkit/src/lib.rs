//! What the tests of the other crates share: faulty disks, and writers of small model files.
//!
//! Nothing here is ever shipped; other crates depend on it for their tests only.

pub mod faulty;
pub mod gguf_writer;
pub mod safetensors_writer;
