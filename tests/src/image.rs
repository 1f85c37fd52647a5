//! OCI images as tar archives for `ctr image import`, built from layers with reproducible digests.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::json;
use sha2::{Digest, Sha256};
use thiserror::Error;

/// Why an image cannot be built.
#[derive(Debug, Error)]
#[error("cannot build image {image} from {path}: {source}")]
pub struct ImageError {
    /// The image's name.
    pub image: String,
    /// The file that is at fault.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

/// One file of a layer made here.
#[derive(Debug, Clone)]
enum Entry {
    Directory,
    File { data: Vec<u8>, mode: u32 },
    Link { target: String },
    HardLink { target: String },
}

#[derive(Debug, Clone)]
enum Layer {
    /// An uncompressed tar archive on disk.
    Tar(PathBuf),
    /// Paths without leading slash, in order.
    Entries(Vec<(String, Entry)>),
}

/// An image to be built.
#[derive(Debug, Clone)]
pub struct Image {
    name: String,
    layers: Vec<Layer>,
    args: Vec<String>,
    env: Vec<String>,
    user: String,
    platform: Platform,
}

/// What an image says it runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Platform {
    /// Architecture as Go names it.
    pub architecture: &'static str,
    /// Variant, or the empty string.
    pub variant: &'static str,
}

impl Platform {
    /// This machine's.
    pub const AMD64: Platform = Platform {
        architecture: "amd64",
        variant: "",
    };

    fn describe(self) -> serde_json::Value {
        let mut text = json!({ "architecture": self.architecture, "os": "linux" });
        if !self.variant.is_empty() {
            text["variant"] = self.variant.into();
        }
        text
    }
}

