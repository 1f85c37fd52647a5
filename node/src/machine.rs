//! What this machine is called in keys: its series and its cluster.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// `<vendor>-<family>-<model>` of the first processor in `/proc/cpuinfo`, or the architecture where the file has none of
/// these (other architectures).
///
/// Product names are of no use here: some clouds report none or the same one for every series.
pub fn series() -> String {
    series_of(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

fn series_of(cpuinfo: &str) -> String {
    let field = |name: &str| {
        cpuinfo.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        })
    };
    match (field("vendor_id"), field("cpu family"), field("model")) {
        (Some(vendor), Some(family), Some(model)) => format!("{vendor}-{family}-{model}"),
        _ => std::env::consts::ARCH.to_owned(),
    }
}

/// The cluster id in `path`; made at random once if there is none.
pub fn cluster_id(path: &Path) -> io::Result<String> {
    match read_id(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    let mut random = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let id: String = random.iter().map(|b| format!("{b:02x}")).collect();
    let temporary = path.with_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)?;
    file.write_all(id.as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    read_id(path)
}

fn read_id(path: &Path) -> io::Result<String> {
    let text = fs::read_to_string(path)?;
    let id = text.trim();
    // An empty id would make machines share a tenant that must not.
    if id.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "{} is empty: write the cluster's id or remove it",
                path.display()
            ),
        ));
    }
    Ok(id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_is_vendor_family_model() {
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 106\nmodel name\t: X\n\nprocessor\t: 1\n";
        assert_eq!(series_of(text), "GenuineIntel-6-106");
        assert_eq!(series_of(""), std::env::consts::ARCH);
    }

    #[test]
    fn the_cluster_id_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cluster-id");
        let id = cluster_id(&path).unwrap();
        assert_eq!(id.len(), 32);
        assert_eq!(cluster_id(&path).unwrap(), id);
        fs::write(&path, "\n").unwrap();
        assert!(cluster_id(&path).is_err());
    }
}
