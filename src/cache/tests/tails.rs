//! Which tails of a prompt a lookup asks for: they are hashed when it does.

use std::borrow::Cow;
use std::sync::Mutex;

use super::*;
use crate::index::budget::Unlimited;
use crate::index::presence::Limits;
use crate::index::probe::{Probed, Prober};
use crate::index::record::RecordView;

const WINDOW: ObjectKind = ObjectKind::Window { tokens: 20 };
const CHUNKS: u32 = 6;

/// The tails of a prompt in steps of the alignment, and the chunks whose tails were asked for.
#[derive(Debug)]
struct Asked {
    tails: TailList,
    chunks: Mutex<Vec<u32>>,
}

impl Tails for Asked {
    fn last_chunk(&self, limit: u32) -> Option<u32> {
        self.tails.last_chunk(limit)
    }

    fn all(&self) -> Cow<'_, [Tail]> {
        self.tails.all()
    }

    fn of(&self, chunk: u32) -> Cow<'_, [Tail]> {
        self.chunks.lock().unwrap().push(chunk);
        self.tails.of(chunk)
    }

    fn end(&self, chunk_size: u32) -> u64 {
        self.tails.end(chunk_size)
    }
}

/// The chunks of prompt 1 whose tails a lookup of at most `max_tokens` asks for, in order.
fn asked(rig: &Rig, max_tokens: u64) -> Vec<u32> {
    let keys: Vec<_> = (0..CHUNKS).map(|c| key(1, c, CHUNK)).collect();
    let all = (0..CHUNKS).flat_map(|c| [16, 32, 48].map(|t| tail(1, c, t)));
    let asked = Asked {
        tails: TailList::new(all.collect()),
        chunks: Mutex::default(),
    };
    let request = LookupRequest {
        domain_seed: rig.seed,
        label: 0,
        keys: &keys,
        tails: &asked,
        max_tokens,
        local_tokens: 0,
        pin: false,
        describe: false,
    };
    let (number, domain) = rig.core.registry.find(&rig.seed).unwrap();
    let shape = domain.shape(number, u64::MAX);
    let limits = Limits::of(&request, &shape);
    let prober = Prober {
        reader: &rig.core.index.reader(),
        shape: &shape,
        request: &request,
        limits: &limits,
    };
    assert!(prober.step(&mut Probed::new(&shape, &request), &mut Unlimited));
    let mut chunks = asked.chunks.into_inner().unwrap();
    chunks.sort_unstable();
    chunks
}

fn put(rig: &mut Rig, engine: &Peer, chunk: u32, tokens: u32, group: u16, units: u64) {
    let id = ObjectId {
        key: key(1, chunk, tokens),
        group,
    };
    let parent = chunk.checked_sub(1).map(|c| key(1, c, CHUNK));
    let outcome = rig.try_put(engine, id, parent, tokens, 0, units * UNIT).unwrap();
    assert_eq!(outcome, CommitOutcome::Published, "{tokens} of chunk {chunk}");
}

fn view(rig: &Rig, chunk: u32) -> RecordView {
    let id = ObjectId {
        key: key(1, chunk, CHUNK),
        group: 0,
    };
    rig.core.index.reader().lookup(&id).unwrap()
}

#[test]
fn a_chunk_is_asked_for_its_tails_only_where_the_one_before_knows_of_a_state() {
    let mut rig = Rig::new(128);
    let engine = rig.engine(1, &[ObjectKind::Full, ObjectKind::Recurrent]);
    rig.put_chain(&engine, 1, CHUNKS);
    // No chunk stands before the first that could tell; the last is all that full attention has.
    assert_eq!(asked(&rig, u64::MAX), [0]);
    put(&mut rig, &engine, 3, 32, 1, 1);
    assert_eq!((view(&rig, 2).tails, view(&rig, 3).tails), (0b10, 0));
    assert_eq!(asked(&rig, u64::MAX), [0, 3]);
    // By its own tail's attention, which goes and leaves the state where it is.
    put(&mut rig, &engine, 4, 48, 0, 3);
    put(&mut rig, &engine, 4, 48, 1, 1);
    assert_eq!(view(&rig, 3).tails, 0b100);
    rig.audit();
    let attention = rig.record(key(1, 4, 48), 0).unwrap();
    rig.core.tree.supersede(attention);
    rig.core.evict_one(attention).unwrap();
    assert_eq!(view(&rig, 3).tails, 0b100);
    assert_eq!(
        rig.lookup_at(&engine, 1, CHUNKS, &[tail(1, 4, 48)], 1000, 0)
            .hit_tokens,
        304
    );
    rig.audit();
    for (chunk, tokens) in [(4, 48), (3, 32)] {
        let state = rig.record(key(1, chunk, tokens), 1).unwrap();
        rig.core.release_label(engine.id, 1).unwrap();
        rig.core.evict_one(state).unwrap();
        rig.audit();
    }
    assert_eq!((view(&rig, 2).tails, view(&rig, 3).tails), (0, 0));
    assert_eq!(asked(&rig, u64::MAX), [0]);
}

#[test]
fn tails_that_share_a_bit_are_counted() {
    let mut rig = Rig::new(128);
    let engine = rig.engine(1, &[ObjectKind::Full, ObjectKind::Recurrent]);
    rig.put_chain(&engine, 1, 2);
    // Those of two prompts that begin with the same two chunks.
    let before = key(1, 1, CHUNK);
    for prompt in [1, 2] {
        let id = ObjectId {
            key: key(prompt, 2, 32),
            group: 1,
        };
        rig.try_put(&engine, id, Some(before), 32, 0, UNIT).unwrap();
    }
    let states = [1, 2].map(|prompt| rig.record(key(prompt, 2, 32), 1).unwrap());
    for (state, left) in states.into_iter().zip([0b10, 0]) {
        rig.core.evict_one(state).unwrap();
        assert_eq!(view(&rig, 1).tails, left);
        rig.audit();
    }
}

#[test]
fn attention_and_windows_serve_ends_without_tails() {
    let mut rig = Rig::new(128);
    let engine = rig.engine(1, &[ObjectKind::Full, WINDOW]);
    rig.put_chain(&engine, 1, CHUNKS);
    // Without the window nothing can end anywhere but where there may be tails unheard of.
    assert_eq!(asked(&rig, 300), [0]);
    put(&mut rig, &engine, 3, CHUNK, 1, 4);
    // In chunk 3 it ends where the window's object reaches.
    assert_eq!(asked(&rig, 252), [0, 3]);
    assert_eq!(
        rig.lookup_at(&engine, 1, CHUNKS, &[tail(1, 3, 48)], 252, 0)
            .hit_tokens,
        240
    );
}

#[test]
fn bits_come_round_after_as_many_alignments_as_there_are() {
    use crate::object::tail_bit;
    assert_eq!(
        [16, 32, 512, 528].map(|tokens| tail_bit(tokens, 16)),
        [1, 2, 1 << 31, 1]
    );
}
