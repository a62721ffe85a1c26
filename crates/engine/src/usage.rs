//! The file in which a model's usage outlives a run.
//!
//! One file a model, `DIRECTORY/FINGERPRINT` (64 hexadecimal digits), of a size that the model's dimensions fix, so it never grows.
//! All numbers are little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `CALYUSE` and a zero byte |
//! | 4 | version, 1 |
//! | 32 | the model's fingerprint |
//! | 8 | tokens ever counted |
//! | 4 | MoE layers |
//! | for each layer: 4 | experts |
//! | … then 4 each | decayed uses, f32, 0 to [`USES_MAX`](calypte_residency::USES_MAX) |
//! | 32 | SHA-256 over everything before |
//!
//! A file that is anything else is not believed and is replaced at the next write. It is written beside its place and renamed, so a
//! reader sees the old one or the new one. Nothing is flushed to the device: should the power fail, the checksum tells, and what was
//! lost were hints.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use calypte_residency::Usage;
use sha2::{Digest, Sha256};

const MAGIC: [u8; 8] = *b"CALYUSE\0";
const VERSION: u32 = 1;
const CHECKSUM_BYTES: usize = 32;
/// Everything before the first layer.
const HEADER_BYTES: usize = MAGIC.len() + 4 + 32 + 8 + 4;
/// A file being written that is older than this was left behind by a process that died; a write takes milliseconds.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);

/// Where the usage of one model is kept.
#[derive(Clone, Debug)]
pub(crate) struct UsageFile {
    path: PathBuf,
    fingerprint: [u8; 32],
    /// Experts of every MoE layer.
    experts: Vec<usize>,
}

impl UsageFile {
    /// Of the model with this fingerprint, in `directory`.
    pub fn new(directory: &Path, fingerprint: [u8; 32], experts: Vec<usize>) -> UsageFile {
        let name: String = fingerprint.iter().map(|byte| format!("{byte:02x}")).collect();
        UsageFile { path: directory.join(name), fingerprint, experts }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it holds; `None` when there is no file yet.
    ///
    /// # Errors
    /// Why it cannot be read, or not be believed.
    pub fn read(&self) -> io::Result<Option<Usage>> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let expected = file_bytes(self.experts.iter().copied());
        let mut bytes = Vec::new();
        // One byte more tells a file that is too long, without reading all of it.
        file.take(expected + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != expected {
            return Err(unbelievable(format!("its size is not the {expected} bytes that this model's has")));
        }
        self.decode(&bytes).map(Some)
    }

    /// Writes down that `later` came after what the file holds by now, which another process may have written meanwhile. What cannot
    /// be believed is replaced. `false`, with nothing written, when somebody else is writing just now.
    ///
    /// # Errors
    /// What the system said.
    pub fn append(&self, later: &Usage) -> io::Result<bool> {
        if let Some(directory) = self.path.parent() {
            fs::create_dir_all(directory)?;
        }
        let beside = self.path.with_extension("new");
        let Some(mut file) = create(&beside)? else { return Ok(false) };
        let before = self.read().unwrap_or_else(|error| {
            tracing::debug!(path = %self.path.display(), %error, "the usage kept of this model is not believed and is replaced");
            None
        });
        let usage = before.map_or_else(|| later.clone(), |before| before.followed_by(later));
        let written = file.write_all(&self.encode(&usage)).and_then(|()| {
            drop(file);
            fs::rename(&beside, &self.path)
        });
        if written.is_err() {
            // It would be in the way of the next one.
            let _ = fs::remove_file(&beside);
        }
        written.map(|()| true)
    }

    fn encode(&self, usage: &Usage) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(file_bytes(self.experts.iter().copied()) as usize);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.fingerprint);
        bytes.extend_from_slice(&usage.tokens().to_le_bytes());
        bytes.extend_from_slice(&(self.experts.len() as u32).to_le_bytes());
        for (layer, &experts) in self.experts.iter().enumerate() {
            bytes.extend_from_slice(&(experts as u32).to_le_bytes());
            usage.uses(layer).for_each(|uses| bytes.extend_from_slice(&uses.to_le_bytes()));
        }
        let checksum = Sha256::digest(&bytes);
        bytes.extend_from_slice(&checksum);
        bytes
    }

    /// `bytes` have the right length.
    fn decode(&self, bytes: &[u8]) -> io::Result<Usage> {
        let (content, checksum) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
        if Sha256::digest(content)[..] != *checksum {
            return Err(unbelievable("its checksum is wrong".to_owned()));
        }
        let mut rest = content;
        check("magic", &mut rest, &MAGIC)?;
        check("version", &mut rest, &VERSION.to_le_bytes())?;
        check("fingerprint", &mut rest, &self.fingerprint)?;
        let tokens = u64::from_le_bytes(take(&mut rest)?);
        check("number of layers", &mut rest, &(self.experts.len() as u32).to_le_bytes())?;
        let mut layers = Vec::with_capacity(self.experts.len());
        for &experts in &self.experts {
            check("number of experts", &mut rest, &(experts as u32).to_le_bytes())?;
            let uses: io::Result<Vec<f32>> =
                (0..experts).map(|_| take(&mut rest).map(f32::from_le_bytes)).collect();
            layers.push(uses?);
        }
        Usage::from_uses(tokens, layers).ok_or_else(|| unbelievable("a count is impossible".to_owned()))
    }
}

