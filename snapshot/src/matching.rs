//! Which of the stored snapshots a container can be restored from, and if none, why. Pure.

use std::collections::BTreeSet;

use thaw_proto::Reason;
use thaw_proto::record::FieldDifference;

use crate::distil::{Context, DistilError, Distilled, distil};
use crate::id::{IndexKey, SnapshotId};
use crate::key::{HostFacts, Scope, index_key};
use crate::summary::Summary;

/// Value shown for a field that one side does not have.
pub const ABSENT: &str = "(absent)";

/// What a container needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Equality fields outside the spec.
    pub scope: Scope,
    /// Equality fields of the spec.
    pub distilled: Distilled,
    /// The host it starts on.
    pub host: HostFacts,
}

impl Wanted {
    /// What the container with this `config.json` needs.
    pub fn new(
        spec: &serde_json::Value,
        context: &Context,
        host: HostFacts,
    ) -> Result<Wanted, DistilError> {
        Ok(Wanted {
            scope: context.scope(),
            distilled: distil(spec, context)?,
            host,
        })
    }

    /// The key under which fitting snapshots are listed.
    pub fn key(&self) -> IndexKey {
        index_key(&self.scope, &self.distilled.hash())
    }
}

/// Why there is nothing to restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Miss {
    /// The code.
    pub reason: Reason,
    /// One sentence.
    pub detail: String,
    /// The snapshot it was compared with.
    pub nearest: Option<SnapshotId>,
    /// Fields that differ from it.
    pub differences: Vec<FieldDifference>,
}

/// The newest of `candidates` (all of one key) that this host can run and that is not quarantined here; else the reason
/// of the newest one.
pub fn choose<'a>(
    candidates: &'a [Summary],
    host: &HostFacts,
    quarantined: &dyn Fn(&SnapshotId) -> bool,
) -> Result<&'a Summary, Miss> {
    let mut newest_first: Vec<&Summary> = candidates.iter().collect();
    newest_first.sort_by(|a, b| order(b).cmp(&order(a)));
    let mut first_miss = None;
    for candidate in newest_first {
        match fits(candidate, host, quarantined) {
            Ok(()) => return Ok(candidate),
            Err(miss) => first_miss = first_miss.or(Some(miss)),
        }
    }
    Err(first_miss.unwrap_or_else(no_snapshot))
}

/// Explains a miss by the nearest of `candidates` (the workload's snapshots, of any key): the one that differs in the
/// fewest fields, of those the newest.
pub fn explain(
    wanted: &Wanted,
    candidates: &[Summary],
    quarantined: &dyn Fn(&SnapshotId) -> bool,
) -> Miss {
    let Some((nearest, differences)) = candidates
        .iter()
        .map(|candidate| (candidate, differences(wanted, candidate)))
        .min_by(|(a, a_fields), (b, b_fields)| {
            (a_fields.len(), order(b)).cmp(&(b_fields.len(), order(a)))
        })
    else {
        return no_snapshot();
    };
    if differences.is_empty() {
        let equal: Vec<Summary> = candidates
            .iter()
            .filter(|c| c.provenance.key == nearest.provenance.key)
            .cloned()
            .collect();
        return match choose(&equal, &wanted.host, quarantined) {
            Err(miss) => miss,
            // It was put there after the look-up.
            Ok(found) => Miss {
                reason: Reason::NoSnapshot,
                detail: format!(
                    "snapshot {} fits but was stored only after this look-up",
                    found.id.short()
                ),
                nearest: Some(found.id),
                differences: Vec::new(),
            },
        };
    }
    let reason = classify(&differences);
    let names: Vec<&str> = differences.iter().map(|d| d.field.as_str()).collect();
    Miss {
        reason,
        detail: sentence(reason, nearest, &names),
        nearest: Some(nearest.id),
        differences,
    }
}

/// Whether exactly this snapshot can be restored for the container (a pinned snapshot).
pub fn check(
    wanted: &Wanted,
    candidate: &Summary,
    quarantined: &dyn Fn(&SnapshotId) -> bool,
) -> Result<(), Miss> {
    if wanted.key() == candidate.provenance.key {
        fits(candidate, &wanted.host, quarantined)
    } else {
        Err(explain(
            wanted,
            std::slice::from_ref(candidate),
            quarantined,
        ))
    }
}

