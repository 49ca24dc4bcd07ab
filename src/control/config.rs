//! `--chunk-size` and `--chunk-size-policy`, as values that cannot contradict each other.

use std::fmt;

use crate::geometry::chunk::{ChunkError, MAX_CHUNK_TOKENS, resolve_chunk};

/// The chunk size in tokens when nothing else says one.
pub const DEFAULT_CHUNK_TOKENS: u32 = 256;

/// The least size that a negotiation may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Minimum {
    /// The client's preferred base, or [`DEFAULT_CHUNK_TOKENS`] when it has none.
    Auto,
    /// This many tokens.
    Tokens(u64),
}

/// What happens to a model whose alignment does not divide the minimum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The chunk grows to the next multiple of the alignment.
    #[default]
    Negotiate,
    /// The size is the configured one; the model is refused.
    Fixed,
}

/// A pair of settings that cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// `--chunk-size 0`.
    #[error("a chunk size of 0 tokens is not possible; use a positive number or \"auto\"")]
    Zero,
    /// A size beyond every context length.
    #[error("a chunk size of {tokens} tokens is beyond the limit of {max}")]
    TooLarge {
        /// The configured size.
        tokens: u64,
        /// The limit.
        max: u64,
    },
    /// Nothing to be fixed to.
    #[error(
        "chunk size \"auto\" cannot be combined with the policy \"fixed\": give a number, or use the policy \
         \"negotiate\""
    )]
    AutoFixed,
}

/// The configured chunk size and policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSizeConfig {
    minimum: Minimum,
    policy: Policy,
}

impl ChunkSizeConfig {
    /// Checks that the two make sense together.
    ///
    /// # Errors
    /// [`ConfigError`], whose text is meant for whoever set the options.
    pub fn new(minimum: Minimum, policy: Policy) -> Result<Self, ConfigError> {
        match (minimum, policy) {
            (Minimum::Tokens(0), _) => Err(ConfigError::Zero),
            (Minimum::Tokens(tokens), _) if tokens > MAX_CHUNK_TOKENS => Err(ConfigError::TooLarge {
                tokens,
                max: MAX_CHUNK_TOKENS,
            }),
            (Minimum::Auto, Policy::Fixed) => Err(ConfigError::AutoFixed),
            (minimum, policy) => Ok(Self { minimum, policy }),
        }
    }

    /// The configured minimum.
    pub fn minimum(&self) -> Minimum {
        self.minimum
    }

    /// The configured policy.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Whether a size that somebody else decided on may be taken over.
    pub fn admits(&self, tokens: u64) -> bool {
        match (self.minimum, self.policy) {
            (Minimum::Tokens(minimum), Policy::Fixed) => tokens == minimum,
            (Minimum::Tokens(minimum), Policy::Negotiate) => tokens >= minimum,
            (Minimum::Auto, _) => true,
        }
    }

    /// The minimum in tokens for a client with this preferred base (0: none).
    ///
    /// # Errors
    /// [`ChunkError::ChunkTooLarge`] when the base counts and is beyond the limit.
    pub fn minimum_for(&self, preferred_base: u64) -> Result<u64, ChunkError> {
        match (self.minimum, preferred_base) {
            (Minimum::Tokens(tokens), _) => Ok(tokens),
            (Minimum::Auto, 0) => Ok(u64::from(DEFAULT_CHUNK_TOKENS)),
            (Minimum::Auto, base) => resolve_chunk(1, base),
        }
    }
}

impl Default for ChunkSizeConfig {
    fn default() -> Self {
        Self {
            minimum: Minimum::Tokens(u64::from(DEFAULT_CHUNK_TOKENS)),
            policy: Policy::Negotiate,
        }
    }
}

impl fmt::Display for ChunkSizeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.minimum {
            Minimum::Auto => f.write_str("auto")?,
            Minimum::Tokens(tokens) => write!(f, "{tokens}")?,
        }
        match self.policy {
            Policy::Negotiate => f.write_str(" (negotiate)"),
            Policy::Fixed => f.write_str(" (fixed)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_refused() {
        let new = ChunkSizeConfig::new;
        assert_eq!(new(Minimum::Tokens(0), Policy::Negotiate), Err(ConfigError::Zero));
        assert_eq!(new(Minimum::Tokens(0), Policy::Fixed), Err(ConfigError::Zero));
        assert_eq!(new(Minimum::Auto, Policy::Fixed), Err(ConfigError::AutoFixed));
        let tokens = MAX_CHUNK_TOKENS + 1;
        let expected = ConfigError::TooLarge {
            tokens,
            max: MAX_CHUNK_TOKENS,
        };
        assert_eq!(new(Minimum::Tokens(tokens), Policy::Negotiate), Err(expected));
        assert_eq!(
            new(Minimum::Tokens(256), Policy::Negotiate),
            Ok(ChunkSizeConfig::default())
        );
    }

    #[test]
    fn only_auto_asks_the_client() {
        let auto = ChunkSizeConfig::new(Minimum::Auto, Policy::Negotiate).unwrap();
        assert_eq!(auto.minimum_for(0), Ok(256));
        assert_eq!(auto.minimum_for(64), Ok(64));
        assert!(auto.minimum_for(u64::MAX).is_err());
        assert_eq!(ChunkSizeConfig::default().minimum_for(u64::MAX), Ok(256));
        assert_eq!(
            (auto.to_string(), ChunkSizeConfig::default().to_string()),
            ("auto (negotiate)".into(), "256 (negotiate)".into())
        );
    }
}
