//! The three kinds of objects, which of them are kept, and which of their parts describe only the moment of the dump.
//!
//! Numbers are those of the kernel's `linux/rtnetlink.h`, `linux/if_addr.h` and `linux/neighbour.h`.

use serde::{Deserialize, Serialize};

use super::attributes::{self, Attribute, align, u16_at, u32_at};

const RT_SCOPE_HOST: u8 = 254;
const IFA_FLAGS: u16 = 8;
const IFA_CACHEINFO: u16 = 6;
const IFA_F_NODAD: u32 = 0x02;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;
const IFA_F_PERMANENT: u32 = 0x80;

const RTA_GATEWAY: u16 = 5;
const RTA_MULTIPATH: u16 = 9;
const RTA_CACHEINFO: u16 = 12;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;
const RTA_NH_ID: u16 = 30;
const RT_TABLE_LOCAL: u32 = 255;
const RTPROT_KERNEL: u8 = 2;
const RTM_F_CLONED: u32 = 0x200;
const RTNH_F_ONLINK: u8 = 4;
/// unicast, blackhole, unreachable, prohibit, throw.
const KEPT_ROUTE_TYPES: &[u8] = &[1, 6, 7, 8, 9];

const NDA_CACHEINFO: u16 = 3;
const NDA_PROBES: u16 = 4;
const NUD_PERMANENT: u16 = 0x80;

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Address,
    Route,
    Neighbour,
}

/// One object: the family header and the attributes, as a message's body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Object {
    pub(super) body: Vec<u8>,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Address => "address",
            Kind::Route => "route",
            Kind::Neighbour => "neighbour",
        }
    }

    pub(super) fn dumping(self) -> &'static str {
        match self {
            Kind::Address => "dump the addresses",
            Kind::Route => "dump the routes",
            Kind::Neighbour => "dump the neighbours",
        }
    }

    /// The message types (new, get).
    pub(super) fn types(self) -> (u16, u16) {
        match self {
            Kind::Address => (libc::RTM_NEWADDR, libc::RTM_GETADDR),
            Kind::Route => (libc::RTM_NEWROUTE, libc::RTM_GETROUTE),
            Kind::Neighbour => (libc::RTM_NEWNEIGH, libc::RTM_GETNEIGH),
        }
    }

    /// Size of `ifaddrmsg`, `rtmsg` or `ndmsg`.
    pub(super) fn header_len(self) -> usize {
        match self {
            Kind::Address => 8,
            Kind::Route | Kind::Neighbour => 12,
        }
    }

    /// How an existing object is treated. An address that is still there stays untouched: the kernel answers a
    /// replacement with further prefix routes. A route is added beside others to the same destination, which `REPLACE`
    /// would take away, and is refused as existing if it is the very same. A neighbour may have been learned anew and
    /// becomes permanent again.
    pub(super) fn add_flags(self) -> libc::c_int {
        libc::NLM_F_CREATE
            | match self {
                Kind::Address => libc::NLM_F_EXCL,
                Kind::Route => libc::NLM_F_APPEND,
                Kind::Neighbour => libc::NLM_F_REPLACE,
            }
    }
}

impl Object {
    /// The object if it is one that the kernel does not make by itself.
    pub(super) fn keep(kind: Kind, body: &[u8]) -> Option<Object> {
        let header = body.get(..kind.header_len())?.to_vec();
        let attributes = &body[align(kind.header_len())..];
        let body = match kind {
            Kind::Address => address(header, attributes)?,
            Kind::Route => route(header, attributes)?,
            Kind::Neighbour => neighbour(header, attributes)?,
        };
        Some(Object { body })
    }

    pub(super) fn family(&self) -> u8 {
        self.body.first().copied().unwrap_or_default()
    }

    /// Whether a route leads through another host, which must be reachable first.
    pub(super) fn has_gateway(&self) -> bool {
        let attributes = self
            .body
            .get(Kind::Route.header_len()..)
            .unwrap_or_default();
        [RTA_GATEWAY, RTA_VIA, RTA_MULTIPATH]
            .iter()
            .any(|kind| attributes::find(attributes, *kind).is_some())
    }
}

