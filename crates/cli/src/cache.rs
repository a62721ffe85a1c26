//! Where the program keeps what it may forget.

use std::path::{Path, PathBuf};

/// The file in which measured disks are remembered: below `$XDG_CACHE_HOME`, or `~/.cache`. `None` for users without a home.
pub fn disk_profiles() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    cache(variable("XDG_CACHE_HOME"), variable("HOME").or_else(|| variable("USERPROFILE")))
        .map(|cache| cache.join("calypte/disk.txt"))
}

/// Paths that are not absolute are ignored, as the XDG specification wants it.
fn cache(xdg: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let absolute = |path: Option<PathBuf>| path.filter(|path| path.is_absolute());
    absolute(xdg).or_else(|| absolute(home).map(|home| home.join(Path::new(".cache"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(xdg: Option<&str>, home: Option<&str>, expected: Option<&str>) {
        assert_eq!(cache(xdg.map(PathBuf::from), home.map(PathBuf::from)), expected.map(PathBuf::from));
    }

    #[test]
    #[cfg(unix)]
    fn the_cache_is_where_xdg_puts_it() {
        check(Some("/x"), Some("/h"), Some("/x"));
        check(None, Some("/h"), Some("/h/.cache"));
        check(Some(""), Some("/h"), Some("/h/.cache"));
        check(Some("x"), Some("/h"), Some("/h/.cache"));
        check(Some("x"), Some("h"), None);
        check(None, None, None);
    }
}
