//! Norms, rotations and gates: everything that is neither a matrix product nor attention.

use calypte_quant::reference::{LANES, dot_f32, reduce};

use crate::isa::for_each_isa;
use crate::{Isa, math};

for_each_isa! { fn rms_norm_isa(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) = rms_norm_body }
for_each_isa! { fn rms_norm_in_place_isa(x: &mut [f32], w: &[f32], eps: f32) = rms_norm_in_place_body }
for_each_isa! { fn swiglu_isa(gate: &mut [f32], up: &[f32]) = swiglu_body }
for_each_isa! { fn geglu_tanh_isa(gate: &mut [f32], up: &[f32]) = geglu_tanh_body }
for_each_isa! { fn swiglu_clamped_isa(gate: &mut [f32], up: &[f32], alpha: f32, limit: f32) = swiglu_clamped_body }
for_each_isa! { fn axpy_isa(out: &mut [f32], a: f32, x: &[f32]) = axpy_body }
for_each_isa! { fn softmax_isa(x: &mut [f32]) = softmax_body }
for_each_isa! { fn add_isa(out: &mut [f32], x: &[f32]) = add_body }

#[inline(always)]
fn rms_norm_body(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    let inverse = inverse_root_mean_square(x, eps);
    for ((o, x), w) in out.iter_mut().zip(x).zip(w) {
        *o = x * inverse * w;
    }
}

#[inline(always)]
fn rms_norm_in_place_body(x: &mut [f32], w: &[f32], eps: f32) {
    let inverse = inverse_root_mean_square(x, eps);
    for (x, w) in x.iter_mut().zip(w) {
        *x = *x * inverse * w;
    }
}

#[inline(always)]
fn inverse_root_mean_square(x: &[f32], eps: f32) -> f32 {
    let mean = dot_f32(x, x) / x.len() as f32;
    1.0 / (mean + eps).sqrt()
}

#[inline(always)]
fn swiglu_body(gate: &mut [f32], up: &[f32]) {
    for (g, u) in gate.iter_mut().zip(up) {
        *g = math::silu(*g) * u;
    }
}

#[inline(always)]
fn geglu_tanh_body(gate: &mut [f32], up: &[f32]) {
    for (g, u) in gate.iter_mut().zip(up) {
        *g = math::gelu_tanh(*g) * u;
    }
}

#[inline(always)]
fn swiglu_clamped_body(gate: &mut [f32], up: &[f32], alpha: f32, limit: f32) {
    for (g, u) in gate.iter_mut().zip(up) {
        // Comparisons instead of `min` and `max`, which would swallow a NaN.
        let gate = if *g > limit { limit } else { *g };
        let up = if *u > limit { limit } else { *u };
        let up = if up < -limit { -limit } else { up };
        *g = gate * math::sigmoid(alpha * gate) * (up + 1.0);
    }
}

#[inline(always)]
fn axpy_body(out: &mut [f32], a: f32, x: &[f32]) {
    for (o, x) in out.iter_mut().zip(x) {
        *o += a * x;
    }
}

#[inline(always)]
fn add_body(out: &mut [f32], x: &[f32]) {
    for (o, x) in out.iter_mut().zip(x) {
        *o += x;
    }
}

/// The largest of some numbers and `start`; NaN if one of them is, which a comparison would lose.
#[inline(always)]
pub(crate) fn max_or_nan(numbers: &[f32], start: f32) -> f32 {
    let (mut max, mut nan) = ([start; LANES], [false; LANES]);
    let (whole, rest) = numbers.as_chunks::<LANES>();
    for chunk in whole {
        for j in 0..LANES {
            max[j] = if chunk[j] > max[j] { chunk[j] } else { max[j] };
            nan[j] |= chunk[j].is_nan();
        }
    }
    for (j, s) in rest.iter().enumerate() {
        max[j] = if *s > max[j] { *s } else { max[j] };
        nan[j] |= s.is_nan();
    }
    let any_nan = nan.iter().any(|n| *n);
    if any_nan { f32::NAN } else { max.iter().fold(max[0], |m, v| if *v > m { *v } else { m }) }
}

