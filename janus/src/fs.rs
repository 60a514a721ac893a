//! Files that block the task and not its worker: `std::fs` with the task's [`Cx`].
//!
//! With io_uring the kernel reads and writes. A thread of the pool
//! ([`Config::blocking_threads`](crate::Config::blocking_threads)) does so with epoll, which cannot wait for files, and
//! does everything that goes by a path. The kernel does not stop a read or a write of a file half way: an operation
//! that has begun is waited for, also by a task that was cancelled.

use crate::budget::Operation;
use crate::cx::Cx;
use crate::io::op::{Call, Manner, Request, perform};
use crate::io::pool::{Ending, unblock_as};
use crate::io::{Read, Write, refused, sys};
use std::fs as std_fs;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most that a thread reads or writes for a task in one call.
const CHUNK: usize = 1 << 20;

/// An open file: [`std::fs::File`] with a [`Cx`].
///
/// ```
/// # use janus::{Config, Runtime, fs::File};
/// # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
/// # let path = std::env::temp_dir().join(format!("janus-doc-{}", std::process::id()));
/// let text = runtime.run(|cx| -> std::io::Result<String> {
///     File::create(cx, &path)?.write_all(cx, b"kept")?;
///     janus::fs::read_to_string(cx, &path)
/// }).unwrap().unwrap();
/// assert_eq!(text, "kept");
/// # std::fs::remove_file(&path).unwrap();
/// ```
#[derive(Debug)]
pub struct File {
    file: Arc<std_fs::File>,
    /// Not a pipe, terminal or device: there is no readiness to wait for.
    regular: bool,
}

impl File {
    /// Opens the file for reading.
    #[track_caller]
    pub fn open(cx: &Cx, path: impl AsRef<Path>) -> io::Result<File> {
        File::open_with(cx, path, std_fs::OpenOptions::new().read(true))
    }

    /// Creates the file, or empties it, for writing.
    #[track_caller]
    pub fn create(cx: &Cx, path: impl AsRef<Path>) -> io::Result<File> {
        File::open_with(cx, path, std_fs::OpenOptions::new().write(true).create(true).truncate(true))
    }

    /// Opens the file as the options say. Opening a named pipe waits until its other end is open.
    #[track_caller]
    pub fn open_with(cx: &Cx, path: impl AsRef<Path>, options: &std_fs::OpenOptions) -> io::Result<File> {
        let options = options.clone();
        File::from_std(by_thread(cx, path.as_ref(), Location::caller(), move |path| options.open(path))?)
    }

    /// Converts a file of `std`.
    pub fn from_std(file: std_fs::File) -> io::Result<File> {
        let kind = file.metadata()?.file_type();
        let regular = kind.is_file() || kind.is_dir();
        if !regular {
            sys::set_nonblocking(&file)?;
        }
        Ok(File { file: Arc::new(file), regular })
    }

    /// Whether a thread has to carry out operations, because the worker's driver cannot.
    fn needs_thread(&self, cx: &Cx) -> io::Result<bool> {
        refused(cx)?;
        Ok(self.regular && !cx.worker().io.takes_files(cx.worker())?)
    }

    fn perform(&self, cx: &Cx, request: Request, at: &'static Location<'static>) -> io::Result<usize> {
        perform(cx, request, &Manner { cost: Operation::FileIo, until: None, eager: !self.regular, at })
    }

