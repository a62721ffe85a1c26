//! Every mode against real files: the same bytes, exact counts.

mod common;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use calypte_disk::{
    Disk, DiskOptions, Extent, IoMode, SEGMENT_BYTES_DEFAULT, SWEEP_DEPTHS, SWEEP_SEGMENT_BYTES, WeightPath,
    measure, sweep,
};
use common::{SIZES, content, extent, fixture, modes, open, submit};

/// Reads each group in every mode and compares every byte.
fn check(groups: &[Vec<Extent>]) {
    let fixture = fixture();
    for mode in modes() {
        let mut disk = open(&fixture.files, mode).expect("opened");
        assert_eq!(
            disk.mode() == mode,
            disk.fallback_reason().is_none(),
            "{mode}: {:?}",
            disk.fallback_reason()
        );
        for (ticket, group) in groups.iter().enumerate() {
            submit(&mut disk, ticket as u64, group);
        }
        assert_eq!(disk.in_flight(), groups.len());
        let mut seen = vec![0; groups.len()];
        while let Some(completion) = disk.wait() {
            let group = &groups[completion.ticket as usize];
            let loaded =
                completion.result.unwrap_or_else(|failed| panic!("{mode}: {group:?}: {}", failed.error));
            for (i, e) in group.iter().enumerate() {
                let expected = &fixture.bytes[e.file.0 as usize][e.offset as usize..][..e.len as usize];
                assert!(loaded.view(i) == expected, "{mode}: {e:?}");
            }
            seen[completion.ticket as usize] += 1;
        }
        assert!(seen.iter().all(|&n| n == 1), "{mode}: {seen:?}");
        let useful: u64 = groups.iter().flatten().map(|e| e.len).sum();
        let stats = disk.stats();
        assert_eq!((stats.requests, stats.requests_failed), (groups.len() as u64, 0));
        assert_eq!(stats.bytes_useful, useful);
    }
}

#[test]
fn odd_places_and_lengths() {
    let mut groups = vec![vec![]];
    for len in [0, 1, 511, 512, 513, 4095, 4096, 4097] {
        for offset in [0, 1, 511, 512, 4095, 4096, 1_000_003] {
            groups.push(vec![extent(0, offset, len)]);
        }
        // To the very end of both files.
        groups.push(vec![extent(0, SIZES[0] - len, len), extent(1, SIZES[1] - len, len)]);
    }
    check(&groups);
}

#[test]
fn several_segments() {
    const M: usize = SEGMENT_BYTES_DEFAULT;
    check(&[
        vec![extent(0, 0, SIZES[0])],
        vec![extent(0, 0, M)],
        vec![extent(0, 0, M + 1)],
        vec![extent(0, M - 1, 2)],
        vec![extent(0, 777, 2 * M + 1)],
        vec![extent(1, 0, SIZES[1])],
        vec![extent(1, 1, SIZES[1] - 1)],
    ]);
}

#[test]
fn neighbours_and_strangers_in_one_request() {
    check(&[
        // An expert of a GGUF: three tensors far apart, none of them aligned.
        vec![extent(0, 100_001, 50_000), extent(0, 1_100_001, 50_000), extent(0, 2_100_003, 60_000)],
        // Back to back, touching only once aligned, overlapping, the same twice, out of order, across files.
        vec![extent(0, 100, 5000), extent(0, 5100, 5000), extent(0, 10_100, 1)],
        vec![extent(0, 100, 10), extent(0, 600, 10), extent(0, 5000, 10)],
        vec![extent(0, 5000, 1000), extent(0, 5500, 10), extent(0, 5000, 1000), extent(0, 0, 5001)],
        vec![
            extent(1, 3, 70_000),
            extent(0, 3, 70_000),
            extent(1, 70_003, 5),
            extent(1, 0, 0),
            extent(0, 1, 1),
        ],
    ]);
}

#[test]
fn many_in_flight() {
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut any = || {
        let file = random(2);
        let kind = random(3);
        let len = random([10, 5000, 300_000][kind]);
        extent(file as u32, random(SIZES[file] - len), len)
    };
    check(&(0..400).map(|n| (0..n % 4).map(|_| any()).collect()).collect::<Vec<_>>());
}