/// Scores to weights.
#[inline(always)]
fn softmax_body(scores: &mut [f32]) {
    let max = max_or_nan(scores, f32::NEG_INFINITY);
    let (whole, rest) = scores.as_chunks_mut::<LANES>();
    // Two loops, or the sums are not vectorised.
    for s in whole.as_flattened_mut() {
        *s = math::exp(*s - max);
    }
    let mut lanes = [0f32; LANES];
    for chunk in &*whole {
        for j in 0..LANES {
            lanes[j] += chunk[j];
        }
    }
    for (j, s) in rest.iter_mut().enumerate() {
        *s = math::exp(*s - max);
        lanes[j] += *s;
    }
    let sum = reduce(lanes);
    whole.as_flattened_mut().iter_mut().for_each(|s| *s /= sum);
    rest.iter_mut().for_each(|s| *s /= sum);
}

/// Root-mean-square norm (arXiv 1910.07467): `out = x / sqrt(mean(x²) + eps) · w`.
pub fn rms_norm(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    rms_norm_isa(Isa::get(), x, w, eps, out);
}

/// [`rms_norm`] of consecutive heads, in place.
pub fn rms_norm_in_place(x: &mut [f32], w: &[f32], eps: f32) {
    x.chunks_exact_mut(w.len()).for_each(|x| rms_norm_in_place_isa(Isa::get(), x, w, eps));
}

/// Sum in the canonical lanes.
fn sum(x: &[f32]) -> f32 {
    let mut lanes = [0f32; LANES];
    for chunk in x.chunks(LANES) {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane += v;
        }
    }
    reduce(lanes)
}

/// Layer norm (arXiv 1607.06450) with weight and bias, in place.
pub fn layer_norm(x: &mut [f32], w: &[f32], bias: &[f32], eps: f32) {
    let n = x.len() as f32;
    let mean = sum(x) / n;
    x.iter_mut().for_each(|v| *v -= mean);
    let inverse = 1.0 / (dot_f32(x, x) / n + eps).sqrt();
    for ((x, w), b) in x.iter_mut().zip(w).zip(bias) {
        *x = *x * inverse * w + b;
    }
}

/// `gate = silu(gate) · up` (SwiGLU, arXiv 2002.05202).
pub fn swiglu(gate: &mut [f32], up: &[f32]) {
    swiglu_isa(Isa::get(), gate, up);
}

/// `gate = gelu(gate) · up`, gelu by its tanh approximation (GEGLU, arXiv 2002.05202).
pub fn geglu_tanh(gate: &mut [f32], up: &[f32]) {
    geglu_tanh_isa(Isa::get(), gate, up);
}

/// `gate = g · sigmoid(alpha · g) · (u + 1)` with g = gate clamped from above and u = up clamped to both sides at `limit`
/// (gpt-oss, arXiv 2508.10925).
pub fn swiglu_clamped(gate: &mut [f32], up: &[f32], alpha: f32, limit: f32) {
    swiglu_clamped_isa(Isa::get(), gate, up, alpha, limit);
}

/// `x *= a`.
pub fn scale(x: &mut [f32], a: f32) {
    x.iter_mut().for_each(|v| *v *= a);
}

/// `rows[r] += bias` for every row.
pub fn add_to_rows(rows: &mut [f32], bias: &[f32]) {
    rows.chunks_exact_mut(bias.len()).for_each(|row| add(row, bias));
}

/// `out += a · x`.
pub fn axpy(out: &mut [f32], a: f32, x: &[f32]) {
    axpy_isa(Isa::get(), out, a, x);
}

/// `out += x`.
pub fn add(out: &mut [f32], x: &[f32]) {
    add_isa(Isa::get(), out, x);
}

/// Softmax in place: the largest is subtracted first, the sum is taken in the canonical lanes.
pub fn softmax(x: &mut [f32]) {
    softmax_isa(Isa::get(), x);
}

/// Rotates pairs `(i, i + n/2)` of `x` (n = `x.len()`): the half-split layout. `cos` and `sin` have n/2 entries.
pub fn rope_half_split(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (a, b) = x.split_at_mut(cos.len());
    for i in 0..cos.len() {
        let (u, v) = (a[i], b[i]);
        a[i] = u * cos[i] - v * sin[i];
        b[i] = v * cos[i] + u * sin[i];
    }
}