impl Image {
    /// An image without layers, e.g. `thaw.dev/test/guest:1`.
    pub fn new(name: &str) -> Image {
        Image {
            name: name.to_owned(),
            layers: Vec::new(),
            args: Vec::new(),
            env: vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()],
            user: String::new(),
            platform: Platform::AMD64,
        }
    }

    /// Its name, as containerd will know it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same content under another name.
    pub fn named(mut self, name: &str) -> Image {
        name.clone_into(&mut self.name);
        self
    }

    /// Adds an uncompressed tar archive as a layer.
    pub fn tar(mut self, path: &Path) -> Image {
        self.layers.push(Layer::Tar(path.to_owned()));
        self
    }

    /// Begins a new layer for the entries that follow.
    pub fn layer(mut self) -> Image {
        self.layers.push(Layer::Entries(Vec::new()));
        self
    }

    /// Adds a directory to the topmost layer made of single entries.
    pub fn directory(self, path: &str) -> Image {
        self.entry(path, Entry::Directory)
    }

    /// Adds a file with this content to the topmost layer made of single entries.
    pub fn file(self, path: &str, data: impl Into<Vec<u8>>, mode: u32) -> Image {
        self.entry(
            path,
            Entry::File {
                data: data.into(),
                mode,
            },
        )
    }

    /// Adds a symbolic link to the topmost layer made of single entries.
    pub fn link(self, path: &str, target: &str) -> Image {
        self.entry(
            path,
            Entry::Link {
                target: target.to_owned(),
            },
        )
    }

    /// Adds another name of a file that was added before.
    pub fn hard_link(self, path: &str, target: &str) -> Image {
        self.entry(
            path,
            Entry::HardLink {
                target: target.to_owned(),
            },
        )
    }

    /// Adds a copy of a file of this machine.
    pub fn copy(self, path: &str, from: &Path) -> Result<Image, ImageError> {
        let fail = |source| ImageError {
            image: self.name.clone(),
            path: from.to_owned(),
            source,
        };
        let data = std::fs::read(from).map_err(fail)?;
        let mode = std::fs::metadata(from).map_err(fail)?.permissions().mode() & 0o777;
        Ok(self.file(path, data, mode))
    }

    /// Default program.
    pub fn args(mut self, args: &[&str]) -> Image {
        self.args = args.iter().map(|s| (*s).to_owned()).collect();
        self
    }

    /// Adds a variable to the image's environment, `NAME=value`.
    pub fn env(mut self, variable: &str) -> Image {
        self.env.push(variable.to_owned());
        self
    }

    /// Whom its program runs as: a name or number, and perhaps a group, as in a Dockerfile.
    pub fn user(mut self, user: &str) -> Image {
        user.clone_into(&mut self.user);
        self
    }

    /// Says that it is for another platform, whatever is in it.
    pub fn platform(mut self, platform: Platform) -> Image {
        self.platform = platform;
        self
    }

    fn entry(mut self, path: &str, entry: Entry) -> Image {
        let entry = (path.trim_matches('/').to_owned(), entry);
        match self.layers.last_mut() {
            Some(Layer::Entries(entries)) => entries.push(entry),
            _ => self.layers.push(Layer::Entries(vec![entry])),
        }
        self
    }

    /// Writes the image as an OCI layout in a tar archive.
    pub fn write(&self, path: &Path) -> Result<(), ImageError> {
        let fail = |path: &Path, source| ImageError {
            image: self.name.clone(),
            path: path.to_owned(),
            source,
        };
        let file = File::create(path).map_err(|e| fail(path, e))?;
        let mut archive = tar::Builder::new(io::BufWriter::new(file));
        let mut layers = Vec::new();
        for layer in &self.layers {
            let descriptor = match layer {
                Layer::Tar(from) => add_file(&mut archive, from).map_err(|e| fail(from, e))?,
                Layer::Entries(entries) => layer_of(entries)
                    .and_then(|data| add_blob(&mut archive, &data))
                    .map_err(|e| fail(path, e))?,
            };
            layers.push(descriptor);
        }
        self.finish(archive, layers).map_err(|e| fail(path, e))
    }

    fn finish<W: Write>(&self, mut archive: tar::Builder<W>, layers: Vec<Blob>) -> io::Result<()> {
        let diff_ids: Vec<String> = layers.iter().map(|l| l.digest()).collect();
        let mut config = self.platform.describe();
        config["config"] = json!({ "Env": self.env, "Cmd": self.args });
        if !self.user.is_empty() {
            config["config"]["User"] = self.user.as_str().into();
        }
        config["rootfs"] = json!({ "type": "layers", "diff_ids": diff_ids });
        let config = add_blob(&mut archive, &serde_json::to_vec(&config)?)?;
        let layers: Vec<_> = layers
            .iter()
            .map(|l| l.descriptor("application/vnd.oci.image.layer.v1.tar"))
            .collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config.descriptor("application/vnd.oci.image.config.v1+json"),
            "layers": layers,
        });
        let manifest = add_blob(&mut archive, &serde_json::to_vec(&manifest)?)?;
        let mut entry = manifest.descriptor("application/vnd.oci.image.manifest.v1+json");
        entry["platform"] = self.platform.describe();
        entry["annotations"] = json!({ "io.containerd.image.name": self.name });
        let index = json!({ "schemaVersion": 2, "manifests": [entry] });
        add(&mut archive, "index.json", &serde_json::to_vec(&index)?)?;
        add(
            &mut archive,
            "oci-layout",
            br#"{"imageLayoutVersion":"1.0.0"}"#,
        )?;
        archive.into_inner()?.flush()
    }
}

struct Blob {
    hash: String,
    size: u64,
}

impl Blob {
    fn digest(&self) -> String {
        format!("sha256:{}", self.hash)
    }

    fn descriptor(&self, media_type: &str) -> serde_json::Value {
        json!({ "mediaType": media_type, "digest": self.digest(), "size": self.size })
    }
}

