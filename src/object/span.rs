//! Tokens per block of a model's KV cache groups.

use std::fmt;

/// One KV cache group of a model and the tokens that one of its block ids spans (0: never cached).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSpan {
    /// The engine's index of the group.
    pub group: u32,
    /// Tokens per block id, after context parallelism.
    pub tokens: u64,
}

/// The groups of a model as error texts name them: `group 0: 544, group 1: 64 tokens`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupSpans(pub Vec<GroupSpan>);

impl fmt::Display for GroupSpans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// More than this many would hide the rest of the message.
        const SHOWN: usize = 16;
        if self.0.is_empty() {
            return f.write_str("no group spans given");
        }
        for (i, span) in self.0.iter().take(SHOWN).enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}group {}: {}", span.group, span.tokens)?;
        }
        if self.0.len() > SHOWN {
            write!(f, " and {} more", self.0.len() - SHOWN)?;
        }
        f.write_str(" tokens")
    }
}
