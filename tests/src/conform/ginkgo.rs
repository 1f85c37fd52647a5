//! Reading Ginkgo's JSON report.

use serde::Deserialize;

use super::outcome::{Outcome, Status};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Report {
    #[serde(default)]
    spec_reports: Option<Vec<Spec>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    #[serde(default)]
    leaf_node_text: String,
    state: String,
    #[serde(default)]
    run_time: f64,
    #[serde(default)]
    failure: Failure,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct Failure {
    message: String,
    location: Location,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct Location {
    file_name: String,
    line_number: u64,
}

/// The results in a report; benchmarks, which are never run here, left out.
pub(super) fn outcomes(report: &[u8]) -> serde_json::Result<Vec<Outcome>> {
    let reports: Vec<Report> = serde_json::from_slice(report)?;
    Ok(reports
        .into_iter()
        .flat_map(|report| report.spec_reports.unwrap_or_default())
        .filter(|spec| spec.leaf_node_type == "It")
        .map(outcome)
        .filter(|outcome| !outcome.name.contains("benchmark"))
        .collect())
}

fn outcome(spec: Spec) -> Outcome {
    let mut name = spec.container_hierarchy_texts.unwrap_or_default();
    name.push(spec.leaf_node_text);
    let status = match spec.state.as_str() {
        "passed" => Status::Passed,
        "skipped" | "pending" => Status::Skipped,
        _ => Status::Failed,
    };
    let place = match spec.failure.location.file_name.rsplit('/').next() {
        Some(file) if !file.is_empty() => {
            format!("{file}:{}: ", spec.failure.location.line_number)
        }
        _ => String::new(),
    };
    let detail = match spec.failure.message.trim() {
        // A spec that ended otherwise than by an assertion has a state that says so.
        "" if status == Status::Failed => spec.state,
        "" => String::new(),
        message => format!("{place}{message}"),
    };
    Outcome {
        name: name.join(" "),
        status,
        seconds: spec.run_time / 1e9,
        detail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_become_outcomes() {
        let report = br#"[{"SuiteDescription": "x", "SpecReports": [
            {"ContainerHierarchyTexts": null, "LeafNodeType": "BeforeSuite", "State": "passed", "RunTime": 1},
            {"ContainerHierarchyTexts": ["[k8s.io] Pod", "ops"], "LeafNodeType": "It", "LeafNodeText": "runs",
             "State": "passed", "RunTime": 1500000000},
            {"ContainerHierarchyTexts": ["[k8s.io] Pod"], "LeafNodeType": "It", "LeafNodeText": "fails",
             "State": "failed", "RunTime": 0,
             "Failure": {"Message": "no", "Location": {"FileName": "/a/b.go", "LineNumber": 7}}},
            {"ContainerHierarchyTexts": ["[k8s.io] Pod"], "LeafNodeType": "It", "LeafNodeText": "hangs",
             "State": "timedout", "RunTime": 0},
            {"ContainerHierarchyTexts": ["[k8s.io] Pod"], "LeafNodeType": "It", "LeafNodeText": "is skipped",
             "State": "skipped", "RunTime": 0, "Failure": {"Message": "no AppArmor"}},
            {"ContainerHierarchyTexts": ["benchmark of pods"], "LeafNodeType": "It", "LeafNodeText": "x",
             "State": "skipped", "RunTime": 0}
        ]}]"#;
        let outcomes = outcomes(report).unwrap();
        let all: Vec<_> = outcomes
            .iter()
            .map(|o| (o.name.as_str(), o.status, o.detail.as_str()))
            .collect();
        assert_eq!(
            all,
            [
                ("[k8s.io] Pod ops runs", Status::Passed, ""),
                ("[k8s.io] Pod fails", Status::Failed, "b.go:7: no"),
                ("[k8s.io] Pod hangs", Status::Failed, "timedout"),
                ("[k8s.io] Pod is skipped", Status::Skipped, "no AppArmor"),
            ]
        );
        assert_eq!(outcomes[0].seconds, 1.5);
    }
}