/// Rotates pairs `(2i, 2i + 1)` of `x`: the interleaved layout.
pub fn rope_interleaved(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    for (i, pair) in x.chunks_exact_mut(2).enumerate() {
        let (u, v) = (pair[0], pair[1]);
        pair[0] = u * cos[i] - v * sin[i];
        pair[1] = v * cos[i] + u * sin[i];
    }
}

/// Index of the largest value; the lowest index among equals; NaN never wins.
pub fn argmax(x: &[f32]) -> usize {
    let mut best = 0;
    for (i, v) in x.iter().enumerate() {
        if *v > x[best] || x[best].is_nan() {
            best = i;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every tier gives the scalar tier's bits, for lengths around the lane count.
    #[track_caller]
    fn check(run: impl Fn(Isa, &[f32], &mut [f32])) {
        for n in [1, 2, 15, 16, 17, 40, 259] {
            let x: Vec<f32> = (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.173).collect();
            let bits = |isa| {
                let mut out: Vec<f32> = (0..n).map(|i| (i % 7) as f32 - 3.1).collect();
                run(isa, &x, &mut out);
                out.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
            };
            for isa in Isa::available() {
                assert_eq!(bits(isa), bits(Isa::Scalar), "{n} values on {}", isa.name());
            }
        }
    }

    #[test]
    fn tiers_agree() {
        check(|isa, x, out| rms_norm_isa(isa, x, &vec![0.7; x.len()], 1e-6, out));
        check(|isa, x, out| swiglu_isa(isa, out, x));
        check(|isa, x, out| geglu_tanh_isa(isa, out, x));
        check(|isa, x, out| swiglu_clamped_isa(isa, out, x, 1.7, 5.0));
        check(|isa, x, out| axpy_isa(isa, out, 0.37, x));
        check(|isa, x, out| add_isa(isa, out, x));
    }

    #[test]
    fn rotations_turn_by_the_angle_and_keep_the_length() {
        let (c, s) = ([0.6, 1.0], [0.8, 0.0]);
        let mut half = [1.0, 2.0, 0.0, 3.0];
        rope_half_split(&mut half, &c, &s);
        assert_eq!(half, [0.6, 2.0, 0.8, 3.0]);
        let mut inter = [1.0, 0.0, 2.0, 3.0];
        rope_interleaved(&mut inter, &c, &s);
        assert_eq!(inter, [0.6, 0.8, 2.0, 3.0]);
    }

    #[test]
    fn the_clamped_gate_clamps_each_side_as_defined() {
        // A gate is only clamped from above, up to both sides; a zero gate gives zero whatever up is.
        let mut gate = [0.0, 20.0, 20.0, -9.0];
        swiglu_clamped(&mut gate, &[5.0, 20.0, -20.0, 1.0], 1.702, 7.0);
        let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
        let top = 7.0 * sigmoid(1.702 * 7.0);
        let want = [0.0, top * 8.0, top * -6.0, -9.0 * sigmoid(1.702 * -9.0) * 2.0];
        assert!(gate.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5), "{gate:?} is not {want:?}");
    }

    #[test]
    fn softmax_sums_to_one_and_layer_norm_centres() {
        let mut x: Vec<f32> = (0..37).map(|i| i as f32 * 0.3 - 4.0).collect();
        softmax(&mut x);
        assert!((x.iter().sum::<f32>() - 1.0).abs() < 1e-6 && x.windows(2).all(|w| w[0] < w[1]));
        let mut y = [1.0, 2.0, 3.0, 4.0];
        layer_norm(&mut y, &[1.0; 4], &[0.5; 4], 0.0);
        assert!((y.iter().sum::<f32>() - 2.0).abs() < 1e-6 && (y[3] - 0.5 - 1.3416408).abs() < 1e-5);
    }

    #[test]
    fn argmax_takes_the_first_of_equals_and_never_a_nan() {
        for (x, want) in [(&[1.0f32, 3.0, 3.0][..], 1), (&[f32::NAN, 1.0, 2.0], 2), (&[2.0, f32::NAN], 0)] {
            assert_eq!(argmax(x), want);
        }
    }
}
