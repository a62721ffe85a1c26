//! What was measured is remembered per device, in a small text file that anybody may read, edit or delete.
//!
//! The first line names the format; every other line is one profile, the oldest first, as `name=value` pairs. A file that
//! is not like that is ignored as a whole: what it says is only ever a matter of speed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use crate::{Extent, IoMode, Profile, Setting, WeightPath};

/// First line of the file.
const HEAD: &str = "calypte disk profiles, version 1";

/// Profiles kept; the oldest go first.
const PROFILES_MAX: usize = 64;

/// Longest file that is read, in bytes: far more than [`PROFILES_MAX`] lines.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What a profile holds for: files on certain devices, the mode asked for, and reads of about a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileKey(String);

impl ProfileKey {
    /// The key of `files` when groups like `patterns`, `requests` at once, are read by `mode`. `None` where devices have no
    /// numbers, or without anything to read.
    pub fn new(
        files: &[WeightPath],
        patterns: &[Vec<Extent>],
        requests: usize,
        mode: Option<IoMode>,
    ) -> Option<ProfileKey> {
        let extents = patterns.iter().map(Vec::len).sum::<usize>() as u64;
        let bytes = patterns.iter().flatten().fold(0u64, |sum, extent| sum.saturating_add(extent.len));
        let extent_bytes = bytes.checked_div(extents)?;
        let devices: Option<BTreeSet<String>> = files.iter().map(|file| device(&file.path)).collect();
        let devices = devices.filter(|devices| !devices.is_empty())?;
        let devices = devices.into_iter().collect::<Vec<_>>().join("+");
        let io = mode.map_or("auto".to_owned(), |mode| mode.to_string());
        // Twice the size is another device as far as depth goes; a little more is not.
        let doublings = extent_bytes.max(1).ilog2();
        Some(ProfileKey(format!("device={devices} io={io} extent=2^{doublings} requests={requests}")))
    }
}

impl fmt::Display for ProfileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Device and file system of a path, e.g. `254:0/ef53`.
#[cfg(target_os = "linux")]
fn device(path: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let device = fs::metadata(path).ok()?.dev();
    let system = rustix::fs::statfs(path).ok()?.f_type;
    Some(format!("{}:{}/{system:x}", rustix::fs::major(device), rustix::fs::minor(device)))
}

#[cfg(all(unix, not(target_os = "linux")))]
fn device(path: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    Some(fs::metadata(path).ok()?.dev().to_string())
}

#[cfg(not(unix))]
fn device(_path: &Path) -> Option<String> {
    None
}

/// The profile remembered in the file at `path`, if there is one. Whatever is wrong with the file is told to the log only.
pub fn recall(path: &Path, key: &ProfileKey) -> Option<Profile> {
    let profiles = read(path)?;
    profiles.into_iter().rev().find(|(k, _)| k == key).map(|(_, profile)| profile)
}

/// Remembers a profile in the file at `path`, in place of one with the same key. The file is replaced as a whole, so that
/// nobody ever sees half of one.
///
/// # Errors
/// The file or its directory cannot be written.
pub fn remember(path: &Path, key: &ProfileKey, profile: &Profile) -> io::Result<()> {
    let mut profiles = read(path).unwrap_or_default();
    profiles.retain(|(k, _)| k != key);
    profiles.push((key.clone(), profile.clone()));
    let skipped = profiles.len().saturating_sub(PROFILES_MAX);
    let lines: String = profiles[skipped..].iter().map(|(k, profile)| line(k, profile)).collect();
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = Path::new(&name);
    let write = || {
        let mut file = fs::File::create(beside)?;
        file.write_all(format!("{HEAD}\n{lines}").as_bytes())?;
        file.sync_all()?;
        fs::rename(beside, path)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(beside);
    })
}

fn read(path: &Path) -> Option<Vec<(ProfileKey, Profile)>> {
    let text = match read_text(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::debug!(path = %path.display(), %error, "the remembered disk profiles cannot be read");
            return None;
        }
    };
    let parsed = parse(&text);
    if parsed.is_none() {
        tracing::debug!(path = %path.display(), "the remembered disk profiles are damaged or of another version");
    }
    parsed
}

fn read_text(path: &Path) -> io::Result<String> {
    let found = fs::metadata(path)?;
    if !found.is_file() || found.len() > FILE_BYTES_MAX {
        return Err(io::Error::other("not a small regular file"));
    }
    fs::read_to_string(path)
}

fn line(key: &ProfileKey, profile: &Profile) -> String {
    let Profile { setting, bytes_per_s, reads, measured_unix_s, fallback_reason } = profile;
    // Last, because it is a sentence.
    let why = fallback_reason.as_ref().map(|why| format!(" why={}", why.replace(['\n', '\r'], " ")));
    format!(
        "{key} mode={} depth={} segment={} bytes_per_s={bytes_per_s:.0} reads={reads} unix_s={measured_unix_s}{}\n",
        setting.mode,
        setting.depth,
        setting.segment_bytes,
        why.unwrap_or_default(),
    )
}

