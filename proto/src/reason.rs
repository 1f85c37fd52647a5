//! The closed set of outcomes and reasons. docs/troubleshooting.md has one entry per reason.

use std::fmt;
use std::str::FromStr;

/// How one start ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Memory and file system came from a snapshot.
    Restored,
    /// The program started from its first instruction.
    Cold,
    /// A snapshot was required and could not be used; nothing runs.
    Refused,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::Restored => "restored",
            Outcome::Cold => "cold",
            Outcome::Refused => "refused",
        })
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $code:literal,)*) => {
        /// Why a start was cold or refused. The codes are part of the user interface and never change their meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $variant,)*
        }

        impl Reason {
            /// Every reason, in the order of the documentation.
            pub const ALL: &'static [Reason] = &[$(Reason::$variant,)*];

            /// The kebab-case code.
            pub const fn code(self) -> &'static str {
                match self {
                    $(Reason::$variant => $code,)*
                }
            }
        }

        impl FromStr for Reason {
            type Err = UnknownReason;

            fn from_str(code: &str) -> Result<Self, Self::Err> {
                match code {
                    $($code => Ok(Reason::$variant),)*
                    _ => Err(UnknownReason(code.to_owned())),
                }
            }
        }
    };
}

reasons! {
    /// No policy or annotation selects this container, or it says `off`.
    Disabled = "disabled",
    /// Nothing was ever captured for this workload.
    NoSnapshot = "no-snapshot",
    /// A snapshot of this workload exists but its distilled spec is another one.
    SpecDiffers = "spec-differs",
    /// Only the environment differs.
    EnvDiffers = "env-differs",
    /// The root filesystem's content differs (same workload, other image content).
    ImageDiffers = "image-differs",
    /// The snapshot was made by another runsc build.
    RunscDiffers = "runsc-differs",
    /// The snapshot needs CPU features that this host lacks.
    CpuLacks = "cpu-lacks",
    /// The snapshot was made on another machine series.
    MachineSeriesDiffers = "machine-series-differs",
    /// containerd cannot say which content the root filesystem has.
    ImageUnknown = "image-unknown",
    /// The store does not answer.
    StoreUnreachable = "store-unreachable",
    /// The store answers that access is not allowed.
    StoreDenied = "store-denied",
    /// The store answers later than the deadline.
    StoreSlow = "store-slow",
    /// An object that the snapshot needs is gone.
    SnapshotMissing = "snapshot-missing",
    /// Bytes of the snapshot do not verify and cannot be healed.
    SnapshotCorrupt = "snapshot-corrupt",
    /// runsc would not restore the snapshot.
    RunscRefused = "runsc-refused",
    /// The restore was not ready to run within its time limit.
    RestoreTimeout = "restore-timeout",
    /// The snapshot failed here too often.
    Quarantined = "quarantined",
    /// thawd does not answer and cannot be started.
    NodeUnavailable = "node-unavailable",
    /// No room for the cache on this node.
    CacheFull = "cache-full",
    /// The snapshot holds several containers and this container stands alone, or the other way round.
    PodIncomplete = "pod-incomplete",
}

/// A code that is none of [`Reason::ALL`].
#[derive(Debug, thiserror::Error)]
#[error("unknown reason code {0:?}")]
pub struct UnknownReason(pub String);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl serde::Serialize for Reason {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.code())
    }
}

impl<'de> serde::Deserialize<'de> for Reason {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let code = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        code.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_parses_back_and_is_kebab_case() {
        for reason in Reason::ALL {
            assert_eq!(reason.code().parse::<Reason>().unwrap(), *reason);
            assert!(
                reason
                    .code()
                    .chars()
                    .all(|c| c == '-' || c.is_ascii_lowercase()),
                "{reason}"
            );
        }
        assert!("snapshot-unknown".parse::<Reason>().is_err());
    }

    #[test]
    fn every_reason_has_an_entry_in_the_documentation_and_no_other() {
        let text = include_str!("../../docs/troubleshooting.md");
        let entries: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("## "))
            .collect();
        let codes: Vec<&str> = Reason::ALL.iter().map(|reason| reason.code()).collect();
        for code in &codes {
            assert!(entries.contains(code), "no entry for {code}");
        }
        assert_eq!(entries.len(), codes.len(), "{entries:?}");
    }
}
