use std::collections::BTreeMap;

use super::*;
use proptest::prelude::*;

use crate::geometry::ObjectKind;
use crate::geometry::window::first_needed_token;
use crate::index::presence::{Source, TailPresence};

/// A prefix and what to load for it, group by group in order, each in token order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Length of the prefix.
    pub(crate) hit_tokens: u64,
    /// What to load.
    pub(crate) loads: Vec<Load>,
}

/// The longest prefix that all groups can serve.
pub(crate) fn plan(groups: &[GroupShape], presence: &Presence, limits: &Limits) -> Plan {
    let order = TailOrder::of(presence);
    let view = View {
        groups,
        presence,
        limits,
        order: &order,
    };
    let mut sweep = Sweep::new(&view, &view.covers());
    while let Some(chunk) = sweep.chunk() {
        if sweep.at_end(&view).is_none() && sweep.at_tails(&view).is_none() {
            sweep.leave(chunk);
        }
    }
    let hit_tokens = sweep.found();
    let mut naming = Naming::new(hit_tokens);
    Plan {
        hit_tokens,
        loads: std::iter::from_fn(|| naming.next(&view)).collect(),
    }
}

/// Per group, tokens up to which every object from token 0 on is there, a tail at the end included.
fn present_tokens(groups: &[GroupShape], presence: &Presence, limits: &Limits) -> Vec<u64> {
    let order = TailOrder::of(presence);
    let view = View {
        groups,
        presence,
        limits,
        order: &order,
    };
    view.covers()
}

const CHUNK: u64 = 256;

fn groups(kinds: &[ObjectKind]) -> Vec<GroupShape> {
    kinds
        .iter()
        .enumerate()
        .map(|(i, &kind)| GroupShape {
            group: i as u16 * 3,
            kind,
            bit: 1 << i,
        })
        .collect()
}

fn limits(max_tokens: u64, local_tokens: u64) -> Limits {
    Limits {
        chunk_size: CHUNK,
        max_tokens,
        local_tokens,
    }
}

fn presence(chunks: &[u32], tails: &[(u32, u32, u32)]) -> Presence {
    Presence {
        chunks: chunks.to_vec(),
        tails: tails
            .iter()
            .map(|&(chunk, tokens, groups)| TailPresence {
                chunk,
                tokens,
                groups,
            })
            .collect(),
        holes: BTreeMap::new(),
    }
}

fn load(group: usize, source: Source) -> Load {
    Load { group, source }
}

const FULL: ObjectKind = ObjectKind::Full;
const STATE: ObjectKind = ObjectKind::Recurrent;
const WINDOW: ObjectKind = ObjectKind::Window { tokens: 128 };
use Source::{Chunk, Tail};

#[test]
fn one_full_group_serves_chunks_and_the_front_of_the_next_object() {
    let g = groups(&[FULL]);
    // The prompt of the demo: 4000 tokens, stored as 15 chunks and a tail of 160; at most 3999 are wanted.
    let tails: Vec<(u32, u32, u32)> = (1..=5).map(|n| (15, n * 32, u32::from(n == 5))).collect();
    let p = presence(&[1; 15], &tails);
    let found = plan(&g, &p, &limits(3999, 0));
    assert_eq!(found.hit_tokens, 3968);
    assert_eq!(found.loads.len(), 16);
    assert_eq!(found.loads[15], load(0, Tail(4)));
    assert_eq!(present_tokens(&g, &p, &limits(3999, 0)), [4000]);

    // The same boundary from a full chunk of a longer prompt.
    let p = presence(&[1; 16], &[(15, 128, 0)]);
    let found = plan(&g, &p, &limits(3999, 0));
    assert_eq!((found.hit_tokens, found.loads[15]), (3968, load(0, Chunk(15))));
}

#[test]
fn objects_below_the_local_tokens_are_not_named() {
    let g = groups(&[FULL, STATE]);
    let p = presence(&[3; 4], &[]);
    let found = plan(&g, &p, &limits(5000, 512));
    assert_eq!(found.hit_tokens, 1024);
    assert_eq!(
        found.loads,
        [load(0, Chunk(2)), load(0, Chunk(3)), load(1, Chunk(3))]
    );
    // Partly below: needed in part.
    let found = plan(&g, &p, &limits(5000, 513));
    assert_eq!(found.loads[0], load(0, Chunk(2)));
    let found = plan(&g, &p, &limits(5000, 767));
    assert_eq!(found.loads[0], load(0, Chunk(2)));
    assert!(plan(&g, &p, &limits(5000, 1024)).loads.is_empty());
}

