//! Files that are in memory already: every target, no threads. For wasm, for tests, and for models smaller than memory.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backend::{Backend, Completion, Counters, FailedRead, Loaded, ReadRequest};
use crate::layout::{Layout, lay_out};
use crate::{Buffer, DiskError, Extent, Failure, FileId, IoMode};

/// A file's name and its content.
pub(crate) type NamedBytes = (PathBuf, Arc<[u8]>);

/// A [`Backend`] over byte slices. A request is carried out when it is submitted; completions come in that order.
#[derive(Debug)]
pub struct MemoryBackend {
    files: Vec<NamedBytes>,
    ready: VecDeque<Completion>,
    counters: Counters,
}

impl MemoryBackend {
    /// Files by their names and contents; the place in the list is the [`FileId`].
    pub fn new(files: Vec<(PathBuf, Arc<[u8]>)>) -> MemoryBackend {
        MemoryBackend { files, ready: VecDeque::new(), counters: Counters::default() }
    }

    fn fill(&mut self, buffer: &mut Buffer, extents: &[Extent], layout: &Layout) -> Result<(), DiskError> {
        for (extent, view) in extents.iter().zip(&layout.views).filter(|(extent, _)| extent.len > 0) {
            let Some((path, bytes)) = self.files.get(extent.file.0 as usize) else {
                return Err(unknown_file(*extent, self.files.len()));
            };
            let fail = |failure: Failure| failure.at(path, extent.offset, extent.len);
            let source = usize::try_from(extent.offset)
                .ok()
                .and_then(|start| bytes.get(start..start.checked_add(view.len())?))
                .ok_or_else(|| fail(Failure::Truncated { file_bytes: bytes.len() as u64 }))?;
            let capacity = buffer.capacity();
            let target = buffer.as_mut_slice().get_mut(view.clone());
            target.ok_or_else(|| fail(too_small(capacity, layout.bytes)))?.copy_from_slice(source);
            self.counters.reads += 1;
            self.counters.bytes_transferred += view.len() as u64;
        }
        Ok(())
    }

    fn carry_out(&mut self, request: ReadRequest) -> Result<Loaded, FailedRead> {
        let ReadRequest { extents, mut buffer, .. } = request;
        let layout = match lay_out(&extents, |_| 1) {
            Ok(layout) => layout,
            Err(bad) => {
                let error = too_large(&extents, bad.index, |file| self.path(file));
                return Err(FailedRead { error, buffer });
            }
        };
        match self.fill(&mut buffer, &extents, &layout) {
            Ok(()) => loaded(buffer, layout),
            Err(error) => Err(FailedRead { error, buffer }),
        }
    }

    fn path(&self, file: FileId) -> Option<&Path> {
        self.files.get(file.0 as usize).map(|(path, _)| path.as_path())
    }
}

impl Backend for MemoryBackend {
    fn submit(&mut self, request: ReadRequest) {
        let ticket = request.ticket;
        let result = self.carry_out(request);
        self.ready.push_back(Completion { ticket, result });
    }

    fn poll(&mut self) -> Option<Completion> {
        self.ready.pop_front()
    }

    fn wait(&mut self) -> Option<Completion> {
        self.ready.pop_front()
    }

    fn in_flight(&self) -> usize {
        self.ready.len()
    }

    fn mode(&self) -> IoMode {
        IoMode::Memory
    }

    fn align_bytes(&self, _file: FileId) -> usize {
        1
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

/// The extents lie in the buffer as `layout` says.
pub(crate) fn loaded(buffer: Buffer, layout: Layout) -> Result<Loaded, FailedRead> {
    let capacity = buffer.capacity();
    match Loaded::new(buffer, layout.views) {
        Some(loaded) => Ok(loaded),
        // `Loaded::new` keeps the buffer only on success. Unreachable after the checks of the callers.
        None => {
            let error = too_small(capacity, layout.bytes).at(Path::new("(request)"), 0, 0);
            Err(FailedRead { error, buffer: Buffer::with_capacity(0) })
        }
    }
}

pub(crate) fn too_small(capacity: usize, needed: usize) -> Failure {
    Failure::refused(format!(
        "the buffer has {capacity} bytes and {needed} are needed: size it with `Disk::buffer_bytes`"
    ))
}

pub(crate) fn unknown_file(extent: Extent, files: usize) -> DiskError {
    let reason = format!("there is no file {}; {files} are open", extent.file.0);
    Failure::refused(reason).at(Path::new("(unknown file)"), extent.offset, extent.len)
}

/// The refusal of an extent whose numbers do not fit.
pub(crate) fn too_large<'a>(
    extents: &[Extent],
    index: usize,
    path: impl Fn(FileId) -> Option<&'a Path>,
) -> DiskError {
    let extent = extents.get(index).copied().unwrap_or(Extent { file: FileId(0), offset: 0, len: 0 });
    let reason = "its end lies beyond what this machine can address: the catalogue is wrong";
    let path = path(extent.file).unwrap_or(Path::new("(unknown file)"));
    Failure::refused(reason).at(path, extent.offset, extent.len)
}
