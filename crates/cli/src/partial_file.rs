//! Files that have their name only once they are whole.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file that is being written. Dropped before [`PartialFile::finish`], it is removed, and whatever bore its name before still does.
pub struct PartialFile {
    path: PathBuf,
    /// Its name until then: beside the other, so that a rename is enough.
    partial: PathBuf,
    file: BufWriter<File>,
    whole: bool,
}

impl PartialFile {
    /// An empty file that will be called `path`.
    pub fn create(path: &Path) -> io::Result<PartialFile> {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".partial-{}", std::process::id()));
        let partial = PathBuf::from(name);
        let file = BufWriter::new(File::create(&partial)?);
        Ok(PartialFile { path: path.to_owned(), partial, file, whole: false })
    }

    /// Gives the file its name.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        std::fs::rename(&self.partial, &self.path)?;
        self.whole = true;
        Ok(())
    }
}

impl Write for PartialFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.whole {
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_of_the_old_file_until_the_new_one_is_whole() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        let names = || std::fs::read_dir(directory.path()).expect("a directory").count();
        std::fs::write(&path, "old").expect("written");
        for (content, whole, expected) in [("half", false, "old"), ("new", true, "new")] {
            let mut file = PartialFile::create(&path).expect("created");
            file.write_all(content.as_bytes()).expect("written");
            assert_eq!(names(), 2, "beside it");
            if whole {
                file.finish().expect("renamed");
            } else {
                drop(file);
            }
            assert_eq!(std::fs::read_to_string(&path).expect("there"), expected);
            assert_eq!(names(), 1, "nothing else is left");
        }
        assert!(PartialFile::create(&directory.path().join("none/file")).is_err());
    }
}
