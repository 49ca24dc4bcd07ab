use super::*;
use crate::control::{
    BindError, BindState, Binding, ChunkSizeConfig, ControlView, NegotiateRequest, WordError,
};

fn boot() -> BootInfo {
    BootInfo {
        boot_id: *b"0123456789abcdef",
        boot_seq: 7,
        server_pid: 4321,
        started_unix_ms: 1_796_000_000_000,
    }
}

fn region() -> (Arc<ControlRegion>, ControlView) {
    let region = Arc::new(ControlRegion::create(boot()).unwrap());
    let view = ControlView::open(region.client_fd().unwrap().as_fd()).unwrap();
    (region, view)
}

/// A region as some other program could make it: size sealed, contents free.
fn forged(words: &[(usize, u64)], bytes: u64) -> Memfd {
    let memfd = Memfd::create("forged", bytes, OwnerAccess::Read).unwrap();
    let map = memfd.map().unwrap();
    for &(offset, value) in words {
        map.atomic_u64(offset).unwrap().store(value, Ordering::Relaxed);
    }
    memfd
}

const VERSION_WORD: u64 = 5 | 4096 << 32;

#[test]
fn the_bytes_are_as_documented() {
    let (region, _view) = region();
    region.set_health(Health::Draining);
    region.chunk_size_cell().store(ChunkWord::Bound(1088).encode());
    for (i, counter) in Counter::ALL.into_iter().enumerate() {
        region.counter(counter).store(100 + i as u64, Ordering::Relaxed);
    }
    let id: DomainId = std::array::from_fn(|i| 200 + i as u8);
    for (entry, size) in [(0, 544), (63, 640)] {
        region.name_domain(entry, Some(&id));
        region
            .domain_cell(entry)
            .store(ChunkWord::Selected(size).encode());
    }
    region.name_domain(1, Some(&id));
    region.name_domain(1, None);
    let mut bytes = [0u8; CONTROL_BYTES];
    region.map.read_bytes(0, &mut bytes).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());

    assert_eq!(&bytes[..8], b"KVASIRC1");
    assert_eq!(&bytes[8..16], [5, 0, 0, 0, 0, 0x10, 0, 0]);
    assert_eq!(&bytes[16..32], b"0123456789abcdef");
    assert_eq!((word(32), word(40), word(48)), (7, 4321, 1_796_000_000_000));
    assert!(word(64) > 0);
    assert_eq!(word(128), 0x8000_0000_0000_0440);
    assert_eq!(word(192), 2);
    let counters: Vec<u64> = (256..360).step_by(8).map(word).collect();
    assert_eq!(counters, (100..113).collect::<Vec<u64>>());
    for at in [1024, 3040] {
        assert_eq!(bytes[at..at + 16], id[..16]);
    }
    assert_eq!((word(1040), word(3056)), (1 << 62 | 544, 1 << 62 | 640));
    let used = [
        0..56,
        64..72,
        128..136,
        192..200,
        256..360,
        1024..1048,
        3040..3064,
    ];
    let rest = (0..CONTROL_BYTES).filter(|at| !used.iter().any(|range| range.contains(at)));
    assert!(rest.into_iter().all(|at| bytes[at] == 0));
    let names: Vec<&str> = Counter::ALL.map(Counter::name).to_vec();
    assert_eq!(names[..3], ["requested_units", "hit_units", "miss_units"]);
    assert_eq!(
        names[7..],
        [
            "prefaulted",
            "used",
            "granted",
            "pinned",
            "quarantined",
            "prefault_left"
        ]
    );
}

#[test]
fn a_client_sees_what_the_server_writes() {
    let (region, view) = region();
    assert_eq!(view.boot(), &boot());
    assert_eq!(region.boot(), view.boot());
    assert_eq!(view.health().unwrap(), Health::Starting);
    for health in [
        Health::Serving,
        Health::Draining,
        Health::Stopped,
        Health::Starting,
    ] {
        region.set_health(health);
        assert_eq!(view.health().unwrap(), health);
    }
    region.counter(Counter::MissUnits).fetch_add(3, Ordering::Relaxed);
    assert_eq!(
        (view.counter(Counter::MissUnits), view.counter(Counter::HitUnits)),
        (3, 0)
    );
    let before = view.heartbeat_ms();
    region.beat();
    assert!(view.heartbeat_ms() >= before && before > 0);
    region.word_at(AT_HEALTH).store(9, Ordering::Relaxed);
    assert!(matches!(view.health(), Err(ControlError::Health(9))));
}

#[test]
fn a_client_sees_the_size_being_bound() {
    let (region, view) = region();
    let binding = Binding::new(region.chunk_size_cell(), ChunkSizeConfig::default());
    assert_eq!(view.chunk_word(), Ok(ChunkWord::Unbound));
    assert_eq!(
        binding.require_bound(),
        Err(BindError::NotNegotiated(BindState::Unbound))
    );
    let answer = binding
        .negotiate(NegotiateRequest {
            required_alignment: 544,
            ..Default::default()
        })
        .unwrap();
    assert_eq!(answer.chunk_size, 544);
    assert_eq!(view.chunk_word(), Ok(ChunkWord::Bound(544)));
    region.word_at(AT_CHUNK_SIZE).store(5, Ordering::Relaxed);
    assert!(matches!(
        view.chunk_word(),
        Err(WordError::SizeOfState { size: 5, .. })
    ));
}

#[test]
fn what_is_not_a_control_region_of_this_version_is_refused() {
    let open = |words: &[(usize, u64)], bytes| ControlView::open(forged(words, bytes).as_fd());
    assert!(
        open(&[(0, MAGIC), (8, VERSION_WORD)], 4096).is_ok(),
        "the forgery is otherwise good"
    );
    assert!(matches!(
        open(&[(8, VERSION_WORD)], 4096),
        Err(ControlError::Magic { found: 0 })
    ));
    let error = open(&[(0, MAGIC), (8, VERSION_WORD + 1)], 4096).unwrap_err();
    assert!(matches!(error, ControlError::AbiVersion { found: 6 }), "{error}");
    let error = open(&[(0, MAGIC), (8, 5 | 8192 << 32)], 4096).unwrap_err();
    assert!(
        matches!(error, ControlError::HeaderBytes { found: 8192 }),
        "{error}"
    );
    let error = open(&[(0, MAGIC), (8, VERSION_WORD)], 4095).unwrap_err();
    assert!(
        matches!(
            error,
            ControlError::Shm(ShmError::TooShort {
                expected: 4096,
                actual: 4095
            })
        ),
        "{error}"
    );
    let (reader, _writer) = std::io::pipe().unwrap();
    assert!(matches!(
        ControlView::open(reader.as_fd()),
        Err(ControlError::Shm(ShmError::Os { .. }))
    ));
}

#[test]
fn two_lives_are_told_apart() {
    let (one, two) = (BootInfo::fresh(1).unwrap(), BootInfo::fresh(1).unwrap());
    assert_ne!(one.boot_id, two.boot_id);
    assert_eq!(one.server_pid, u64::from(std::process::id()));
    assert!(one.started_unix_ms > 1_700_000_000_000);
}
