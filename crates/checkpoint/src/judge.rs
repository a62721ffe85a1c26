//! Disagreements between a configuration and the stored tensors, and how they are reported.

use std::path::Path;

use crate::arch::Arch;
use crate::catalog::Tensor;
use crate::error::{OpenError, quote};
use crate::families::names::Names;

/// What is needed to find and to report a disagreement.
pub(crate) struct Judge<'a> {
    pub path: &'a Path,
    pub arch: &'a Arch,
    pub names: &'a Names,
    pub summary: String,
}

impl Judge<'_> {
    pub fn disagree(&self, tensor: &str, expected: impl Into<String>, found: impl Into<String>) -> OpenError {
        OpenError::Disagree {
            path: self.path.to_owned(),
            tensor: format!("tensor `{}`", quote(tensor)),
            expected: expected.into(),
            found: found.into(),
            census: self.summary.clone(),
        }
    }

    /// Outer dimensions may be stored merged or with ones between them: the rows are the same.
    pub fn check_shape(&self, tensor: &Tensor, expected: &[usize]) -> Result<(), OpenError> {
        let rows = |shape: &[usize]| {
            shape.split_last().map(|(cols, outer)| (*cols, outer.iter().product::<usize>()))
        };
        if rows(&tensor.shape) == rows(expected) {
            return Ok(());
        }
        Err(self.disagree(&tensor.name, format!("shape {expected:?}"), format!("shape {:?}", tensor.shape)))
    }
}
