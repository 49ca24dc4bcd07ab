//! Required alignment and chunk size: the least multiple of every span that reaches the configured minimum.

use std::fmt;

use num_integer::Integer;

/// Largest chunk, alignment or span in tokens that is taken seriously.
///
/// The largest alignment of any known model is 139264 tokens (a recurrent group of one block per 8192 tokens
/// next to 544-token attention blocks). 2^24 leaves two orders of magnitude and still keeps every later
/// product of tokens and bytes far away from 2^64.
pub const MAX_CHUNK_TOKENS: u64 = 1 << 24;

/// Above this multiple of the largest span, the spans count as nearly coprime.
const NEAR_COPRIME_FACTOR: u64 = 4;

/// Why no chunk size exists for the given spans and minimum.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// Every span is zero, or there is none.
    #[error(
        "no cacheable group: none of the {spans} spans is positive, so there is nothing to align a chunk to"
    )]
    NoCacheableGroup {
        /// How many spans were given.
        spans: usize,
    },
    /// An alignment of zero divides nothing.
    #[error("the required alignment is 0 tokens; send the least common multiple of the spans of the groups")]
    ZeroAlignment,
    /// A minimum of zero would allow an empty chunk.
    #[error("the minimum chunk size is 0 tokens; it must be positive")]
    ZeroMinimum,
    /// One span alone exceeds the limit.
    #[error("span {span} exceeds {MAX_CHUNK_TOKENS} tokens, the largest supported chunk")]
    SpanTooLarge {
        /// The offending span in tokens.
        span: u64,
    },
    /// The least common multiple overflows or exceeds the limit.
    #[error(
        "the least common multiple of spans {spans:?} exceeds {MAX_CHUNK_TOKENS} tokens, the largest \
         supported chunk; give the groups block sizes with a larger common divisor"
    )]
    AlignmentTooLarge {
        /// The distinct positive spans in tokens, ascending.
        spans: Vec<u64>,
    },
    /// The least legal chunk exceeds the limit.
    #[error(
        "the least multiple of {alignment} that reaches {minimum} tokens exceeds {MAX_CHUNK_TOKENS}, the \
         largest supported chunk; lower the minimum chunk size"
    )]
    ChunkTooLarge {
        /// Required alignment in tokens.
        alignment: u64,
        /// Configured minimum in tokens.
        minimum: u64,
    },
}

impl ChunkError {
    /// A stable word for machine-readable answers.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NoCacheableGroup { .. } => "no_cacheable_group",
            Self::ZeroAlignment | Self::ZeroMinimum => "zero",
            Self::SpanTooLarge { .. } | Self::AlignmentTooLarge { .. } | Self::ChunkTooLarge { .. } => {
                "too_large"
            }
        }
    }
}

/// Something legal that a user should hear about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// The alignment is far larger than any span.
    NearCoprime {
        /// Required alignment in tokens.
        alignment: u64,
        /// Largest span in tokens.
        largest_span: u64,
    },
    /// A recurrent model keeps one snapshot per chunk, and the chunk is several alignments long.
    LongRecurrentChunk {
        /// Chunk size in tokens.
        chunk: u64,
        /// Required alignment in tokens.
        alignment: u64,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NearCoprime {
                alignment,
                largest_span,
            } => write!(
                f,
                "near-coprime spans: the required alignment of {alignment} tokens is more than \
                 {NEAR_COPRIME_FACTOR} times the largest span ({largest_span}); only prompts that long can \
                 hit a full chunk"
            ),
            Self::LongRecurrentChunk { chunk, alignment } => write!(
                f,
                "the chunk of {chunk} tokens is {} alignments of {alignment} long: a recurrent model \
                 resumes only where a snapshot was kept, and between full chunks only tail objects keep \
                 one",
                chunk / alignment.max(&1)
            ),
        }
    }
}

