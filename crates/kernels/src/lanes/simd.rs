//! What the kernels of this module ask of an instruction set.

/// Vectors of [`Simd::LANES`] 32-bit lanes. Every method is what its name says of each lane, or of each byte where that is
/// written; roundings are those of scalar f32 arithmetic.
///
/// # Safety
/// All methods: the processor must have the instructions, which is why everything here is unsafe; and pointers must be valid
/// for what is said of them. Methods are `#[inline(always)]`, so that they end up in a function compiled for the tier.
#[allow(clippy::missing_safety_doc)] // said once, above
pub(crate) trait Simd: Copy + 'static {
    /// Lanes, and so rows of weights side by side.
    const LANES: usize;
    /// Vectors of weights that a tile of the panel kernel multiplies together, 1 or 2.
    const PARTS: usize;
    /// Activation rows of such a tile, at most 6.
    const TILE: usize;
    /// How much [`Simd::signed`] makes codes too high.
    const SIGNED_ABOVE: u8;
    /// A vector of integers.
    type I: Copy;
    /// A vector of floats.
    type F: Copy;

    /// Lane i of vector k: bytes `4k .. 4k + 4` at `start + i · stride`.
    unsafe fn turn(start: *const u8, stride: usize) -> [Self::I; 4];
    /// Lane i: bytes `0 .. 4` at `start + i · stride`; for when the rest of what [`Simd::turn`] reads is not wanted.
    unsafe fn gather(start: *const u8, stride: usize) -> Self::I;
    unsafe fn splat(v: i32) -> Self::I;
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn shift_left(v: Self::I, bits: u32) -> Self::I;
    unsafe fn shift_right(v: Self::I, bits: u32) -> Self::I;
    unsafe fn shift_right_signed(v: Self::I, bits: u32) -> Self::I;
    unsafe fn sub_i32(a: Self::I, b: Self::I) -> Self::I;
    /// Each byte, below 16, replaced by that entry of the table.
    unsafe fn look_up(table: &[i8; 16], codes: Self::I) -> Self::I;

    /// `acc` plus the four products of the bytes of each lane of `codes`, unsigned and below 128, and of `quad`, signed.
    unsafe fn dot(acc: Self::I, codes: Self::I, quad: i32) -> Self::I;
    /// How signed bytes are kept for [`Simd::dot_signed`].
    unsafe fn signed(v: Self::I) -> Self::I;
    /// [`Simd::dot`] of signed bytes that [`Simd::signed`] has prepared.
    unsafe fn dot_signed(acc: Self::I, codes: Self::I, quad: i32) -> Self::I;

    unsafe fn load_f(from: *const f32) -> Self::F;
    unsafe fn store_f(to: *mut f32, v: Self::F);
    unsafe fn splat_f(v: f32) -> Self::F;
    /// The lanes as they are, taken for floats.
    unsafe fn as_f(v: Self::I) -> Self::F;
    /// Rounded to nearest.
    unsafe fn to_f(v: Self::I) -> Self::F;
    /// The f16 in the low half of each lane.
    unsafe fn low_f16(v: Self::I) -> Self::F;
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a · b + c`, where the product is known to be exact, so that it does not matter whether it is rounded.
    #[inline(always)]
    unsafe fn exact_mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: promised by the caller.
        unsafe { Self::add(Self::mul(a, b), c) }
    }

    /// [`super::many::multiply`], compiled for the tier by itself instead of into every format.
    unsafe fn multiply<S: super::Shape>(job: &super::many::Job<'_, Self>);
}

/// Four bytes at any address.
///
/// # Safety
/// They must be readable.
#[inline(always)]
pub(super) unsafe fn dword(at: *const u8) -> i32 {
    // SAFETY: promised by the caller.
    unsafe { at.cast::<i32>().read_unaligned() }
}
