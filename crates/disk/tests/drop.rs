//! Dropping a disk in the middle of its work. Alone in its binary, because it counts the threads of the process.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use calypte_disk::{Buffer, Disk, DiskOptions, Extent, FileId, IoMode, Priority, ReadRequest, WeightPath};

/// Our threads, by name.
fn readers() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("tasks");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("calypte-")).count()
}

/// The kernel lists a thread for a moment after it was joined.
fn all_end() -> bool {
    let deadline = Instant::now() + Duration::from_secs(10);
    while readers() > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    readers() == 0
}

#[test]
fn dropping_with_reads_in_flight_ends_every_thread() {
    const LEN: u64 = 8 << 20;
    let mut file = tempfile::NamedTempFile::new().expect("temporary file");
    file.write_all(&vec![7; LEN as usize]).expect("written");
    let files = [WeightPath { path: file.path().to_owned(), size_bytes: LEN }];
    for mode in [IoMode::UringDirect, IoMode::PreadDirect, IoMode::PreadBuffered] {
        for requests in [0, 1, 20] {
            let mut disk = Disk::open(&files, &DiskOptions { mode: Some(mode), ..DiskOptions::default() })
                .expect("open");
            let extents = vec![Extent { file: FileId(0), offset: 3, len: LEN - 3 }];
            for ticket in 0..requests {
                let buffer = Buffer::with_capacity(disk.buffer_bytes(&extents));
                disk.submit(ReadRequest {
                    ticket,
                    priority: if ticket % 2 == 0 { Priority::Hint } else { Priority::Demand },
                    extents: extents.clone(),
                    buffer,
                });
            }
            let expected =
                if disk.mode() == IoMode::UringDirect { 1 } else { DiskOptions::default().threads };
            // A thread names itself, a little after it was started.
            while readers() < expected {
                std::thread::yield_now();
            }
            drop(disk);
            assert!(all_end(), "{mode} with {requests} requests: {} threads are left", readers());
        }
    }
}
