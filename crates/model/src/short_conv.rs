//! The short convolution of LFM2 (arXiv 2511.23404): `out(C · conv(B · x))` with B, C and x projected from the layer's
//! input, and a causal convolution over the latest positions in each channel by itself.
//!
//! What is convolved is cached for *every* position, as keys are, though only the latest few are read: so a timeline can
//! be cut anywhere and go on with the same bits.

use calypte_checkpoint::Role;
use calypte_checkpoint::arch::ShortConv as Shape;
use calypte_kernels::Activations;

use crate::kv::LayerKv;
use crate::scratch::MixerScratch;
use crate::weights::{Loader, Weight};
use crate::{Compute, ModelError};

/// One layer's convolution.
pub(crate) struct ShortConv {
    length: usize,
    /// `[3 · hidden, hidden]`: B, C and x.
    input: Weight,
    /// `[length, hidden]`, the earliest position first.
    kernel: Vec<f32>,
    out: Weight,
}

impl ShortConv {
    pub fn load(loader: &mut Loader<'_>, shape: &Shape, layer: usize) -> Result<ShortConv, ModelError> {
        let l = Some(layer);
        // Stored channel by channel; here all channels of a position lie together, as they are met.
        let by_channel = loader.vector(l, Role::ConvKernel)?;
        let channels = by_channel.len() / shape.length;
        let at = |j: usize| (0..channels).map(move |channel| channel * shape.length + j);
        Ok(ShortConv {
            length: shape.length,
            kernel: (0..shape.length).flat_map(at).map(|i| by_channel[i]).collect(),
            input: loader.matrix(l, Role::ConvIn)?,
            out: loader.matrix(l, Role::ConvOut)?,
        })
    }

    /// `out = short_conv(x)`, `[x.rows, hidden]`; the rows' positions start at `first`.
    pub fn forward(
        &self,
        compute: &Compute<'_>,
        first: usize,
        x: &mut Activations,
        kv: &mut LayerKv,
        scratch: &mut MixerScratch,
        out: &mut Vec<f32>,
    ) {
        let (rows, hidden) = (x.rows(), x.cols());
        let MixerScratch { q: projected, mixed, .. } = scratch;
        self.input.apply(compute, x, projected);
        for row in projected.chunks_exact(3 * hidden) {
            let (gate, x) = (&row[..hidden], &row[2 * hidden..]);
            kv.conv.extend(gate.iter().zip(x).map(|(b, x)| b * x));
        }
        for (row, out) in mixed.fill(rows, hidden).chunks_exact_mut(hidden).enumerate() {
            out.fill(0.0);
            let position = first + row;
            for (j, weights) in self.kernel.chunks_exact(hidden).enumerate() {
                // Positions before the first one count as zeros.
                let Some(past) = (position + 1 + j).checked_sub(self.length) else { continue };
                let inputs = &kv.conv[past * hidden..(past + 1) * hidden];
                for ((o, w), u) in out.iter_mut().zip(weights).zip(inputs) {
                    *o += w * u;
                }
            }
            let gate = &projected[(3 * row + 1) * hidden..(3 * row + 2) * hidden];
            out.iter_mut().zip(gate).for_each(|(o, c)| *o *= c);
        }
        self.out.apply(compute, mixed, out);
    }
}
