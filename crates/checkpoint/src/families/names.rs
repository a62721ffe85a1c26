//! How tensors are spelled: tables from names to roles, and back for messages.

use crate::catalog::{Role, TensorKey};

/// How one file format spells the tensors of one family.
pub(crate) struct Names {
    /// What precedes the layer number.
    pub layer_prefix: &'static str,
    /// Tensors outside the layers.
    pub globals: &'static [(&'static str, Role)],
    /// Tensors of a layer: what follows the layer number and its dot. The first name of a role is the usual one.
    pub layer: &'static [&'static [(&'static str, Role)]],
    /// One matrix of one expert: what stands before and after the expert's number.
    pub expert: &'static [(&'static str, &'static str, Part)],
    /// The same matrix of all experts in one tensor.
    pub stacked: &'static [(&'static str, Stack)],
    /// Endings of buffers that are computed from the configuration and never read.
    pub buffers: &'static [&'static str],
    /// Beginnings of tensors that belong to parts which are not run, such as another family's way of predicting ahead.
    pub ignored: &'static [&'static str],
}

/// One matrix of an expert, in the order in which a catalogue lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Gate,
    Up,
    Down,
}

/// What a tensor with all experts holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stack {
    /// `[experts, rows, cols]`
    One(Part),
    /// `[experts, 2·width, hidden]`: the rows of the gate, then those of up.
    GateUp,
    /// gpt-oss: gate and up by turns, as rows of MXFP4 blocks `[experts, 2·width, hidden]`, or as *columns* of plain values
    /// `[experts, hidden, 2·width]`.
    GateUpByTurns,
    /// gpt-oss: rows of MXFP4 blocks `[experts, hidden, width]`, or plain values `[experts, width, hidden]`.
    DownOrTransposed,
}

/// What a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    Tensor(TensorKey),
    Expert { layer: usize, expert: usize, part: Part },
    Stacked { layer: usize, stack: Stack },
    Buffer,
    Unknown,
}

impl Names {
    /// What `name` means.
    pub fn meaning(&self, name: &str) -> Meaning {
        if let Some((_, role)) = self.globals.iter().find(|(n, _)| *n == name) {
            return Meaning::Tensor(TensorKey { layer: None, role: *role });
        }
        let ignored = self.ignored.iter().any(|start| name.starts_with(start));
        if ignored || self.buffers.iter().any(|end| name.ends_with(end)) {
            return Meaning::Buffer;
        }
        match name.strip_prefix(self.layer_prefix).and_then(leading_number) {
            Some((layer, rest)) => {
                rest.strip_prefix('.').map_or(Meaning::Unknown, |rest| self.in_layer(layer, rest))
            }
            None => Meaning::Unknown,
        }
    }

    fn in_layer(&self, layer: usize, rest: &str) -> Meaning {
        if let Some((_, role)) = self.layer.iter().flat_map(|t| t.iter()).find(|(n, _)| *n == rest) {
            return Meaning::Tensor(TensorKey { layer: Some(layer), role: *role });
        }
        if let Some((_, stack)) = self.stacked.iter().find(|(n, _)| *n == rest) {
            return Meaning::Stacked { layer, stack: *stack };
        }
        for (before, after, part) in self.expert {
            if let Some((expert, tail)) = rest.strip_prefix(before).and_then(leading_number)
                && tail == *after
            {
                return Meaning::Expert { layer, expert, part: *part };
            }
        }
        Meaning::Unknown
    }

    /// The usual name of a tensor.
    pub fn spell(&self, key: TensorKey) -> String {
        let find =
            |table: &[(&'static str, Role)]| table.iter().find(|(_, r)| *r == key.role).map(|(n, _)| *n);
        match key.layer {
            None => find(self.globals).unwrap_or_default().to_owned(),
            Some(layer) => {
                let rest = self.layer.iter().find_map(|t| find(t)).unwrap_or_default();
                format!("{}{layer}.{rest}", self.layer_prefix)
            }
        }
    }

    /// The usual name of one matrix of one expert.
    pub fn spell_expert(&self, layer: usize, expert: usize, part: Part) -> String {
        let rest = match self.expert.iter().find(|(_, _, p)| *p == part) {
            Some((before, after, _)) => format!("{before}{expert}{after}"),
            None => String::new(),
        };
        format!("{}{layer}.{rest}", self.layer_prefix)
    }
}

/// A decimal number without leading zeros, and what follows it.
fn leading_number(text: &str) -> Option<(usize, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at_checked(digits)?;
    if number.len() > 1 && number.starts_with('0') {
        return None;
    }
    Some((number.parse().ok()?, rest))
}
