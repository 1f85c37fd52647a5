//! `start` and `delete` as every version of containerd runs them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use thaw_testkit::mock::{Bundle, Dialect, Mock, Peer, Root, Spec, StartReply, Streams};

const PATIENCE: Duration = Duration::from_secs(5);
const TYPE: &str = "io.kubernetes.cri.container-type";
const POD: &str = "io.kubernetes.cri.sandbox-id";

fn mock() -> Mock {
    Mock::start(Peer::thaw().unwrap()).unwrap()
}

fn sleeper() -> Spec {
    Spec::sh("sleep 600")
}

fn path(reply: &StartReply) -> &Path {
    Path::new(reply.address.strip_prefix("unix://").unwrap())
}

/// Ends a container and its shim, and expects nothing to be left.
fn end(mock: &Mock, bundle: &Bundle, reply: &StartReply, created: bool) {
    let client = mock.connect(&reply.address, reply.version).unwrap();
    if created {
        client.kill(bundle.id(), "", 9, true).unwrap();
        client.wait(bundle.id(), "").unwrap();
        client.delete(bundle.id(), "").unwrap();
    }
    // The shim may be quicker to end than to answer.
    let _ = client.shutdown(bundle.id());
    client.hang_up();
    assert_eq!(mock.leftovers_after(PATIENCE), Vec::<String>::new());
}

#[test]
fn the_answer_is_in_the_callers_dialect_and_nothing_else_is_said() {
    for (dialect, version) in [
        (Dialect::Message, 3),
        (Dialect::Json, 3),
        (Dialect::Plain, 2),
    ] {
        let mock = mock();
        let bundle = mock.bundle("c", &sleeper(), Root::Overlay).unwrap();
        let reply = mock.start_shim(&bundle, dialect).unwrap();
        assert_eq!((reply.form, reply.version), (dialect, version));
        if dialect != Dialect::Plain {
            assert_eq!(reply.protocol, "ttrpc");
        }
        // containerd takes it for a part of the answer.
        assert_eq!(reply.stderr, "");
        assert!(reply.took < Duration::from_secs(1), "{:?}", reply.took);
        // A life in the version of the API that was promised.
        let client = mock.connect(&reply.address, reply.version).unwrap();
        client.create(&bundle, &Streams::default()).unwrap();
        client.start("c", "").unwrap();
        end(&mock, &bundle, &reply, true);
    }
}

#[test]
fn the_socket_is_where_containerd_wants_it_and_only_root_may_use_it() {
    let mock = mock();
    let bundle = mock.bundle("c", &sleeper(), Root::Overlay).unwrap();
    let reply = mock.start_shim(&bundle, Dialect::Message).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(path(&reply)), 0o600);
    let dir = path(&reply).parent().unwrap();
    assert_eq!(dir, mock.top().join("s"));
    assert_eq!(mode(dir), 0o700);
    end(&mock, &bundle, &reply, false);
}

#[test]
fn a_second_start_finds_the_first_ones_shim() {
    let mock = mock();
    let bundle = mock.bundle("c", &sleeper(), Root::Overlay).unwrap();
    let first = mock.start_shim(&bundle, Dialect::Message).unwrap();
    let pid = |reply: &StartReply| {
        let client = mock.connect(&reply.address, reply.version).unwrap();
        client.connect_task("c").unwrap().shim_pid
    };
    let second = mock.start_shim(&bundle, Dialect::Message).unwrap();
    assert_eq!(
        (&first.address, pid(&first)),
        (&second.address, pid(&second))
    );
    end(&mock, &bundle, &first, false);
}

#[test]
fn many_starts_of_one_pod_at_once_yield_one_shim() {
    let mock = mock();
    let pod = sleeper().annotation(TYPE, "sandbox").annotation(POD, "pod");
    let mut bundles = vec![mock.bundle("pod", &pod, Root::Overlay).unwrap()];
    for i in 0..7 {
        let member = sleeper()
            .annotation(TYPE, "container")
            .annotation(POD, "pod");
        bundles.push(
            mock.bundle(&format!("c{i}"), &member, Root::Overlay)
                .unwrap(),
        );
    }
    let replies: Vec<StartReply> = thread::scope(|scope| {
        let starts: Vec<_> = bundles
            .iter()
            .map(|bundle| scope.spawn(|| mock.start_shim(bundle, Dialect::Message).unwrap()))
            .collect();
        starts
            .into_iter()
            .map(|start| start.join().unwrap())
            .collect()
    });
    let pids: Vec<u32> = replies
        .iter()
        .map(|reply| {
            mock.connect(&reply.address, 3)
                .unwrap()
                .connect_task("pod")
                .unwrap()
                .shim_pid
        })
        .collect();
    assert!(
        replies
            .iter()
            .all(|reply| reply.address == replies[0].address),
        "{replies:?}"
    );
    assert!(pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
    end(&mock, &bundles[0], &replies[0], false);
}

#[test]
fn a_dead_shims_socket_is_taken_over() {
    let mock = mock();
    let bundle = mock.bundle("c", &sleeper(), Root::Overlay).unwrap();
    let first = mock.start_shim(&bundle, Dialect::Message).unwrap();
    let pid = mock
        .connect(&first.address, 3)
        .unwrap()
        .connect_task("c")
        .unwrap()
        .shim_pid;
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    while std::os::unix::net::UnixStream::connect(path(&first)).is_ok() {
        thread::sleep(Duration::from_millis(5));
    }
    let second = mock.start_shim(&bundle, Dialect::Message).unwrap();
    assert_eq!(first.address, second.address);
    let client = mock.connect(&second.address, second.version).unwrap();
    client.create(&bundle, &Streams::default()).unwrap();
    end(&mock, &bundle, &second, true);
}

#[test]
fn delete_of_what_never_was_is_quick_and_quiet() {
    let mock = mock();
    let bundle = mock.bundle("c", &sleeper(), Root::Overlay).unwrap();
    for _ in 0..2 {
        let reply = mock.delete_shim(&bundle).unwrap();
        assert_eq!(
            (reply.pid, reply.status, reply.stderr.as_str()),
            (0, 137, "")
        );
        assert!(reply.took < Duration::from_secs(1), "{:?}", reply.took);
    }
    bundle.remove().unwrap();
    assert_eq!(mock.leftovers(), Vec::<String>::new());
}

#[test]
fn a_start_that_fails_says_why_in_one_line() {
    let mock = mock();
    let bundle = mock.bundle("c", &sleeper(), Root::Overlay).unwrap();
    fs::write(mock.top().join("shim.toml"), "no_such_key = 1\n").unwrap();
    let error = mock
        .start_shim(&bundle, Dialect::Message)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("no_such_key") && error.contains("shim.toml"),
        "{error}"
    );
    assert_eq!(mock.leftovers(), Vec::<String>::new());
}
