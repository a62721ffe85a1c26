//! Two weight files in a temporary directory, and short words for the tests.
// Each test binary uses its own part of this.
#![allow(dead_code)]

use std::fs;
use std::io::Write;

use calypte_disk::{
    Buffer, Disk, DiskError, DiskOptions, Extent, FileId, IoMode, Priority, ReadRequest,
    SEGMENT_BYTES_DEFAULT, WeightPath,
};
use tempfile::TempDir;

/// Sizes of the two files: one that ends in the middle of a block, one that ends with a block.
pub const SIZES: [usize; 2] = [3 * SEGMENT_BYTES_DEFAULT + 12_345, 2 * SEGMENT_BYTES_DEFAULT];

pub struct Fixture {
    _dir: TempDir,
    pub files: Vec<WeightPath>,
    pub bytes: Vec<Vec<u8>>,
}

/// Not random, but no two neighbourhoods of it are alike.
pub fn content(file: usize, len: usize) -> Vec<u8> {
    let word = |i: usize| ((i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15 + file as u64) >> 29) as u8;
    (0..len).map(word).collect()
}

pub fn fixture() -> Fixture {
    let dir = tempfile::tempdir().expect("temporary directory");
    let bytes: Vec<Vec<u8>> = SIZES.iter().enumerate().map(|(n, &len)| content(n, len)).collect();
    let write = |(n, bytes): (usize, &Vec<u8>)| {
        let path = dir.path().join(format!("weights-{n}.gguf"));
        let mut file = fs::File::create(&path).expect("created");
        file.write_all(bytes).expect("written");
        file.sync_all().expect("synced");
        WeightPath { path, size_bytes: bytes.len() as u64 }
    };
    let files = bytes.iter().enumerate().map(write).collect();
    Fixture { _dir: dir, files, bytes }
}

pub fn open(files: &[WeightPath], mode: IoMode) -> Result<Disk, DiskError> {
    Disk::open(files, &DiskOptions { mode: Some(mode), threads: 3, queue_depth: 8, ..DiskOptions::default() })
}

pub fn modes() -> impl Iterator<Item = IoMode> {
    IoMode::ALL.into_iter().map(|(mode, _)| mode)
}

pub fn extent(file: u32, offset: usize, len: usize) -> Extent {
    Extent { file: FileId(file), offset: offset as u64, len: len as u64 }
}

pub fn submit(disk: &mut Disk, ticket: u64, extents: &[Extent]) {
    let buffer = Buffer::with_capacity(disk.buffer_bytes(extents));
    disk.submit(ReadRequest { ticket, priority: Priority::Demand, extents: extents.to_vec(), buffer });
}
