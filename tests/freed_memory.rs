//! What is freed in one turn of the server's thread is no burden to a later one.
//!
//! The C library's allocator is one for the whole process, so this test has a process of its own.

use std::os::fd::AsFd;

use kvasir::cache::*;
use kvasir::geometry::ObjectKind;

use kvasir::keys::ChunkKey;
use kvasir::object::*;
use kvasir::shm::heap::{keep_freed_memory, sort_freed_memory, unsorted_pieces};
use kvasir::shm::lock::try_lock_byte;

const CHUNK: u32 = 64;
/// Pieces that may wait to be sorted: less than a turn frees. The allocator goes through 10,000 at once in 280 us.
const FEW: u64 = 60;

fn core(frames: u64) -> Core {
    let mut core = Core::create(CoreConfig {
        pool_bytes: frames * FRAME_BYTES,
        ..CoreConfig::default()
    })
    .unwrap();
    core.set_chunk_size(CHUNK).unwrap();
    core.prefaulted(frames * FRAME_BYTES).unwrap();
    core.prefault_ended();
    core
}

/// A rank that dies with the descriptor.
fn rank(core: &mut Core, ranks: u16) -> (ClientId, std::os::fd::OwnedFd) {
    let info = ClientInfo {
        engine_instance: [1; 16],
        kind: ClientKind::Worker,
        name: "rank".into(),
    };
    let id = core.open_client(info).unwrap();
    let regions = core.regions(id).unwrap();
    assert!(try_lock_byte(regions.liveness.as_fd(), id.slab().into()).unwrap());
    core.attach(id).unwrap();
    let registration = Registration {
        domain_seed: ChunkKey::from_bytes([9; 32]),
        rank: 0,
        world_size: ranks.into(),
        required_alignment: CHUNK.into(),
        chunk_size: CHUNK,
        groups: vec![GroupRegistration {
            group: 0,
            kind: ObjectKind::Full,
            parts: ranks,
            part: 0,
            unit_bytes: 4096,
        }],
        payload_path: PayloadPath::ShmDirect,
        stores: true,
    };
    core.register(id, &registration).unwrap();
    (id, regions.liveness)
}

fn single_frames(runs: &[Extent]) -> Vec<Extent> {
    let frames = runs.iter().flat_map(|run| run.frames());
    frames.map(|frame| Extent::new(frame, 1)).collect()
}

/// Does a piece of work; the most pieces of memory that wait to be sorted after any of its turns.
fn most_unsorted<W: Work>(core: &mut Core, mut work: W) -> u64 {
    let mut most = 0;
    loop {
        let mut turn = Turn::new();
        let progress = work.step(core, &mut turn);
        most = most.max(unsorted_pieces().unwrap());
        if let Progress::Done(_) = progress.unwrap() {
            return most;
        }
    }
}

/// The death of a client with thousands of granted runs.
fn unsorted_after_death() -> u64 {
    let mut core = core(120_000);
    let (client, lock) = rank(&mut core, 1);
    let (other, _held) = rank(&mut core, 1);
    let all = core.grant(client, 60_000 * FRAME_BYTES).unwrap();
    let others = core.grant(other, 60_000 * FRAME_BYTES).unwrap();
    let odd: Vec<Extent> = single_frames(&all)
        .into_iter()
        .filter(|run| run.frame % 2 == 1)
        .collect();
    // What both hold is cut into runs in turns, so that their pieces of memory lie side by side.
    let others: Vec<Extent> = single_frames(&others)
        .into_iter()
        .filter(|run| run.frame % 2 == 1)
        .collect();
    for (own, theirs) in odd.chunks(50).zip(others.chunks(50)) {
        core.abort(client, own).unwrap();
        core.abort(other, theirs).unwrap();
    }
    sort_freed_memory();
    drop(lock);
    most_unsorted(&mut core, ClientGone::new(client))
}

#[test]
fn what_a_turn_frees_of_granted_space_is_sorted_at_its_end() {
    if unsorted_pieces().is_none() {
        return; // another C library, whose allocator has no such list
    }
    keep_freed_memory();
    // Without that they are more than 300.
    let left = unsorted_after_death();
    assert!(left < FEW, "{left} freed pieces wait for whoever comes next");
}
