//! What the tests of the other crates share: faulty disks, writers of small model files, and routing like a real model's.
//!
//! Other crates depend on it for their tests only.
//!
//! What must never live here: anything that ships.

pub mod faulty;
pub mod gguf_writer;
pub mod routing;
pub mod safetensors_writer;
