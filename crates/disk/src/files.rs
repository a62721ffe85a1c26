//! Open weight files: opening, and believing in direct reads only after having seen them.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::memory::NamedBytes;
use crate::{BUFFER_ALIGN_BYTES, Buffer, DiskError, Failure, FileId, SEGMENT_BYTES_MAX, WeightPath};

/// What readers need to know of the files. Tests put scripted files in its place.
pub(crate) trait Source: Send + Sync {
    /// Number of files.
    fn files(&self) -> usize;
    /// The name of a file, for errors.
    fn path(&self, file: FileId) -> &Path;
    /// What offsets and lengths must be multiples of, in bytes; 1 for files it does not know.
    fn align_bytes(&self, file: FileId) -> usize;
    /// One positional read.
    fn read_at(&self, file: FileId, into: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Size of the file now, in bytes.
    fn file_bytes(&self, file: FileId) -> io::Result<u64>;
    /// Whether nothing is at its path any more.
    fn is_missing(&self, file: FileId) -> bool;
}

const NOT_REGULAR: &str = "not a regular file: name the weight file itself";

/// Every weight file, open.
pub(crate) struct OpenFiles {
    files: Vec<OpenFile>,
}

struct OpenFile {
    path: PathBuf,
    handle: File,
    align_bytes: usize,
}

/// Why files could not be opened.
pub(crate) enum OpenTrouble {
    /// In no mode.
    Disk(DiskError),
    /// Not for direct reads, with the reason.
    NoDirect(String),
}

impl OpenFiles {
    /// Opens all files for direct or for buffered reads.
    pub fn open(files: &[WeightPath], direct: bool) -> Result<OpenFiles, OpenTrouble> {
        let open = |file: &WeightPath| open_file(file, direct);
        Ok(OpenFiles { files: files.iter().map(open).collect::<Result<_, _>>()? })
    }

    fn get(&self, file: FileId) -> io::Result<&OpenFile> {
        self.files.get(file.0 as usize).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
    }

    /// The descriptor of a file, valid as long as `self`.
    #[cfg(target_os = "linux")]
    pub fn descriptor(&self, file: FileId) -> Option<std::os::fd::RawFd> {
        use std::os::fd::AsRawFd;
        self.get(file).ok().map(|file| file.handle.as_raw_fd())
    }

    /// A file with at least one byte.
    #[cfg(target_os = "linux")]
    pub fn first_with_bytes(&self) -> Option<FileId> {
        let has_bytes = |file: &OpenFile| file.handle.metadata().is_ok_and(|m| m.len() > 0);
        self.files.iter().position(has_bytes).and_then(|n| u32::try_from(n).ok()).map(FileId)
    }
}

impl Source for OpenFiles {
    fn files(&self) -> usize {
        self.files.len()
    }

    fn path(&self, file: FileId) -> &Path {
        self.files.get(file.0 as usize).map_or(Path::new("(unknown file)"), |file| &file.path)
    }

    fn align_bytes(&self, file: FileId) -> usize {
        self.files.get(file.0 as usize).map_or(1, |file| file.align_bytes)
    }

    fn read_at(&self, file: FileId, into: &mut [u8], offset: u64) -> io::Result<usize> {
        read_at(&self.get(file)?.handle, into, offset)
    }

    fn file_bytes(&self, file: FileId) -> io::Result<u64> {
        Ok(self.get(file)?.handle.metadata()?.len())
    }

    fn is_missing(&self, file: FileId) -> bool {
        std::fs::metadata(self.path(file)).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }
}

#[cfg(unix)]
fn read_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, into, offset)
}

#[cfg(windows)]
fn read_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, into, offset)
}

fn open_file(file: &WeightPath, direct: bool) -> Result<OpenFile, OpenTrouble> {
    let fail = |failure: Failure| OpenTrouble::Disk(failure.at(&file.path, 0, file.size_bytes));
    let fail_io = |error: io::Error| fail(Failure::from_io(error));
    // Before opening, because opening a pipe would wait for its other end.
    if !std::fs::metadata(&file.path).map_err(fail_io)?.is_file() {
        return Err(fail(Failure::refused(NOT_REGULAR)));
    }
    let handle = match open_handle(&file.path, direct) {
        Ok(handle) => handle,
        Err(error) if direct && is_unsupported(&error) => {
            let reason = format!("{}: opening it for direct reads failed: {error}", file.path.display());
            return Err(OpenTrouble::NoDirect(reason));
        }
        Err(error) => return Err(fail_io(error)),
    };
    check_size(handle.metadata().map_err(fail_io)?.len(), file.size_bytes).map_err(fail)?;
    let align_bytes = if direct {
        let no_direct = |reason: String| OpenTrouble::NoDirect(format!("{}: {reason}", file.path.display()));
        probe_direct(&handle, file.size_bytes).map_err(no_direct)?
    } else {
        advise_buffered(&handle);
        1
    };
    Ok(OpenFile { path: file.path.clone(), handle, align_bytes })
}

fn open_handle(path: &Path, direct: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    if direct {
        ask_for_direct(&mut options)?;
    }
    options.open(path)
}

#[cfg(target_os = "linux")]
fn ask_for_direct(options: &mut OpenOptions) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    options.custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32);
    Ok(())
}

