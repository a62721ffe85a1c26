//! The largest values that a header may ask for. A file that asks for more is refused before anything is allocated.
//!
//! They are far above every published model, and small enough that the products formed from them fit in 32 bits,
//! so that the same checks hold in the browser.

/// Bytes of a GGUF or safetensors header, and so of everything that is built from it.
pub(crate) const HEADER_BYTES_MAX: u64 = 256 << 20;
/// Bytes of `config.json` and its siblings.
pub(crate) const CONFIG_BYTES_MAX: u64 = 16 << 20;
/// Bytes of `model.safetensors.index.json`.
pub(crate) const INDEX_BYTES_MAX: u64 = 256 << 20;
/// Bytes of a chat template file.
pub(crate) const TEMPLATE_BYTES_MAX: u64 = 4 << 20;

/// Metadata entries of a GGUF file.
pub(crate) const GGUF_KEYS_MAX: u64 = 1 << 16;
/// Tensors of one file.
pub(crate) const TENSORS_MAX: u64 = 1 << 20;
/// Values of one GGUF array; a vocabulary is the longest in practice.
pub(crate) const GGUF_ARRAY_ITEMS_MAX: u64 = 1 << 24;
/// Arrays inside arrays.
pub(crate) const GGUF_ARRAY_DEPTH_MAX: usize = 4;
/// Bytes of one GGUF string; a chat template is the longest in practice.
pub(crate) const GGUF_STRING_BYTES_MAX: u64 = 4 << 20;
/// Bytes of a key or of a tensor name.
pub(crate) const NAME_BYTES_MAX: u64 = 1024;
/// Dimensions of a tensor.
pub(crate) const DIMS_MAX: usize = 4;
/// Bytes that tensor data may be aligned to.
pub(crate) const GGUF_ALIGNMENT_BYTES_MAX: u64 = 1 << 20;

/// Rows of the vocabulary matrices.
pub(crate) const VOCAB_MAX: usize = 1 << 24;
/// Width of the residual stream, of an MLP or of a low-rank bottleneck.
pub(crate) const WIDTH_MAX: usize = 1 << 20;
/// Layers, trunk and multi-token prediction together.
pub(crate) const LAYERS_MAX: usize = 1024;
/// Heads of one attention or indexer.
pub(crate) const HEADS_MAX: usize = 1024;
/// Width of a head.
pub(crate) const HEAD_DIM_MAX: usize = 1 << 14;
/// Routed experts of a layer.
pub(crate) const EXPERTS_MAX: usize = 1 << 14;
/// Shared experts of a layer.
pub(crate) const SHARED_EXPERTS_MAX: usize = 64;
/// Positions.
pub(crate) const CONTEXT_MAX: usize = 1 << 30;
/// Ids that end a generation.
pub(crate) const EOS_MAX: usize = 64;

/// Names listed in one message; the rest is counted.
pub(crate) const NAMES_LISTED_MAX: usize = 8;
/// Characters of a foreign value repeated in a message.
pub(crate) const QUOTE_CHARS_MAX: usize = 80;
