//! Netlink attributes: `u16 length, u16 type, payload`, padded to 4 bytes (netlink(7)).

const HEADER: usize = 4;
/// The type without the flags "nested" and "network byte order".
const TYPE_MASK: u16 = 0x3fff;

/// One attribute, header included.
pub(super) struct Attribute<'a> {
    pub(super) kind: u16,
    pub(super) payload: &'a [u8],
    /// Header and payload, without padding.
    pub(super) whole: &'a [u8],
}

/// The attributes in a byte sequence; what does not look like one ends it.
pub(super) fn iterate(bytes: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)? & TYPE_MASK;
        let whole = rest.get(..length).filter(|w| w.len() >= HEADER)?;
        rest = rest.get(align(length)..).unwrap_or_default();
        Some(Attribute {
            kind,
            payload: &whole[HEADER..],
            whole,
        })
    })
}

/// The payload of the first attribute of this type.
pub(super) fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    iterate(bytes).find(|a| a.kind == kind).map(|a| a.payload)
}

/// Appends an attribute that was taken from another message.
pub(super) fn push(out: &mut Vec<u8>, attribute: &Attribute<'_>) {
    out.extend_from_slice(attribute.whole);
    out.resize(align(out.len()), 0);
}

pub(super) const fn align(length: usize) -> usize {
    length.next_multiple_of(4)
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
