//! A size that is known before anybody asks: of an earlier server, of the pool, or agreed on elsewhere.

use super::*;
use crate::geometry::chunk::MAX_CHUNK_TOKENS;

#[test]
fn a_previous_size_is_kept_when_it_suits() {
    let with = |binding: Binding<AtomicU64>, previous_size, tokens: &[u64]| {
        size(binding.negotiate(NegotiateRequest {
            previous_size,
            ..request(tokens)
        }))
    };
    assert_eq!(
        with(minimum(256), 544, &[16]),
        544,
        "joined a larger model's size before"
    );
    assert_eq!(with(minimum(256), 256, &[16]), 256);
    assert_eq!(with(minimum(256), 0, &[16]), 256, "none");
    assert_eq!(
        with(minimum(256), 264, &[16]),
        256,
        "not a multiple of the alignment"
    );
    assert_eq!(with(minimum(256), 240, &[16]), 256, "below the minimum");
    assert_eq!(with(minimum(256), 1 << 25, &[16]), 256, "beyond every limit");
    assert_eq!(
        with(binding(Minimum::Tokens(256), Policy::Fixed), 512, &[16]),
        256,
        "fixed allows one size"
    );
}

/// Under `auto` a minimum is a wish: an engine that joined a smaller size than it prefers goes on at that size.
#[test]
fn auto_keeps_every_previous_size_that_suits_the_alignment() {
    let with = |previous_size, preferred_base, tokens: &[u64]| {
        binding(Minimum::Auto, Policy::Negotiate).negotiate(NegotiateRequest {
            previous_size,
            preferred_base,
            ..request(tokens)
        })
    };
    // (previous, preferred, span) and what is bound
    let table = [
        ((64, 256, 16), 64),
        ((64, 64, 16), 64),
        ((64, 0, 16), 64),
        ((16, 1024, 16), 16),
        ((544, 64, 16), 544),
        ((512, 0, 16), 512),
        ((MAX_CHUNK_TOKENS, 64, 16), MAX_CHUNK_TOKENS),
        // Those that do not suit: the preference decides, or 256.
        ((72, 256, 16), 256),
        ((72, 64, 16), 64),
        ((0, 64, 16), 64),
        ((0, 0, 16), 256),
        ((MAX_CHUNK_TOKENS + 16, 64, 16), 64),
        ((64, 256, 544), 544),
    ];
    for ((previous, preferred, span), expected) in table {
        let bound = u64::from(size(with(previous, preferred, &[span])));
        assert_eq!(
            bound, expected,
            "previous {previous}, preferred {preferred}, span {span}"
        );
    }
    // A preference that no server could serve stands in nobody's way who has a size, and is refused otherwise.
    assert_eq!(size(with(64, u64::MAX, &[16])), 64);
    assert!(matches!(
        with(72, u64::MAX, &[16]),
        Err(BindError::Arithmetic { .. })
    ));
}

/// Two engines that ran at one size before, in both orders, with whatever they prefer.
#[test]
fn engines_of_one_size_find_it_again_in_any_order() {
    for order in [[64, 256], [256, 64]] {
        let binding = binding(Minimum::Auto, Policy::Negotiate);
        for preferred_base in order {
            let again = NegotiateRequest {
                previous_size: 64,
                preferred_base,
                ..request(&[16])
            };
            assert_eq!(size(binding.negotiate(again)), 64, "{order:?}");
        }
    }
}

#[test]
fn a_recovered_pool_keeps_its_size_or_says_what_is_in_the_way() {
    let recovering = minimum(256);
    let calls = record(&recovering, &[("layouts", 0)]);
    assert_eq!(recovering.adopt_recovered(544), Ok(544));
    assert_eq!(recovering.word(), Ok(ChunkWord::Bound(544)));
    assert_eq!(*calls.lock().unwrap(), ["layouts:544"]);
    assert_eq!(recovering.adopt_recovered(544), Ok(544));
    let late = BindError::RecoveredTooLate {
        recovered: 1088,
        chunk_size: 544,
    };
    assert_eq!(recovering.adopt_recovered(1088), Err(late));

    assert_eq!(
        binding(Minimum::Auto, Policy::Negotiate).adopt_recovered(64),
        Ok(64)
    );
    assert_eq!(
        binding(Minimum::Tokens(64), Policy::Fixed).adopt_recovered(64),
        Ok(64)
    );
    for binding in [minimum(600), binding(Minimum::Tokens(600), Policy::Fixed)] {
        let error = binding.adopt_recovered(544).unwrap_err();
        let text = error.to_string();
        assert!(matches!(
            error,
            BindError::RecoveredConflict { recovered: 544, .. }
        ));
        assert!(
            text.contains("544") && text.contains("600") && text.contains("--discard-pool"),
            "{text}"
        );
        assert_eq!(binding.word(), Ok(ChunkWord::Unbound));
    }
    assert!(matches!(
        binding(Minimum::Auto, Policy::Negotiate).adopt_recovered(0),
        Err(BindError::Arithmetic { .. })
    ));
}

