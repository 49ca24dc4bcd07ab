//! Work that is dropped half-way, as when its connection ends.

use super::turns::{drive, full, items, single_frames};
use super::*;
use crate::cache::turn::Turn;

/// Every kind of work is dropped after every number of turns; what is left is as the books say, and goes with its
/// client.
#[test]
fn work_that_is_dropped_half_way_leaves_everything_in_order() {
    type Begin = fn(&mut Rig, &[Peer; 2], usize) -> bool;
    let kinds: [(&str, Begin); 6] = [
        ("grant", |rig, peers, turns| {
            step_some(&mut rig.core, Grant::new(peers[0].id, 300 * FRAME_BYTES), turns)
        }),
        ("commit", |rig, peers, turns| {
            let extents = rig.core.grant(peers[0].id, 150 * FRAME_BYTES).unwrap();
            let extents = single_frames(&extents);
            let items = items(1, 200, extents.len() as u32, true, 0);
            let request = CommitRequest {
                domain_seed: rig.seed,
                items: items.to_vec(),
                extents: extents.to_vec(),
                supersedes: vec![],
                grant_bytes: 50 * FRAME_BYTES,
            };
            step_some(&mut rig.core, Committing::new(peers[0].id, &request), turns)
        }),
        ("clear", |rig, _, turns| {
            let clear = Clear::new(&rig.core);
            step_some(&mut rig.core, clear, turns)
        }),
        ("discard", |rig, peers, turns| {
            let (key, _) = chain(1, 0);
            let id = ObjectId { key, group: 0 };
            let Some(view) = rig.core.index.reader().lookup(&id) else {
                return true;
            };
            let named = [(id, view.incarnation)];
            step_some(&mut rig.core, Discard::new(peers[0].id, rig.seed, &named), turns)
        }),
        ("unregister", |rig, peers, turns| {
            step_some(&mut rig.core, Unregister::new(peers[1].id), turns)
        }),
        ("status", |rig, _, turns| {
            let reporting = Reporting::new(&rig.core);
            step_some(&mut rig.core, reporting, turns)
        }),
    ];
    for (what, begin) in kinds {
        for turns in 1.. {
            let mut rig = Rig::new(600);
            let mut peers = [rig.peer(1), rig.peer(2)];
            rig.register(&peers[0], 0, 1, &full(1, 0)).unwrap();
            rig.fill(&peers[0], 1, 200, true, 0);
            rig.fill(&peers[0], 2, 200, false, 0);
            let seed = std::mem::replace(&mut rig.seed, ChunkKey::from_bytes([8; 32]));
            rig.register(&peers[1], 0, 2, &full(2, 0)).unwrap();
            rig.fill(&peers[1], 3, 150, true, 0);
            rig.seed = seed;
            let reader = rig.peer(3);
            reader.slab_pin(3, rig.record(key(1, 199, CHUNK), 0));
            let finished = begin(&mut rig, &peers, turns);
            rig.core
                .audit()
                .unwrap_or_else(|error| panic!("{what} after {turns} turns: {error}"));
            for peer in &mut peers {
                peer.die();
                assert!(rig.core.client_gone(peer.id).unwrap());
                rig.audit();
            }
            let status = rig.core.status();
            assert_eq!(
                (status.pool.granted, status.incomplete),
                (0, 0),
                "{what} after {turns} turns"
            );
            reader.slab_pin(3, None);
            rig.core.clear().unwrap();
            drive(&mut rig.core, Tidy::default());
            let status = rig.core.status();
            assert_eq!(
                (status.objects, status.limbo, status.pool.free),
                (0, 0, status.pool.total),
                "{what} after {turns} turns"
            );
            if finished {
                break;
            }
        }
    }
}

/// Whether it finished in so many turns. It is dropped then.
fn step_some<W: Work>(core: &mut Core, mut work: W, turns: usize) -> bool {
    (0..turns).any(|_| matches!(work.step(core, &mut Turn::new()), Ok(Progress::Done(_))))
}
