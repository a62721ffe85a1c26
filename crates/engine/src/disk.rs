//! The disk under a model: opened as it was measured best, and measured with the model's own reads.

use std::time::Duration;

use calypte_checkpoint::Catalog;
use calypte_disk::{
    Disk, DiskError, DiskOptions, Extent, IoMode, Profile, ProfileKey, Setting, WeightPath, measure, recall,
    remember, sweep,
};

use crate::{EngineError, Options};

/// Experts that a measurement may touch: enough for its time, bounded so that the list stays small.
const GROUPS_MAX: usize = 4096;

/// Time given to a disk whose reads have no depth or size to choose.
const FIGURE: Duration = Duration::from_millis(500);

/// Whether to measure the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// No; what is remembered is shown.
    Never,
    /// Unless it is remembered.
    Once,
    /// In any case.
    Anew,
}

/// A measured disk.
#[derive(Clone, Debug)]
pub struct DiskFigure {
    /// Useful bytes per second.
    pub bytes_per_s: f64,
    /// How it was read: by which way, how many reads at once, of what size.
    pub setting: Setting,
    /// Why not in a better way.
    pub fallback_reason: Option<String>,
    /// Experts read for the figure.
    pub reads: u64,
    /// Seconds since 1970 when it was measured, if it was remembered; `None`: it was measured now.
    pub remembered_unix_s: Option<u64>,
}

impl DiskFigure {
    fn new(profile: Profile, remembered: bool) -> DiskFigure {
        DiskFigure {
            bytes_per_s: profile.bytes_per_s,
            setting: profile.setting,
            fallback_reason: profile.fallback_reason,
            reads: profile.reads,
            remembered_unix_s: remembered.then_some(profile.measured_unix_s),
        }
    }
}

/// The reads that a model makes of its files.
pub(crate) struct Reads {
    files: Vec<WeightPath>,
    /// Experts in a scattered order.
    groups: Vec<Vec<Extent>>,
    /// Experts that a token needs at once.
    top_k: usize,
}

impl Reads {
    pub fn new(catalog: &Catalog) -> Reads {
        let files = catalog.files.iter();
        let all: Vec<&Vec<Extent>> = catalog.trunk_experts().flat_map(|e| &e.extents).collect();
        // A stride coprime to the number of experts visits all of them, far from each other: what a router does to a disk.
        let stride = (all.len() * 618 / 1000).max(1);
        let stride = (stride..).find(|s| gcd(*s, all.len()) == 1).unwrap_or(1);
        Reads {
            files: files.map(|f| WeightPath { path: f.path.clone(), size_bytes: f.size_bytes }).collect(),
            groups: (0..all.len().min(GROUPS_MAX)).map(|i| all[i * stride % all.len()].clone()).collect(),
            top_k: catalog.arch.moe.as_ref().map_or(1, |m| m.top_k),
        }
    }

    /// Opens the files: as remembered, or with the defaults. Never measures.
    pub fn open(&self, options: &Options) -> Result<Disk, EngineError> {
        self.open_as(options, self.remembered(options).map(|profile| profile.setting))
    }

    /// Opens the files with `setting`, or with the defaults.
    fn open_as(&self, options: &Options, setting: Option<Setting>) -> Result<Disk, EngineError> {
        let defaults = || DiskOptions { mode: options.io, ..DiskOptions::default() };
        let disk_options = setting.map_or_else(defaults, |setting| setting.options());
        Ok(Disk::open(&self.files, &disk_options)?)
    }

    /// The disk's speed, measured or remembered as `probe` says. `None` when there is nothing to read, or nothing known.
    fn figure(&self, options: &Options, probe: Probe) -> Result<Option<DiskFigure>, EngineError> {
        if self.groups.is_empty() {
            return Ok(None);
        }
        let remembered = if probe == Probe::Anew { None } else { self.remembered(options) };
        if let Some(profile) = remembered {
            return Ok(Some(DiskFigure::new(profile, true)));
        }
        if probe == Probe::Never {
            return Ok(None);
        }
        let Some(profile) = sweep(&self.files, &self.groups, self.top_k, options.io)? else {
            return Ok(Some(self.unswept(options)?));
        };
        if let (Some(path), Some(key)) = (&options.disk_profiles, self.key(options))
            && let Err(error) = remember(path, &key, &profile)
        {
            tracing::debug!(path = %path.display(), %error, "the measured disk cannot be remembered");
        }
        Ok(Some(DiskFigure::new(profile, false)))
    }

    /// The disk's speed as [`Reads::figure`] has it, and the disk opened that way. What is remembered is no longer true when
    /// its mode cannot be had any more.
    pub fn measured(
        &self,
        options: &Options,
        probe: Probe,
    ) -> Result<(Option<DiskFigure>, Disk), EngineError> {
        let open = |figure: &Option<DiskFigure>| self.open_as(options, figure.as_ref().map(|f| f.setting));
        let figure = self.figure(options, probe)?;
        let disk = open(&figure)?;
        match &figure {
            Some(known) if known.remembered_unix_s.is_some() && known.setting.mode != disk.mode() => {
                let figure = if probe == Probe::Never { None } else { self.figure(options, Probe::Anew)? };
                let disk = open(&figure)?;
                Ok((figure, disk))
            }
            _ => Ok((figure, disk)),
        }
    }

    /// The figure of files in memory.
    fn unswept(&self, options: &Options) -> Result<DiskFigure, DiskError> {
        let defaults = DiskOptions { mode: options.io, ..DiskOptions::default() };
        let mut disk = Disk::open(&self.files, &defaults)?;
        let found = measure(&mut disk, &self.groups, FIGURE, self.top_k);
        let (depth, segment_bytes) = (defaults.queue_depth, defaults.segment_bytes);
        Ok(DiskFigure {
            bytes_per_s: found.bytes_per_s,
            setting: Setting { mode: disk.mode(), depth, segment_bytes },
            fallback_reason: disk.fallback_reason().map(str::to_owned),
            reads: found.reads,
            remembered_unix_s: None,
        })
    }

    fn key(&self, options: &Options) -> Option<ProfileKey> {
        ProfileKey::new(&self.files, &self.groups, self.top_k, options.io)
    }

    fn remembered(&self, options: &Options) -> Option<Profile> {
        let path = options.disk_profiles.as_ref()?;
        // Files in memory have no settings.
        if options.io == Some(IoMode::Memory) {
            return None;
        }
        recall(path, &self.key(options)?)
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