/// Newer is greater; the id decides between equal times so that every node chooses the same.
fn order(summary: &Summary) -> (&str, &SnapshotId) {
    (&summary.provenance.created, &summary.id)
}

fn no_snapshot() -> Miss {
    Miss {
        reason: Reason::NoSnapshot,
        detail: "no snapshot of this workload is in the store; take one with `thaw capture`"
            .to_owned(),
        nearest: None,
        differences: Vec::new(),
    }
}

fn fits(
    candidate: &Summary,
    host: &HostFacts,
    quarantined: &dyn Fn(&SnapshotId) -> bool,
) -> Result<(), Miss> {
    let made = &candidate.provenance.host;
    let id = candidate.id;
    let miss = |reason, detail, differences| Miss {
        reason,
        detail,
        nearest: Some(id),
        differences,
    };
    if quarantined(&id) {
        return Err(miss(
            Reason::Quarantined,
            format!("snapshot {} failed on this node too often", id.short()),
            Vec::new(),
        ));
    }
    if made.runsc_digest != host.runsc_digest || made.runsc_version != host.runsc_version {
        // Builds of one version differ only in the digest.
        let (stored, wanted) = if made.runsc_version == host.runsc_version {
            (&made.runsc_digest, &host.runsc_digest)
        } else {
            (&made.runsc_version, &host.runsc_version)
        };
        return Err(miss(
            Reason::RunscDiffers,
            format!(
                "snapshot {} was made by runsc {stored}, this node has {wanted}",
                id.short()
            ),
            vec![FieldDifference {
                field: "runsc".to_owned(),
                stored: stored.clone(),
                wanted: wanted.clone(),
            }],
        ));
    }
    let lacking: Vec<&str> = candidate.lacking(host).into_iter().collect();
    if !lacking.is_empty() {
        let lacking = lacking.join(",");
        return Err(miss(
            Reason::CpuLacks,
            format!(
                "snapshot {} needs CPU features that this node lacks: {lacking}",
                id.short()
            ),
            vec![FieldDifference {
                field: "cpu".to_owned(),
                stored: lacking,
                wanted: String::new(),
            }],
        ));
    }
    Ok(())
}

/// Names of scope fields in differences.
const MACHINE_SERIES: &str = "machine-series";

fn differences(wanted: &Wanted, candidate: &Summary) -> Vec<FieldDifference> {
    let stored = &candidate.provenance.distilled;
    let shown = |distilled: &Distilled, field: &str| {
        distilled
            .get(field)
            .map_or(ABSENT.to_owned(), |value| value.shown().to_owned())
    };
    let mut found: Vec<FieldDifference> = stored
        .differing(&wanted.distilled)
        .into_iter()
        .map(|field| FieldDifference {
            field: field.to_owned(),
            stored: shown(stored, field),
            wanted: shown(&wanted.distilled, field),
        })
        .collect();
    found.extend(scope_differences(
        &candidate.provenance.scope,
        &wanted.scope,
    ));
    found
}

fn scope_differences(stored: &Scope, wanted: &Scope) -> Vec<FieldDifference> {
    let absent = |value: Option<&String>| value.map_or(ABSENT.to_owned(), String::clone);
    let overlay = |scope: &Scope| scope.overlay_kind();
    let mut pairs = vec![
        (
            "tenant".to_owned(),
            stored.tenant.to_string(),
            wanted.tenant.to_string(),
        ),
        ("arch".to_owned(), stored.arch.clone(), wanted.arch.clone()),
        (
            "runsc.platform".to_owned(),
            stored.platform.clone(),
            wanted.platform.clone(),
        ),
        (
            "runsc.network".to_owned(),
            stored.network.clone(),
            wanted.network.clone(),
        ),
        (
            "runsc.directfs".to_owned(),
            stored.directfs.clone(),
            wanted.directfs.clone(),
        ),
        (
            "runsc.overlay2".to_owned(),
            overlay(stored),
            overlay(wanted),
        ),
        (
            MACHINE_SERIES.to_owned(),
            stored.machine_series.clone(),
            wanted.machine_series.clone(),
        ),
        (
            "annotations[thaw.dev/group]".to_owned(),
            absent(stored.group.as_ref()),
            absent(wanted.group.as_ref()),
        ),
    ];
    let facts: BTreeSet<&String> = stored.facts.keys().chain(wanted.facts.keys()).collect();
    pairs.extend(facts.into_iter().map(|fact| {
        (
            format!("annotations[{}{fact}]", crate::distil::FACT_PREFIX),
            absent(stored.facts.get(fact)),
            absent(wanted.facts.get(fact)),
        )
    }));
    pairs
        .into_iter()
        .filter(|(_, stored, wanted)| stored != wanted)
        .map(|(field, stored, wanted)| FieldDifference {
            field,
            stored,
            wanted,
        })
        .collect()
}