/// Size of the file of a model whose layers have these numbers of experts, in bytes.
pub(crate) fn file_bytes(experts: impl Iterator<Item = usize>) -> u64 {
    let layers: u64 = experts.map(|experts| 4 + 4 * experts as u64).sum();
    layers + (HEADER_BYTES + CHECKSUM_BYTES) as u64
}

/// The file in which the next content is written; `None` while another process writes it.
fn create(beside: &Path) -> io::Result<Option<File>> {
    let create = || OpenOptions::new().write(true).create_new(true).open(beside);
    match create() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let age = fs::metadata(beside)?.modified()?.elapsed().unwrap_or_default();
            if age < ABANDONED_AFTER {
                return Ok(None);
            }
            fs::remove_file(beside)?;
            create().map(Some)
        }
        outcome => outcome.map(Some),
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> io::Result<[u8; N]> {
    let (taken, left) = rest.split_first_chunk().ok_or_else(|| unbelievable("it is cut off".to_owned()))?;
    *rest = left;
    Ok(*taken)
}

fn check<const N: usize>(what: &str, rest: &mut &[u8], expected: &[u8; N]) -> io::Result<()> {
    match take(rest)? == *expected {
        true => Ok(()),
        false => Err(unbelievable(format!("its {what} is another"))),
    }
}

