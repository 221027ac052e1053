//! Files that hold whole lines: appended to, repaired, replaced; readable by their owner only.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// Options that create files for their owner's eyes only.
pub(super) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
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

/// Appends whole lines to a file of `size` bytes; when that fails no part of them stays.
pub(super) fn append(file: &mut File, lines: &[u8], size: u64) -> io::Result<()> {
    if let Err(error) = file.write_all(lines) {
        // Should this fail too, the next run repairs the torn line.
        let _ = file.set_len(size).and_then(|()| file.seek(SeekFrom::Start(size)));
        return Err(error);
    }
    Ok(())
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