/// The least common multiple of the positive spans; zero spans (scratch groups) have no say.
pub fn alignment(spans: &[u64]) -> Result<u64, ChunkError> {
    let mut positive: Vec<u64> = spans.iter().copied().filter(|&span| span > 0).collect();
    positive.sort_unstable();
    positive.dedup();
    let Some(&largest) = positive.last() else {
        return Err(ChunkError::NoCacheableGroup { spans: spans.len() });
    };
    if largest > MAX_CHUNK_TOKENS {
        return Err(ChunkError::SpanTooLarge { span: largest });
    }
    let mut lcm = 1_u64;
    for &span in &positive {
        // Both sides are at most 2^24, so the product cannot wrap; the limit is checked after every step.
        lcm = lcm / lcm.gcd(&span) * span;
        if lcm > MAX_CHUNK_TOKENS {
            return Err(ChunkError::AlignmentTooLarge { spans: positive });
        }
    }
    Ok(lcm)
}

/// The smallest multiple of `alignment` that is at least `minimum`.
pub fn resolve_chunk(alignment: u64, minimum: u64) -> Result<u64, ChunkError> {
    if alignment == 0 {
        return Err(ChunkError::ZeroAlignment);
    }
    if minimum == 0 {
        return Err(ChunkError::ZeroMinimum);
    }
    minimum
        .div_ceil(alignment)
        .checked_mul(alignment)
        .filter(|&chunk| chunk <= MAX_CHUNK_TOKENS)
        .ok_or(ChunkError::ChunkTooLarge { alignment, minimum })
}

/// Warns when the alignment is more than four times the largest span.
pub fn near_coprime(alignment: u64, spans: &[u64]) -> Option<Warning> {
    let largest_span = spans.iter().copied().max()?;
    let far = alignment > largest_span.saturating_mul(NEAR_COPRIME_FACTOR);
    far.then_some(Warning::NearCoprime {
        alignment,
        largest_span,
    })
}

