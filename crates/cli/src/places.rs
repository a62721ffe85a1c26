//! Where the program keeps what outlives it: the base directories of XDG, which no backup needs.

use std::path::PathBuf;

/// The file in which measured disks are remembered: below `$XDG_CACHE_HOME`, or `~/.cache`. `None` for users without a home.
pub fn disk_profiles() -> Option<PathBuf> {
    let home = variable("HOME").or_else(|| variable("USERPROFILE"));
    Some(base(variable("XDG_CACHE_HOME"), home, ".cache")?.join("calypte/disk.txt"))
}

/// Where state is kept: below `$XDG_STATE_HOME`, or `~/.local/state`. `None` when the environment names no such place.
pub fn state() -> Option<PathBuf> {
    Some(base(variable("XDG_STATE_HOME"), variable("HOME"), ".local/state")?.join("calypte"))
}

/// Where is kept which experts of a model were used.
pub fn usage_directory() -> Option<PathBuf> {
    Some(state()?.join("usage"))
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from)
}

/// The base directory that somebody chose, or the usual one below home. Paths that are not absolute are ignored, as the XDG base
/// directory specification wants it.
fn base(chosen: Option<PathBuf>, home: Option<PathBuf>, below_home: &str) -> Option<PathBuf> {
    let absolute = |path: Option<PathBuf>| path.filter(|path| path.is_absolute());
    absolute(chosen).or_else(|| absolute(home).map(|home| home.join(below_home)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(chosen: Option<&str>, home: Option<&str>, expected: Option<&str>) {
        let base = base(chosen.map(PathBuf::from), home.map(PathBuf::from), ".cache");
        assert_eq!(base, expected.map(PathBuf::from));
    }

    #[test]
    #[cfg(unix)]
    fn places_are_where_xdg_puts_them() {
        check(Some("/x"), Some("/h"), Some("/x"));
        check(None, Some("/h"), Some("/h/.cache"));
        check(Some(""), Some("/h"), Some("/h/.cache"));
        check(Some("x"), Some("/h"), Some("/h/.cache"));
        check(Some("x"), Some("h"), None);
        check(None, None, None);
    }
}
