//! Numbers that policies and predictors keep for every layer and expert. They learn a model's dimensions from what they are
//! told, so these grow.

use crate::Key;

/// A value for every expert that was ever named.
#[derive(Debug)]
pub struct PerExpert<T> {
    layers: Vec<Vec<T>>,
}

impl<T> Default for PerExpert<T> {
    fn default() -> Self {
        PerExpert { layers: Vec::new() }
    }
}

impl<T: Default + Clone> PerExpert<T> {
    /// The value of an expert; the default if it was never set.
    pub fn get(&self, key: Key) -> T {
        let layer = self.layers.get(key.layer as usize);
        let value = layer.and_then(|experts| experts.get(key.expert as usize));
        value.cloned().unwrap_or_default()
    }

    /// The value of an expert, to be set.
    pub fn get_mut(&mut self, key: Key) -> &mut T {
        grown(grown(&mut self.layers, key.layer), key.expert)
    }

    /// Sets every value of a layer to the default.
    pub fn reset(&mut self, layer: u32) {
        grown(&mut self.layers, layer).fill(T::default());
    }
}

/// The latest step of every layer.
#[derive(Debug, Default)]
pub struct Clocks {
    layers: Vec<u64>,
}

impl Clocks {
    /// `layer` is in step `step`.
    pub fn reach(&mut self, layer: u32, step: u64) {
        let clock = grown(&mut self.layers, layer);
        *clock = step.max(*clock);
    }

    /// The latest step of `layer`; 0 before its first.
    pub fn now(&self, layer: u32) -> u64 {
        self.layers.get(layer as usize).copied().unwrap_or(0)
    }
}

/// `values[index]`, after growing to it.
pub fn grown<T: Default>(values: &mut Vec<T>, index: u32) -> &mut T {
    let index = index as usize;
    if values.len() <= index {
        values.resize_with(index + 1, T::default);
    }
    &mut values[index]
}
