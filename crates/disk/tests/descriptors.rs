//! Running out of descriptors. Alone in its binary, because it lowers the limit of the whole process.
#![cfg(target_os = "linux")]

use std::os::fd::AsRawFd;

use calypte_disk::{Disk, DiskError, DiskOptions, Extent, FileId, IoMode, WeightPath};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Opens a disk while descriptors from `limit` on are forbidden.
fn open_below(limit: u64, files: &[WeightPath]) -> Result<Disk, DiskError> {
    let before = getrlimit(Resource::Nofile);
    let lowered = Rlimit { current: Some(limit), ..before };
    setrlimit(Resource::Nofile, lowered).expect("lowered");
    let outcome = Disk::open(files, &DiskOptions::default());
    setrlimit(Resource::Nofile, before).expect("restored");
    outcome
}

#[test]
fn running_out_of_descriptors_is_named_and_a_ring_is_not_worth_it() {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(file.path(), [7; 5000]).expect("written");
    let files = [WeightPath { path: file.path().to_owned(), size_bytes: 5000 }];

    let error = open_below(3, &files).expect_err("no descriptor left");
    assert_eq!((error.failure.code(), error.path.as_path()), ("out-of-descriptors", file.path()));

    // Enough for the file, not for the ring.
    let next = std::fs::File::open("/dev/null").expect("a descriptor").as_raw_fd();
    let mut disk = open_below(next as u64 + 1, &files).expect("opened");
    assert_ne!(disk.mode(), IoMode::UringDirect);
    let reason = disk.fallback_reason().expect("a reason");
    assert!(
        reason.contains("io_uring could not be set up") || reason.contains("no direct reads"),
        "{reason:?}"
    );
    let all = [Extent { file: FileId(0), offset: 0, len: 5000 }];
    assert_eq!(disk.read_now(&all).expect("read").view(0), [7; 5000]);
}
