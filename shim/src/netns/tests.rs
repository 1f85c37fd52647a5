//! Against the real kernel, each test in a network namespace of its own. Needs root and the command `ip`, which only
//! sets the stage.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::gettid;

use super::*;

/// Runs a test on a thread in a new namespace, which ends with the thread.
fn in_new_namespace(test: impl FnOnce(&Path) + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
            let path = PathBuf::from(format!(
                "/proc/{}/task/{}/ns/net",
                std::process::id(),
                gettid()
            ));
            test(&path);
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn ip(args: &str) -> String {
    let out = Command::new("ip")
        .args(args.split_whitespace())
        .output()
        .expect("iproute2 is installed");
    assert!(
        out.status.success(),
        "ip {args}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).unwrap()
}

/// A link as a CNI plugin leaves it, and more.
fn stage() {
    ip("link set lo up");
    ip("link add eth0 type veth peer name peer0");
    // Nothing of the kernel's own making, which would come at its own time.
    ip("link set peer0 addrgenmode none");
    ip("link set eth0 addrgenmode none");
    ip("link set peer0 up");
    ip("link set eth0 up");
    ip("-6 addr add fe80::2/64 dev eth0 nodad");
    ip("addr add 10.9.0.2/24 broadcast 10.9.0.255 dev eth0");
    ip("addr add 10.9.0.3/24 dev eth0 label eth0:1");
    ip("-6 addr add fd00:9::2/64 dev eth0 nodad");
    ip("-6 addr add fd00:9::3/64 dev eth0 nodad");
    ip("route add 10.77.0.1 dev eth0 scope link");
    ip("route add 10.78.0.0/16 via 10.77.0.1 dev eth0 onlink metric 50");
    ip("route add default via 10.9.0.1 dev eth0 src 10.9.0.3");
    ip("route add 10.79.0.0/16 via 10.9.0.9 dev eth0 table 42");
    ip("route add 10.80.0.0/16 nexthop via 10.9.0.7 dev eth0 nexthop via 10.9.0.8 dev eth0");
    ip("route add unreachable 10.81.0.0/16");
    ip("-6 route add default via fd00:9::1 dev eth0");
    ip("-6 route add fd00:10::/64 via fd00:9::7 dev eth0 src fd00:9::2 metric 7");
    ip("neigh add 10.9.0.1 lladdr 02:00:00:00:00:01 dev eth0 nud permanent");
    ip("-6 neigh add fd00:9::1 lladdr 02:00:00:00:00:01 dev eth0 nud permanent");
}

fn shown() -> BTreeSet<String> {
    [
        "-4 -o addr",
        "-6 -o addr",
        "-4 route show table all",
        "-6 route show table all",
        "neigh show nud permanent",
    ]
    .iter()
    .flat_map(|args| {
        let text = ip(args);
        text.lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .map(|line| line.replace(" nodad", ""))
            // The kernel's own entry for an IPv6 address comes a moment after the address.
            .filter(|line| !(line.starts_with("local ") && line.contains(':')))
            .collect::<Vec<_>>()
    })
    .collect()
}

fn strip() {
    ip("neigh flush dev eth0 nud permanent");
    ip("-4 route flush dev eth0");
    ip("-6 route flush dev eth0");
    ip("route del unreachable 10.81.0.0/16");
    ip("addr flush dev eth0");
}

#[test]
fn what_was_stripped_comes_back_whole() {
    in_new_namespace(|path| {
        stage();
        let before = shown();
        let state = NetworkState::save(path).unwrap();
        strip();
        assert_ne!(shown(), before);

        let json = serde_json::to_vec(&state).unwrap();
        let state: NetworkState = serde_json::from_slice(&json).unwrap();
        let restored = state.put_back(path).unwrap();
        assert_eq!(restored.neighbours, 2);
        assert_eq!(restored.addresses, 5);
        assert_eq!(restored.routes, 8);
        assert_eq!(shown(), before);
        assert_eq!(NetworkState::save(path).unwrap(), state);
    });
}

#[test]
fn putting_back_twice_or_over_a_part_changes_nothing() {
    in_new_namespace(|path| {
        stage();
        let before = shown();
        let state = NetworkState::save(path).unwrap();
        state.put_back(path).unwrap();
        assert_eq!(shown(), before);
        ip("route del default");
        ip("-6 addr del fd00:9::3/64 dev eth0");
        state.put_back(path).unwrap();
        assert_eq!(shown(), before);
    });
}

#[test]
fn a_link_that_is_gone_is_an_error_that_says_what() {
    in_new_namespace(|path| {
        stage();
        let state = NetworkState::save(path).unwrap();
        ip("link del eth0");
        let error = state.put_back(path).unwrap_err();
        assert!(
            matches!(
                error,
                NetnsError::Refused {
                    what: "address",
                    errno: Errno::ENODEV,
                    ..
                }
            ),
            "{error}"
        );
    });
}

#[test]
fn a_namespace_that_is_gone_is_an_error_with_its_path() {
    let error = NetworkState::save(Path::new("/proc/self/ns/none")).unwrap_err();
    assert!(error.to_string().contains("/proc/self/ns/none"), "{error}");
}

#[test]
fn the_calling_thread_stays_where_it_was() {
    let here = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    in_new_namespace(|path| {
        NetworkState::save(path).unwrap();
    });
    assert_eq!(
        std::fs::read_link("/proc/thread-self/ns/net").unwrap(),
        here
    );
}