#[cfg(windows)]
fn ask_for_direct(options: &mut OpenOptions) -> io::Result<()> {
    use std::os::windows::fs::OpenOptionsExt;
    const FILE_FLAG_NO_BUFFERING: u32 = 0x2000_0000;
    options.custom_flags(FILE_FLAG_NO_BUFFERING);
    Ok(())
}

#[cfg(not(any(target_os = "linux", windows)))]
fn ask_for_direct(_options: &mut OpenOptions) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system has no O_DIRECT that we know how to use"))
}

/// EINVAL and EOPNOTSUPP, and Windows' ERROR_INVALID_PARAMETER: the file is there, but not for direct reads.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
}

/// Reads are placed exactly, so what the page cache would read ahead is mostly never wanted. Only advice: failure is
/// harmless.
fn advise_buffered(handle: &File) {
    #[cfg(target_os = "linux")]
    let _ = rustix::fs::fadvise(handle, 0, None, rustix::fs::Advice::Random);
    // Not the same as direct reads, and not reported as such: it merely keeps weights from filling the page cache.
    #[cfg(target_vendor = "apple")]
    let _ = rustix::fs::fcntl_nocache(handle, true);
    #[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
    let _ = handle;
}

/// The alignment of a file opened for direct reads, once a read with that alignment has worked; else why not. That
/// the file could be opened proves nothing: some file systems accept the flag and fail at the first read.
fn probe_direct(handle: &File, size_bytes: u64) -> Result<usize, String> {
    let align = match stated_alignment(handle)? {
        Some(align) => align,
        // Unknown to the kernel or the file system. Pages satisfy every device there is.
        None => BUFFER_ALIGN_BYTES,
    };
    if align > SEGMENT_BYTES_MAX {
        return Err(format!(
            "direct reads need an alignment of {align} bytes, above our limit of {SEGMENT_BYTES_MAX}"
        ));
    }
    if size_bytes == 0 {
        return Ok(align);
    }
    // The last block, because the end of the file is where file systems differ.
    let offset = (size_bytes - 1) / align as u64 * align as u64;
    let mut block = Buffer::with_capacity(align);
    let what = format!("a direct read of {align} bytes at offset {offset}");
    match read_at(handle, block.as_mut_slice(), offset) {
        Ok(came) if came as u64 >= size_bytes - offset => Ok(align),
        Ok(came) => Err(format!("{what} brought only {came} of {} bytes", size_bytes - offset)),
        Err(error) => Err(format!("{what} failed: {error}")),
    }
}

/// What the kernel says that direct reads of this file must be aligned to, in bytes. An error when it says that they are
/// impossible or mean nothing.
#[cfg(target_os = "linux")]
fn stated_alignment(handle: &File) -> Result<Option<usize>, String> {
    use rustix::fs::{AtFlags, StatxFlags, fstatfs, statx};
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    if let Ok(system) = fstatfs(handle)
        && [TMPFS_MAGIC, RAMFS_MAGIC].contains(&(system.f_type as u64))
    {
        // Newer kernels accept the flag there, but the file *is* the page cache.
        return Err("it lies in memory (tmpfs), where direct reads mean nothing".to_owned());
    }
    let Ok(found) = statx(handle, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return Ok(None);
    };
    if found.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Ok(None);
    }
    let (memory, offset) = (found.stx_dio_mem_align as usize, found.stx_dio_offset_align as usize);
    if memory == 0 || offset == 0 {
        return Err("its file system allows no direct reads (statx)".to_owned());
    }
    if memory > BUFFER_ALIGN_BYTES {
        return Err(format!(
            "direct reads need memory aligned to {memory} bytes, ours has {BUFFER_ALIGN_BYTES}"
        ));
    }
    if !memory.is_power_of_two() || !offset.is_power_of_two() {
        return Err(format!("its alignment of {memory} and {offset} bytes is no power of two (statx)"));
    }
    // Segments start at multiples of one number both in the file and in memory.
    Ok(Some(memory.max(offset)))
}

#[cfg(not(target_os = "linux"))]
fn stated_alignment(_handle: &File) -> Result<Option<usize>, String> {
    Ok(None)
}

/// `Ok` when a file still has the size that the catalogue read.
fn check_size(file_bytes: u64, expected_bytes: u64) -> Result<(), Failure> {
    match file_bytes.cmp(&expected_bytes) {
        std::cmp::Ordering::Less => Err(Failure::Truncated { file_bytes }),
        std::cmp::Ordering::Greater => Err(Failure::Changed { file_bytes }),
        std::cmp::Ordering::Equal => Ok(()),
    }
}

/// Reads whole files, as the memory mode does.
///
/// # Errors
/// A file that cannot be read, or whose size is not the catalogue's.
pub(crate) fn read_files(files: &[WeightPath]) -> Result<Vec<NamedBytes>, DiskError> {
    let read = |file: &WeightPath| {
        let fail = |failure: Failure| failure.at(&file.path, 0, file.size_bytes);
        let found = std::fs::metadata(&file.path).map_err(|e| fail(Failure::from_io(e)))?;
        if !found.is_file() {
            return Err(fail(Failure::refused(NOT_REGULAR)));
        }
        let bytes = std::fs::read(&file.path).map_err(|e| fail(Failure::from_io(e)))?;
        check_size(bytes.len() as u64, file.size_bytes).map_err(fail)?;
        Ok((file.path.clone(), Arc::from(bytes)))
    };
    files.iter().map(read).collect()
}
