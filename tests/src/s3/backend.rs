//! Where the server keeps its objects: in memory, or as files so that they outlive the process and can be damaged from
//! outside.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use bytes::Bytes;
use thiserror::Error;

/// One stored object.
#[derive(Debug, Clone)]
pub struct Object {
    /// Bytes.
    pub size: u64,
    /// When it was stored.
    pub modified: SystemTime,
    /// The entity tag, quoted as in the header.
    pub etag: String,
    content: Content,
}

#[derive(Debug, Clone)]
enum Content {
    Memory(Bytes),
    File { key: String, path: PathBuf },
}

impl Object {
    fn memory(data: Bytes) -> Object {
        Object {
            size: data.len() as u64,
            modified: SystemTime::now(),
            etag: etag_of(&data),
            content: Content::Memory(data),
        }
    }

    /// Bytes from `start` to `end`, which must not lie beyond the object's end.
    pub fn read(&self, start: u64, end: u64) -> Result<Bytes, BackendError> {
        match &self.content {
            Content::Memory(data) => Ok(data.slice(start as usize..end as usize)),
            Content::File { key, path } => {
                let mut data = vec![0; (end - start) as usize];
                File::open(path)
                    .and_then(|file| file.read_exact_at(&mut data, start))
                    .map_err(|source| BackendError::Io {
                        key: key.clone(),
                        path: path.clone(),
                        source,
                    })?;
                Ok(data.into())
            }
        }
    }

    /// The whole content.
    pub fn data(&self) -> Result<Bytes, BackendError> {
        self.read(0, self.size)
    }
}

/// The entity tag of an object kept in memory, and of one just written.
pub(super) fn etag_of(data: &[u8]) -> String {
    format!("\"{}\"", &blake3::hash(data).to_hex()[..32])
}

