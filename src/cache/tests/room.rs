//! Who gets room in a pool that is small, full, or not there yet.

use super::*;
use CommitOutcome::*;

const FULL: &[ObjectKind] = &[ObjectKind::Full];

fn frames(extents: &[Extent]) -> u64 {
    crate::object::count_frames(extents)
}

/// Asks for the space of one chunk under the chunk before it.
fn grant_under(rig: &mut Rig, peer: &Peer, bytes: u64, under: &[ChunkKey]) -> Vec<Extent> {
    let request = GrantRequest {
        bytes,
        under: under.to_vec(),
        ahead: false,
    };
    rig.core.grant_for(peer.id, &request).unwrap()
}

/// Stores one part of a chunk as a client does: space under its parent, then a commit. None where there is no space.
fn store_chunk(
    rig: &mut Rig,
    peer: &Peer,
    prompt: u32,
    chunk: u32,
    group: u16,
    part: u16,
) -> Option<CommitOutcome> {
    let (key, parent) = chain(prompt, chunk);
    let recurrent = group > 0;
    let bytes = if recurrent { UNIT } else { 4 * UNIT };
    let under: Vec<ChunkKey> = recurrent.then_some(key).into_iter().chain(parent).collect();
    let extents = grant_under(rig, peer, bytes, &under);
    if frames(&extents) < frames_for(bytes) {
        rig.core.abort(peer.id, &extents).unwrap();
        return None;
    }
    let item = StoreItem {
        id: ObjectId { key, group },
        parent,
        skipped: false,
        part,
        tokens: CHUNK,
        held_from: 0,
        bytes,
        checksum: 0,
        first_extent: 0,
        extent_count: extents.len() as u32,
    };
    let request = CommitRequest {
        domain_seed: rig.seed,
        items: vec![item],
        extents: extents.to_vec(),
        supersedes: vec![],
        grant_bytes: 64 * UNIT,
    };
    let answer = rig.core.commit(peer.id, &request).unwrap();
    rig.core.abort(peer.id, &answer.granted).unwrap();
    rig.audit();
    Some(answer.outcomes[0])
}

#[test]
fn the_end_of_a_chain_never_takes_its_head() {
    let mut rig = Rig::new(32);
    let engine = rig.engine(1, FULL);
    // A client does not store again what it finds.
    for first in [0, 8, 8] {
        let stored: Vec<_> = (first..12)
            .map(|chunk| store_chunk(&mut rig, &engine, 1, chunk, 0, 0))
            .take_while(Option::is_some)
            .collect();
        assert_eq!(first as usize + stored.len(), 8, "as much as fits");
        assert_eq!(rig.resident(1, 12), (0..8).collect::<Vec<_>>());
    }
    assert_eq!(rig.core.status().counters.evicted_objects, 0);
    // Another chain takes from its end, as ever: a chunk for itself, and one for the store to come.
    assert_eq!(store_chunk(&mut rig, &engine, 2, 0, 0, 0), Some(Published));
    assert_eq!(rig.resident(1, 12), (0..6).collect::<Vec<_>>());
}

#[test]
fn an_engine_that_found_the_head_does_not_take_it_either() {
    let mut rig = Rig::new(32);
    let (writer, reader) = (rig.engine(1, FULL), rig.engine(2, FULL));
    for chunk in 0..8 {
        assert_eq!(store_chunk(&mut rig, &writer, 1, chunk, 0, 0), Some(Published));
    }
    // It has loaded all eight, computes the ninth and has stored nothing itself.
    assert_eq!(store_chunk(&mut rig, &reader, 1, 8, 0, 0), None);
    assert_eq!(rig.resident(1, 9).len(), 8);
    // For what hangs under the first four the others are objects like any other.
    let granted = grant_under(&mut rig, &reader, 16 * UNIT, &[key(1, 3, CHUNK)]);
    assert_eq!(frames(&granted), 16);
    assert_eq!(rig.resident(1, 9), [0, 1, 2, 3]);
    rig.audit();
}

#[test]
fn states_of_a_chain_stay_beside_it() {
    let mut rig = Rig::new(32);
    let engine = rig.engine(1, &[ObjectKind::Full, ObjectKind::Recurrent]);
    let mut stored = 0;
    for chunk in 0..12 {
        let both = [0, 1].map(|group| store_chunk(&mut rig, &engine, 1, chunk, group, 0));
        if both[0].is_none() {
            break; // nothing that comes after has anything to hang under
        }
        assert_eq!(both, [Some(Published); 2]);
        stored += 1;
    }
    assert_eq!(stored, 6, "chunks of four frames and one");
    let hit = rig.lookup(&engine, 1, 12, &[]).hit_tokens;
    assert_eq!(
        hit,
        6 * u64::from(CHUNK),
        "every state is there, the last one too"
    );
    for chunk in 0..6 {
        assert!(
            rig.record(key(1, chunk, CHUNK), 1).is_some(),
            "the state of chunk {chunk}"
        );
    }
    assert_eq!(rig.core.status().counters.evicted_objects, 0);
}

