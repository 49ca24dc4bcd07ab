//! Models of every kind of shape: what is found by looking at few tails is what looking at all of them finds.

use super::*;
use proptest::prelude::*;

const CHUNKS: u32 = 4;
const FULL: ObjectKind = ObjectKind::Full;
const STATE: ObjectKind = ObjectKind::Recurrent;

const fn window(tokens: u64) -> ObjectKind {
    ObjectKind::Window { tokens }
}

const fn local(tokens: u64) -> ObjectKind {
    ObjectKind::ChunkedLocal { tokens }
}

const SHAPES: &[&[ObjectKind]] = &[
    &[FULL],
    &[FULL, window(20)],
    &[FULL, window(100)],
    &[FULL, window(1)],
    &[FULL, local(16)],
    &[FULL, local(96)],
    &[FULL, local(128)],
    &[FULL, window(65), FULL],
    &[FULL, local(96), FULL],
    &[FULL, STATE],
    &[FULL, window(65), STATE],
    &[FULL, local(96), STATE, FULL],
    &[window(40)],
    &[STATE],
    &[window(40), STATE],
];

#[derive(Clone, Debug)]
enum Op {
    /// An object of prompt 1; of prompt 2 a tail, under prompt 1's chunk before.
    Store {
        prompt: u32,
        chunk: u32,
        tokens: u32,
        group: u16,
        holed: bool,
    },
    /// As eviction does it, if the object may go.
    Evict {
        chunk: u32,
        tokens: u32,
        group: u16,
    },
    Supersede {
        chunk: u32,
        tokens: u32,
    },
    /// At most that many tokens.
    Lookup {
        max_tokens: u64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let (chunk, tokens) = (0..CHUNKS, (1..5_u32).prop_map(|units| units * ALIGN as u32));
    // Most chunks are stored in order, or hardly anything would have what it hangs under.
    let store = (1..6_u32, chunk.clone(), tokens.clone(), 0..4_u16, any::<bool>());
    prop_oneof![
        8 => store.prop_map(|(prompt, chunk, tokens, group, holed)| Op::Store {
            prompt: if prompt == 2 { 2 } else { 1 },
            chunk,
            tokens,
            group,
            holed,
        }),
        3 => (chunk.clone(), tokens.clone(), 0..4_u16)
            .prop_map(|(chunk, tokens, group)| Op::Evict { chunk, tokens, group }),
        1 => (chunk, tokens).prop_map(|(chunk, tokens)| Op::Supersede { chunk, tokens }),
        6 => (1..=u64::from(CHUNKS * CHUNK)).prop_map(|max_tokens| Op::Lookup { max_tokens }),
    ]
}

struct World {
    rig: Rig,
    engine: Peer,
    kinds: &'static [ObjectKind],
}

impl World {
    /// Full attention has the whole prompt, and whatever else there is the first two chunks.
    fn new(kinds: &'static [ObjectKind]) -> Self {
        let mut rig = Rig::new(256);
        let engine = rig.engine(1, kinds);
        let mut world = Self { rig, engine, kinds };
        for chunk in 0..CHUNKS {
            for (group, kind) in (0..).zip(kinds) {
                if *kind == FULL || chunk < 2 {
                    world.store(1, chunk, CHUNK, group, false);
                }
            }
        }
        world
    }

    fn store(&mut self, prompt: u32, chunk: u32, tokens: u32, group: u16, holed: bool) {
        let Some(kind) = self.kinds.get(usize::from(group)) else {
            return;
        };
        let parent = chunk.checked_sub(1).map(|before| key(1, before, CHUNK));
        let id = ObjectId {
            key: key(prompt, chunk, tokens),
            group,
        };
        let bytes = match kind {
            ObjectKind::Recurrent => UNIT,
            _ => UNIT * u64::from(tokens) / ALIGN,
        };
        let windowed = !matches!(kind, ObjectKind::Recurrent | ObjectKind::Full);
        self.rig.held_from = if holed && windowed { 32 } else { 0 };
        self.rig
            .try_put(&self.engine, id, parent, tokens, 0, bytes)
            .unwrap();
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Store {
                prompt: 2,
                tokens: CHUNK,
                ..
            } => {}
            Op::Store {
                prompt,
                chunk,
                tokens,
                group,
                holed,
            } => self.store(prompt, chunk, tokens, group, holed),
            Op::Evict { chunk, tokens, group } => {
                if let Some(record) = self.rig.record(key(1, chunk, tokens), group)
                    && self.rig.core.tree.may_go(record)
                {
                    self.rig.core.evict_one(record).unwrap();
                }
            }
            Op::Supersede { chunk, tokens } => {
                if let Some(record) = self.rig.record(key(1, chunk, tokens), 0)
                    && tokens < CHUNK
                {
                    self.rig.core.tree.supersede(record);
                }
            }
            Op::Lookup { max_tokens } => self.ask(max_tokens),
        }
    }

    fn ask(&mut self, max_tokens: u64) {
        let tails: Vec<Tail> = (0..CHUNKS)
            .flat_map(|chunk| [16, 32, 48].map(|tokens| tail(1, chunk, tokens)))
            .collect();
        let longest = self.rig.longest(1, CHUNKS, &tails, max_tokens);
        let found = self
            .rig
            .look_up_direct(&mut self.engine, 1, CHUNKS, &tails, max_tokens);
        self.engine.words.release(found.pin);
        assert_eq!(
            found.hit_tokens, longest,
            "at most {max_tokens} tokens of {:?}",
            self.kinds
        );
        let answer = self.rig.lookup_at(&self.engine, 1, CHUNKS, &tails, max_tokens, 0);
        self.rig.core.release_label(self.engine.id, 1).unwrap();
        assert_eq!(
            (answer.hit_tokens, answer.loads, answer.present_tokens),
            (found.hit_tokens, found.loads, found.present_tokens)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn few_tails_are_looked_at_and_no_hit_is_lost(
        shape in 0..SHAPES.len(),
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let mut world = World::new(SHAPES[shape]);
        for op in ops {
            world.run(op);
            world.rig.audit();
        }
        for max_tokens in (16..=u64::from(CHUNKS * CHUNK)).step_by(16) {
            world.ask(max_tokens);
        }
    }
}

/// Full attention needs no tail for an end inside a chunk, nor does local attention at the ends of its own chunks.
#[test]
fn local_attention_needs_nothing_where_its_own_chunk_ends() {
    let mut rig = Rig::new(64);
    let mut engine = rig.engine(1, &[FULL, local(96)]);
    rig.put_chain(&engine, 1, CHUNKS);
    let tails: Vec<Tail> = (0..CHUNKS)
        .flat_map(|chunk| [16, 32, 48].map(|tokens| tail(1, chunk, tokens)))
        .collect();
    for (max_tokens, hit) in [(95, 0), (128, 96), (191, 96), (192, 192)] {
        let found = rig.look_up_direct(&mut engine, 1, CHUNKS, &tails, max_tokens);
        engine.words.release(found.pin);
        assert_eq!(found.hit_tokens, hit, "of at most {max_tokens}");
    }
}
