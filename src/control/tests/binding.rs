#[path = "binding_known.rs"]
mod known;
#[path = "binding_listener.rs"]
mod listeners;

use std::sync::Mutex as StdMutex;

use self::listeners::record;
use super::*;
use crate::control::{Minimum, Policy};
use crate::geometry::chunk::{self, ChunkError, Warning};

fn binding(minimum: Minimum, policy: Policy) -> Binding<AtomicU64> {
    Binding::new(AtomicU64::new(0), ChunkSizeConfig::new(minimum, policy).unwrap())
}

fn minimum(tokens: u64) -> Binding<AtomicU64> {
    binding(Minimum::Tokens(tokens), Policy::Negotiate)
}

fn spans(tokens: &[u64]) -> Vec<GroupSpan> {
    tokens
        .iter()
        .zip(0..)
        .map(|(&tokens, group)| GroupSpan { group, tokens })
        .collect()
}

/// A request whose alignment is what its spans give.
fn request(tokens: &[u64]) -> NegotiateRequest {
    let required_alignment = chunk::alignment(tokens).unwrap_or(0);
    NegotiateRequest {
        required_alignment,
        spans: spans(tokens),
        ..Default::default()
    }
}

fn aligned(required_alignment: u64) -> NegotiateRequest {
    NegotiateRequest {
        required_alignment,
        ..Default::default()
    }
}

fn size(answer: Result<Negotiated, BindError>) -> u32 {
    let negotiated = answer.unwrap();
    assert_eq!(negotiated.state, BindState::Bound);
    negotiated.chunk_size
}

#[test]
fn the_first_client_gets_the_smallest_multiple_that_reaches_the_minimum() {
    let goldens: [(u64, &[u64], u32); 9] = [
        (256, &[256], 256),
        (256, &[544], 544),
        (600, &[544], 1088),
        (256, &[32, 48], 288),
        (1024, &[544, 64], 1088),
        (256, &[640, 0, 640, 640, 640, 640], 640),
        (256, &[400], 400),
        (256, &[16], 256),
        (1000, &[16], 1008),
    ];
    for (min, tokens, chunk) in goldens {
        let binding = minimum(min);
        assert_eq!(
            binding.require_bound(),
            Err(BindError::NotNegotiated(BindState::Unbound))
        );
        assert_eq!(
            size(binding.negotiate(request(tokens))),
            chunk,
            "minimum {min}, spans {tokens:?}"
        );
        assert_eq!(binding.word(), Ok(ChunkWord::Bound(chunk)));
        assert_eq!(
            (binding.require_bound(), binding.bound()),
            (Ok(chunk), Some(chunk))
        );
        assert_eq!(binding.recheck(&spans(tokens)), Ok(chunk));
    }
}