#[test]
fn ranks_of_one_engine_do_not_take_each_others_parts_of_a_chain_that_is_too_long() {
    let mut rig = Rig::new(64);
    let ranks = [rig.peer(1), rig.peer(1)];
    for (rank, part) in ranks.iter().zip(0..) {
        rig.register(rank, part.into(), 2, &[group(0, ObjectKind::Full, 2, part)])
            .unwrap();
    }
    // A step of 32 chunks of eight frames: one rank stores all it can, then the other.
    let mut stored = [0, 0];
    for (part, rank) in ranks.iter().enumerate() {
        let outcomes = (0..32).map(|chunk| store_chunk(&mut rig, rank, 1, chunk, 0, part as u16));
        let outcomes: Vec<_> = outcomes.take_while(Option::is_some).flatten().collect();
        stored[part] = outcomes.len();
        let wanted = [PartAccepted, Published][part];
        assert!(
            outcomes[..stored[0]].iter().all(|outcome| *outcome == wanted),
            "rank {part}: {outcomes:?}"
        );
    }
    assert_eq!(
        stored[0], 4,
        "a quarter of the pool for the parts of one of two ranks"
    );
    assert_eq!(rig.resident(1, 32), [0, 1, 2, 3]);
    assert_eq!(rig.core.status().counters.ended_incomplete, 0);
}

#[test]
fn a_rank_that_waits_in_vain_for_others_is_not_stuck() {
    let mut rig = Rig::new(16);
    let ranks = [rig.peer(1), rig.peer(1)];
    for (rank, part) in ranks.iter().zip(0..) {
        rig.register(rank, part.into(), 2, &[group(0, ObjectKind::Full, 2, part)])
            .unwrap();
    }
    // The second rank stores nothing. What the first has stored for it makes room once it is stale.
    let outcomes = (0..45).map(|prompt| store_chunk(&mut rig, &ranks[0], prompt, 0, 0, 0));
    assert_eq!(
        outcomes
            .flatten()
            .filter(|outcome| *outcome == PartAccepted)
            .count(),
        6
    );
}

#[test]
fn space_that_is_held_ahead_is_a_small_part_however_many_hold_it() {
    let mut rig = Rig::new(1024);
    let engines: Vec<Peer> = (0..40).map(|instance| rig.engine(instance, FULL)).collect();
    let ahead = GrantRequest {
        bytes: 256 * UNIT,
        under: vec![],
        ahead: true,
    };
    for engine in &engines {
        rig.core.grant_for(engine.id, &ahead).unwrap();
    }
    let held = rig.core.status().pool.granted / FRAME_BYTES;
    assert_eq!(held, 40 * 3, "an eighth of the pool, shared by forty");
    // One that stores gets what it needs all the same.
    let granted = rig.core.grant(engines[0].id, 512 * UNIT).unwrap();
    assert_eq!(frames(&granted), 512 - 3);
    rig.audit();
}

#[test]
fn asking_ahead_takes_nobodys_object() {
    let mut rig = Rig::new(32);
    let engine = rig.engine(1, FULL);
    rig.put_chain(&engine, 1, 8);
    let ahead = GrantRequest {
        bytes: 4 * UNIT,
        under: vec![],
        ahead: true,
    };
    assert!(rig.core.grant_for(engine.id, &ahead).unwrap().is_empty());
    assert_eq!(rig.resident(1, 8).len(), 8);
    assert_eq!(rig.core.status().counters.dropped_stores, 0);
}

#[test]
fn while_the_pool_grows_nothing_counts_as_dropped() {
    let mut rig = Rig::new(64);
    rig.core = Core::create(CoreConfig {
        pool_bytes: 64 * FRAME_BYTES,
        ..CoreConfig::default()
    })
    .unwrap();
    rig.core.set_chunk_size(CHUNK).unwrap();
    let engine = rig.engine(1, FULL);
    assert!(rig.core.is_growing());
    assert!(rig.core.grant(engine.id, 4 * UNIT).unwrap().is_empty());
    rig.core.prefaulted(8 * FRAME_BYTES).unwrap();
    assert_eq!(frames(&rig.core.grant(engine.id, 16 * UNIT).unwrap()), 8);
    assert!(rig.core.grant(engine.id, 4 * UNIT).unwrap().is_empty());
    assert_eq!(rig.core.status().counters.dropped_stores, 0);
    rig.core.prefault_ended();
    assert!(!rig.core.is_growing());
    assert!(rig.core.grant(engine.id, 4 * UNIT).unwrap().is_empty());
    assert_eq!(rig.core.status().counters.dropped_stores, 1);
}