fn parse(text: &str) -> Option<Vec<(ProfileKey, Profile)>> {
    let mut lines = text.lines();
    if lines.next()? != HEAD {
        return None;
    }
    lines.map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<(ProfileKey, Profile)> {
    let (line, why) = match line.split_once(" why=") {
        Some((line, why)) => (line, Some(why.to_owned())),
        None => (line, None),
    };
    let (key, _) = line.split_once(" mode=")?;
    let pairs: Option<Vec<_>> = line.split(' ').map(|pair| pair.split_once('=')).collect();
    let pairs: BTreeMap<_, _> = pairs?.into_iter().collect();
    let number = |name: &str| pairs.get(name)?.parse::<u64>().ok();
    let setting = Setting {
        mode: pairs.get("mode")?.parse().ok()?,
        depth: usize::try_from(number("depth")?).ok()?,
        segment_bytes: usize::try_from(number("segment")?).ok()?,
    };
    let profile = Profile {
        setting,
        bytes_per_s: number("bytes_per_s")? as f64,
        reads: number("reads")?,
        measured_unix_s: number("unix_s")?,
        fallback_reason: why,
    };
    Some((ProfileKey(key.to_owned()), profile))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileId;

    fn profile(depth: usize, why: Option<&str>) -> Profile {
        Profile {
            setting: Setting { mode: IoMode::PreadDirect, depth, segment_bytes: 1 << 20 },
            bytes_per_s: 1.5e9,
            reads: 12,
            measured_unix_s: 1_796_000_000,
            fallback_reason: why.map(str::to_owned),
        }
    }

    fn key(n: usize) -> ProfileKey {
        ProfileKey(format!("device=254:0/ef53 io=auto extent=2^{n} requests=8"))
    }

    #[test]
    fn what_is_remembered_is_recalled() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("not/yet/there/disk.txt");
        assert_eq!(recall(&path, &key(1)), None);
        let (one, two) = (profile(4, Some("no uring-direct: refused = true\nmode=x")), profile(8, None));
        remember(&path, &key(1), &one).expect("written");
        remember(&path, &key(2), &two).expect("written");
        let why = Some("no uring-direct: refused = true mode=x");
        assert_eq!(recall(&path, &key(1)), Some(profile(4, why)));
        remember(&path, &key(1), &two).expect("written");
        assert_eq!([1, 2, 3].map(|n| recall(&path, &key(n))), [Some(two.clone()), Some(two.clone()), None]);
        for n in 10..10 + PROFILES_MAX {
            remember(&path, &key(n), &one).expect("written");
        }
        assert_eq!((recall(&path, &key(1)), recall(&path, &key(10)).is_some()), (None, true));
        let left: Vec<_> = fs::read_dir(path.parent().expect("directory")).expect("listed").collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    /// A damaged file remembers nothing, and is replaced by the next profile.
    fn check_damaged(content: &[u8]) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("disk.txt");
        fs::write(&path, content).expect("written");
        assert_eq!(recall(&path, &key(1)), None, "{content:?}");
        remember(&path, &key(1), &profile(4, None)).expect("written");
        assert_eq!(recall(&path, &key(1)), Some(profile(4, None)), "{content:?}");
    }

    #[test]
    fn damaged_files_are_ignored() {
        let good = format!("{HEAD}\n{}", line(&key(1), &profile(2, None)));
        assert!(parse(&good).is_some());
        check_damaged(b"");
        check_damaged(b"\xFF\xFE");
        check_damaged(good.replace("version 1", "version 2").as_bytes());
        for spoilt in ["mode=mmap", "depth=-1", "depth=", "segment", "unix_s=1.5"] {
            let name = spoilt.split('=').next().expect("a name");
            let start = good.find(&format!(" {name}=")).expect("there") + 1;
            let end = start + good[start..].find([' ', '\n']).expect("an end");
            check_damaged(format!("{}{spoilt}{}", &good[..start], &good[end..]).as_bytes());
        }
        check_damaged(&good.as_bytes()[..good.len() - 12]);
        check_damaged(format!("{good}\n").as_bytes());
    }

    #[test]
    fn what_cannot_be_written_is_an_error_and_what_cannot_be_read_is_nothing() {
        let dir = tempfile::tempdir().expect("temporary directory");
        assert!(remember(dir.path(), &key(1), &profile(4, None)).is_err());
        assert_eq!(recall(dir.path(), &key(1)), None);
        let below_a_file = dir.path().join("file/disk.txt");
        fs::write(dir.path().join("file"), "x").expect("written");
        assert!(remember(&below_a_file, &key(1), &profile(4, None)).is_err());
    }

    #[test]
    #[cfg(unix)]
    fn keys_tell_devices_modes_and_sizes_apart() {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        let files = [WeightPath { path: file.path().to_owned(), size_bytes: 0 }];
        let reads = |len| [vec![Extent { file: FileId(0), offset: 0, len }; 3]];
        let make = |len, requests, mode| ProfileKey::new(&files, &reads(len), requests, mode);
        let base = make(300_000, 8, None).expect("a device");
        assert_eq!(make(400_000, 8, None), Some(base.clone()));
        for other in [
            make(600_000, 8, None),
            make(300_000, 4, None),
            make(300_000, 8, Some(IoMode::PreadDirect)),
            make(0, 8, None),
        ] {
            assert!(other.is_some() && other != Some(base.clone()), "{other:?}");
        }
        assert_eq!(ProfileKey::new(&[], &reads(1), 8, None), None);
        assert_eq!(ProfileKey::new(&files, &[], 8, None), None);
        let missing = [WeightPath { path: "nowhere/model.gguf".into(), size_bytes: 0 }];
        assert_eq!(ProfileKey::new(&missing, &reads(1), 8, None), None);
    }
}
