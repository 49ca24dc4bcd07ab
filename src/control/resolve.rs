//! The arithmetic of a chunk size, with every step checked.
//!
//! Imports nothing of this crate. No unsafe code.

use num_integer::Integer;

/// The largest chunk, alignment or span in tokens. Sixteen million tokens is far beyond any context.
pub const MAX_CHUNK_TOKENS: u64 = 1 << 24;

/// Why no chunk size follows from the numbers given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// An alignment of zero.
    #[error("the required alignment is 0 tokens; send the least common multiple of the groups' spans")]
    ZeroAlignment,
    /// A minimum of zero.
    #[error("the minimum chunk size is 0 tokens; it must be at least 1")]
    ZeroMinimum,
    /// A number no real model or configuration has.
    #[error("a {what} of {tokens} tokens is beyond the limit of {max}")]
    Absurd {
        /// What the number is: `chunk size`, `required alignment`, `span`, `minimum chunk size`.
        what: &'static str,
        /// The number.
        tokens: u64,
        /// The limit.
        max: u64,
    },
    /// The least common multiple of the spans does not fit.
    #[error("the least common multiple of the spans overflows or is beyond the limit of {max} tokens")]
    AlignmentOverflow {
        /// The limit.
        max: u64,
    },
}

/// The smallest multiple of `alignment` that is at least `minimum`, in tokens.
///
/// # Errors
/// [`ResolveError`] when either number is zero or beyond [`MAX_CHUNK_TOKENS`], or the result is.
pub fn resolve_chunk(alignment: u64, minimum: u64) -> Result<u32, ResolveError> {
    if alignment == 0 {
        return Err(ResolveError::ZeroAlignment);
    }
    if minimum == 0 {
        return Err(ResolveError::ZeroMinimum);
    }
    limited("required alignment", alignment)?;
    limited("minimum chunk size", minimum)?;
    let chunk = minimum.div_ceil(alignment) * alignment; // below 2^25, after the two limits
    limited("chunk size", chunk)?;
    Ok(chunk as u32)
}

/// The least common multiple of the positive spans; `None` when there is none.
///
/// # Errors
/// [`ResolveError::Absurd`] or [`ResolveError::AlignmentOverflow`].
pub fn spans_alignment(spans: impl IntoIterator<Item = u64>) -> Result<Option<u64>, ResolveError> {
    let mut alignment: Option<u64> = None;
    for span in spans.into_iter().filter(|&span| span > 0) {
        limited("span", span)?;
        let sum = alignment.unwrap_or(1);
        // Both factors are at most 2^24, so the product fits; the result is held to the limit again.
        let next = (sum / sum.gcd(&span)) * span;
        if next > MAX_CHUNK_TOKENS {
            return Err(ResolveError::AlignmentOverflow {
                max: MAX_CHUNK_TOKENS,
            });
        }
        alignment = Some(next);
    }
    Ok(alignment)
}

pub(super) fn limited(what: &'static str, tokens: u64) -> Result<(), ResolveError> {
    if tokens > MAX_CHUNK_TOKENS {
        return Err(ResolveError::Absurd {
            what,
            tokens,
            max: MAX_CHUNK_TOKENS,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_minimum_is_rounded_up_to_the_alignment() {
        let goldens: [(u64, &[u64], u32); 10] = [
            (256, &[256], 256),
            (256, &[544], 544),
            (600, &[544], 1088),
            (256, &[32, 48], 288),
            (1024, &[544, 64], 1088),
            (256, &[640, 0, 640, 640, 640, 640], 640),
            (256, &[400], 400),
            (256, &[16], 256),
            (1000, &[16], 1008),
            (1, &[1], 1),
        ];
        for (minimum, spans, chunk) in goldens {
            let alignment = spans_alignment(spans.iter().copied()).unwrap().unwrap();
            assert_eq!(
                resolve_chunk(alignment, minimum),
                Ok(chunk),
                "minimum {minimum}, spans {spans:?}"
            );
        }
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        assert_eq!(resolve_chunk(0, 256), Err(ResolveError::ZeroAlignment));
        assert_eq!(resolve_chunk(16, 0), Err(ResolveError::ZeroMinimum));
        for alignment in [1 << 33, u64::MAX, MAX_CHUNK_TOKENS + 1] {
            let error = resolve_chunk(alignment, 256).unwrap_err();
            let expected = ResolveError::Absurd {
                what: "required alignment",
                tokens: alignment,
                max: MAX_CHUNK_TOKENS,
            };
            assert_eq!(error, expected);
        }
        assert!(matches!(
            resolve_chunk(16, u64::MAX),
            Err(ResolveError::Absurd { tokens: u64::MAX, .. })
        ));
        // Each is within the limit, but the multiple is not.
        let alignment = MAX_CHUNK_TOKENS - 1;
        let expected = ResolveError::Absurd {
            what: "chunk size",
            tokens: 2 * alignment,
            max: MAX_CHUNK_TOKENS,
        };
        assert_eq!(resolve_chunk(alignment, MAX_CHUNK_TOKENS), Err(expected));
        assert_eq!(resolve_chunk(MAX_CHUNK_TOKENS, 1), Ok(MAX_CHUNK_TOKENS as u32));
    }

    #[test]
    fn spans_without_a_common_multiple_in_reach_are_refused() {
        assert_eq!(spans_alignment([0, 0]), Ok(None));
        assert_eq!(spans_alignment([]), Ok(None));
        let primes = [16_777_213, 16_777_199];
        assert_eq!(
            spans_alignment(primes),
            Err(ResolveError::AlignmentOverflow {
                max: MAX_CHUNK_TOKENS
            })
        );
        assert!(matches!(
            spans_alignment([u64::MAX]),
            Err(ResolveError::Absurd { what: "span", .. })
        ));
    }

    proptest! {
        #[test]
        fn a_chunk_is_the_smallest_multiple_that_reaches_the_minimum(
            alignment in 1..MAX_CHUNK_TOKENS / 2, minimum in 1..MAX_CHUNK_TOKENS / 2
        ) {
            let chunk = u64::from(resolve_chunk(alignment, minimum).unwrap());
            prop_assert_eq!(chunk % alignment, 0);
            prop_assert!(chunk >= minimum);
            prop_assert!(chunk - alignment < minimum);
        }

        #[test]
        fn nothing_panics(alignment: u64, minimum: u64, spans: Vec<u64>) {
            let _ = resolve_chunk(alignment, minimum);
            if let Ok(Some(multiple)) = spans_alignment(spans.iter().copied()) {
                prop_assert!(spans.iter().all(|&span| span == 0 || multiple % span == 0));
            }
        }
    }
}
