//! Declared slot compression as an exact fraction.

use std::fmt;
use std::str::FromStr;

use num_integer::Integer;

/// Tokens per stored state: 1 is the plain case, 4 stores one state for four tokens, 1/4 four states per
/// token.
///
/// Always in lowest terms, so two equal ratios compare equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ratio {
    numerator: u64,
    denominator: u64,
}

impl Ratio {
    /// One state per token.
    pub const ONE: Self = Self {
        numerator: 1,
        denominator: 1,
    };

    /// `numerator / denominator` in lowest terms, or nothing if either is zero.
    pub fn new(numerator: u64, denominator: u64) -> Option<Self> {
        if numerator == 0 || denominator == 0 {
            return None;
        }
        let divisor = numerator.gcd(&denominator);
        Some(Self {
            numerator: numerator / divisor,
            denominator: denominator / divisor,
        })
    }

    /// Tokens in the smallest whole number of states.
    pub fn numerator(self) -> u64 {
        self.numerator
    }

    /// States for that many tokens.
    pub fn denominator(self) -> u64 {
        self.denominator
    }

    /// How many states `tokens` tokens need, if that is a whole number that fits.
    pub fn states_for(self, tokens: u64) -> Option<u64> {
        if !tokens.is_multiple_of(self.numerator) {
            return None;
        }
        (tokens / self.numerator).checked_mul(self.denominator)
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.denominator == 1 {
            write!(f, "{}", self.numerator)
        } else {
            write!(f, "{}/{}", self.numerator, self.denominator)
        }
    }
}

/// The text is neither a positive integer nor a fraction of two.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a positive integer or a fraction such as \"1/4\"")]
pub struct ParseRatioError {
    text: String,
}

impl FromStr for Ratio {
    type Err = ParseRatioError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (numerator, denominator) = text.split_once('/').unwrap_or((text, "1"));
        let digits = |part: &str| {
            let plain = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            plain.then(|| part.parse::<u64>().ok()).flatten()
        };
        digits(numerator)
            .zip(digits(denominator))
            .and_then(|(n, d)| Self::new(n, d))
            .ok_or_else(|| ParseRatioError {
                text: text.to_owned(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reduces_and_prints_like_the_engine_declares_it() {
        assert_eq!(Ratio::new(2, 8).unwrap().to_string(), "1/4");
        assert_eq!(Ratio::new(256, 2).unwrap().to_string(), "128");
        assert_eq!("1/4".parse::<Ratio>().unwrap(), Ratio::new(1, 4).unwrap());
        assert_eq!("4".parse::<Ratio>().unwrap(), Ratio::new(4, 1).unwrap());
        for bad in [
            "",
            "0",
            "1/0",
            "0/4",
            "-1",
            "+1",
            "1/",
            "/4",
            "1/4/4",
            " 1",
            "1.5",
            "99999999999999999999",
        ] {
            assert!(bad.parse::<Ratio>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn states_are_whole_or_refused() {
        assert_eq!(Ratio::new(128, 1).unwrap().states_for(256), Some(2));
        assert_eq!(Ratio::new(1, 4).unwrap().states_for(16), Some(64));
        assert_eq!(Ratio::new(3, 2).unwrap().states_for(16), None);
        assert_eq!(Ratio::new(1, 4).unwrap().states_for(u64::MAX), None);
    }
}