#[test]
fn a_chunk_without_a_mandatory_group_is_never_a_hit() {
    let g = groups(&[FULL, WINDOW, STATE]);
    // Full and window everywhere, states only at the ends of chunks 0 and 2.
    let p = presence(&[0b111, 0b011, 0b111, 0b011], &[]);
    let found = plan(&g, &p, &limits(5000, 0));
    assert_eq!(found.hit_tokens, 768);
    assert_eq!(
        found.loads,
        [
            load(0, Chunk(0)),
            load(0, Chunk(1)),
            load(0, Chunk(2)),
            load(1, Chunk(2)),
            load(2, Chunk(2))
        ]
    );
    // Without the window of chunk 2 only the first boundary is left.
    let p = presence(&[0b111, 0b011, 0b101, 0b011], &[]);
    assert_eq!(plan(&g, &p, &limits(5000, 0)).hit_tokens, 256);
    // Without full attention of chunk 0 there is nothing, whatever follows.
    let p = presence(&[0b110, 0b111, 0b111], &[]);
    assert_eq!(plan(&g, &p, &limits(5000, 0)), Plan::default());
}

#[test]
fn a_window_needs_its_own_tokens_only() {
    let g = groups(&[ObjectKind::Window { tokens: 258 }]);
    // Boundary 768 needs tokens 511..768: the last of chunk 1, and chunk 2.
    assert_eq!(
        plan(&g, &presence(&[0, 1, 1], &[]), &limits(900, 0)).hit_tokens,
        768
    );
    assert_eq!(
        plan(&g, &presence(&[1, 0, 1], &[]), &limits(900, 0)).hit_tokens,
        256
    );
    let g = groups(&[ObjectKind::Window { tokens: 257 }]);
    assert_eq!(
        plan(&g, &presence(&[0, 0, 1], &[]), &limits(900, 0)).hit_tokens,
        768
    );
    // Chunked local attention needs nothing at a multiple of its chunk.
    let g = groups(&[FULL, ObjectKind::ChunkedLocal { tokens: 512 }]);
    let found = plan(&g, &presence(&[1, 1], &[]), &limits(900, 0));
    assert_eq!((found.hit_tokens, found.loads.len()), (512, 2));
}

#[test]
fn states_serve_their_exact_end_and_attention_the_front_of_another_object() {
    let g = groups(&[FULL, STATE]);
    // A state at 128 of chunk 1, attention bytes only as the whole of chunk 1.
    let p = presence(&[0b11, 0b01], &[(1, 128, 0b10), (1, 192, 0b00), (1, 64, 0b01)]);
    let found = plan(&g, &p, &limits(5000, 0));
    assert_eq!(found.hit_tokens, 384);
    assert_eq!(
        found.loads,
        [load(0, Chunk(0)), load(0, Chunk(1)), load(1, Tail(0))]
    );
    // Attention only up to 64 of chunk 1: the state at 128 is of no use.
    let p = presence(&[0b11], &[(1, 128, 0b10), (1, 64, 0b01)]);
    assert_eq!(plan(&g, &p, &limits(5000, 0)).hit_tokens, 256);
    // A longer tail has the front.
    let p = presence(&[0b11], &[(1, 128, 0b10), (1, 192, 0b01), (1, 240, 0b01)]);
    let found = plan(&g, &p, &limits(5000, 0));
    assert_eq!((found.hit_tokens, found.loads[1]), (384, load(0, Tail(1))));
}

#[test]
fn a_prompt_shorter_than_a_chunk_hits_its_tail() {
    let g = groups(&[FULL, STATE]);
    let p = presence(&[], &[(0, 32, 0b11), (0, 64, 0b11), (0, 96, 0b01)]);
    assert_eq!(plan(&g, &p, &limits(95, 0)).hit_tokens, 64);
    assert_eq!(plan(&g, &p, &limits(63, 0)).hit_tokens, 32);
    assert_eq!(plan(&g, &p, &limits(31, 0)).hit_tokens, 0);
    assert_eq!(present_tokens(&g, &p, &limits(31, 0)), [96, 64]);
}