#[test]
fn numbers_that_make_no_sense_change_nothing() {
    let binding = minimum(256);
    let error = |request| {
        let error = binding.negotiate(request).unwrap_err();
        assert_eq!(binding.word(), Ok(ChunkWord::Unbound), "{error}");
        error
    };
    let arithmetic = |source| BindError::Arithmetic {
        source,
        spans: GroupSpans::default(),
    };
    assert_eq!(error(aligned(0)), arithmetic(ChunkError::ZeroAlignment));
    let absurd = ChunkError::ChunkTooLarge {
        alignment: 1 << 33,
        minimum: 1,
    };
    assert_eq!(error(aligned(1 << 33)), arithmetic(absurd));
    assert!(matches!(error(aligned(u64::MAX)), BindError::Arithmetic { .. }));
    assert_eq!(error(request(&[0, 0])), BindError::NoCacheableGroup { groups: 2 });

    let zero = NegotiateRequest {
        required_alignment: 0,
        ..request(&[16])
    };
    assert!(matches!(
        error(zero),
        BindError::Arithmetic {
            source: ChunkError::ZeroAlignment,
            ..
        }
    ));
    let wrong = NegotiateRequest {
        required_alignment: 64,
        ..request(&[32, 48])
    };
    match error(wrong) {
        BindError::AlignmentMismatch {
            sent: 64,
            computed: 96,
            spans: s,
        } => assert_eq!(s.0, spans(&[32, 48])),
        other => panic!("{other}"),
    }
    let overflow = NegotiateRequest {
        required_alignment: 16,
        spans: spans(&[16_777_213, 16_777_199]),
        ..Default::default()
    };
    assert!(matches!(
        error(overflow),
        BindError::Arithmetic {
            source: ChunkError::AlignmentTooLarge { .. },
            ..
        }
    ));
    let many = NegotiateRequest {
        required_alignment: 1,
        spans: spans(&[1; MAX_KV_CACHE_GROUPS + 1]),
        ..Default::default()
    };
    assert_eq!(
        error(many),
        BindError::TooManyGroups {
            given: MAX_KV_CACHE_GROUPS + 1,
            limit: MAX_KV_CACHE_GROUPS
        }
    );

    // Each within the limit, their multiple beyond it.
    let binding = minimum(1 << 24);
    let error = binding.negotiate(aligned((1 << 24) - 1)).unwrap_err();
    assert!(
        matches!(
            error,
            BindError::Arithmetic {
                source: ChunkError::ChunkTooLarge { .. },
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(binding.word(), Ok(ChunkWord::Unbound));
}

#[test]
fn later_clients_have_to_suit_the_bound_size() {
    let binding = minimum(256);
    assert_eq!(size(binding.negotiate(request(&[544]))), 544);
    for tokens in [&[544u64][..], &[272], &[32], &[34, 16], &[1]] {
        assert_eq!(size(binding.negotiate(request(tokens))), 544, "{tokens:?}");
    }
    // Neither a preference nor a memory of another size moves it.
    let wish = NegotiateRequest {
        preferred_base: 1024,
        previous_size: 1088,
        ..request(&[544])
    };
    assert_eq!(size(binding.negotiate(wish)), 544);

    let error = binding.negotiate(request(&[256, 64])).unwrap_err();
    let text = error.to_string();
    let (state, spans) = (BindState::Bound, GroupSpans(spans(&[256, 64])));
    assert_eq!(
        error,
        BindError::Incompatible {
            state,
            chunk_size: 544,
            alignment: 256,
            spans
        }
    );
    for part in [
        "bound to chunks of 544",
        "256 tokens",
        "group 0: 256, group 1: 64 tokens",
        "another server",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    assert_eq!(binding.bound(), Some(544));
}

#[test]
fn auto_takes_the_preferred_base_and_a_number_does_not() {
    let with = |minimum, preferred_base| {
        let binding = binding(minimum, Policy::Negotiate);
        binding.negotiate(NegotiateRequest {
            preferred_base,
            ..request(&[48])
        })
    };
    assert_eq!(size(with(Minimum::Auto, 0)), 288);
    assert_eq!(size(with(Minimum::Auto, 64)), 96);
    assert_eq!(size(with(Minimum::Auto, 1024)), 1056);
    assert_eq!(size(with(Minimum::Tokens(256), 1024)), 288);
    assert!(matches!(
        with(Minimum::Auto, u64::MAX),
        Err(BindError::Arithmetic { .. })
    ));
    assert_eq!(
        size(with(Minimum::Tokens(256), u64::MAX)),
        288,
        "what does not count is not checked"
    );
}

#[test]
fn fixed_refuses_a_model_that_does_not_suit() {
    let binding = binding(Minimum::Tokens(256), Policy::Fixed);
    let error = binding.negotiate(request(&[544])).unwrap_err();
    let text = error.to_string();
    let spans = GroupSpans(spans(&[544]));
    assert_eq!(
        error,
        BindError::FixedIncompatible {
            chunk_size: 256,
            alignment: 544,
            spans
        }
    );
    assert!(text.contains("--chunk-size-policy negotiate"), "{text}");
    assert_eq!(binding.word(), Ok(ChunkWord::Unbound));
    assert_eq!(size(binding.negotiate(request(&[32]))), 256);
    assert!(matches!(
        binding.negotiate(request(&[544])),
        Err(BindError::Incompatible { chunk_size: 256, .. })
    ));
}

#[test]
fn an_explicit_question_freezes_the_minimum_and_a_read_does_not() {
    let cases = [
        (binding(Minimum::Auto, Policy::Negotiate), 256),
        (minimum(600), 600),
        (binding(Minimum::Tokens(64), Policy::Fixed), 64),
    ];
    for (binding, expected) in cases {
        assert_eq!((binding.word(), binding.bound()), (Ok(ChunkWord::Unbound), None));
        assert_eq!(binding.get_chunk_size(), Ok(expected));
        assert_eq!(binding.word(), Ok(ChunkWord::Bound(expected)));
        assert_eq!(binding.get_chunk_size(), Ok(expected));
    }
    let binding = minimum(256);
    binding.negotiate(request(&[544])).unwrap();
    assert_eq!(binding.get_chunk_size(), Ok(544), "what is bound is the answer");
}

#[test]
fn near_coprime_spans_warn() {
    let warnings = |tokens: &[u64]| minimum(256).negotiate(request(tokens)).unwrap().warnings;
    assert_eq!(warnings(&[16, 64]), []);
    assert_eq!(warnings(&[544, 64]), [], "1088 is twice the largest");
    assert_eq!(warnings(&[16, 20]), [], "80 is four times the largest, not more");
    let near = Warning::NearCoprime {
        alignment: 17 * 16,
        largest_span: 17,
    };
    assert_eq!(warnings(&[16, 17]), std::slice::from_ref(&near));
    assert!(
        near.to_string()
            .contains("the required alignment of 272 tokens is more than 4 times the largest span (17)")
    );
    assert_eq!(
        minimum(256).negotiate(aligned(272)).unwrap().warnings,
        [],
        "no spans, nothing to compare"
    );
}

#[test]
fn registration_names_every_group_that_does_not_suit() {
    let binding = minimum(256);
    assert_eq!(
        binding.recheck(&spans(&[16])),
        Err(BindError::NotNegotiated(BindState::Unbound))
    );
    binding.negotiate(request(&[16])).unwrap();
    assert_eq!(binding.recheck(&spans(&[16, 0, 256])), Ok(256));
    let error = binding.recheck(&spans(&[16, 48, 0, 512])).unwrap_err();
    let wrong = vec![
        GroupSpan { group: 1, tokens: 48 },
        GroupSpan {
            group: 3,
            tokens: 512,
        },
    ];
    assert_eq!(
        error,
        BindError::SpanIncompatible {
            chunk_size: 256,
            spans: GroupSpans(wrong)
        }
    );
    assert!(
        error.to_string().contains("group 1: 48, group 3: 512 tokens"),
        "{error}"
    );
    assert_eq!(
        binding.recheck(&spans(&[0])),
        Err(BindError::NoCacheableGroup { groups: 1 })
    );
    assert_eq!(
        binding.recheck(&[]),
        Err(BindError::NoCacheableGroup { groups: 0 })
    );
    assert!(matches!(
        binding.recheck(&spans(&[u64::MAX])),
        Err(BindError::SpanIncompatible { .. })
    ));
}

#[test]
fn threads_that_race_agree() {
    for _ in 0..200 {
        let binding = minimum(256);
        let calls = record(&binding, &[("a", 0), ("b", 0)]);
        let barrier = std::sync::Barrier::new(4);
        let seen: Vec<Result<u32, u32>> = std::thread::scope(|scope| {
            let racers: Vec<_> = [256, 544, 256, 544]
                .into_iter()
                .map(|alignment| {
                    let (binding, barrier) = (&binding, &barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        match binding.negotiate(aligned(alignment)) {
                            Ok(negotiated) => Ok(negotiated.chunk_size),
                            Err(BindError::Incompatible { chunk_size, .. }) => Err(chunk_size),
                            Err(other) => panic!("{other}"),
                        }
                    })
                })
                .collect();
            racers.into_iter().map(|racer| racer.join().unwrap()).collect()
        });
        let bound = binding.bound().unwrap();
        assert!(
            seen.iter()
                .all(|&answer| answer == Ok(bound) || answer == Err(bound)),
            "{seen:?}"
        );
        assert_eq!(seen.iter().filter(|answer| answer.is_ok()).count(), 2, "{seen:?}");
        assert_eq!(
            *calls.lock().unwrap(),
            [format!("a:{bound}"), format!("b:{bound}")]
        );
    }
}
