//! A network namespace's addresses, routes and permanent neighbours, saved and put back.
//!
//! Every start and restore of a sandbox takes them off the namespace's links and says nothing when they are not there
//! (gVisor `runsc/sandbox/network.go`): a second attempt in the same namespace would run without a network. They are
//! dumped by netlink before the first attempt and replayed before the next one. The attributes stay the bytes that the
//! kernel gave, so that nothing is lost that this code does not know.

mod attributes;
mod enter;
mod message;
mod order;
mod socket;

use std::path::{Path, PathBuf};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

pub(crate) use enter::inside;
use message::{Kind, Object};
use socket::Route;

/// Why a namespace's state cannot be saved or put back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetnsError {
    /// The namespace is gone or may not be entered.
    #[error("cannot enter network namespace {}: {source}", path.display())]
    Enter {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The conversation with the kernel failed.
    #[error("cannot {action} of network namespace {}: {source}", path.display())]
    Netlink {
        /// What was being done.
        action: &'static str,
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The kernel did not take an object back.
    #[error("cannot put back {what} {number} of {count} in network namespace {}: {errno}", path.display())]
    Refused {
        /// address, route or neighbour.
        what: &'static str,
        /// Which, counted from 1 in the order of the save.
        number: usize,
        /// How many there are.
        count: usize,
        /// Its path.
        path: PathBuf,
        /// Why.
        errno: Errno,
    },
}

/// What a namespace's links had.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NetworkState {
    addresses: Vec<Object>,
    routes: Vec<Object>,
    neighbours: Vec<Object>,
}

/// How much was put back; what was still there counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Restored {
    pub(crate) addresses: usize,
    pub(crate) routes: usize,
    pub(crate) neighbours: usize,
}

impl NetworkState {
    /// Dumps the namespace. Blocks for some milliseconds at most.
    pub(crate) fn save(path: &Path) -> Result<NetworkState, NetnsError> {
        enter::inside(path, || {
            let dump = |kind: Kind| -> Result<Vec<Object>, NetnsError> {
                let mut route = Route::open().map_err(|source| netlink(path, "ask", source))?;
                let mut found = Vec::new();
                for family in [libc::AF_INET, libc::AF_INET6] {
                    let dumped = route
                        .dump(kind, family)
                        .map_err(|source| netlink(path, kind.dumping(), source))?;
                    found.extend(dumped.iter().filter_map(|body| Object::keep(kind, body)));
                }
                Ok(found)
            };
            Ok(NetworkState {
                addresses: dump(Kind::Address)?,
                routes: dump(Kind::Route)?,
                neighbours: dump(Kind::Neighbour)?,
            })
        })
    }

    /// Replays the dump. What is still there stays as it is. Blocks for some milliseconds at most.
    pub(crate) fn put_back(&self, path: &Path) -> Result<Restored, NetnsError> {
        enter::inside(path, || {
            let mut route = Route::open().map_err(|source| netlink(path, "ask", source))?;
            for (kind, objects) in [
                (Kind::Address, &self.addresses),
                (Kind::Route, &self.routes),
                (Kind::Neighbour, &self.neighbours),
            ] {
                replay(&mut route, path, kind, objects)?;
            }
            Ok(Restored {
                addresses: self.addresses.len(),
                routes: self.routes.len(),
                neighbours: self.neighbours.len(),
            })
        })
    }
}

/// Adds all objects; those that depend on others, such as a route through a gateway that another route leads to, are
/// tried again as long as that helps.
fn replay(
    route: &mut Route,
    path: &Path,
    kind: Kind,
    objects: &[Object],
) -> Result<(), NetnsError> {
    let mut waiting = order::replay_order(kind, objects);
    while !waiting.is_empty() {
        let mut refused = Vec::new();
        for &index in &waiting {
            match route.add(kind, &objects[index].body) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => refused.push((index, errno)),
            }
        }
        if refused.len() == waiting.len() {
            let (index, errno) = refused[0];
            return Err(NetnsError::Refused {
                what: kind.name(),
                number: index + 1,
                count: objects.len(),
                path: path.to_owned(),
                errno,
            });
        }
        waiting = refused.into_iter().map(|(index, _)| index).collect();
    }
    Ok(())
}

fn netlink(path: &Path, action: &'static str, source: std::io::Error) -> NetnsError {
    NetnsError::Netlink {
        action,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests;
