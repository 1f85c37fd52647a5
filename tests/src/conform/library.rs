//! Images on disk, as a registry serves them: blobs by digest, and tags that name some of them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::image::{Image, ImageError, Platform};

/// Suites pull images for several platforms at once; that none but the first can run is of no interest to them.
const PLATFORMS: [Platform; 4] = [
    Platform::AMD64,
    Platform {
        architecture: "arm64",
        variant: "v8",
    },
    Platform {
        architecture: "ppc64le",
        variant: "",
    },
    Platform {
        architecture: "s390x",
        variant: "",
    },
];

const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// Why images cannot be kept or found.
#[derive(Debug, Error)]
pub enum LibraryError {
    /// An image cannot be built.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A file of the library's.
    #[error("cannot {what} {path}: {source}")]
    File {
        /// create, read, ...
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file of the library's is not what was written there.
    #[error("{path} is not valid: {source}")]
    Parse {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
}

/// A directory of images.
#[derive(Debug)]
pub struct Library {
    dir: PathBuf,
    /// Digest of the image index by `repository:tag`, without the registry's host.
    tags: BTreeMap<String, String>,
}

impl Library {
    /// Makes an empty one.
    pub fn create(dir: &Path) -> Result<Library, LibraryError> {
        let library = Library {
            dir: dir.to_owned(),
            tags: BTreeMap::new(),
        };
        fs::create_dir_all(library.blobs()).map_err(|e| failed("create", &library.blobs(), e))?;
        Ok(library)
    }

    /// Opens one that was written by another process.
    pub fn open(dir: &Path) -> Result<Library, LibraryError> {
        let path = dir.join("tags.json");
        let text = fs::read(&path).map_err(|e| failed("read", &path, e))?;
        let tags =
            serde_json::from_slice(&text).map_err(|source| LibraryError::Parse { path, source })?;
        Ok(Library {
            dir: dir.to_owned(),
            tags,
        })
    }

    /// Adds an image under its name, for several platforms. Returns its digest.
    pub fn add(&mut self, image: &Image) -> Result<String, LibraryError> {
        let mut manifests = Vec::new();
        for platform in PLATFORMS {
            let mut image = image.clone().platform(platform);
            if platform != Platform::AMD64 {
                // No two platforms have the same layers.
                image = image.layer().file("platform", platform.architecture, 0o644);
            }
            manifests.push(self.add_platform(&image)?);
        }
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests });
        let index = index.to_string().into_bytes();
        let hash: String = Sha256::digest(&index)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        let path = self.blobs().join(&hash);
        fs::write(&path, index).map_err(|e| failed("write", &path, e))?;
        let digest = format!("sha256:{hash}");
        self.tag(image.name(), &digest)?;
        Ok(digest)
    }

    /// Gives an image one more name.
    pub fn tag(&mut self, name: &str, digest: &str) -> Result<(), LibraryError> {
        self.tags.insert(key(name), digest.to_owned());
        let path = self.dir.join("tags.json");
        let text = json!(self.tags).to_string();
        fs::write(&path, text).map_err(|e| failed("write", &path, e))
    }

    /// The file of a manifest or index: `reference` is a tag or a digest.
    pub(super) fn manifest(&self, repository: &str, reference: &str) -> Option<PathBuf> {
        if reference.starts_with("sha256:") {
            return self.blob(reference);
        }
        self.blob(self.tags.get(&format!("{repository}:{reference}"))?)
    }

    /// The file of a blob.
    pub(super) fn blob(&self, digest: &str) -> Option<PathBuf> {
        let hash = digest.strip_prefix("sha256:")?;
        if !hash.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        Some(self.blobs().join(hash)).filter(|path| path.is_file())
    }

    fn blobs(&self) -> PathBuf {
        self.dir.join("blobs")
    }

    /// Adds the blobs of one platform's image. Returns the descriptor of its manifest.
    fn add_platform(&self, image: &Image) -> Result<Value, LibraryError> {
        let path = self.dir.join("image.tar");
        image.write(&path)?;
        let unpacked = self.unpack(&path);
        let _ = fs::remove_file(&path);
        let index = unpacked.map_err(|e| failed("unpack", &path, e))?;
        let index: Value = serde_json::from_slice(&index)
            .map_err(|source| LibraryError::Parse { path, source })?;
        let mut descriptor = index["manifests"][0].clone();
        if let Some(fields) = descriptor.as_object_mut() {
            // The name is the tag's business.
            fields.remove("annotations");
        }
        Ok(descriptor)
    }

    /// Copies an archive's blobs. Returns its index.
    fn unpack(&self, archive: &Path) -> io::Result<Vec<u8>> {
        let mut index = Vec::new();
        for entry in tar::Archive::new(File::open(archive)?).entries()? {
            let mut entry = entry?;
            let path = entry.path()?.into_owned();
            if let Ok(blob) = path.strip_prefix("blobs/sha256") {
                let mut file = File::create(self.blobs().join(blob))?;
                io::copy(&mut entry, &mut file)?;
            } else if path == Path::new("index.json") {
                io::copy(&mut entry, &mut index)?;
            }
        }
        Ok(index)
    }
}

/// `registry.k8s.io/pause:3.10` is `pause:3.10`, and what has no tag is the latest.
fn key(name: &str) -> String {
    let path = match name.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) => path,
        _ => name,
    };
    if path.contains(':') {
        path.to_owned()
    } else {
        format!("{path}:latest")
    }
}

fn failed(what: &'static str, path: &Path, source: io::Error) -> LibraryError {
    LibraryError::File {
        what,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_found_by_tag_and_digest() {
        let dir = tempfile::tempdir().unwrap();
        let mut library = Library::create(dir.path()).unwrap();
        let image = Image::new("example.org/a/b").file("x", "y", 0o644);
        let digest = library.add(&image).unwrap();
        library.tag("example.org/c:2", &digest).unwrap();

        let library = Library::open(dir.path()).unwrap();
        let path = library.manifest("a/b", "latest").unwrap();
        assert_eq!(library.manifest("c", "2").as_ref(), Some(&path));
        assert_eq!(library.manifest("any", &digest).as_ref(), Some(&path));
        assert_eq!(library.manifest("a/b", "1"), None);
        assert_eq!(library.blob("sha256:../tags.json"), None);

        let index: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let manifests = index["manifests"].as_array().unwrap();
        assert_eq!(manifests.len(), PLATFORMS.len());
        for manifest in manifests {
            let manifest = library.blob(manifest["digest"].as_str().unwrap()).unwrap();
            let manifest: Value = serde_json::from_slice(&fs::read(manifest).unwrap()).unwrap();
            assert!(
                library
                    .blob(manifest["config"]["digest"].as_str().unwrap())
                    .is_some()
            );
            assert!(
                library
                    .blob(manifest["layers"][0]["digest"].as_str().unwrap())
                    .is_some()
            );
        }
    }
}
