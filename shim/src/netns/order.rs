//! The order in which objects are put back.

use super::message::{Kind, Object};

/// Indices into `objects`: routes to links before routes through gateways; IPv6 addresses last to first, because the
/// kernel lists the newest first.
pub(super) fn replay_order(kind: Kind, objects: &[Object]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..objects.len()).collect();
    match kind {
        Kind::Address => {
            let ipv6 = |o: &Object| i32::from(o.family()) == libc::AF_INET6;
            let (mut v6, mut all): (Vec<_>, Vec<_>) =
                order.into_iter().partition(|i| ipv6(&objects[*i]));
            v6.reverse();
            all.append(&mut v6);
            order = all;
        }
        Kind::Route => order.sort_by_key(|i| objects[*i].has_gateway()),
        Kind::Neighbour => {}
    }
    order
}