#[test]
fn a_damaged_word_is_an_error_and_is_not_overwritten() {
    let damaged = 3 << 62 | 256;
    let binding = Binding::new(AtomicU64::new(damaged), ChunkSizeConfig::default());
    let expected = BindError::Word(crate::control::WordError::UnknownState(damaged));
    assert_eq!(binding.negotiate(aligned(16)), Err(expected.clone()));
    assert_eq!(binding.get_chunk_size(), Err(expected.clone()));
    assert_eq!(binding.require_bound(), Err(expected));
    assert_eq!(binding.bound(), None);
    assert_eq!(binding.word.load(Ordering::Relaxed), damaged);
}

/// A record that a test writes.
struct Record(StdMutex<Result<Option<u32>, String>>);

impl AgreedSize for Record {
    fn place(&self) -> String {
        "the fleet".into()
    }

    fn recorded(&self) -> Result<Option<u32>, String> {
        self.0.lock().unwrap().clone()
    }
}

fn recorded(binding: Binding<AtomicU64>, size: Result<Option<u32>, String>) -> Binding<AtomicU64> {
    binding.with_agreed(Arc::new(Record(StdMutex::new(size))))
}

#[test]
fn a_size_agreed_on_elsewhere_is_taken_or_nothing_is() {
    // Above the minimum's own answer, and above what a returning client asks for.
    let binding = recorded(minimum(256), Ok(Some(1088)));
    let mut returning = request(&[544]);
    returning.previous_size = 544;
    assert_eq!(size(binding.negotiate(returning)), 1088);
    assert_eq!(recorded(minimum(256), Ok(Some(512))).get_chunk_size(), Ok(512));
    assert_eq!(
        size(recorded(minimum(256), Ok(None)).negotiate(request(&[544]))),
        544
    );
    let auto = self::binding(Minimum::Auto, Policy::Negotiate);
    assert_eq!(size(recorded(auto, Ok(Some(64))).negotiate(request(&[16]))), 64);

    let refuse = |binding: Binding<AtomicU64>, tokens: &[u64]| {
        let error = binding.negotiate(request(tokens)).unwrap_err();
        assert_eq!(binding.word(), Ok(ChunkWord::Unbound), "{error}");
        assert!(error.to_string().contains("the fleet"), "{error}");
        error
    };
    let error = refuse(recorded(minimum(256), Ok(Some(1088))), &[640]);
    assert!(
        matches!(
            error,
            BindError::AgreedAlignment {
                agreed: 1088,
                alignment: 640,
                ..
            }
        ),
        "{error}"
    );
    let fixed = self::binding(Minimum::Tokens(256), Policy::Fixed);
    for binding in [
        recorded(minimum(512), Ok(Some(256))),
        recorded(fixed, Ok(Some(512))),
    ] {
        let error = refuse(binding, &[16]);
        assert!(
            matches!(error, BindError::AgreedConfig { alignment: 16, .. }),
            "{error}"
        );
    }
    let error = refuse(recorded(minimum(256), Err("it is torn".into())), &[16]);
    assert!(error.to_string().contains("it is torn"), "{error}");
}

#[test]
fn a_record_is_asked_only_until_a_size_is_selected() {
    let fleet = Arc::new(Record(StdMutex::new(Ok(None))));
    let binding = minimum(256).with_agreed(fleet.clone());
    record(&binding, &[("fleet", 1)]);
    assert!(matches!(
        binding.negotiate(request(&[544])),
        Err(BindError::ListenerFailed { chunk_size: 544, .. })
    ));
    // Somebody else was faster: the size stays what it is.
    *fleet.0.lock().unwrap() = Ok(Some(288));
    assert_eq!(size(binding.negotiate(request(&[544]))), 544);
}