/// Why an object cannot be kept or read.
#[derive(Debug, Error)]
pub enum BackendError {
    /// The key is not a relative path without `.` and `..`.
    #[error("key {key:?} cannot be a file name")]
    Key {
        /// `<bucket>/<key>`.
        key: String,
    },
    /// The directory failed.
    #[error("cannot access object {key:?} at {path}: {source}")]
    Io {
        /// `<bucket>/<key>`.
        key: String,
        /// Its file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The objects, by `<bucket>/<key>`.
#[derive(Debug)]
pub enum Backend {
    /// Gone with the process.
    Memory(Mutex<BTreeMap<String, Object>>),
    /// One file per object below this directory.
    Directory(PathBuf),
}

impl Default for Backend {
    fn default() -> Self {
        Backend::Memory(Mutex::default())
    }
}

impl Backend {
    /// The object, if it is there.
    pub fn get(&self, key: &str) -> Result<Option<Object>, BackendError> {
        match self {
            Backend::Memory(objects) => Ok(lock(objects).get(key).cloned()),
            Backend::Directory(dir) => {
                let path = file_of(dir, key)?;
                // Hashing a large object for each ranged read would cost more than the read.
                let read = || -> io::Result<Object> {
                    let meta = std::fs::metadata(&path)?;
                    if !meta.is_file() {
                        return Err(io::ErrorKind::NotFound.into());
                    }
                    Ok(Object {
                        size: meta.len(),
                        modified: meta.modified()?,
                        etag: format!("\"{:x}-{:x}\"", meta.mtime_nsec(), meta.ino()),
                        content: Content::File {
                            key: key.to_owned(),
                            path: path.clone(),
                        },
                    })
                };
                match read() {
                    Ok(object) => Ok(Some(object)),
                    Err(e) if absent(&e) => Ok(None),
                    Err(source) => Err(BackendError::Io {
                        key: key.to_owned(),
                        path,
                        source,
                    }),
                }
            }
        }
    }

    /// Stores an object in one step: a reader sees the old one or the new one.
    pub fn put(&self, key: &str, data: Bytes) -> Result<(), BackendError> {
        match self {
            Backend::Memory(objects) => {
                lock(objects).insert(key.to_owned(), Object::memory(data));
                Ok(())
            }
            Backend::Directory(dir) => {
                let path = file_of(dir, key)?;
                let write = || -> io::Result<()> {
                    let parent = path.parent().unwrap_or(dir);
                    std::fs::create_dir_all(parent)?;
                    let mut file = tempfile::NamedTempFile::new_in(parent)?;
                    io::Write::write_all(&mut file, &data)?;
                    file.persist(&path)?;
                    Ok(())
                };
                write().map_err(|source| BackendError::Io {
                    key: key.to_owned(),
                    path: path.clone(),
                    source,
                })
            }
        }
    }

    /// Removes an object; no error if there is none.
    pub fn remove(&self, key: &str) -> Result<(), BackendError> {
        match self {
            Backend::Memory(objects) => {
                lock(objects).remove(key);
                Ok(())
            }
            Backend::Directory(dir) => {
                let path = file_of(dir, key)?;
                match std::fs::remove_file(&path) {
                    Err(e) if !absent(&e) => Err(BackendError::Io {
                        key: key.to_owned(),
                        path,
                        source: e,
                    }),
                    _ => Ok(()),
                }
            }
        }
    }

    /// All keys that begin with `prefix`, sorted.
    pub fn keys(&self, prefix: &str) -> Result<Vec<String>, BackendError> {
        match self {
            Backend::Memory(objects) => Ok(lock(objects)
                .range(prefix.to_owned()..)
                .map(|(key, _)| key)
                .take_while(|key| key.starts_with(prefix))
                .cloned()
                .collect()),
            Backend::Directory(dir) => {
                let mut keys = Vec::new();
                walk(dir, dir, &mut keys).map_err(|source| BackendError::Io {
                    key: prefix.to_owned(),
                    path: dir.clone(),
                    source,
                })?;
                keys.retain(|key| key.starts_with(prefix));
                keys.sort();
                Ok(keys)
            }
        }
    }
}

fn lock(
    objects: &Mutex<BTreeMap<String, Object>>,
) -> std::sync::MutexGuard<'_, BTreeMap<String, Object>> {
    objects
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A key below which another key lies is a directory, one below a plain file meets ENOTDIR: neither is an object.
fn absent(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory
    )
}

fn file_of(dir: &Path, key: &str) -> Result<PathBuf, BackendError> {
    let plain =
        |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains('\0');
    if key.split('/').all(plain) {
        Ok(dir.join(key))
    } else {
        Err(BackendError::Key {
            key: key.to_owned(),
        })
    }
}

fn walk(top: &Path, dir: &Path, keys: &mut Vec<String>) -> io::Result<()> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if absent(&e) => return Ok(()),
        Err(e) => return Err(e),
    };
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            walk(top, &path, keys)?;
        } else if let Ok(key) = path.strip_prefix(top) {
            // A leading dot marks a file that is still being written.
            if !entry.file_name().as_encoded_bytes().starts_with(b".tmp") {
                keys.push(key.to_string_lossy().into_owned());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each(test: impl Fn(&Backend)) {
        test(&Backend::default());
        let dir = tempfile::tempdir().unwrap();
        test(&Backend::Directory(dir.path().join("objects")));
    }

    #[test]
    fn put_get_list_remove() {
        each(|backend| {
            assert!(backend.get("b/a/1").unwrap().is_none());
            assert!(backend.keys("b/").unwrap().is_empty());
            backend.put("b/a/1", Bytes::from_static(b"one")).unwrap();
            backend.put("b/a/2", Bytes::from_static(b"two")).unwrap();
            backend.put("b/c", Bytes::from_static(b"three")).unwrap();
            backend.put("b/c", Bytes::from_static(b"four")).unwrap();
            assert_eq!(backend.get("b/c").unwrap().unwrap().data().unwrap(), "four");
            let object = backend.get("b/a/2").unwrap().unwrap();
            assert_eq!((object.size, object.read(1, 3).unwrap()), (3, "wo".into()));
            assert!(backend.get("b/a").unwrap().is_none());
            assert_eq!(backend.keys("b/a/").unwrap(), ["b/a/1", "b/a/2"]);
            assert_eq!(backend.keys("b/").unwrap(), ["b/a/1", "b/a/2", "b/c"]);
            backend.remove("b/a/1").unwrap();
            backend.remove("b/a/1").unwrap();
            assert_eq!(backend.keys("b/a").unwrap(), ["b/a/2"]);
        });
    }

    #[test]
    fn a_key_cannot_leave_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let backend = Backend::Directory(dir.path().to_owned());
        for key in ["b/../x", "/etc/passwd", "b//x", "b/./x"] {
            assert!(backend.put(key, Bytes::new()).is_err(), "{key}");
        }
    }
}
