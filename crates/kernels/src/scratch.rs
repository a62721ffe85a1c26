//! Memory that is kept from use to use.

/// Makes room for `len` values at least; what they are is unspecified. Nothing gets shorter: whoever made it shorter and longer
/// by turns would write zeros each time.
pub fn grow<T: Copy + Default>(values: &mut Vec<T>, len: usize) {
    if values.len() < len {
        values.resize(len, T::default());
    }
}
