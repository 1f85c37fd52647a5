//! The images that the suites want, built here from busybox and the test guest.
//!
//! They have the names of the real ones and do what the suites look at, no more.

use std::path::Path;

use super::library::{Library, LibraryError};
use crate::command::{self, CommandError};
use crate::image::{Image, ImageError};

/// critest's registry of images of its own.
const CRITEST: &str = "gcr.io/k8s-staging-cri-tools";
/// Kubernetes' images for end-to-end tests.
const E2E: &str = "registry.k8s.io/e2e-test-images";
/// containerd's images for its tests.
const CONTAINERD: &str = "ghcr.io/containerd";
/// The repository whose image critest pulls by digest.
const BY_DIGEST: &str = "gcr.io/k8s-staging-cri-tools/test-image-digest";

const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/bin/false
bin:x:2:2:bin:/bin:/bin/false
sys:x:3:3:sys:/dev:/bin/false
www-data:x:33:33:www-data:/var/www:/bin/false
backup:x:34:34:backup:/var/backups:/bin/false
nobody:x:65534:65534:nobody:/home:/bin/false
";
const GROUP: &str = "\
root:x:0:
daemon:x:1:
bin:x:2:
sys:x:3:
www-data:x:33:
backup:x:34:
users:x:100:
nobody:x:65534:
";

/// Debian's busybox has no ipcs. Where the kernel has no such file, which is so in gVisor, it has no segments to show.
const IPCS: &str = "#!/bin/sh\n[ ! -e /proc/sysvipc/shm ] || cat /proc/sysvipc/shm\n";
/// Nor has it pgrep, which only ever looks for one name.
const PGREP: &str = "#!/bin/sh\npidof \"$1\" | tr ' ' '\\n' | grep .\n";
/// Debian's nc, as the first process of a container, ignores SIGTERM; that of the real image ends.
const NC: &str = "\
#!/bin/sh
trap 'kill $!; exit 143' TERM
busybox nc \"$@\" &
wait $!
";

/// References of images that are known by digest only.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct ByDigest {
    /// containerd's busybox.
    pub busybox: String,
    /// critest's image with a digest.
    pub critest: String,
}

