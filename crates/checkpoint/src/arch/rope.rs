//! Rotary positions.

/// Rotary position embedding (Su et al., arXiv 2104.09864).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the geometric sequence of wavelengths.
    pub theta: f64,
    /// Rotated values per head; even. In a wider head the rest passes through.
    pub dims: usize,
    /// Which values form a pair.
    pub layout: RopeLayout,
    /// How the wavelengths were stretched for longer contexts.
    pub scaling: RopeScaling,
}

impl Rope {
    /// Without scaling.
    pub fn plain(theta: f64, dims: usize, layout: RopeLayout) -> Rope {
        Rope { theta, dims, layout, scaling: RopeScaling::None }
    }
}

/// Which two values of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// `(i, i + dims/2)`: Hugging Face's llama and most others.
    HalfSplit,
    /// `(2i, 2i + 1)`: GLM, DeepSeek's MLA, and GGUF's `llama` (whose q and k rows are stored permuted).
    Interleaved,
}

/// How wavelengths are changed to reach positions beyond those of the first training.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All are longer by a factor (Chen et al., arXiv 2306.15595).
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Long ones are longer by a factor, short ones stay, with a ramp between (Llama 3.1).
    Llama3 {
        /// The factor.
        factor: f64,
        /// Wavelengths of at least `original_context / low` are stretched in full.
        low: f64,
        /// Wavelengths of at most `original_context / high` stay.
        high: f64,
        /// Positions of the first training.
        original_context: f64,
    },
    /// YaRN (Peng et al., arXiv 2309.00071).
    Yarn {
        /// The factor.
        factor: f64,
        /// Rotations within the original context above which a dimension stays.
        beta_fast: f64,
        /// Rotations below which a dimension is stretched in full.
        beta_slow: f64,
        /// Positions of the first training.
        original_context: f64,
        /// The ends of the ramp are rounded outwards to whole dimensions.
        truncate: bool,
        /// Cosines and sines are multiplied by this.
        attention_factor: f32,
    },
    /// Each pair has a factor of its own, stored as a tensor ([`Role::RopeFactors`](crate::Role::RopeFactors)).
    Stored,
}
