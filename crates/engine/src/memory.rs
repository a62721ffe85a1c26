//! What memory there is, and what this process uses of it.

/// Memory that this process may take without pushing the system into swapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Available {
    /// The smaller of what the machine and the control group have left.
    pub bytes: u64,
    /// Which of the two it is, for messages.
    pub binding: &'static str,
}

/// Memory available now, or `None` where the system does not say (not Linux).
///
/// The machine's figure is the kernel's own `MemAvailable`. A control group counts page cache as used although it would
/// be given back, so its reclaimable part is counted as free.
pub fn available() -> Option<Available> {
    let machine = meminfo(&read("/proc/meminfo")?, "MemAvailable")?;
    let group = cgroup_headroom();
    Some(match group {
        Some(bytes) if bytes < machine => Available { bytes, binding: "control group" },
        _ => Available { bytes: machine, binding: "machine" },
    })
}

/// Highest resident size of this process so far, in bytes; 0 where the system does not say.
pub fn peak_rss_bytes() -> u64 {
    read("/proc/self/status").and_then(|s| meminfo(&s, "VmHWM")).unwrap_or(0)
}

#[cfg(target_os = "linux")]
fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

#[cfg(not(target_os = "linux"))]
fn read(_path: &str) -> Option<String> {
    None
}

/// A `Name:   123 kB` line of a /proc file, in bytes.
fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|l| l.strip_prefix(name).is_some_and(|rest| rest.starts_with(':')))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Limit less use plus reclaimable cache of this process's control group and all above it, v2 or v1.
fn cgroup_headroom() -> Option<u64> {
    let membership = read("/proc/self/cgroup")?;
    let mut least = None;
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let v2 = controllers.is_empty();
        if !v2 && !controllers.split(',').any(|c| c == "memory") {
            continue;
        }
        let root = if v2 { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/memory" };
        let mut path = path.trim_end_matches('/');
        loop {
            if let Some(bytes) = group_headroom(&format!("{root}{path}"), v2) {
                least = Some(least.map_or(bytes, |l: u64| l.min(bytes)));
            }
            match path.rfind('/') {
                Some(i) => path = &path[..i],
                None => break,
            }
        }
    }
    least
}

fn group_headroom(dir: &str, v2: bool) -> Option<u64> {
    let (limit, usage, cache) = if v2 {
        ("memory.max", "memory.current", "inactive_file")
    } else {
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    };
    let number = |name: &str| read(&format!("{dir}/{name}"))?.trim().parse::<u64>().ok();
    // v2 spells "no limit" as `max`, which is no number; v1 as a number near 2⁶³.
    let limit = number(limit).filter(|l| *l < 1 << 60)?;
    let stat = read(&format!("{dir}/memory.stat"))?;
    let reclaimable =
        stat.lines().find_map(|l| l.strip_prefix(cache)?.trim().parse::<u64>().ok()).unwrap_or(0);
    Some(limit.saturating_sub(number(usage)?.saturating_sub(reclaimable)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_lines_are_read_in_kib() {
        let text = "MemTotal:  100 kB\nMemAvailable:   42 kB\nMemAvailableX: 1 kB\n";
        for (name, want) in [("MemAvailable", Some(43_008)), ("Mem", None), ("Missing", None)] {
            assert_eq!(meminfo(text, name), want);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_a_peak_and_the_machine_has_memory() {
        assert!(peak_rss_bytes() > 0);
        assert!(available().is_some_and(|a| a.bytes > 0));
    }
}
