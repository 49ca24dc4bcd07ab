use super::super::extents::ExtentCursor;
use super::*;
use crate::copy::{Checksum, CopyEngine};
use crate::object::Extent;

/// Pool frames of the tests: small and odd, so that pages cross them.
const FRAME: u64 = 100;

fn layer(region: u16, offset: u64, block_stride: u64, page_bytes: u64) -> LayerPages {
    LayerPages {
        region,
        offset,
        block_stride,
        page_bytes,
    }
}

fn filled(len: usize, salt: u8) -> HostMemory {
    let memory = HostMemory::zeroed(len);
    let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8 ^ salt).collect();
    memory.write(0, &bytes).unwrap();
    memory
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = Checksum::new();
    sum.update(bytes);
    sum.value()
}

fn bytes(memory: &HostMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

/// Two KV cache groups, one with two layers of different page sizes in one storage, one with a single layer whose stride
/// is larger than its page.
fn groups() -> Vec<ObjectGroupPages> {
    vec![ObjectGroupPages {
        group: 3,
        kv_groups: vec![
            KvGroupPages {
                tokens_per_block: 4,
                layers: vec![layer(0, 0, 50, 17), layer(0, 17, 50, 33)],
            },
            KvGroupPages {
                tokens_per_block: 8,
                layers: vec![layer(1, 5, 70, 61)],
            },
        ],
    }]
}

const BLOCKS: u64 = 10;

fn memory(salt: u8) -> KvMemory {
    let regions = vec![filled(500, salt), filled(5 + 9 * 70 + 61, salt)];
    KvMemory::new(regions, groups(), BLOCKS).unwrap()
}

fn extents() -> Vec<Extent> {
    vec![Extent { frame: 7, count: 1 }, Extent { frame: 2, count: 3 }]
}

/// What an object of 16 tokens with these blocks must look like, byte by byte, from the words of docs/shm-layout.md.
fn expected(memory: &KvMemory, first: &[i64], second: &[i64]) -> Vec<u8> {
    let (a, b) = (bytes(&memory.regions()[0]), bytes(&memory.regions()[1]));
    let mut object = Vec::new();
    for &block in first {
        let at = block as usize * 50;
        object.extend(if block == 0 {
            vec![0; 50]
        } else {
            a[at..at + 50].to_vec()
        });
    }
    for &block in second {
        let at = 5 + block as usize * 70;
        object.extend(if block == 0 {
            vec![0; 61]
        } else {
            b[at..at + 61].to_vec()
        });
    }
    object
}

fn pool_bytes(pool: &HostMemory, extents: &[Extent], len: usize) -> Vec<u8> {
    let all = bytes(pool);
    let frames = extents
        .iter()
        .flat_map(|extent| extent.frame..extent.frame + extent.count);
    let run = frames.flat_map(|frame| {
        let at = (u64::from(frame) * FRAME) as usize;
        all[at..at + FRAME as usize].to_vec()
    });
    run.take(len).collect()
}

#[test]
fn gather_puts_group_after_group_block_after_block_and_zeroes_for_null() {
    let (memory, pool) = (memory(0x5a), [filled(1000, 0xff)]);
    let object = memory.group(3).unwrap();
    let lists = [vec![9, 0, 1, 4], vec![8, 2]];
    memory
        .check_blocks(0, object, Holding::Tokens(16), &lists, false)
        .unwrap();
    assert_eq!(object.part_bytes(Holding::Tokens(16)), Some(4 * 50 + 2 * 61));
    let (mut plan, extents) = (SummedPlan::new(), extents());
    memory.gather(&mut plan, object, &lists, &mut ExtentCursor::new(&extents, FRAME));
    let unsummed = plan.unsummed().bytes();
    assert_eq!(unsummed, 322, "the null block's zeroes are copied too");
    assert_eq!(object.held_from(&lists), 8, "the second block is null");
    let sums = CopyEngine::detect()
        .execute_summed(&plan, memory.regions(), &pool)
        .unwrap();
    let stored = pool_bytes(&pool[0], &extents, 322);
    assert_eq!(stored, expected(&memory, &lists[0], &lists[1]));
    assert_eq!(sums, [checksum(&stored)]);
    assert_eq!(
        bytes(&pool[0])[422..500],
        bytes(&filled(1000, 0xff))[422..500],
        "behind the last byte"
    );
}

#[test]
fn scatter_writes_named_blocks_only() {
    let from = memory(0x11);
    let lists = [vec![1, 2, 3, 4], vec![5, 6]];
    let extents = [Extent { frame: 1, count: 1 }, Extent { frame: 5, count: 3 }];
    let pool = [filled(1000, 0)];
    let object = from.group(3).unwrap();
    let mut plan = SummedPlan::new();
    from.gather(&mut plan, object, &lists, &mut ExtentCursor::new(&extents, FRAME));
    let stored = CopyEngine::detect()
        .execute_summed(&plan, from.regions(), &pool)
        .unwrap();

    let to = memory(0xee);
    let before = (bytes(&to.regions()[0]), bytes(&to.regions()[1]));
    // The first group only its front and not its first block, the second one only its last.
    let wanted = [vec![0, 7], vec![0, 9]];
    to.check_blocks(0, object, Holding::Tokens(16), &wanted, true)
        .unwrap();
    // Holes of 4 tokens are the first block of the first group, and half of the first block of the second.
    for (held_from, avoids) in [(0, true), (4, true), (7, true), (8, false), (16, false)] {
        assert_eq!(object.avoids_holes(&wanted, held_from), avoids, "{held_from}");
    }
    let mut plan = SummedPlan::new();
    let mut cursor = ExtentCursor::new(&extents, FRAME);
    to.scatter(&mut plan, object, Holding::Tokens(16), &wanted, &mut cursor);
    let engine = CopyEngine::detect();
    let loaded = engine.execute_summed(&plan, &pool, to.regions()).unwrap();
    assert_eq!(loaded, stored, "what is not wanted is summed all the same");

    let source = (bytes(&from.regions()[0]), bytes(&from.regions()[1]));
    let mut after = before;
    after.0[350..400].copy_from_slice(&source.0[100..150]); // block 7 gets block 2
    after.1[635..696].copy_from_slice(&source.1[425..486]); // block 9 gets block 6
    assert_eq!(bytes(&to.regions()[0]), after.0);
    assert_eq!(bytes(&to.regions()[1]), after.1);
}

#[test]
fn states_are_one_block_whatever_the_tokens() {
    let memory = memory(0);
    let object = memory.group(3).unwrap();
    assert_eq!(object.part_bytes(Holding::State), Some(111));
    memory
        .check_blocks(0, object, Holding::State, &[vec![1], vec![2]], false)
        .unwrap();
    let error = memory.check_blocks(0, object, Holding::State, &[vec![1, 2], vec![2]], false);
    assert!(
        matches!(
            error,
            Err(ClientError::BlockCount {
                given: 2,
                expected: 1,
                ..
            })
        ),
        "{error:?}"
    );
}

#[test]
fn block_ids_are_checked_before_anything_moves() {
    let memory = memory(0);
    let object = memory.group(3).unwrap();
    let check =
        |lists: [Vec<i64>; 2], fronts| memory.check_blocks(4, object, Holding::Tokens(8), &lists, fronts);
    for id in [-1, 10, i64::MAX, i64::MIN] {
        let error = check([vec![1, id], vec![1]], false).unwrap_err();
        assert!(
            matches!(error, ClientError::BlockOutOfRange { item: 4, id: found, blocks: 10 } if found == id),
            "{error:?}"
        );
    }
    check([vec![1, 9], vec![1]], false).unwrap();
    let short = check([vec![1], vec![1]], false).unwrap_err();
    assert!(
        matches!(
            short,
            ClientError::BlockCount {
                kv_group: 0,
                given: 1,
                expected: 2,
                tokens: 8,
                ..
            }
        ),
        "{short:?}"
    );
    check([vec![1], vec![]], true).unwrap();
    let long = check([vec![1, 2, 3], vec![]], true).unwrap_err();
    assert!(
        matches!(long, ClientError::BlockCount { given: 3, .. }),
        "{long:?}"
    );
    let lists = memory
        .check_blocks(0, object, Holding::Tokens(8), &[vec![1, 2]], true)
        .unwrap_err();
    assert!(matches!(lists, ClientError::InvalidArgument { .. }), "{lists:?}");
    let partial = memory.check_blocks(0, object, Holding::Tokens(12), &[vec![1, 2, 3], vec![1]], true);
    assert!(
        matches!(partial, Err(ClientError::BlockCount { kv_group: 1, .. })),
        "12 tokens are 1.5 blocks: {partial:?}"
    );
}

#[test]
fn layouts_that_do_not_lie_in_memory_are_refused() {
    let one = |pages: LayerPages, tokens_per_block, blocks| {
        let groups = vec![ObjectGroupPages {
            group: 0,
            kv_groups: vec![KvGroupPages {
                tokens_per_block,
                layers: vec![pages],
            }],
        }];
        KvMemory::new(vec![HostMemory::zeroed(1000)], groups, blocks).map(drop)
    };
    one(layer(0, 0, 100, 100), 1, 10).unwrap();
    one(layer(0, 0, 0, 1000), 1, 1).unwrap();
    for (pages, tokens_per_block, blocks) in [
        (layer(1, 0, 100, 100), 1, 10),       // no such region
        (layer(0, 1, 100, 100), 1, 10),       // the last byte outside
        (layer(0, 0, 100, 100), 1, 11),       // a block too many
        (layer(0, 0, 99, 100), 1, 2),         // blocks overlap
        (layer(0, 0, 100, 0), 1, 10),         // no bytes
        (layer(0, 0, 100, 100), 0, 10),       // a scratch group
        (layer(0, 0, 100, 100), 1, 0),        // no blocks
        (layer(0, 0, 100, 100), 1, u64::MAX), // overflow
        (layer(0, u64::MAX, 100, 100), 1, 2), // overflow
        (layer(0, 0, u64::MAX, 100), 1, 3),   // overflow
    ] {
        let error = one(pages, tokens_per_block, blocks);
        assert!(
            matches!(error, Err(ClientError::InvalidLayout { .. })),
            "{pages:?} {blocks}: {error:?}"
        );
    }
    let empty = ObjectGroupPages {
        group: 0,
        kv_groups: vec![],
    };
    assert!(KvMemory::new(vec![], vec![empty], 1).is_err());
    let twice = KvMemory::new(
        vec![filled(500, 0), filled(900, 0)],
        [groups(), groups()].concat(),
        10,
    );
    assert!(matches!(twice, Err(ClientError::InvalidLayout { .. })));
}

#[test]
fn layers_of_one_group_may_not_share_bytes_and_groups_may() {
    let group = |layers: &[LayerPages]| KvGroupPages {
        tokens_per_block: 1,
        layers: layers.to_vec(),
    };
    let memory = |kv_groups: Vec<KvGroupPages>| {
        let object = ObjectGroupPages { group: 7, kv_groups };
        KvMemory::new(vec![HostMemory::zeroed(1000)], vec![object], 5).map(drop)
    };
    let (one, two) = (layer(0, 0, 200, 100), layer(0, 100, 200, 100));
    memory(vec![group(&[one, two])]).unwrap();
    memory(vec![group(&[one]), group(&[one])]).unwrap();
    let error = memory(vec![group(&[two]), group(&[one, layer(0, 99, 200, 100)])]).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("KV cache group 1, layer 0") && text.contains("KV cache group 1, layer 1"),
        "{text}"
    );
}