fn unbelievable(why: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPERTS: [usize; 2] = [4, 3];

    fn file(directory: &Path) -> UsageFile {
        UsageFile::new(directory, [0xAB; 32], EXPERTS.to_vec())
    }

    fn usage(tokens: u32) -> Usage {
        let mut usage = Usage::new(EXPERTS);
        for token in 0..tokens {
            usage.record(0, &[token % 4, (token + 1) % 4]);
            usage.record(1, &[token % 3]);
        }
        usage
    }

    fn counts(usage: &Usage) -> (u64, Vec<f32>) {
        (usage.tokens(), (0..EXPERTS.len()).flat_map(|layer| usage.uses(layer)).collect())
    }

    #[test]
    fn what_is_written_is_read() {
        let directory = tempfile::tempdir().expect("a directory");
        // Directories are made.
        let file = file(&directory.path().join("a/b"));
        assert!(file.read().expect("readable").is_none());
        let (first, second) = (usage(100), usage(7));
        assert!(file.append(&first).expect("writable"));
        let read = file.read().expect("readable").expect("there");
        assert_eq!(counts(&read), counts(&first));
        assert!(file.append(&second).expect("writable"));
        let (both, read) = (read.followed_by(&second), file.read().expect("readable").expect("there"));
        assert_eq!(counts(&read), counts(&both));
        let names: Vec<_> = fs::read_dir(directory.path().join("a/b")).expect("a directory").collect();
        assert_eq!(names.len(), 1, "nothing is left beside it: {names:?}");
        let size = fs::metadata(file.path()).expect("there").len();
        assert_eq!(size, file_bytes(EXPERTS.into_iter()));
        assert_eq!(size, 56 + 4 * 9 + 32, "as documented");
    }

    /// With a right checksum, so that what is behind it is looked at.
    fn sealed(mut content: Vec<u8>) -> Vec<u8> {
        content.truncate(content.len() - CHECKSUM_BYTES);
        let checksum = Sha256::digest(&content);
        content.extend_from_slice(&checksum);
        content
    }

    /// The file's bytes after `spoil`: not believed for a reason with `why` in it, and replaced.
    #[track_caller]
    fn check_spoilt(why: &str, spoil: impl Fn(Vec<u8>) -> Vec<u8>) {
        let directory = tempfile::tempdir().expect("a directory");
        let file = file(directory.path());
        file.append(&usage(10)).expect("writable");
        let spoilt = spoil(fs::read(file.path()).expect("readable"));
        fs::write(file.path(), spoilt).expect("writable");
        let error = file.read().expect_err(why).to_string();
        assert!(error.contains(why), "{why}: {error}");
        let anew = usage(3);
        assert!(file.append(&anew).expect("writable"));
        assert_eq!(counts(&file.read().expect("readable").expect("there")), counts(&anew), "{why}");
    }

    #[test]
    fn what_is_wrong_is_not_believed() {
        let at = |at: usize, byte: u8| {
            move |mut bytes: Vec<u8>| {
                bytes[at] ^= byte;
                bytes
            }
        };
        check_spoilt("size", |mut bytes| {
            bytes.pop();
            bytes
        });
        check_spoilt("size", |mut bytes| {
            bytes.push(0);
            bytes
        });
        check_spoilt("size", |_| Vec::new());
        let last = file_bytes(EXPERTS.into_iter()) as usize - 1;
        for index in 0..=last {
            check_spoilt("checksum", at(index, 1));
        }
        for (index, why) in [
            (0, "magic"),
            (8, "version"),
            (12, "fingerprint"),
            (43, "fingerprint"),
            (52, "layers"),
            (56, "experts"),
            // The sign of the first count.
            (63, "impossible"),
        ] {
            check_spoilt(why, |bytes| sealed(at(index, 0x80)(bytes)));
        }
    }

    #[test]
    fn a_foreign_file_is_not_believed() {
        let directory = tempfile::tempdir().expect("a directory");
        let (ours, theirs) =
            (file(directory.path()), UsageFile::new(directory.path(), [1; 32], EXPERTS.to_vec()));
        theirs.append(&usage(5)).expect("writable");
        fs::copy(theirs.path(), ours.path()).expect("copied");
        assert!(ours.read().expect_err("foreign").to_string().contains("fingerprint"));
    }

    #[test]
    fn two_do_not_write_at_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = file(directory.path());
        let beside = file.path().with_extension("new");
        fs::write(&beside, "half of it").expect("writable");
        assert!(!file.append(&usage(5)).expect("no failure"), "somebody else writes");
        let long_ago = std::time::SystemTime::now() - 2 * ABANDONED_AFTER;
        File::options().write(true).open(&beside).expect("there").set_modified(long_ago).expect("set");
        assert!(file.append(&usage(5)).expect("writable"), "nobody writes any more");
        assert!(!beside.exists());
    }

    #[test]
    fn where_nothing_can_be_written_nothing_is() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("file"), "").expect("writable");
        let file = file(&directory.path().join("file"));
        assert!(file.append(&usage(5)).is_err());
        assert!(file.read().is_err());
    }
}
