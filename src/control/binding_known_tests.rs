//! A size that is known before anybody asks: of an earlier server, of the pool, or agreed on elsewhere.

use super::*;

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
    assert_eq!(with(binding(Minimum::Auto, Policy::Negotiate), 512, &[16]), 512);
    assert_eq!(
        with(binding(Minimum::Auto, Policy::Negotiate), 128, &[16]),
        256,
        "below the minimum of auto"
    );
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