/// Why there are no images.
#[derive(Debug, thiserror::Error)]
pub enum ImagesError {
    /// One cannot be built.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// One cannot be kept.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// busybox does not say what it can do.
    #[error("cannot list busybox's commands: {0}")]
    Busybox(#[from] CommandError),
}

/// Builds them all into a library.
pub fn build(library: &mut Library, busybox: &Path, guest: &Path) -> Result<ByDigest, ImagesError> {
    let base = base(busybox)?;
    let digest = library.add(&base.clone().named(&format!("{CONTAINERD}/busybox:1.36")))?;
    let by_digest = ByDigest {
        busybox: format!("{CONTAINERD}/busybox@{digest}"),
        critest: format!("{BY_DIGEST}@{}", library.add(&labelled(&base, BY_DIGEST))?),
    };
    // A test wants content that no other one has pulled before it.
    library.add(&labelled(&base, &format!("{E2E}/busybox:1.29-2")))?;
    pauses(library, guest)?;
    for image in containerds(&base) {
        library.add(&image)?;
    }
    for image in servers(&base, guest)? {
        library.add(&image)?;
    }
    for image in users(&base) {
        library.add(&image)?;
    }
    references(library, &base)?;
    Ok(by_digest)
}

/// busybox with all its commands.
fn base(busybox: &Path) -> Result<Image, ImagesError> {
    let list = command::run(
        std::process::Command::new(busybox).arg("--list"),
        std::time::Duration::from_secs(10),
    )?
    .success()?;
    let mut image = Image::new("busybox");
    for dir in [
        "bin", "dev", "etc", "home", "proc", "run", "root", "sys", "tmp", "usr", "usr/bin",
        "usr/sbin", "var", "var/run", "var/lib",
    ] {
        image = image.directory(dir);
    }
    image = image.copy("bin/busybox", busybox)?;
    for tool in list
        .stdout
        .lines()
        .filter(|tool| !matches!(*tool, "busybox" | "nc"))
    {
        // As in the real image: tests hide one command without the others.
        image = image.hard_link(&format!("bin/{tool}"), "bin/busybox");
    }
    Ok(image
        .file("etc/passwd", PASSWD, 0o644)
        .file("etc/group", GROUP, 0o644)
        .file("bin/ipcs", IPCS, 0o755)
        .file("bin/pgrep", PGREP, 0o755)
        .file("bin/nc", NC, 0o755)
        .args(&["sh"]))
}

/// The same image with one more file, so that its content is its own.
fn labelled(base: &Image, name: &str) -> Image {
    base.clone().named(name).file("label", name, 0o644)
}

fn pauses(library: &mut Library, guest: &Path) -> Result<(), ImagesError> {
    let pause = Image::new("registry.k8s.io/pause:3.10.2")
        .copy("pause", guest)?
        .args(&["/pause", "--pause"]);
    library.add(&pause)?;
    // critest counts the names of the one that it pulls from two registries.
    let digest = library.add(&labelled(&pause, "registry.k8s.io/pause:3.9"))?;
    library.tag("registry.k8s.io/pause:3.6", &digest)?;
    Ok(())
}

/// Those of containerd's suite.
fn containerds(base: &Image) -> Vec<Image> {
    let copy_up = labelled(base, &format!("{CONTAINERD}/volume-copy-up:2.2"))
        .layer()
        .directory("test_dir")
        .file("test_dir/test_file", "test_content\n", 0o644)
        .layer()
        .file("third", "layer\n", 0o644);
    // Its users look for a shell by the name of bash, and for a file that has the set-user-id bit.
    let ownership = labelled(base, &format!("{CONTAINERD}/volume-ownership:2.1"))
        .file("bin/bash", "#!/bin/sh\nexec /bin/sh \"$@\"\n", 0o755)
        .file("usr/bin/passwd", "#!/bin/sh\n", 0o4755);
    vec![
        copy_up,
        ownership,
        labelled(base, &format!("{CONTAINERD}/alpine:3.14.0")),
    ]
}

/// Web servers, and a program that tells its effective user.
fn servers(base: &Image, guest: &Path) -> Result<Vec<Image>, ImagesError> {
    let server = |name: String, program: &str| -> Result<Image, ImagesError> {
        // Tests look for the program's name among the processes.
        Ok(labelled(base, &name).copy(&format!("usr/sbin/{program}"), guest)?)
    };
    let nginx = |name: String, port: &str| -> Result<Image, ImagesError> {
        Ok(server(name, "nginx")?.args(&[
            "nginx",
            "--mib",
            "0",
            "--port",
            port,
            "--pid-file",
            "/var/run/nginx.pid",
            "--page",
            "master process",
        ]))
    };
    let httpd = server(format!("{E2E}/httpd:2.4.39-4"), "httpd-server")?.args(&[
        "sh",
        "-c",
        "echo httpd starts; exec httpd-server --mib 0 --port 80 --page 'It works!'",
    ]);
    let effective = std::fs::read(guest).map_err(|source| ImageError {
        image: "nonewprivs".into(),
        path: guest.to_owned(),
        source,
    })?;
    let effective = labelled(base, &format!("{E2E}/nonewprivs:1.3"))
        .file("nnp", effective, 0o4755)
        .args(&["/nnp", "--effective-uid"]);
    Ok(vec![
        nginx(format!("{E2E}/nginx:1.14-2"), "80")?,
        nginx(format!("{CRITEST}/hostnet-nginx-amd64"), "12003")?,
        httpd,
        effective,
    ])
}

/// Images whose program runs as somebody.
fn users(base: &Image) -> Vec<Image> {
    let mut images: Vec<Image> = [
        ("uid", "1002"),
        ("username", "www-data"),
        ("uid-group", "1003:users"),
        ("username-group", "www-data:100"),
    ]
    .iter()
    .map(|(name, user)| {
        base.clone()
            .named(&format!("{CRITEST}/test-image-user-{name}"))
            .user(user)
    })
    .collect();
    images.push(
        base.clone()
            .named(&format!("{CRITEST}/test-image-predefined-group"))
            .file(
                "etc/passwd",
                format!("{PASSWD}default-user:x:1000:1000::/home:/bin/sh\n"),
                0o644,
            )
            .file(
                "etc/group",
                format!(
                    "{GROUP}default-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n"
                ),
                0o644,
            )
            .user("1000"),
    );
    images
}

/// Images for tests of pulling and listing.
fn references(library: &mut Library, base: &Image) -> Result<(), ImagesError> {
    for name in [
        "test-image-latest",
        "test-image-1",
        "test-image-2",
        "test-image-3",
    ] {
        library.add(&labelled(base, &format!("{CRITEST}/{name}:latest")))?;
    }
    for tag in ["test", "all"] {
        library.add(&labelled(base, &format!("{CRITEST}/test-image-tag:{tag}")))?;
    }
    let digest = library.add(&labelled(base, &format!("{CRITEST}/test-image-tags:1")))?;
    for tag in ["2", "3"] {
        library.tag(&format!("{CRITEST}/test-image-tags:{tag}"), &digest)?;
    }
    Ok(())
}
