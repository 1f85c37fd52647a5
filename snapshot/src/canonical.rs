//! One unambiguous byte form for what is hashed: every string with its length before it, every list with its count.

/// Hashes a sequence of fields under a domain and a format version.
pub(crate) struct Canonical(blake3::Hasher);

impl Canonical {
    /// `domain` names what is hashed and the version of its form, e.g. `thaw index key v1`.
    pub(crate) fn new(domain: &'static str) -> Self {
        Canonical(blake3::Hasher::new_derive_key(domain))
    }

    /// A field.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.count(bytes.len());
        self.0.update(bytes);
        self
    }

    /// A text field.
    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    /// How many fields of a list follow.
    pub(crate) fn count(&mut self, count: usize) -> &mut Self {
        self.0.update(&(count as u64).to_le_bytes());
        self
    }

    /// The hash of all fields so far.
    pub(crate) fn finish(&self) -> blake3::Hash {
        self.0.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_cannot_run_into_each_other() {
        let hash = |parts: &[&str]| {
            let mut c = Canonical::new("thaw test v1");
            parts.iter().for_each(|p| {
                c.text(p);
            });
            c.finish()
        };
        assert_ne!(hash(&["ab", "c"]), hash(&["a", "bc"]));
        assert_ne!(hash(&["a"]), hash(&["a", ""]));
        assert_ne!(
            Canonical::new("thaw test v1").text("a").finish(),
            Canonical::new("thaw test v2").text("a").finish()
        );
    }
}
