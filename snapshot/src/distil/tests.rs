use proptest::prelude::*;
use serde_json::json;

use super::*;

fn context() -> Context {
    Context {
        machine_series: "a-1-2".into(),
        ..crate::summary::tests::context()
    }
}

fn spec() -> Value {
    json!({
        "ociVersion": "1.2.0",
        "hostname": "a",
        "domainname": "d",
        "root": {"path": "rootfs", "readonly": true},
        "process": {
            "terminal": false,
            "user": {"uid": 1, "gid": 2, "additionalGids": [3, 4]},
            "args": ["/bin/python3", "-m", "http.server"],
            "cwd": "/",
            "env": ["PATH=/bin", "TOKEN=secret-value", "HOSTNAME=a"],
            "capabilities": {
                "bounding": ["CAP_KILL", "CAP_CHOWN"],
                "effective": ["CAP_KILL"]
            },
            "rlimits": [
                {"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 1024},
                {"type": "RLIMIT_CORE", "soft": 0, "hard": 0}
            ],
            "noNewPrivileges": true,
            "oomScoreAdj": 5,
            "selinuxLabel": "l",
            "apparmorProfile": "p"
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec"]},
            {"destination": "/data", "type": "bind", "source": "/var/x", "options": ["rw", "rbind"]}
        ],
        "hooks": {"poststop": [{"path": "/bin/true"}]},
        "annotations": {
            "dev.gvisor.spec.mount.data.share": "pod",
            "dev.gvisor.spec.mount.data.source": "/var/x",
            "dev.gvisor.spec.cgroup-parent": "/kubepods/x",
            "dev.gvisor.internal.cpufeatures": "sse",
            "dev.gvisor.flag.debug": "true",
            "dev.gvisor.flag.overlay2": "none",
            "thaw.dev/snapshot": "auto",
            "other": "x"
        },
        "linux": {
            "namespaces": [{"type": "pid"}, {"type": "network", "path": "/run/netns/x"}],
            "sysctl": {"net.core.somaxconn": "1024"},
            "devices": [
                {"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229},
                {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}
            ],
            "resources": {"memory": {"limit": 1}},
            "cgroupsPath": "/x",
            "maskedPaths": ["/proc/kcore"],
            "seccomp": {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": []},
            "mountLabel": "l"
        }
    })
}

fn distilled(spec: &Value) -> Distilled {
    distil(spec, &context()).unwrap()
}

/// Fields that differ after `pointer` was set to `value`; `null` removes it.
fn changed(pointer: &str, value: Value) -> Vec<String> {
    let mut other = spec();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = other.pointer_mut(parent).unwrap();
    match (parent, value) {
        (Value::Object(object), Value::Null) => {
            object.remove(key);
        }
        (Value::Object(object), value) => {
            object.insert(key.replace("~1", "/"), value);
        }
        (Value::Array(list), value) => list[key.parse::<usize>().unwrap()] = value,
        (other, _) => panic!("{other}"),
    }
    distilled(&spec())
        .differing(&distilled(&other))
        .into_iter()
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_distilled_form_is_this() {
    let names: Vec<String> = distilled(&spec())
        .iter()
        .map(|(n, _)| n.to_owned())
        .collect();
    assert_eq!(
        names,
        [
            "annotations[dev.gvisor.flag.overlay2]",
            "annotations[dev.gvisor.spec.mount.data.share]",
            "linux.devices[/dev/fuse]",
            "linux.maskedPaths",
            "linux.namespaces",
            "linux.seccomp",
            "linux.sysctl[net.core.somaxconn]",
            "mounts[/data]",
            "mounts[/proc]",
            "process.apparmorProfile",
            "process.args[0]",
            "process.args[1]",
            "process.args[2]",
            "process.capabilities.ambient",
            "process.capabilities.bounding",
            "process.capabilities.effective",
            "process.capabilities.inheritable",
            "process.capabilities.permitted",
            "process.cwd",
            "process.env[PATH]",
            "process.env[TOKEN]",
            "process.noNewPrivileges",
            "process.rlimits[RLIMIT_CORE]",
            "process.rlimits[RLIMIT_NOFILE]",
            "process.user.additionalGids",
            "process.user.gid",
            "process.user.uid",
            "root.readonly",
            "rootfs",
        ]
    );
    let clear = |field: &str| distilled(&spec()).get(field).unwrap().shown().to_owned();
    assert_eq!(clear("process.capabilities.bounding"), "CAP_CHOWN,CAP_KILL");
    assert_eq!(clear("linux.namespaces"), "network,pid");
    assert_eq!(
        clear("mounts[/data]"),
        r#"{"options":["rbind","rw"],"type":"bind"}"#
    );
    assert_eq!(
        clear("process.rlimits[RLIMIT_CORE]"),
        r#"{"hard":0,"soft":0}"#
    );
}

#[test]
fn the_hash_is_part_of_the_format() {
    // A change here strands every stored snapshot.
    let tiny = distil(&json!({"process": {"args": ["a"]}}), &context()).unwrap();
    assert_eq!(
        serde_json::to_string(&tiny).unwrap(),
        r#"{"process.args[0]":{"v":"a"},"rootfs":{"v":"sha256:aa"}}"#
    );
    assert_eq!(tiny.hash().short(), GOLDEN);
}

const GOLDEN: &str = "89866c7b00ea";

#[test]
fn what_the_program_can_see_is_compared() {
    for (pointer, value, field) in [
        ("/process/args/2", json!("other"), "process.args[2]"),
        (
            "/process/args/0",
            json!("/usr/bin/python3"),
            "process.args[0]",
        ),
        ("/process/cwd", json!("/tmp"), "process.cwd"),
        ("/process/terminal", json!(true), "process.terminal"),
        ("/process/user/uid", json!(0), "process.user.uid"),
        (
            "/process/user/additionalGids",
            json!([4, 3]),
            "process.user.additionalGids",
        ),
        ("/process/user/umask", json!(18), "process.user.umask"),
        ("/process/env/1", json!("TOKEN=other"), "process.env[TOKEN]"),
        (
            "/process/capabilities/bounding",
            json!(["CAP_KILL"]),
            "process.capabilities.bounding",
        ),
        (
            "/process/rlimits/0/soft",
            json!(5),
            "process.rlimits[RLIMIT_NOFILE]",
        ),
        (
            "/process/noNewPrivileges",
            json!(false),
            "process.noNewPrivileges",
        ),
        (
            "/process/apparmorProfile",
            Value::Null,
            "process.apparmorProfile",
        ),
        ("/root/readonly", json!(false), "root.readonly"),
        ("/mounts/1/options", json!(["ro", "rbind"]), "mounts[/data]"),
        ("/mounts/1/type", json!("tmpfs"), "mounts[/data]"),
        ("/linux/sysctl/a", json!("1"), "linux.sysctl[a]"),
        ("/linux/maskedPaths", Value::Null, "linux.maskedPaths"),
        (
            "/linux/rootfsPropagation",
            json!("shared"),
            "linux.rootfsPropagation",
        ),
        (
            "/linux/seccomp/defaultAction",
            json!("SCMP_ACT_ALLOW"),
            "linux.seccomp",
        ),
        (
            "/linux/namespaces",
            json!([{"type": "pid"}]),
            "linux.namespaces",
        ),
        (
            "/linux/devices/0/type",
            json!("b"),
            "linux.devices[/dev/fuse]",
        ),
        (
            "/annotations/dev.gvisor.foo",
            json!("1"),
            "annotations[dev.gvisor.foo]",
        ),
        (
            "/annotations/io.kubernetes.cri.container-name",
            json!("c"),
            "annotations[io.kubernetes.cri.container-name]",
        ),
        ("/vm", json!({"kernel": {"path": "/k"}}), "vm"),
    ] {
        assert_eq!(changed(pointer, value), [field], "{pointer}");
    }
    let gone = changed("/process/capabilities", Value::Null);
    assert_eq!(gone.len(), 5, "{gone:?}");
    assert_eq!(
        changed("/process/args", json!(["/bin/python3"])),
        ["process.args[1]", "process.args[2]"]
    );
}

#[test]
fn what_names_or_places_the_container_is_not_compared() {
    for (pointer, value) in [
        ("/ociVersion", json!("1.3.0")),
        ("/hostname", json!("b")),
        ("/domainname", json!("e")),
        ("/root/path", json!("/elsewhere")),
        ("/hooks", Value::Null),
        ("/process/oomScoreAdj", json!(900)),
        ("/process/selinuxLabel", json!("m")),
        ("/process/env/2", json!("HOSTNAME=b")),
        ("/process/user/additionalGids", json!([3, 4])),
        ("/mounts/1/source", json!("/var/y")),
        ("/annotations/dev.gvisor.internal.x", json!("1")),
        (
            "/annotations/dev.gvisor.container-name-remap.1",
            json!("a=b"),
        ),
        ("/annotations/dev.gvisor.flag.strace", json!("true")),
        (
            "/annotations/dev.gvisor.spec.mount.data.source",
            json!("/var/y"),
        ),
        ("/annotations/dev.gvisor.spec.cgroup-parent", json!("/y")),
        ("/annotations/thaw.dev~1restore-from", json!("id")),
        ("/annotations/other", json!("y")),
        (
            "/annotations/io.kubernetes.cri.container-type",
            json!("container"),
        ),
        ("/linux/resources", json!({"memory": {"limit": 2}})),
        ("/linux/cgroupsPath", json!("/y")),
        ("/linux/mountLabel", json!("m")),
        (
            "/linux/uidMappings",
            json!([{"containerID": 0, "hostID": 1, "size": 1}]),
        ),
        ("/linux/namespaces/1/path", json!("/run/netns/y")),
        ("/linux/devices/0/minor", json!(1)),
        (
            "/linux/devices/1",
            json!({"path": "/dev/nvidia3", "type": "c", "major": 195, "minor": 3}),
        ),
        ("/linux/readonlyPaths", json!([])),
        ("/linux/seccomp/syscalls", Value::Null),
    ] {
        assert!(changed(pointer, value).is_empty(), "{pointer}");
    }
}

#[test]
fn no_secret_is_kept() {
    let long = "x".repeat(MAX_CLEAR + 1);
    let mut spec = spec();
    spec["process"]["args"][1] = json!(long);
    spec["annotations"]["dev.gvisor.key"] = json!("annotation-secret");
    let text = serde_json::to_string(&distilled(&spec)).unwrap();
    for secret in ["secret-value", "annotation-secret", &long] {
        assert!(!text.contains(secret), "{secret}");
    }
    let mut other_tenant = context();
    other_tenant.tenant = Tenant::new("other", "default", None);
    let field = "process.env[TOKEN]";
    assert_ne!(
        distilled(&spec).get(field),
        distil(&spec, &other_tenant).unwrap().get(field)
    );
}

#[test]
fn annotations_state_facts_group_and_environment() {
    let mut c = context();
    let spec = json!({"annotations": {
        "thaw.dev/fact.model": "abc",
        "thaw.dev/group": "g",
        "thaw.dev/key-env": "MODE, X",
        "thaw.dev/snapshot": "auto"
    }});
    c.read_annotations(&spec).unwrap();
    assert_eq!(c.facts["model"], "abc");
    assert_eq!(c.scope().group.as_deref(), Some("g"));
    assert_eq!(c.key_env, KeyEnv::parse("X,MODE").unwrap());
    for bad in [
        json!({"annotations": {"thaw.dev/fact.": "x"}}),
        json!({"annotations": {"thaw.dev/key-env": ""}}),
        json!({"annotations": {"thaw.dev/group": 1}}),
    ] {
        assert!(context().read_annotations(&bad).is_err(), "{bad}");
    }
}

#[test]
fn wrong_types_name_the_field() {
    for (spec, field) in [
        (json!([]), "the spec"),
        (json!({"process": 1}), "process"),
        (json!({"process": {"args": "a"}}), "process.args"),
        (json!({"process": {"args": [1]}}), "process.args[0]"),
        (json!({"mounts": [{}]}), "mounts"),
        (json!({"linux": {"sysctl": {"a": 1}}}), "linux.sysctl[a]"),
    ] {
        let error = distil(&spec, &context()).unwrap_err();
        assert!(
            matches!(&error, DistilError::Type { field: f, .. } if f == field),
            "{error}"
        );
    }
}

/// Reverses, or rotates, every list whose order gVisor does not look at, and the order of all keys.
fn shuffled(spec: &Value, by: usize) -> Value {
    let mut out = spec.clone();
    for pointer in [
        "/process/capabilities/bounding",
        "/process/rlimits",
        "/process/env",
        "/mounts",
        "/mounts/0/options",
        "/mounts/1/options",
        "/linux/namespaces",
        "/linux/devices",
    ] {
        if let Some(Value::Array(list)) = out.pointer_mut(pointer) {
            let len = list.len();
            list.rotate_left(by % len);
            if by % 2 == 1 {
                list.reverse();
            }
        }
    }
    rekeyed(&out, by)
}

fn rekeyed(value: &Value, by: usize) -> Value {
    match value {
        Value::Object(object) => {
            let mut fields: Vec<_> = object.iter().collect();
            let len = fields.len().max(1);
            fields.rotate_left(by % len);
            fields
                .into_iter()
                .map(|(k, v)| (k.clone(), rekeyed(v, by)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        }
        Value::Array(list) => list.iter().map(|v| rekeyed(v, by)).collect(),
        other => other.clone(),
    }
}

proptest! {
    #[test]
    fn order_without_meaning_does_not_matter(by in 0usize..64) {
        let (a, b) = (distilled(&spec()), distilled(&shuffled(&spec(), by)));
        prop_assert_eq!(a.hash(), b.hash());
        prop_assert_eq!(a, b);
    }

    #[test]
    fn any_other_environment_value_is_another_key(value in "[a-z]{0,8}") {
        prop_assume!(value != "secret-value");
        let fields = changed("/process/env/1", json!(format!("TOKEN={value}")));
        prop_assert_eq!(fields, ["process.env[TOKEN]"]);
    }
}
