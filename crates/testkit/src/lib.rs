//! What the tests of the other crates share: faulty disks, and writers of small model files.
//!
//! Other crates depend on it for their tests only.
//!
//! What must never live here: anything that ships.

pub mod faulty;
pub mod gguf_writer;
pub mod safetensors_writer;
