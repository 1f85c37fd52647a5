//! Names made of a hash: 32 bytes, written as 64 lower-case hexadecimal digits and therefore safe as a part of a path.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Digits of an id.
pub const ID_DIGITS: usize = 64;

/// Text that is no id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{kind} must be {ID_DIGITS} lower-case hexadecimal digits, not {text:?}")]
pub struct BadId {
    /// What was expected.
    pub kind: &'static str,
    /// The text, cut to 80 characters.
    pub text: String,
}

fn parse(kind: &'static str, text: &str) -> Result<[u8; 32], BadId> {
    let bad = || BadId {
        kind,
        text: text.chars().take(80).collect(),
    };
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let digits = text.as_bytes();
    if digits.len() != ID_DIGITS {
        return Err(bad());
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
            return Err(bad());
        };
        *byte = high << 4 | low;
    }
    Ok(bytes)
}

fn write_hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; 32]);

        impl $name {
            /// The id with these bytes.
            pub const fn from_bytes(bytes: [u8; 32]) -> Self {
                $name(bytes)
            }

            /// The id's bytes.
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }

            /// Parses 64 lower-case hexadecimal digits.
            pub fn parse(text: &str) -> Result<Self, BadId> {
                parse($kind, text).map($name)
            }

            /// The first twelve digits, for messages and tables.
            pub fn short(&self) -> String {
                self.to_string()[..12].to_owned()
            }
        }

        impl From<blake3::Hash> for $name {
            fn from(hash: blake3::Hash) -> Self {
                $name(*hash.as_bytes())
            }
        }

        impl FromStr for $name {
            type Err = BadId;

            fn from_str(text: &str) -> Result<Self, BadId> {
                $name::parse(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_hex(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
                $name::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

id!(
    /// Within which snapshots are shared: cluster, namespace and service account ([`crate::key::Tenant`]).
    TenantId, "tenant id"
);
id!(
    /// Hash of everything that must be equal for a restore ([`crate::key::index_key`]).
    IndexKey, "index key"
);
id!(
    /// What people call the same workload, whatever its version ([`crate::key::workload_id`]).
    WorkloadId, "workload id"
);
id!(
    /// A snapshot: BLAKE3 of its manifest's bytes.
    SnapshotId, "snapshot id"
);
id!(
    /// A pack: BLAKE3 of its bytes.
    PackId, "pack id"
);
id!(
    /// A decoded chunk, as the cache knows it ([`crate::format::Block::id`]).
    ChunkId, "chunk id"
);
id!(
    /// Hash of a distilled spec ([`crate::distil::Distilled::hash`]).
    DistilledHash, "distilled hash"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lower_case_hex_of_the_right_length_is_an_id() {
        let text = "0123456789abcdef".repeat(4);
        assert_eq!(SnapshotId::parse(&text).unwrap().to_string(), text);
        assert_eq!(SnapshotId::parse(&text).unwrap().short(), "0123456789ab");
        for bad in [
            "",
            "..",
            &text[1..],
            &text.to_uppercase(),
            &text.replace('0', "/"),
            &format!("{text}0"),
            &"\u{e9}".repeat(32),
        ] {
            assert!(SnapshotId::parse(bad).is_err(), "{bad:?}");
        }
        let json = serde_json::to_string(&TenantId::parse(&text).unwrap()).unwrap();
        assert_eq!(json, format!("{text:?}"));
        assert!(serde_json::from_str::<TenantId>("\"../../etc\"").is_err());
    }
}
