use std::os::fd::AsFd;
use std::sync::Mutex;

use super::*;
use crate::control::{BindState, BindingListener, BootInfo, ChunkSizeConfig, ControlView, Minimum, Policy};
use crate::object::GroupSpan;

fn id(number: u8) -> DomainId {
    std::array::from_fn(|i| number.wrapping_add(i as u8))
}

fn aligned(required_alignment: u64) -> NegotiateRequest {
    NegotiateRequest {
        required_alignment,
        ..Default::default()
    }
}

type Calls = Arc<Mutex<Vec<(u8, u32)>>>;

/// Writes down which domain it was called for, and fails while it is told to.
struct Recorder {
    domain: u8,
    calls: Calls,
    fails: Arc<Mutex<bool>>,
}

impl BindingListener for Recorder {
    fn name(&self) -> &str {
        "recorder"
    }

    fn on_bound(&self, chunk_size: u32) -> Result<(), String> {
        self.calls.lock().unwrap().push((self.domain, chunk_size));
        if *self.fails.lock().unwrap() {
            return Err("not now".into());
        }
        Ok(())
    }
}

struct Rig {
    domains: DomainBindings,
    view: ControlView,
    calls: Calls,
    fails: Arc<Mutex<bool>>,
}

fn rig(config: ChunkSizeConfig) -> Rig {
    let region = Arc::new(ControlRegion::create(BootInfo::fresh(1).unwrap()).unwrap());
    let view = ControlView::open(region.client_fd().unwrap().as_fd()).unwrap();
    let (calls, fails) = (Calls::default(), Arc::new(Mutex::new(false)));
    let (kept, told) = (Arc::clone(&calls), Arc::clone(&fails));
    let domains = DomainBindings::new(region, move |id, cell| {
        let binding = Binding::new(cell, config);
        binding.register(Arc::new(Recorder {
            domain: id[0],
            calls: Arc::clone(&kept),
            fails: Arc::clone(&told),
        }))?;
        Ok(binding)
    });
    Rig {
        domains,
        view,
        calls,
        fails,
    }
}

fn half(id: DomainId) -> [u8; 16] {
    id[..16].try_into().unwrap()
}

#[test]
fn every_domain_has_a_size_of_its_own() {
    let mut rig = rig(ChunkSizeConfig::default());
    let table = [(1, 544, 544), (2, 640, 640), (3, 256, 256), (4, 48, 288)];
    for (number, alignment, size) in table {
        let answer = rig.domains.negotiate(&id(number), aligned(alignment)).unwrap();
        assert_eq!((answer.chunk_size, answer.state), (size, BindState::Bound));
    }
    // Each domain's own state machine: bound once, and incompatible only with itself.
    let again = rig.domains.negotiate(&id(1), aligned(272)).unwrap();
    assert_eq!(again.chunk_size, 544);
    let error = rig.domains.negotiate(&id(1), aligned(640)).unwrap_err();
    assert!(
        matches!(
            error,
            BindError::Incompatible {
                chunk_size: 544,
                alignment: 640,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(
        *rig.calls.lock().unwrap(),
        [(1, 544), (2, 640), (3, 256), (4, 288)]
    );
    let seen = rig.view.domain_words().unwrap();
    let expected: Vec<_> = table
        .iter()
        .map(|&(number, _, size)| (half(id(number)), ChunkWord::Bound(size)))
        .collect();
    assert_eq!(seen, expected);
    assert_eq!(rig.view.domain_word(&id(4)), Ok(ChunkWord::Bound(288)));
    assert_eq!(rig.view.domain_word(&id(5)), Ok(ChunkWord::Unbound));
    assert_eq!(rig.view.chunk_word(), Ok(ChunkWord::Unbound));
}

#[test]
fn a_refused_domain_takes_no_entry_and_the_one_too_many_is_refused() {
    let config = ChunkSizeConfig::new(Minimum::Tokens(512), Policy::Fixed).unwrap();
    let mut rig = rig(config);
    for number in 0..100 {
        assert!(rig.domains.negotiate(&id(number), aligned(544)).is_err());
    }
    assert_eq!(rig.view.domain_words().unwrap(), []);
    for number in 0..64 {
        rig.domains.negotiate(&id(number), aligned(64)).unwrap();
    }
    let error = rig.domains.negotiate(&id(64), aligned(64)).unwrap_err();
    assert_eq!(error, BindError::TooManyDomains { known: 64, limit: 64 });
    assert_eq!(rig.view.domain_words().unwrap().len(), 64);
    // Those that are known go on.
    assert_eq!(
        rig.domains.negotiate(&id(63), aligned(64)).unwrap().chunk_size,
        512
    );
}

#[test]
fn a_failed_listener_leaves_its_domain_selected_and_no_other() {
    let mut rig = rig(ChunkSizeConfig::default());
    *rig.fails.lock().unwrap() = true;
    let error = rig.domains.negotiate(&id(1), aligned(544)).unwrap_err();
    assert!(
        matches!(error, BindError::ListenerFailed { chunk_size: 544, .. }),
        "{error}"
    );
    assert_eq!(rig.view.domain_word(&id(1)), Ok(ChunkWord::Selected(544)));
    let spans = [GroupSpan {
        group: 0,
        tokens: 544,
    }];
    let recheck = |rig: &Rig| rig.domains.get(&id(1)).unwrap().recheck(&spans);
    assert_eq!(recheck(&rig), Err(BindError::NotNegotiated(BindState::Selected)));
    *rig.fails.lock().unwrap() = false;
    assert_eq!(
        rig.domains.negotiate(&id(2), aligned(640)).unwrap().chunk_size,
        640
    );
    assert_eq!(
        rig.domains.negotiate(&id(1), aligned(544)).unwrap().chunk_size,
        544
    );
    assert_eq!(recheck(&rig), Ok(544));
    assert_eq!(*rig.calls.lock().unwrap(), [(1, 544), (2, 640), (1, 544)]);
}
