//! Extra keys: what besides its tokens decides the KV of a chunk.

use std::fmt;

use super::{KeyError, check_field, length_prefix};

/// Kind tag of a multimodal item; the payload is the identifier, then `i64` LE item start - chunk start.
const TAG_MM_ITEM: u8 = 1;
/// Kind tag of the LoRA identity; the payload is its bytes.
const TAG_LORA: u8 = 2;
/// Kind tag of the tenant's salt; the payload is its bytes.
const TAG_SALT: u8 = 3;

/// One multimodal input (image, audio, video) and the placeholder tokens that it fills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MmItem {
    /// Content identity, as the engine computes it.
    pub identifier: Vec<u8>,
    /// First placeholder token, counted from the start of the prompt.
    pub start: u64,
    /// Number of placeholder tokens. An item of length 0 overlaps nothing.
    pub length: u64,
}

/// The extra keys of one request.
///
/// Encoding for a chunk, or for the front of one, that covers tokens `[start, end)`: one entry per extra
/// that applies, each a tag byte, a `u32` LE payload length, and the payload, in this order:
///
/// | tag | applies to | payload |
/// |---|---|---|
/// | 1 | every item that overlaps `[start, end)`, by (start, identifier) | identifier, then `i64` LE item start - `start` |
/// | 2 | every chunk, when a LoRA is set | LoRA identity |
/// | 3 | chunk 0 only, when a salt is set | salt |
///
/// The position is a fixed 8 bytes at the end, so an entry reads in one way only. A chunk to which no
/// entry applies is hashed without extras. The salt needs chunk 0 only, since every later key is chained
/// to that one. An empty LoRA or salt is an entry of length 0, not the same as none.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Extras {
    /// Multimodal items of the prompt, in any order.
    pub mm_items: Vec<MmItem>,
    /// Identity of the adapter (name and content), if the request uses one.
    pub lora: Option<Vec<u8>>,
    /// Salt that separates tenants, if the request carries one.
    pub salt: Option<Vec<u8>>,
}

/// Salts separate tenants and identifiers may be user data: only their presence is printed.
impl fmt::Debug for Extras {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extras")
            .field("mm_items", &self.mm_items.len())
            .field("lora", &self.lora.is_some())
            .field("salt", &self.salt.is_some())
            .finish()
    }
}

impl Extras {
    /// Checks lengths and positions, and sorts the items into the order in which they are hashed.
    pub(super) fn normalise(mut self) -> Result<Self, KeyError> {
        for (index, item) in self.mm_items.iter().enumerate() {
            check_field("multimodal identifier", &item.identifier)?;
            let (start, length) = (item.start, item.length);
            let end = start.checked_add(length).filter(|&end| end <= i64::MAX as u64);
            end.ok_or(KeyError::MmItemRange { index, start, length })?;
        }
        check_field("LoRA identity", self.lora.as_deref().unwrap_or_default())?;
        check_field("salt", self.salt.as_deref().unwrap_or_default())?;
        self.mm_items.retain(|item| item.length > 0);
        self.mm_items
            .sort_by(|a, b| (a.start, &a.identifier).cmp(&(b.start, &b.identifier)));
        Ok(self)
    }

    /// Whether no chunk of the request can have an extra.
    pub(super) fn is_empty(&self) -> bool {
        self.mm_items.is_empty() && self.lora.is_none() && self.salt.is_none()
    }

    /// Replaces `out` by the entries of a chunk that covers `[start, end)`. `self` is normalised.
    pub(super) fn encode(&self, start: u64, end: u64, out: &mut Vec<u8>) {
        out.clear();
        for item in &self.mm_items {
            if item.start >= end {
                break;
            }
            if item.start + item.length <= start {
                continue;
            }
            let offset = item.start as i64 - start as i64;
            out.push(TAG_MM_ITEM);
            // The identifier is at most MAX_FIELD_BYTES, so eight more bytes still fit 32 bits.
            out.extend_from_slice(&(item.identifier.len() as u32 + 8).to_le_bytes());
            out.extend_from_slice(&item.identifier);
            out.extend_from_slice(&offset.to_le_bytes());
        }
        if let Some(lora) = &self.lora {
            push_entry(out, TAG_LORA, lora);
        }
        if start == 0
            && let Some(salt) = &self.salt
        {
            push_entry(out, TAG_SALT, salt);
        }
    }
}

fn push_entry(out: &mut Vec<u8>, tag: u8, payload: &[u8]) {
    out.push(tag);
    out.extend_from_slice(&length_prefix(payload));
    out.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(identifier: &[u8], start: u64, length: u64) -> MmItem {
        MmItem {
            identifier: identifier.to_vec(),
            start,
            length,
        }
    }

    fn encoded(extras: &Extras, start: u64, end: u64) -> Vec<u8> {
        let mut out = vec![0xff];
        extras.encode(start, end, &mut out);
        out
    }

    #[test]
    fn bytes_are_as_documented() {
        let extras = Extras {
            mm_items: vec![item(b"late", 20, 4), item(b"img", 6, 8)],
            lora: Some(b"ad".to_vec()),
            salt: Some(b"s".to_vec()),
        }
        .normalise()
        .unwrap();
        let mut first = vec![1, 11, 0, 0, 0];
        first.extend(b"img");
        first.extend(6i64.to_le_bytes());
        first.extend([2, 2, 0, 0, 0, b'a', b'd', 3, 1, 0, 0, 0, b's']);
        assert_eq!(encoded(&extras, 0, 8), first);

        let mut second = vec![1, 11, 0, 0, 0];
        second.extend(b"img");
        second.extend((-2i64).to_le_bytes());
        second.extend([2, 2, 0, 0, 0, b'a', b'd']);
        assert_eq!(encoded(&extras, 8, 16), second);
    }

    #[test]
    fn an_item_counts_only_where_it_overlaps() {
        let extras = Extras {
            mm_items: vec![item(b"x", 8, 8)],
            ..Extras::default()
        }
        .normalise()
        .unwrap();
        assert!(encoded(&extras, 0, 8).is_empty());
        assert!(!encoded(&extras, 0, 9).is_empty());
        assert!(!encoded(&extras, 15, 16).is_empty());
        assert!(encoded(&extras, 16, 24).is_empty());
    }

    #[test]
    fn empty_items_vanish_and_empty_strings_do_not() {
        let none = Extras {
            mm_items: vec![item(b"x", 3, 0)],
            ..Extras::default()
        }
        .normalise()
        .unwrap();
        assert!(none.is_empty());
        let lora = Extras {
            lora: Some(Vec::new()),
            ..Extras::default()
        }
        .normalise()
        .unwrap();
        assert_eq!(encoded(&lora, 0, 8), [2, 0, 0, 0, 0]);
    }

    #[test]
    fn positions_that_overflow_are_refused() {
        for (start, length) in [(u64::MAX, 1), (i64::MAX as u64, 1), (1, u64::MAX)] {
            let extras = Extras {
                mm_items: vec![item(b"", 0, 1), item(b"", start, length)],
                ..Extras::default()
            };
            assert_eq!(
                extras.normalise(),
                Err(KeyError::MmItemRange {
                    index: 1,
                    start,
                    length
                })
            );
        }
    }

    #[test]
    fn debug_hides_contents() {
        let extras = Extras {
            mm_items: vec![item(b"face.png", 0, 1)],
            lora: None,
            salt: Some(b"hunter2".to_vec()),
        };
        let shown = format!("{extras:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("face"), "{shown}");
        assert!(!shown.contains("104, 117, 110"), "{shown}");
        assert!(shown.contains("salt: true"), "{shown}");
    }
}
