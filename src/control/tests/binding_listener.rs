//! What runs when the size is bound.

use super::*;

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

pub(super) fn record(
    binding: &Binding<AtomicU64>,
    listeners: &[(&'static str, u32)],
) -> Arc<StdMutex<Vec<String>>> {
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
