//! Where the program keeps what outlives it and is not worth a backup.

use std::path::PathBuf;

/// `calypte` in the person's state directory, where the XDG base directory specification puts such files. `None` when the
/// environment names no such place.
pub fn directory() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let state = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")))?;
    Some(state.join("calypte"))
}

/// Where is kept which experts of a model were used.
pub fn usage_directory() -> Option<PathBuf> {
    Some(directory()?.join("usage"))
}