#[test]
fn counts_are_exact() {
    let fixture = fixture();
    let group = [extent(0, 700, 5000), extent(0, SIZES[0] - 10, 10), extent(1, SEGMENT_BYTES_DEFAULT - 1, 2)];
    for mode in modes().filter(|&mode| mode != IoMode::Memory) {
        // The three matrices of an expert, back to back: one read.
        let mut disk = open(&fixture.files, mode).expect("opened");
        disk.read_now(&[extent(0, 100_001, 999), extent(0, 101_000, 1001), extent(0, 102_001, 10)])
            .expect("read");
        assert_eq!((disk.stats().reads, disk.stats().bytes_useful), (1, 2010), "{mode}");
    }
    for mode in modes() {
        let mut disk = open(&fixture.files, mode).expect("opened");
        disk.read_now(&group).expect("read");
        let transferred = group.iter().map(|e| {
            let align = disk.align_bytes(e.file) as u64;
            let end = (e.offset + e.len).next_multiple_of(align);
            end.min(SIZES[e.file.0 as usize] as u64) - e.offset / align * align
        });
        let stats = disk.stats();
        assert_eq!(stats.bytes_transferred, transferred.sum::<u64>(), "{mode}");
        assert_eq!((stats.bytes_useful, stats.reads, stats.retries), (5012, 3, 0), "{mode}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn files_in_memory_are_not_read_directly_and_the_reason_is_kept() {
    let shm = PathBuf::from("/dev/shm");
    let Ok(dir) = tempfile::tempdir_in(&shm) else {
        return eprintln!("skipped: no tmpfs at {}", shm.display());
    };
    let path = dir.path().join("weights.gguf");
    fs::write(&path, content(0, 100_000)).expect("written");
    let files = [WeightPath { path, size_bytes: 100_000 }];
    for mode in [None, Some(IoMode::UringDirect), Some(IoMode::PreadDirect)] {
        let mut disk = Disk::open(&files, &DiskOptions { mode, ..DiskOptions::default() }).expect("opened");
        assert_eq!(disk.mode(), IoMode::PreadBuffered);
        let reason = disk.fallback_reason().expect("a reason");
        assert!(reason.contains("tmpfs") && reason.contains("weights.gguf"), "{reason:?}");
        assert!(
            disk.read_now(&[extent(0, 777, 5000)]).expect("read").view(0) == &content(0, 100_000)[777..5777]
        );
    }
}

#[test]
fn bandwidth_is_measured_on_what_was_asked_for() {
    let fixture = fixture();
    let patterns = vec![vec![extent(0, 5, 100_000), extent(1, 5, 10)], vec![extent(0, 1_000_000, 70_000)]];
    for mode in modes() {
        let mut disk = open(&fixture.files, mode).expect("opened");
        let found = measure(&mut disk, &patterns, Duration::from_millis(30), 4);
        assert!(found.failure.is_none() && found.reads > 0 && found.seconds > 0.0, "{mode}: {found:?}");
        let mean = disk.stats().bytes_useful as f64 / found.reads as f64;
        let measured = found.bytes_per_s * found.seconds / found.reads as f64;
        assert!((measured - mean).abs() < 1.0, "{mode}: {found:?}");

        for (patterns, duration) in [(&patterns[..], Duration::ZERO), (&[], Duration::from_secs(9))] {
            assert_eq!(measure(&mut disk, patterns, duration, 4).reads, 0);
        }
        let beyond = [vec![extent(0, SIZES[0], 1)]];
        let found = measure(&mut disk, &beyond, Duration::from_secs(9), 4);
        assert_eq!(found.failure.map(|error| error.failure.code()), Some("truncated"));
        assert_eq!(disk.in_flight(), 0);
    }
}

/// In every mode, and with the mode left open, a setting from the list is chosen and works.
#[test]
fn a_sweep_chooses_what_was_tried() {
    let fixture = fixture();
    let patterns: Vec<_> = (0..20).map(|n| vec![extent(0, 5 + 100_000 * n, 90_000)]).collect();
    for mode in modes().map(Some).chain([None]) {
        let found = sweep(&fixture.files, &patterns, 4, mode).expect("read");
        if mode == Some(IoMode::Memory) {
            assert_eq!(found, None);
            continue;
        }
        let found = found.expect("measured");
        let setting = found.setting;
        assert!(SWEEP_DEPTHS.contains(&setting.depth), "{setting:?}");
        assert!(SWEEP_SEGMENT_BYTES.contains(&setting.segment_bytes), "{setting:?}");
        assert!(found.bytes_per_s > 0.0 && found.reads > 0, "{found:?}");
        let mut disk = Disk::open(&fixture.files, &setting.options()).expect("opened");
        assert_eq!(disk.mode(), setting.mode);
        assert!(disk.read_now(&patterns[1]).is_ok());
    }
    let beyond = [vec![extent(0, SIZES[0], 1)]];
    let error = sweep(&fixture.files, &beyond, 4, Some(IoMode::PreadBuffered)).expect_err("no such bytes");
    assert_eq!(error.failure.code(), "truncated");
    assert_eq!(sweep(&fixture.files, &[], 4, None).expect("nothing"), None);
}

/// The depth and the size may change while requests are in flight; no byte does.
#[test]
fn depth_and_size_change_nothing_but_speed() {
    let fixture = fixture();
    for mode in modes() {
        let mut disk = open(&fixture.files, mode).expect("opened");
        for (ticket, depth, segment_bytes) in
            [(0, 1, 1), (1, 0, 64 << 10), (2, 1000, 4 << 20), (3, 2, usize::MAX), (4, 8, 100_000)]
        {
            disk.tune(depth, segment_bytes);
            submit(&mut disk, ticket, &[extent(0, 3, SIZES[0] - 3)]);
        }
        while let Some(completion) = disk.wait() {
            assert!(completion.result.expect("read").view(0) == &fixture.bytes[0][3..], "{mode}");
        }
    }
}