/// Another image explains nearly every other difference; a difference in the environment only counts where nothing else
/// differs, and so on.
fn classify(differences: &[FieldDifference]) -> Reason {
    let is_env = |d: &&FieldDifference| d.field.starts_with("process.env[");
    let is_series = |d: &&FieldDifference| d.field == MACHINE_SERIES;
    if differences.iter().any(|d| d.field == "rootfs") {
        Reason::ImageDiffers
    } else if differences.iter().any(|d| !is_env(&d) && !is_series(&d)) {
        Reason::SpecDiffers
    } else if differences.iter().any(|d| is_env(&d)) {
        Reason::EnvDiffers
    } else {
        Reason::MachineSeriesDiffers
    }
}

fn sentence(reason: Reason, nearest: &Summary, names: &[&str]) -> String {
    const NAMED: usize = 5;
    let what = match reason {
        Reason::ImageDiffers => "was made from another image content",
        Reason::EnvDiffers => "was made with another environment",
        Reason::MachineSeriesDiffers => "was made on another machine series",
        _ => "was made from another spec",
    };
    let more = match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let named = names[..names.len().min(NAMED)].join(", ");
    format!(
        "the nearest snapshot {} {what}; what differs: {named}{more}",
        nearest.id.short()
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::summary::tests::{context, host, summary, wanted};

    fn never(_: &SnapshotId) -> bool {
        false
    }

    fn spec() -> serde_json::Value {
        json!({"process": {"args": ["a", "b"], "env": ["MODE=1", "KEY=secret"]}})
    }

    #[test]
    fn the_newest_that_this_host_can_run_is_chosen() {
        let w = wanted(&spec());
        let mut newest = summary(&w, 3);
        newest.provenance.host.cpu_features.insert("amx".into());
        let all = [summary(&w, 1), newest, summary(&w, 2)];
        assert_eq!(choose(&all, &host(), &never).unwrap().id, all[2].id);
        let not_two = |id: &SnapshotId| *id == all[2].id;
        assert_eq!(choose(&all, &host(), &not_two).unwrap().id, all[0].id);
        let miss = choose(&all, &host(), &|_| true).unwrap_err();
        assert_eq!(
            (miss.reason, miss.nearest),
            (Reason::Quarantined, Some(all[1].id))
        );
        assert_eq!(
            choose(&[], &host(), &never).unwrap_err().reason,
            Reason::NoSnapshot
        );
    }

    #[test]
    fn hosts_that_cannot_run_it_are_told_why() {
        let w = wanted(&spec());
        let mut needs = summary(&w, 1);
        needs.provenance.host.cpu_features.insert("avx512f".into());
        let miss = choose(&[needs], &host(), &never).unwrap_err();
        assert_eq!(miss.reason, Reason::CpuLacks);
        assert!(miss.detail.contains("avx512f"), "{}", miss.detail);

        let one = [summary(&w, 1)];
        let mut other = host();
        other.runsc_version = "v2".into();
        let miss = choose(&one, &other, &never).unwrap_err();
        assert_eq!(miss.reason, Reason::RunscDiffers);
        assert!(miss.detail.contains("v1") && miss.detail.contains("v2"));
        let mut rebuilt = host();
        rebuilt.runsc_digest = "d2".into();
        let miss = choose(&one, &rebuilt, &never).unwrap_err();
        assert_eq!(miss.reason, Reason::RunscDiffers);
        assert!(miss.detail.contains("d1") && miss.detail.contains("d2"));
        let mut more = host();
        more.cpu_features.insert("new".into());
        assert!(choose(&one, &more, &never).is_ok());
    }

    #[test]
    fn misses_are_explained_by_the_nearest() {
        let stored = [summary(&wanted(&spec()), 1)];
        let explained = |pointer: &str, value: serde_json::Value| {
            let mut other = spec();
            *other.pointer_mut(pointer).unwrap() = value;
            explain(&wanted(&other), &stored, &never)
        };
        let args = explained("/process/args/1", json!("c"));
        assert_eq!(args.reason, Reason::SpecDiffers);
        assert!(args.detail.contains("process.args[1]"), "{}", args.detail);
        assert_eq!(
            args.differences,
            [FieldDifference {
                field: "process.args[1]".into(),
                stored: "b".into(),
                wanted: "c".into(),
            }]
        );
        let env = explained("/process/env/1", json!("KEY=other"));
        assert_eq!(env.reason, Reason::EnvDiffers);
        assert_eq!(
            env.differences,
            [FieldDifference {
                field: "process.env[KEY]".into(),
                stored: String::new(),
                wanted: String::new(),
            }]
        );
        let fewer = explained("/process/args", json!(["a"]));
        assert_eq!(fewer.differences[0].wanted, ABSENT);
        assert_eq!(
            explain(&wanted(&spec()), &[], &never).reason,
            Reason::NoSnapshot
        );
    }

    #[test]
    fn scope_is_explained_too() {
        let stored = [summary(&wanted(&spec()), 1)];
        let explained = |change: fn(&mut crate::distil::Context)| {
            let mut c = context();
            change(&mut c);
            explain(&Wanted::new(&spec(), &c, host()).unwrap(), &stored, &never)
        };
        let series = explained(|c| c.machine_series = "series-2".into());
        assert_eq!(series.reason, Reason::MachineSeriesDiffers);
        assert_eq!(series.differences[0].stored, "series-1");
        assert_eq!(
            explained(|c| c.rootfs = "sha256:bb".into()).reason,
            Reason::ImageDiffers
        );
        let platform = explained(|c| c.platform = "kvm".into());
        assert_eq!(platform.reason, Reason::SpecDiffers);
        assert_eq!(platform.differences[0].field, "runsc.platform");
        let fact = explained(|c| {
            c.facts.insert("model".into(), "m".into());
        });
        assert_eq!(
            fact.differences[0].field,
            "annotations[thaw.dev/fact.model]"
        );
        assert_eq!(fact.differences[0].stored, ABSENT);
        let overlay = explained(|c| c.overlay = "root:dir=/x".into());
        assert!(overlay.differences.is_empty(), "{overlay:?}");
    }

    #[test]
    fn the_nearest_differs_in_the_fewest_fields() {
        let near = json!({"process": {"args": ["a", "b"], "env": ["MODE=2", "KEY=secret"]}});
        let far = json!({"process": {"args": ["x", "y"]}});
        let stored = [summary(&wanted(&near), 1), summary(&wanted(&far), 9)];
        let miss = explain(&wanted(&spec()), &stored, &never);
        assert_eq!(
            (miss.reason, miss.nearest),
            (Reason::EnvDiffers, Some(stored[0].id))
        );
        let equal = [summary(&wanted(&near), 1), summary(&wanted(&near), 2)];
        let miss = explain(&wanted(&spec()), &equal, &never);
        assert_eq!(miss.nearest, Some(equal[1].id));
    }

    #[test]
    fn an_equal_key_is_explained_by_the_host() {
        let mut w = wanted(&spec());
        let stored = [summary(&w, 1)];
        w.host.runsc_version = "v2".into();
        assert_eq!(explain(&w, &stored, &never).reason, Reason::RunscDiffers);
        assert_eq!(
            check(&w, &stored[0], &never).unwrap_err().reason,
            Reason::RunscDiffers
        );
        w.host = host();
        assert!(check(&w, &stored[0], &never).is_ok());
        w.scope.machine_series = "other".into();
        assert_eq!(
            check(&w, &stored[0], &never).unwrap_err().reason,
            Reason::MachineSeriesDiffers
        );
    }
}