/// Warns when a chunk of a recurrent model spans more than one alignment.
pub fn long_recurrent_chunk(chunk: u64, alignment: u64) -> Option<Warning> {
    (chunk > alignment).then_some(Warning::LongRecurrentChunk { chunk, alignment })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chunk(minimum: u64, spans: &[u64]) -> Result<u64, ChunkError> {
        resolve_chunk(alignment(spans)?, minimum)
    }

    #[test]
    fn goldens() {
        assert_eq!(chunk(256, &[256]), Ok(256));
        assert_eq!(chunk(256, &[544]), Ok(544));
        assert_eq!(chunk(600, &[544]), Ok(1088));
        assert_eq!(chunk(256, &[32, 48]), Ok(288));
        assert_eq!(chunk(1024, &[544, 64]), Ok(1088));
        assert_eq!(chunk(256, &[640, 0, 640, 640, 640, 640]), Ok(640));
        assert_eq!(chunk(256, &[400]), Ok(400));
        assert_eq!(chunk(256, &[640, 0, 640]), Ok(640));
        assert_eq!(chunk(256, &[16]), Ok(256));
        assert_eq!(chunk(1000, &[16]), Ok(1008));
    }

    #[test]
    fn absurd_input_is_an_error_with_the_numbers() {
        assert_eq!(chunk(256, &[]), Err(ChunkError::NoCacheableGroup { spans: 0 }));
        assert_eq!(
            chunk(256, &[0, 0]),
            Err(ChunkError::NoCacheableGroup { spans: 2 })
        );
        assert_eq!(resolve_chunk(0, 256), Err(ChunkError::ZeroAlignment));
        assert_eq!(resolve_chunk(16, 0), Err(ChunkError::ZeroMinimum));
        assert_eq!(
            chunk(256, &[1 << 33]),
            Err(ChunkError::SpanTooLarge { span: 1 << 33 })
        );
        assert_eq!(
            resolve_chunk(16, MAX_CHUNK_TOKENS + 1),
            Err(ChunkError::ChunkTooLarge {
                alignment: 16,
                minimum: MAX_CHUNK_TOKENS + 1
            })
        );
        assert!(matches!(
            resolve_chunk(u64::MAX, u64::MAX),
            Err(ChunkError::ChunkTooLarge { .. })
        ));
        assert!(matches!(
            resolve_chunk(3, u64::MAX - 1),
            Err(ChunkError::ChunkTooLarge { .. })
        ));
        let coprime = chunk(256, &[4099, 4111]);
        assert_eq!(
            coprime,
            Err(ChunkError::AlignmentTooLarge {
                spans: vec![4099, 4111]
            })
        );
        assert_eq!(chunk(MAX_CHUNK_TOKENS, &[MAX_CHUNK_TOKENS]), Ok(MAX_CHUNK_TOKENS));
    }

    #[test]
    fn near_coprime_warns_above_four_times_only() {
        assert_eq!(near_coprime(64, &[16, 0]), None);
        assert!(matches!(
            near_coprime(65, &[16]),
            Some(Warning::NearCoprime {
                alignment: 65,
                largest_span: 16
            })
        ));
        assert!(near_coprime(139_264, &[8192, 544]).is_some());
        assert!(near_coprime(1088, &[544, 64]).is_none());
    }

    #[test]
    fn a_recurrent_chunk_of_one_alignment_is_silent() {
        assert_eq!(long_recurrent_chunk(544, 544), None);
        assert!(
            long_recurrent_chunk(1088, 544)
                .unwrap()
                .to_string()
                .contains("2 alignments of 544")
        );
    }

    proptest! {
        #[test]
        fn the_chunk_is_the_least_legal_one(
            spans in prop::collection::vec(prop_oneof![Just(0_u64), 1..600_u64], 1..5),
            minimum in 1..5000_u64,
        ) {
            let Ok(found) = chunk(minimum, &spans) else { return Ok(()); };
            let legal = |size: u64| spans.iter().all(|&span| span == 0 || size.is_multiple_of(span));
            prop_assert!(found >= minimum && legal(found));
            // Least: nothing legal below it. Legal sizes are spaced by the alignment, so a bounded scan
            // suffices.
            let floor = minimum.max(found.saturating_sub(20_000));
            prop_assert!((floor..found).all(|size| !legal(size)));
            prop_assert!(found - minimum < alignment(&spans).unwrap());
        }

        #[test]
        fn order_and_scratch_do_not_matter(
            spans in prop::collection::vec(1..4096_u64, 1..6),
            rotation in 0..6_usize,
            zeros in 0..4_usize,
        ) {
            let mut other = spans.clone();
            other.rotate_left(rotation % spans.len());
            other.reverse();
            for at in 0..zeros {
                other.insert(at.min(other.len()), 0);
            }
            prop_assert_eq!(alignment(&spans), alignment(&other));
            // A warning looks at the largest span, which scratch cannot be.
            if let Ok(alignment) = alignment(&spans) {
                prop_assert_eq!(near_coprime(alignment, &spans), near_coprime(alignment, &other));
            }
        }

        #[test]
        fn overflow_never_wraps(
            spans in prop::collection::vec(any::<u64>(), 0..6),
            minimum in any::<u64>(),
        ) {
            if let Ok(found) = chunk(minimum, &spans) {
                prop_assert!(found >= minimum && found <= MAX_CHUNK_TOKENS);
                prop_assert!(spans.iter().all(|&span| span == 0 || found.is_multiple_of(span)));
            }
        }

        #[test]
        fn overflow_never_wraps_near_the_limit(
            spans in prop::collection::vec(MAX_CHUNK_TOKENS / 8..=MAX_CHUNK_TOKENS + 1, 1..5),
            minimum in MAX_CHUNK_TOKENS - 8..=MAX_CHUNK_TOKENS + 1,
        ) {
            if let Ok(found) = chunk(minimum, &spans) {
                prop_assert!(found >= minimum && found <= MAX_CHUNK_TOKENS);
                prop_assert!(spans.iter().all(|&span| found.is_multiple_of(span)));
            }
        }
    }
}
