use std::sync::Mutex as StdMutex;

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

/// Writes down each call as `name:size` and fails as often as told.
struct Recorder {
    name: &'static str,
    calls: Arc<StdMutex<Vec<String>>>,
    fails: StdMutex<u32>,
}

impl BindingListener for Recorder {
    fn name(&self) -> &str {
        self.name
    }

    fn on_bound(&self, chunk_size: u32) -> Result<(), String> {
        self.calls
            .lock()
            .unwrap()
            .push(format!("{}:{chunk_size}", self.name));
        let mut fails = self.fails.lock().unwrap();
        if *fails > 0 {
            *fails -= 1;
            return Err("out of labels".to_owned());
        }
        Ok(())
    }
}

fn record(binding: &Binding<AtomicU64>, listeners: &[(&'static str, u32)]) -> Arc<StdMutex<Vec<String>>> {
    let calls = Arc::new(StdMutex::new(Vec::new()));
    for &(name, fails) in listeners {
        let calls = Arc::clone(&calls);
        binding
            .register(Arc::new(Recorder {
                name,
                calls,
                fails: StdMutex::new(fails),
            }))
            .unwrap();
    }
    calls
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
        spans: spans(&[1; MAX_GROUPS + 1]),
        ..Default::default()
    };
    assert_eq!(
        error(many),
        BindError::TooManyGroups {
            given: MAX_GROUPS + 1,
            limit: MAX_GROUPS
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
fn listeners_run_in_order_and_resume_at_the_first_that_failed() {
    let binding = minimum(256);
    let calls = record(&binding, &[("layouts", 0), ("labels", 2), ("fleet", 0)]);
    let failed = |answer: Result<Negotiated, BindError>| match answer.unwrap_err() {
        BindError::ListenerFailed {
            chunk_size: 544,
            index: 1,
            name,
            reason,
        } => {
            assert_eq!((name.as_str(), reason.as_str()), ("labels", "out of labels"));
        }
        other => panic!("{other}"),
    };
    let take = || std::mem::take(&mut *calls.lock().unwrap());

    failed(binding.negotiate(request(&[544])));
    assert_eq!(take(), ["layouts:544", "labels:544"]);
    assert_eq!(binding.word(), Ok(ChunkWord::Selected(544)));
    assert_eq!(
        binding.require_bound(),
        Err(BindError::NotNegotiated(BindState::Selected))
    );
    assert_eq!(
        binding.recheck(&spans(&[544])),
        Err(BindError::NotNegotiated(BindState::Selected))
    );
    assert_eq!(binding.bound(), None);

    // Only resumption with a compatible alignment: nothing runs for anybody else, nothing is resized.
    let error = binding.negotiate(request(&[256])).unwrap_err();
    assert!(matches!(
        error,
        BindError::Incompatible {
            state: BindState::Selected,
            chunk_size: 544,
            ..
        }
    ));
    assert!(error.to_string().contains("selected to chunks of 544"), "{error}");
    let other_size = NegotiateRequest {
        previous_size: 1088,
        ..request(&[544])
    };
    assert!(take().is_empty());
    failed(binding.negotiate(other_size));
    assert_eq!(take(), ["labels:544"]);

    assert_eq!(size(binding.negotiate(request(&[32]))), 544);
    assert_eq!(take(), ["labels:544", "fleet:544"]);
    assert_eq!(size(binding.negotiate(request(&[544]))), 544);
    assert!(take().is_empty(), "bound runs nothing");
}

#[test]
fn a_listener_sees_the_size_selected_and_not_bound() {
    struct Looking(
        StdMutex<Option<std::sync::Weak<Binding<AtomicU64>>>>,
        StdMutex<Vec<ChunkWord>>,
    );
    impl BindingListener for Looking {
        fn name(&self) -> &str {
            "looking"
        }
        fn on_bound(&self, _: u32) -> Result<(), String> {
            let binding = self.0.lock().unwrap().as_ref().unwrap().upgrade().unwrap();
            self.1.lock().unwrap().push(binding.word().unwrap());
            Ok(())
        }
    }
    let binding = Arc::new(minimum(256));
    let looking = Arc::new(Looking(
        StdMutex::new(Some(Arc::downgrade(&binding))),
        StdMutex::default(),
    ));
    for _ in 0..2 {
        binding.register(looking.clone()).unwrap();
    }
    binding.negotiate(aligned(16)).unwrap();
    assert_eq!(
        *looking.1.lock().unwrap(),
        [ChunkWord::Selected(256), ChunkWord::Selected(256)]
    );
}

#[test]
fn a_listener_that_panics_is_tried_again() {
    struct Panicking(StdMutex<bool>);
    impl BindingListener for Panicking {
        fn name(&self) -> &str {
            "panicking"
        }
        fn on_bound(&self, _: u32) -> Result<(), String> {
            let first = !std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), true);
            assert!(!first, "the first run panics");
            Ok(())
        }
    }
    let binding = minimum(256);
    let calls = record(&binding, &[("before", 0)]);
    binding
        .register(Arc::new(Panicking(StdMutex::new(false))))
        .unwrap();
    let attempt = std::panic::AssertUnwindSafe(|| binding.negotiate(aligned(16)));
    assert!(std::panic::catch_unwind(attempt).is_err());
    assert_eq!(binding.word(), Ok(ChunkWord::Selected(256)));
    assert_eq!(size(binding.negotiate(aligned(16))), 256);
    assert_eq!(*calls.lock().unwrap(), ["before:256"]);
}

#[test]
fn a_listener_is_either_run_or_refused() {
    let binding = minimum(256);
    let calls = record(&binding, &[("first", 1)]);
    binding.negotiate(aligned(16)).unwrap_err();
    // Still selected: a late one joins behind.
    let late = || {
        Arc::new(Recorder {
            name: "late",
            calls: Arc::clone(&calls),
            fails: StdMutex::new(0),
        })
    };
    binding.register(late()).unwrap();
    binding.negotiate(aligned(16)).unwrap();
    assert_eq!(*calls.lock().unwrap(), ["first:256", "first:256", "late:256"]);
    let name = "late".to_owned();
    assert_eq!(
        binding.register(late()),
        Err(BindError::ListenerTooLate {
            name,
            chunk_size: 256
        })
    );
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
