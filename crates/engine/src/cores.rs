//! How many threads are worth having: the physical cores that this process may use.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::Path;

/// CPU numbers beyond this are not believed; Linux is built for 8,192 at most.
const CPU_MAX: usize = 1 << 16;

/// Compute threads unless the user chooses: one per physical core in this process's affinity mask, and no more than its
/// cgroup's quota of processor time (v1 or v2). Two threads of one core share its vector units, and the kernels keep
/// those busy. Where the cores are not known (no Linux, no `/sys`), one per thread that the system allows.
///
/// Nothing is set aside for I/O: its threads wait in the kernel nearly all of the time, direct reads (where they work,
/// the default) cost no copy, and while experts are awaited the compute threads have cores to spare.
pub fn compute_threads() -> usize {
    // Knows of the mask and of quotas.
    let available = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    physical_cores(Path::new("/")).map_or(available, |cores| cores.min(available))
}

/// Physical cores with at least one processor in the affinity mask, as the `/proc` and `/sys` under `root` say. `None`
/// where they do not.
fn physical_cores(root: &Path) -> Option<usize> {
    let status = std::fs::read_to_string(root.join("proc/self/status")).ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let cores: BTreeSet<Vec<usize>> =
        cpu_list(allowed)?.into_iter().filter_map(|cpu| siblings(root, cpu)).collect();
    (!cores.is_empty()).then_some(cores.len())
}

/// The processors that share a core with `cpu`, itself included. They name the core, which `core_id` does not: it may
/// repeat in another package, die or cluster. `None` for one that is offline; masks hold those too.
fn siblings(root: &Path, cpu: usize) -> Option<Vec<usize>> {
    let topology = root.join(format!("sys/devices/system/cpu/cpu{cpu}/topology"));
    // Older kernels have the second name only.
    let list = ["core_cpus_list", "thread_siblings_list"]
        .iter()
        .find_map(|name| std::fs::read_to_string(topology.join(name)).ok())?;
    cpu_list(&list)
}

/// Linux's way to write a set of processors: `0-3,8,10-11`.
fn cpu_list(text: &str) -> Option<Vec<usize>> {
    let number = |s: &str| s.parse::<usize>().ok().filter(|&n| n <= CPU_MAX);
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(number(first)?..=number(last)?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// `machine` is a list of processors, each with its siblings; they go under `name`.
    #[track_caller]
    fn check(allowed: &str, name: &str, machine: &[(usize, &str)], expected: Option<usize>) {
        let root = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
            fs::write(path, text).expect("a file");
        };
        write("proc/self/status", &format!("Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\n"));
        for (cpu, siblings) in machine {
            write(&format!("sys/devices/system/cpu/cpu{cpu}/topology/{name}"), &format!("{siblings}\n"));
        }
        assert_eq!(physical_cores(root.path()), expected, "{allowed} of {machine:?}");
    }

    #[test]
    fn cores_of_the_mask_are_counted_once() {
        // Four cores of two threads, numbered as most machines do: the second threads come last.
        let far: Vec<_> = (0..8).map(|cpu| (cpu, ["0,4", "1,5", "2,6", "3,7"][cpu % 4])).collect();
        let near = [(0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")];
        check("0-7", "core_cpus_list", &far, Some(4));
        check("0-7", "thread_siblings_list", &far, Some(4));
        check("0,4", "core_cpus_list", &far, Some(1));
        check("1-2,5", "core_cpus_list", &far, Some(2));
        check("0-3", "core_cpus_list", &near, Some(2));
        check("0,2", "core_cpus_list", &near, Some(2));
        // Allowed, but offline.
        check("0-127", "core_cpus_list", &near, Some(2));
        // Nothing known.
        check("0-3", "core_cpus_list", &[], None);
        check("", "core_cpus_list", &near, None);
        check("0-x", "core_cpus_list", &near, None);
        assert_eq!(physical_cores(Path::new("/nonexistent")), None);
    }

    #[test]
    fn lists_of_processors() {
        for (text, expected) in [
            ("0", Some(vec![0])),
            ("0-2,5,7-8\n", Some(vec![0, 1, 2, 5, 7, 8])),
            ("3-1", Some(vec![])),
            ("0-99999999999", None),
            ("-1", None),
            ("1,", None),
        ] {
            assert_eq!(cpu_list(text), expected, "{text:?}");
        }
    }
}
