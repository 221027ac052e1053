//! Files that hold whole lines: appended to, repaired, replaced; readable by their owner only, and of one run at a time.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufWriter, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// Options that create files for their owner's eyes only.
pub(super) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Opens a file for one run alone: until it, or what is put in its place, is closed, however the process ends. Without
/// a lock where there are none: the second says why.
pub(super) fn open_alone(path: &Path) -> io::Result<(File, Option<io::Error>)> {
    loop {
        let file = private().read(true).write(true).create(true).truncate(false).open(path)?;
        if !file.metadata()?.is_file() {
            return Ok((file, None));
        }
        let unlocked = lock(&file)?;
        // The run that had it may have put another one in its place since it was opened.
        if unlocked.is_some() || is_at(&file, path)? {
            return Ok((file, unlocked));
        }
    }
}

/// Not on Windows, where whoever reads a locked file would fail.
#[cfg(not(unix))]
fn lock(_: &File) -> io::Result<Option<io::Error>> {
    Ok(None)
}

#[cfg(unix)]
fn lock(file: &File) -> io::Result<Option<io::Error>> {
    judged(fs4::FileExt::try_lock(file))
}

/// Another run may have it: nothing is written to it any more.
pub(super) fn release(file: &File) {
    // At the latest when it is closed.
    #[cfg(unix)]
    let _ = fs4::FileExt::unlock(file);
    #[cfg(not(unix))]
    let _ = file;
}

#[cfg(unix)]
fn judged(tried: Result<(), fs4::TryLockError>) -> io::Result<Option<io::Error>> {
    match tried {
        Ok(()) => Ok(None),
        Err(fs4::TryLockError::WouldBlock) => {
            Err(io::Error::new(io::ErrorKind::ResourceBusy, "another run is writing it"))
        }
        Err(fs4::TryLockError::Error(error)) => {
            let why = format!("it cannot be locked ({error}): see to it that no other run writes it");
            Ok(Some(io::Error::new(error.kind(), why)))
        }
    }
}

#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}

#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let file = file.metadata()?;
    match path.metadata() {
        Ok(there) => Ok((there.dev(), there.ino()) == (file.dev(), file.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Puts `text` in the file's place, all or nothing, and opens it for more.
pub(super) fn replace(path: &Path, text: &[u8], fsync: bool) -> io::Result<File> {
    replace_with(path, fsync, |file| file.write_all(text))
}

/// As [`replace`], for what does not fit into memory.
pub(super) fn replace_with(
    path: &Path,
    fsync: bool,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    // What is there may be a link, or readable by others.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = private().read(true).write(true).create_new(true).open(&new)?;
    // Whoever comes next finds it locked. Where there are no locks that was said before.
    lock(&file)?;
    let renamed = write(&mut file)
        .and_then(|()| if fsync { file.sync_all() } else { Ok(()) })
        .and_then(|()| std::fs::rename(&new, path));
    if let Err(error) = renamed {
        // It is of no use, and takes space on a disk that may be full.
        let _ = std::fs::remove_file(&new);
        return Err(error);
    }
    if fsync {
        sync_folder(path)?;
    }
    Ok(file)
}

/// A new name is on the disk only when its folder is.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    match File::open(folder) {
        Ok(folder) if cfg!(unix) => folder.sync_all(),
        _ => Ok(()),
    }
}

/// Appends whole lines to a file of `size` bytes, which then has as many as this returns; when that fails no part of
/// them stays.
pub(super) fn append(
    file: &mut File,
    size: u64,
    write: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>,
) -> io::Result<u64> {
    let mut buffer = BufWriter::with_capacity(1 << 16, &mut *file);
    let written = write(&mut buffer).and_then(|()| buffer.flush());
    drop(buffer.into_parts());
    written.and_then(|()| file.stream_position()).inspect_err(|_| {
        // Should this fail too, the next run repairs the torn line.
        let _ = file.set_len(size).and_then(|()| file.seek(SeekFrom::Start(size)));
    })
}

/// Each line of a file with its line feed, and where the last whole one ends.
pub(super) fn each_line(file: &mut File, mut each: impl FnMut(&[u8])) -> io::Result<u64> {
    file.seek(SeekFrom::Start(0))?;
    let (mut buffer, mut kept, mut end) = (vec![0; 1 << 16], Vec::new(), 0);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok(end);
        }
        let mut rest = &buffer[..read];
        while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(at + 1);
            rest = after;
            if kept.is_empty() {
                each(line);
                end += line.len() as u64;
            } else {
                kept.extend_from_slice(line);
                each(&kept);
                end += kept.len() as u64;
                kept.clear();
            }
        }
        kept.extend_from_slice(rest);
    }
}

/// A path for a test.
#[cfg(test)]
pub(super) fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("abide-{name}-{}", uuid::Uuid::new_v4()))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_of_one_run_also_when_it_is_replaced() {
        let path = scratch("alone");
        let why = || open_alone(&path).unwrap_err().to_string();
        let (first, unlocked) = open_alone(&path).unwrap();
        assert!(unlocked.is_none() && why() == "another run is writing it");
        let second = replace(&path, b"new\n", false).unwrap();
        drop(first);
        assert_eq!(why(), "another run is writing it");
        drop(second);
        assert!(open_alone(&path).is_ok());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_system_without_locks_is_told_of() {
        // ENOLCK of Linux.
        let tried = judged(Err(fs4::TryLockError::Error(io::Error::from_raw_os_error(37))));
        assert!(tried.unwrap().unwrap().to_string().starts_with("it cannot be locked (No locks available"));
        assert!(judged(Err(fs4::TryLockError::WouldBlock)).is_err());
    }
}
