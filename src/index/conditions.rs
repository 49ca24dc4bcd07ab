//! What a client says keeps it from caching, as bits of one word of its slab.
//!
//! Layout: docs/shm-layout.md, "Pin arena".

/// One reason for which an engine caches nothing, or less than it could, and which only it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Its weights are being read.
    WeightsPending,
    /// Its weights could not be read, and that is tried again.
    WeightsUnreadable,
    /// What its weights are will not be known as long as it runs.
    WeightsUnknown,
    /// Its workers cannot be served, or differ in what has to be equal.
    WorkersRefused,
    /// The server's chunk size does not suit it.
    ChunkRefused,
    /// A load that fails would fail its request, so nothing is loaded.
    LoadsForbidden,
    /// It is not known what one of its adapters is.
    AdapterUnknown,
    /// It does not hash images and other media.
    MediaUnhashed,
    /// Its servers differ, or are one.
    ServersDiffer,
    /// Its steps end where recurrent state cannot be resumed.
    StatesUnreached,
    /// The connector has kept an error of its own from the engine.
    ErrorsSpared,
}

impl Condition {
    /// All, in the order of their bits.
    pub const ALL: [Self; 11] = [
        Self::WeightsPending,
        Self::WeightsUnreadable,
        Self::WeightsUnknown,
        Self::WorkersRefused,
        Self::ChunkRefused,
        Self::LoadsForbidden,
        Self::AdapterUnknown,
        Self::MediaUnhashed,
        Self::ServersDiffer,
        Self::StatesUnreached,
        Self::ErrorsSpared,
    ];

    /// Name in status and bindings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WeightsPending => "weights_pending",
            Self::WeightsUnreadable => "weights_unreadable",
            Self::WeightsUnknown => "weights_unknown",
            Self::WorkersRefused => "workers_refused",
            Self::ChunkRefused => "chunk_refused",
            Self::LoadsForbidden => "loads_forbidden",
            Self::AdapterUnknown => "adapter_unknown",
            Self::MediaUnhashed => "media_unhashed",
            Self::ServersDiffer => "servers_differ",
            Self::StatesUnreached => "states_unreached",
            Self::ErrorsSpared => "errors_spared",
        }
    }

    /// The condition of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    const fn bit(self) -> u64 {
        1 << self as u64
    }
}

/// Some of all conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions(u64);

impl Conditions {
    /// Of a slab's word. Bits that mean nothing to this version stay.
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// As a slab's word.
    pub const fn to_word(self) -> u64 {
        self.0
    }

    /// What holds, in the order of the bits.
    pub fn iter(self) -> impl Iterator<Item = Condition> {
        Condition::ALL
            .into_iter()
            .filter(move |one| self.0 & one.bit() != 0)
    }
}

impl FromIterator<Condition> for Conditions {
    fn from_iter<I: IntoIterator<Item = Condition>>(conditions: I) -> Self {
        Self(conditions.into_iter().fold(0, |word, one| word | one.bit()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The word is read by other versions and written from the documents.
    #[test]
    fn each_condition_has_the_bit_of_its_place() {
        for (bit, condition) in Condition::ALL.into_iter().enumerate() {
            let word = Conditions::from_iter([condition]).to_word();
            assert_eq!(word, 1 << bit, "{condition:?}");
            assert_eq!(Condition::named(condition.name()), Some(condition));
        }
        let all: Vec<_> = Conditions::from_word(u64::MAX).iter().collect();
        assert_eq!(all, Condition::ALL);
    }
}