/// An IPv6 address is taken back without duplicate address detection: it was this namespace's a moment ago, and until
/// detection is over the kernel refuses routes with it as their source.
fn address(mut header: Vec<u8>, attributes: &[u8]) -> Option<Vec<u8>> {
    // The loopback's own; it comes with the link and is not taken.
    if header[3] == RT_SCOPE_HOST {
        return None;
    }
    let ipv6 = i32::from(header[0]) == libc::AF_INET6;
    let flags = attributes::find(attributes, IFA_FLAGS)
        .and_then(|payload| u32_at(payload, 0))
        .unwrap_or(u32::from(header[2]));
    let permanent = flags & IFA_F_PERMANENT != 0;
    let mut flags = flags & !(IFA_F_TENTATIVE | IFA_F_DADFAILED);
    if ipv6 {
        flags |= IFA_F_NODAD;
    }
    header[2] = flags.to_le_bytes()[0];
    let mut body = header;
    for attribute in attributes::iterate(attributes) {
        match attribute.kind {
            IFA_FLAGS => {
                let mut whole = attribute.whole[..4].to_vec();
                whole.extend_from_slice(&flags.to_ne_bytes());
                attributes::push(
                    &mut body,
                    &Attribute {
                        whole: &whole,
                        ..attribute
                    },
                );
            }
            // Lifetimes matter only where there are some; the rest of it is times of creation.
            IFA_CACHEINFO if permanent => {}
            _ => attributes::push(&mut body, &attribute),
        }
    }
    Some(body)
}

fn route(mut header: Vec<u8>, attributes: &[u8]) -> Option<Vec<u8>> {
    let table = attributes::find(attributes, RTA_TABLE)
        .and_then(|payload| u32_at(payload, 0))
        .unwrap_or(u32::from(header[4]));
    let (protocol, kind) = (header[5], header[7]);
    let flags = u32_at(&header, 8)?;
    if table == RT_TABLE_LOCAL
        || protocol == RTPROT_KERNEL
        || flags & RTM_F_CLONED != 0
        || !KEPT_ROUTE_TYPES.contains(&kind)
    {
        return None;
    }
    // States of the link, such as "dead", are refused when given.
    let kept = flags & u32::from(RTNH_F_ONLINK);
    header[8..12].copy_from_slice(&kept.to_ne_bytes());
    let mut body = header;
    for attribute in attributes::iterate(attributes) {
        match attribute.kind {
            // With the id of a next hop object the kernel refuses its meaning, which is also there.
            RTA_CACHEINFO | RTA_NH_ID => {}
            RTA_MULTIPATH => {
                let mut whole = attribute.whole.to_vec();
                clear_hop_states(&mut whole[4..]);
                attributes::push(
                    &mut body,
                    &Attribute {
                        whole: &whole,
                        ..attribute
                    },
                );
            }
            _ => attributes::push(&mut body, &attribute),
        }
    }
    Some(body)
}

/// `rtnexthop`s: u16 length, u8 flags, u8 hops, i32 link, attributes.
fn clear_hop_states(hops: &mut [u8]) {
    let mut at = 0;
    while let Some(length) = u16_at(hops, at).map(usize::from).filter(|l| *l >= 8) {
        hops[at + 2] &= RTNH_F_ONLINK;
        at += align(length);
    }
}

fn neighbour(header: Vec<u8>, attributes: &[u8]) -> Option<Vec<u8>> {
    if u16_at(&header, 8)? != NUD_PERMANENT {
        return None;
    }
    let mut body = header;
    for attribute in attributes::iterate(attributes) {
        if !matches!(attribute.kind, NDA_CACHEINFO | NDA_PROBES) {
            attributes::push(&mut body, &attribute);
        }
    }
    Some(body)
}