pub(crate) fn hex(digest: impl AsRef<[u8]>) -> String {
    digest.as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

fn header(size: u64, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn add<W: Write>(archive: &mut tar::Builder<W>, path: &str, data: &[u8]) -> io::Result<()> {
    archive.append_data(&mut header(data.len() as u64, 0o644), path, data)
}

fn add_blob<W: Write>(archive: &mut tar::Builder<W>, data: &[u8]) -> io::Result<Blob> {
    let blob = Blob {
        hash: hex(Sha256::digest(data)),
        size: data.len() as u64,
    };
    add(archive, &format!("blobs/sha256/{}", blob.hash), data)?;
    Ok(blob)
}

fn add_file<W: Write>(archive: &mut tar::Builder<W>, from: &Path) -> io::Result<Blob> {
    let mut hasher = Sha256::new();
    let mut file = File::open(from)?;
    let mut buffer = vec![0; 1 << 20];
    let mut size = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => {
                hasher.update(&buffer[..n]);
                size += n as u64;
            }
        }
    }
    let blob = Blob {
        hash: hex(hasher.finalize()),
        size,
    };
    let path = format!("blobs/sha256/{}", blob.hash);
    archive.append_data(&mut header(size, 0o644), path, File::open(from)?)?;
    Ok(blob)
}

fn layer_of(entries: &[(String, Entry)]) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, entry) in entries {
        match entry {
            Entry::Directory => {
                let mut header = header(0, 0o755);
                header.set_entry_type(tar::EntryType::Directory);
                archive.append_data(&mut header, format!("{path}/"), io::empty())?;
            }
            Entry::File { data, mode } => {
                let mut header = header(data.len() as u64, *mode);
                archive.append_data(&mut header, path, data.as_slice())?;
            }
            Entry::Link { target } => {
                let mut header = header(0, 0o777);
                header.set_entry_type(tar::EntryType::Symlink);
                archive.append_link(&mut header, path, target)?;
            }
            Entry::HardLink { target } => {
                let mut header = header(0, 0o755);
                header.set_entry_type(tar::EntryType::Link);
                archive.append_link(&mut header, path, target)?;
            }
        }
    }
    archive.into_inner()
}

/// busybox with a few of its commands as links, from a static binary.
pub fn busybox(name: &str, binary: &Path) -> Result<Image, ImageError> {
    let mut image = Image::new(name);
    for dir in ["bin", "tmp", "etc", "proc", "sys", "dev"] {
        image = image.directory(dir);
    }
    image = image.copy("bin/busybox", binary)?;
    for tool in [
        "sh", "cat", "echo", "env", "false", "head", "id", "kill", "ls", "mkdir", "ps", "pwd",
        "seq", "sleep", "stty", "sync", "tail", "test", "touch", "true", "tty", "wc", "wget",
    ] {
        image = image.link(&format!("bin/{tool}"), "busybox");
    }
    Ok(image.args(&["sh"]))
}

/// The test guest, from its static binary.
pub fn guest(name: &str, binary: &Path) -> Result<Image, ImageError> {
    let mut image = Image::new(name);
    for dir in ["bin", "tmp", "etc", "proc", "sys", "dev", "log"] {
        image = image.directory(dir);
    }
    Ok(image
        .copy("bin/thaw-guest", binary)?
        .args(&["/bin/thaw-guest"]))
}

/// A Python program on top of a root file system archive.
pub fn python(name: &str, rootfs: &Path, program: &str) -> Image {
    Image::new(name)
        .tar(rootfs)
        .directory("srv")
        .file("srv/service.py", program, 0o755)
        .args(&["/usr/bin/python3", "/srv/service.py"])
        .env("PYTHONDONTWRITEBYTECODE=1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_image_has_the_same_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let image = Image::new("thaw.dev/test/a:1")
            .directory("bin")
            .file("bin/a", "content", 0o755)
            .link("bin/b", "a");
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        image.write(&one).unwrap();
        image.write(&two).unwrap();
        let bytes = std::fs::read(&one).unwrap();
        assert_eq!(bytes, std::fs::read(&two).unwrap());

        let mut archive = tar::Archive::new(bytes.as_slice());
        let names: Vec<String> = archive
            .entries()
            .unwrap()
            .map(|e| e.unwrap().path().unwrap().to_string_lossy().into_owned())
            .collect();
        assert_eq!(names.len(), 5, "{names:?}");
        assert!(names.contains(&"index.json".to_owned()));
    }

    #[test]
    fn a_missing_layer_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = Image::new("a")
            .tar(Path::new("/nonexistent/rootfs.tar"))
            .write(&dir.path().join("out"))
            .unwrap_err();
        assert!(
            error.to_string().contains("/nonexistent/rootfs.tar"),
            "{error}"
        );
    }
}