/// The definition, slowly: can every group be served at `b`?
fn reference(g: &[GroupShape], p: &Presence, l: &Limits) -> u64 {
    let held_from =
        |source, group: &GroupShape| p.holes.get(&(source, group.bit)).copied().map_or(0, u64::from);
    let object_ends = |group: &GroupShape| -> Vec<(u64, u64)> {
        let chunks = p.chunks.iter().enumerate();
        let chunks = chunks.filter(|(_, m)| **m & group.bit != 0).map(|(i, _)| {
            let start = i as u64 * CHUNK;
            (start + held_from(Chunk(i as u32), group), start + CHUNK)
        });
        let tails = p.tails.iter().enumerate();
        let tails = tails.filter(|(_, t)| t.groups & group.bit != 0).map(|(i, t)| {
            let start = u64::from(t.chunk) * CHUNK;
            let end = start + u64::from(t.tokens);
            (start + held_from(Tail(i as u32), group), end)
        });
        chunks.chain(tails).collect()
    };
    let mut candidates: Vec<u64> = (1..=p.chunks.len() as u64).map(|i| i * CHUNK).collect();
    candidates.extend(
        p.tails
            .iter()
            .map(|t| u64::from(t.chunk) * CHUNK + u64::from(t.tokens)),
    );
    candidates.retain(|b| *b <= l.max_tokens);
    let ok = |b: u64| {
        g.iter().all(|group| {
            let objects = object_ends(group);
            if group.kind == STATE {
                return objects.iter().any(|(_, end)| *end == b);
            }
            (0..b)
                .filter(|t| match group.kind {
                    ObjectKind::Window { tokens } => b < t + tokens,
                    ObjectKind::ChunkedLocal { tokens } => t / tokens == b / tokens,
                    _ => true,
                })
                // All needed tokens of a chunk come from one object of it.
                .all(|t| {
                    objects.iter().any(|(start, end)| {
                        let chunk = t / CHUNK;
                        let needed = first_needed_token(group.kind, b).max(chunk * CHUNK);
                        let last = b.min((chunk + 1) * CHUNK);
                        end.div_ceil(CHUNK) == chunk + 1 && *start <= needed && *end >= last
                    })
                })
        })
    };
    candidates.into_iter().filter(|b| ok(*b)).max().unwrap_or(0)
}

proptest! {
    #[test]
    fn agrees_with_the_definition(
        chunks in prop::collection::vec(0..16_u32, 0..7),
        tails in prop::collection::vec((0..7_u32, 1..8_u32, 0..16_u32), 0..8),
        max in 0..2000_u64,
        window in 1..700_u64,
        local in 1..700_u64,
        bias in any::<bool>(),
        holes in prop::collection::vec((any::<bool>(), 0..8_u32, any::<bool>(), 1..8_u32), 0..6),
    ) {
        let g = groups(&[FULL, ObjectKind::Window { tokens: window }, STATE, ObjectKind::ChunkedLocal { tokens: local }]);
        // Random masks rarely serve anything; let most chunks have most groups.
        let chunks: Vec<u32> = chunks.into_iter().map(|m| if bias { m | 0b1011 } else { m }).collect();
        let mut tails: Vec<(u32, u32, u32)> = tails.into_iter().map(|(c, t, m)| (c, t * 32, m)).collect();
        tails.sort_unstable();
        tails.dedup_by_key(|t| (t.0, t.1));
        let mut p = presence(&chunks, &tails);
        for (tail, at, window, from) in holes {
            let source = if tail { Tail(at) } else { Chunk(at) };
            p.holes.insert((source, if window { 0b10 } else { 0b1000 }), from * 32);
        }
        let l = limits(max, 0);
        let found = plan(&g, &p, &l);
        prop_assert_eq!(found.hit_tokens, reference(&g, &p, &l));
        // Everything named is there.
        for load in &found.loads {
            let bit = g[load.group].bit;
            match load.source {
                Chunk(c) => prop_assert!(p.chunks[c as usize] & bit != 0),
                Tail(t) => prop_assert!(p.tails[t as usize].groups & bit != 0),
            }
        }
    }
}