    /// As `perform`, but carried out by a thread, which owns what it works with.
    fn thread<T: Send + 'static>(
        &self,
        cx: &Cx,
        at: &'static Location<'static>,
        call: impl FnOnce(&std_fs::File) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let file = self.file.clone();
        unblock_as(cx, Operation::FileIo, at, Ending::Await, move || call(&file))?
    }

    fn read_by_thread(
        &self,
        cx: &Cx,
        buffer: &mut [u8],
        at: &'static Location<'static>,
        call: impl FnOnce(&std_fs::File, &mut [u8]) -> io::Result<usize> + Send + 'static,
    ) -> io::Result<usize> {
        let room = buffer.len().min(CHUNK);
        let read = self.thread(cx, at, move |file| {
            let mut bytes = vec![0; room];
            let got = call(file, &mut bytes)?;
            bytes.truncate(got);
            Ok(bytes)
        })?;
        buffer[..read.len()].copy_from_slice(&read);
        Ok(read.len())
    }

    /// Reads from the current position; 0 is the end.
    #[track_caller]
    pub fn read(&self, cx: &Cx, buffer: &mut [u8]) -> io::Result<usize> {
        let at = Location::caller();
        if self.needs_thread(cx)? {
            return self.read_by_thread(cx, buffer, at, |mut file, bytes| file.read(bytes));
        }
        self.perform(cx, Request::into(Call::Read, self.file.as_raw_fd(), buffer), at)
    }

    /// Writes at the current position.
    #[track_caller]
    pub fn write(&self, cx: &Cx, buffer: &[u8]) -> io::Result<usize> {
        let at = Location::caller();
        if self.needs_thread(cx)? {
            let bytes = buffer[..buffer.len().min(CHUNK)].to_vec();
            return self.thread(cx, at, move |mut file| file.write(&bytes));
        }
        self.perform(cx, Request::out_of(Call::Write, self.file.as_raw_fd(), buffer), at)
    }

    /// Reads at `offset`, and leaves the current position unchanged.
    #[track_caller]
    pub fn read_at(&self, cx: &Cx, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let at = Location::caller();
        if self.needs_thread(cx)? {
            return self.read_by_thread(cx, buffer, at, move |file, bytes| file.read_at(bytes, offset));
        }
        self.perform(cx, Request::into(Call::ReadAt(offset), self.file.as_raw_fd(), buffer), at)
    }

    /// Writes at `offset`, and leaves the current position unchanged.
    #[track_caller]
    pub fn write_at(&self, cx: &Cx, buffer: &[u8], offset: u64) -> io::Result<usize> {
        let at = Location::caller();
        if self.needs_thread(cx)? {
            let bytes = buffer[..buffer.len().min(CHUNK)].to_vec();
            return self.thread(cx, at, move |file| file.write_at(&bytes, offset));
        }
        self.perform(cx, Request::out_of(Call::WriteAt(offset), self.file.as_raw_fd(), buffer), at)
    }

    /// Fills the buffer.
    pub fn read_exact(&self, cx: &Cx, buffer: &mut [u8]) -> io::Result<()> {
        Read::read_exact(&mut &*self, cx, buffer)
    }

    /// Appends everything up to the end, and returns how many bytes that were.
    pub fn read_to_end(&self, cx: &Cx, buffer: &mut Vec<u8>) -> io::Result<usize> {
        Read::read_to_end(&mut &*self, cx, buffer)
    }

    /// Writes all of `buffer`.
    pub fn write_all(&self, cx: &Cx, buffer: &[u8]) -> io::Result<()> {
        Write::write_all(&mut &*self, cx, buffer)
    }

    /// Returns when data and metadata are on the disk.
    #[track_caller]
    pub fn sync_all(&self, cx: &Cx) -> io::Result<()> {
        self.sync(cx, false, Location::caller())
    }

    /// As [`sync_all`](File::sync_all), without metadata that is not needed to read the data again.
    #[track_caller]
    pub fn sync_data(&self, cx: &Cx) -> io::Result<()> {
        self.sync(cx, true, Location::caller())
    }

    fn sync(&self, cx: &Cx, data: bool, at: &'static Location<'static>) -> io::Result<()> {
        if self.needs_thread(cx)? {
            return self.thread(cx, at, move |file| if data { file.sync_data() } else { file.sync_all() });
        }
        self.perform(cx, Request::new(Call::Flush(data), self.file.as_raw_fd()), at).map(drop)
    }

    /// Moves the current position, and returns it, counted from the start. It does not wait.
    pub fn seek(&self, to: SeekFrom) -> io::Result<u64> {
        (&*self.file).seek(to)
    }

    /// The file's metadata.
    #[track_caller]
    pub fn metadata(&self, cx: &Cx) -> io::Result<std_fs::Metadata> {
        self.thread(cx, Location::caller(), std_fs::File::metadata)
    }

    /// Truncates or extends the file.
    #[track_caller]
    pub fn set_len(&self, cx: &Cx, bytes: u64) -> io::Result<()> {
        self.thread(cx, Location::caller(), move |file| file.set_len(bytes))
    }
}

macro_rules! read_and_write {
    ($($file:ty),*) => {$(
        impl Read for $file {
            #[track_caller]
            fn read(&mut self, cx: &Cx, buffer: &mut [u8]) -> io::Result<usize> {
                File::read(self, cx, buffer)
            }
        }

        impl Write for $file {
            #[track_caller]
            fn write(&mut self, cx: &Cx, buffer: &[u8]) -> io::Result<usize> {
                File::write(self, cx, buffer)
            }
        }
    )*};
}
read_and_write!(File, &File);

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Operations on a path are carried out by a thread.
fn by_thread<T: Send + 'static>(
    cx: &Cx,
    path: &Path,
    at: &'static Location<'static>,
    call: impl FnOnce(PathBuf) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let path = path.to_owned();
    unblock_as(cx, Operation::FileIo, at, Ending::Abandon, move || call(path))?
}

/// Reads a whole file.
#[track_caller]
pub fn read(cx: &Cx, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(cx, path)?.read_to_end(cx, &mut bytes)?;
    Ok(bytes)
}

/// Reads a whole file of text.
#[track_caller]
pub fn read_to_string(cx: &Cx, path: impl AsRef<Path>) -> io::Result<String> {
    let mut text = String::new();
    Read::read_to_string(&mut File::open(cx, path)?, cx, &mut text)?;
    Ok(text)
}

/// Creates a file with these bytes, or replaces the contents of an existing one.
#[track_caller]
pub fn write(cx: &Cx, path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    File::create(cx, path)?.write_all(cx, bytes.as_ref())
}

/// The metadata of a path.
#[track_caller]
pub fn metadata(cx: &Cx, path: impl AsRef<Path>) -> io::Result<std_fs::Metadata> {
    by_thread(cx, path.as_ref(), Location::caller(), std_fs::metadata)
}

/// Removes a file.
#[track_caller]
pub fn remove_file(cx: &Cx, path: impl AsRef<Path>) -> io::Result<()> {
    by_thread(cx, path.as_ref(), Location::caller(), std_fs::remove_file)
}

/// Renames a file, and replaces an existing one of that name.
#[track_caller]
pub fn rename(cx: &Cx, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    let to: PathBuf = to.as_ref().to_owned();
    by_thread(cx, from.as_ref(), Location::caller(), move |from| std_fs::rename(from, to))
}

/// Creates a folder, and those above it.
#[track_caller]
pub fn create_dir_all(cx: &Cx, path: impl AsRef<Path>) -> io::Result<()> {
    by_thread(cx, path.as_ref(), Location::caller(), std_fs::create_dir_all)
}

/// The entries of a folder.
#[track_caller]
pub fn read_dir(cx: &Cx, path: impl AsRef<Path>) -> io::Result<Vec<std_fs::DirEntry>> {
    by_thread(cx, path.as_ref(), Location::caller(), |path| std_fs::read_dir(path)?.collect())
}
