//! Where bytes are, and by which way they come.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Index of a weight file in the order in which the catalogue lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// A run of bytes in one file. No alignment is implied: GGUF experts start anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// The file.
    pub file: FileId,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// How bytes come from the files. What is reported is always the mode *achieved*, never the one asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoMode {
    /// io_uring with O_DIRECT.
    UringDirect,
    /// A pool of threads with positional O_DIRECT reads.
    PreadDirect,
    /// A pool of threads with positional reads through the page cache.
    PreadBuffered,
    /// Everything was read into memory when the files were opened.
    Memory,
}

impl IoMode {
    /// Every mode with its name, fastest first.
    pub const ALL: [(IoMode, &'static str); 4] = [
        (IoMode::UringDirect, "uring-direct"),
        (IoMode::PreadDirect, "pread-direct"),
        (IoMode::PreadBuffered, "pread-buffered"),
        (IoMode::Memory, "memory"),
    ];

    /// Whether reads bypass the page cache and therefore need aligned offsets.
    pub fn is_direct(self) -> bool {
        matches!(self, IoMode::UringDirect | IoMode::PreadDirect)
    }
}

impl fmt::Display for IoMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoMode::UringDirect => "uring-direct",
            IoMode::PreadDirect => "pread-direct",
            IoMode::PreadBuffered => "pread-buffered",
            IoMode::Memory => "memory",
        })
    }
}

/// A name that is no [`IoMode`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown I/O mode {0:?}: use uring-direct, pread-direct, pread-buffered or memory")]
pub struct UnknownIoMode(pub String);

impl FromStr for IoMode {
    type Err = UnknownIoMode;

    fn from_str(name: &str) -> Result<IoMode, UnknownIoMode> {
        let known = IoMode::ALL.iter().find(|(_, n)| *n == name);
        known.map(|(mode, _)| *mode).ok_or_else(|| UnknownIoMode(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_back_from_their_names() {
        for (mode, name) in IoMode::ALL {
            assert_eq!(mode.to_string(), name);
            assert_eq!(name.parse(), Ok(mode));
        }
        for name in ["", "mmap", "Memory", "uring"] {
            assert_eq!(name.parse::<IoMode>(), Err(UnknownIoMode(name.to_owned())));
        }
    }
}
