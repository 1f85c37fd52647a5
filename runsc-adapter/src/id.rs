//! Container ids as runsc gets them.
//!
//! runsc takes an id for every container whose id begins with it, and refuses all commands for `web` as ambiguous once
//! there is a `web2` (gVisor `runsc/container/state_file.go`). Ids that people choose therefore get an end mark that
//! containerd allows in no id but runsc does. Ids of 64 hexadecimal digits, as CRI and most tools make them, cannot be
//! prefixes of each other and stay as they are, so that pods' annotations name the sandbox that runsc knows.
//!
//! All other modules speak of containerd's ids; only command lines, control calls and file names have runsc's.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};

const END: char = '+';
const GENERATED_LEN: usize = 64;

/// The id that runsc gets.
pub fn to_runsc(id: &str) -> Cow<'_, str> {
    let generated = id.len() == GENERATED_LEN && id.bytes().all(|b| b.is_ascii_hexdigit());
    if generated || id.is_empty() || id.ends_with(END) {
        Cow::Borrowed(id)
    } else {
        Cow::Owned(format!("{id}{END}"))
    }
}

/// containerd's id of a container that runsc knows.
pub fn from_runsc(id: &str) -> &str {
    id.strip_suffix(END).unwrap_or(id)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    let id = Cow::<str>::deserialize(d)?;
    Ok(from_runsc(&id).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn generated_ids_stay() {
        let id = "0123456789abcdef".repeat(4);
        assert_eq!(to_runsc(&id), id);
        assert_eq!(to_runsc("web"), "web+");
        assert_eq!(from_runsc("web+"), "web");
    }

    proptest! {
        #[test]
        fn no_id_is_a_prefix_of_another(a in "[a-z0-9][a-z0-9._-]{0,70}", b in "[a-z0-9._-]{1,5}") {
            let longer = format!("{a}{b}");
            let (short, long) = (to_runsc(&a), to_runsc(&longer));
            prop_assert!(!long.starts_with(short.as_ref()) || a.len() == GENERATED_LEN);
            prop_assert_eq!(from_runsc(&short), a.as_str());
            prop_assert_eq!(to_runsc(&short), short.as_ref());
        }
    }
}
