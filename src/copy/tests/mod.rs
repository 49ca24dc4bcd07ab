//! Both paths against a naive copy, byte for byte, with untouched surroundings.

use std::sync::Arc;

use super::*;
use proptest::prelude::*;

fn engines() -> Vec<CopyEngine> {
    CopyEngine::all()
}

/// Bytes that differ from their neighbours at any small distance.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(0x9e37_79b1) >> 13) as u8 ^ seed)
        .collect()
}

fn region(bytes: &[u8]) -> HostMemory {
    let memory = HostMemory::zeroed(bytes.len());
    memory.write(0, bytes).unwrap();
    memory
}

fn contents(memory: &HostMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

fn plan(pieces: &[(u16, u64, u16, u64, u64)]) -> CopyPlan {
    let mut plan = CopyPlan::new();
    for &(src, from, dst, to, len) in pieces {
        plan.push(Span::new(src, from), Span::new(dst, to), len);
    }
    plan
}

/// Parts of any pieces, some of them for nobody, through every engine: the sums are those of the bytes in order, the copy
/// is that of the plan without sums.
#[test]
fn summed_copies_are_copies_with_the_sums_of_their_parts() {
    let mut runner = proptest::test_runner::TestRunner::default();
    let piece = (0..60_000u64, any::<bool>());
    let parts = proptest::collection::vec(proptest::collection::vec(piece, 0..6), 1..4);
    runner
        .run(&parts, |parts| {
            let bytes: u64 = parts.iter().flatten().map(|(len, _)| len + 3).sum();
            let source = pattern(bytes as usize, 1);
            let (mut plan, mut at, mut sums) = (SummedPlan::new(), 0, Vec::new());
            for part in &parts {
                let mut whole = Vec::new();
                for &(len, wanted) in part {
                    let here = at as usize;
                    whole.extend_from_slice(&source[here..here + len as usize]);
                    plan.push(Span::new(0, at), wanted.then_some(Span::new(0, at + 1)), len);
                    at += len + 3;
                }
                plan.end_part();
                let mut sum = Checksum::new();
                sum.update(&whole);
                sums.push(sum.value());
            }
            let src = [region(&source).read_only()];
            for engine in engines() {
                let before = pattern(bytes as usize + 1, 2);
                let (summed, plain) = ([region(&before)], [region(&before)]);
                prop_assert_eq!(engine.execute_summed(&plan, &src, &summed), Ok(sums.clone()));
                engine.execute(&plan.unsummed(), &src, &plain).unwrap();
                prop_assert!(contents(&summed[0]) == contents(&plain[0]));
            }
            Ok(())
        })
        .unwrap();
}

/// Pieces of one size, gathered from all over the source as pages are, on every path and to every alignment: the sizes that
/// real layouts have, the odd ones among them.
#[test]
fn pieces_of_every_size_are_summed_and_copied_exactly() {
    for size in [1, 17, 63, 64, 65, 240, 241, 656, 1024, 4096, 4097, 16384] {
        for (count, shift) in [(1, 0), (7, 0), (40, 0), (9, 1), (40, 32)] {
            let source = pattern(size * count, size as u8);
            let mut plan = SummedPlan::new();
            let mut want = pattern(size * count + shift, 7);
            for index in 0..count {
                let (from, to) = (index * 7 % count * size, index * size + shift);
                plan.push(
                    Span::new(0, from as u64),
                    Some(Span::new(0, to as u64)),
                    size as u64,
                );
                want[to..to + size].copy_from_slice(&source[from..from + size]);
            }
            plan.end_part();
            let mut sum = Checksum::new();
            sum.update(&want[shift..]);
            for engine in engines() {
                let (src, dst) = ([region(&source)], [region(&pattern(size * count + shift, 7))]);
                let sums = engine.execute_summed(&plan, &src, &dst);
                assert_eq!(sums, Ok(vec![sum.value()]), "{count} pieces of {size} bytes");
                assert!(contents(&dst[0]) == want, "{count} pieces of {size} bytes");
            }
        }
    }
}

#[test]
fn pieces_that_continue_each_other_are_one_within_a_part() {
    let (mut one, mut two) = (SummedPlan::new(), SummedPlan::new());
    let at = |offset| Span::new(0, offset);
    two.push(at(0), Some(at(10)), 5);
    two.push(at(5), Some(at(15)), 5);
    one.push(at(0), Some(at(10)), 10);
    for plan in [&mut one, &mut two] {
        plan.end_part();
        plan.push(at(10), Some(at(20)), 1);
        plan.end_part();
    }
    assert_eq!(one, two);
    let pieces = |dst: Option<Span>| {
        let mut plan = SummedPlan::new();
        plan.push(at(0), Some(at(10)), 5);
        plan.push(at(5), dst, 5);
        plan.end_part();
        plan.pieces.len()
    };
    assert_eq!(
        [pieces(Some(at(16))), pieces(None), pieces(Some(at(15)))],
        [2, 2, 1]
    );
}

#[test]
fn a_summed_copy_that_leaves_its_regions_moves_nothing() {
    let (src, dst) = ([region(&pattern(100, 1))], [region(&pattern(100, 2))]);
    let bad = |from: u64, to: Option<u64>, len| {
        let mut plan = SummedPlan::new();
        plan.push(Span::new(0, 0), Some(Span::new(0, 0)), 10);
        plan.push(Span::new(0, from), to.map(|to| Span::new(0, to)), len);
        plan.end_part();
        plan
    };
    for plan in [bad(91, None, 10), bad(0, Some(91), 10), bad(u64::MAX, None, 2)] {
        let error = CopyEngine::detect()
            .execute_summed(&plan, &src, &dst)
            .unwrap_err();
        assert!(
            matches!(error, CopyError::OutOfBounds { piece: 1, .. }),
            "{error}"
        );
        assert_eq!(contents(&dst[0]), pattern(100, 2));
    }
}

#[test]
fn a_summed_copy_of_bytes_that_it_also_writes_is_refused_as_any_other() {
    let memory = [region(&pattern(100, 1))];
    let mut plan = SummedPlan::new();
    plan.push(Span::new(0, 0), Some(Span::new(0, 5)), 10);
    plan.end_part();
    let engine = CopyEngine::detect();
    let error = engine.execute_summed(&plan, &memory, &memory).unwrap_err();
    assert_eq!(error, CopyError::Overlap { read: 0, write: 0 });
    assert_eq!(engine.execute(&plan.unsummed(), &memory, &memory), Err(error));
}

/// Executes `plan` on every path and compares whole regions with a copy by slices.
fn check_against_naive(plan: &CopyPlan, src: &[Vec<u8>], dst: &[Vec<u8>]) {
    let mut want = dst.to_vec();
    for piece in plan.pieces() {
        let (from, to, len) = (
            piece.src.offset as usize,
            piece.dst.offset as usize,
            piece.len as usize,
        );
        want[usize::from(piece.dst.region)][to..to + len]
            .copy_from_slice(&src[usize::from(piece.src.region)][from..from + len]);
    }
    for engine in engines() {
        let from: Vec<_> = src.iter().map(|bytes| region(bytes).read_only()).collect();
        let to: Vec<_> = dst.iter().map(|bytes| region(bytes)).collect();
        assert_eq!(engine.execute(plan, &from, &to), Ok(plan.bytes()));
        for (index, (got, want)) in to.iter().zip(&want).enumerate() {
            assert!(
                contents(got) == *want,
                "destination region {index} differs on {}",
                engine.path()
            );
        }
        for (got, want) in from.iter().zip(src) {
            assert!(contents(got) == *want, "source changed on {engine:?}");
        }
    }
}

/// Non-overlapping destinations: each piece gets its own stretch, with gaps.
fn laid_out(pieces: &[(usize, usize, usize)], src_len: usize) -> (CopyPlan, usize) {
    let (mut plan, mut end) = (CopyPlan::new(), 0);
    for &(from, gap, len) in pieces {
        let from = from % (src_len - len);
        plan.push(
            Span::new((from % 2) as u16, from as u64),
            Span::new(0, (end + gap) as u64),
            len as u64,
        );
        end += gap + len;
    }
    (plan, end + 100)
}

#[test]
fn every_way_of_this_machine_is_tested() {
    let paths: Vec<String> = engines().iter().map(|engine| engine.path().to_string()).collect();
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && !cfg!(miri) {
        let mut names = vec!["avx2-4x512", "avx2-8x64", "avx2-ahead8", "portable+"];
        names.extend([
            "+avx2-ahead0",
            "+avx2-ahead4",
            "+avx2-ahead8",
            "+avx2-ahead16",
            "+portable",
        ]);
        if std::arch::is_x86_feature_detected!("avx512dq") {
            names.extend([
                "+avx512-ahead0",
                "+avx512-ahead4",
                "+avx512-ahead8",
                "+avx512-ahead16",
            ]);
        }
        for name in names {
            assert!(
                paths.iter().any(|path| path.contains(name)),
                "{name} of {paths:?}"
            );
        }
        return;
    }
    #[cfg(target_arch = "aarch64")]
    if !cfg!(miri) {
        assert!(
            paths.iter().any(|path| path.contains("+neon-ahead8")),
            "{paths:?}"
        );
        return;
    }
    assert_eq!(paths, ["portable"]);
}

/// Copies that are large enough for several threads come out as those of one do, with the sums of one.
#[test]
fn copies_by_several_threads_are_those_of_one() {
    const LEN: usize = (9 << 20) + 4097;
    let source = region(&pattern(LEN, 5));
    for piece in [4097, 16 << 10, 1 << 20] {
        let (mut plan, mut at) = (SummedPlan::new(), 0);
        // Parts of different lengths, none of them a multiple of a leaf, so that shares begin inside parts and pieces.
        for part in [3 << 20, 17, (5 << 20) + 656, LEN] {
            let mut left = part.min(LEN - at as usize);
            while left > 0 {
                let len = left.min(piece);
                plan.push(
                    Span::new(0, at),
                    Some(Span::new(0, at + at / piece as u64)),
                    len as u64,
                );
                (at, left) = (at + len as u64, left - len);
            }
            plan.end_part();
        }
        let target = || [region(&vec![0xee; LEN + LEN / piece + 1])];
        let src = [source.clone()];
        for engine in engines()
            .into_iter()
            .filter(|engine| engine.path().to_string().contains("ahead8"))
        {
            let one = target();
            let sums = engine.execute_summed(&plan, &src, &one).unwrap();
            for threads in [2, 3, 16] {
                let (summed, plain) = (target(), target());
                let engine = engine.with_threads(threads);
                assert_eq!(engine.execute_summed(&plan, &src, &summed).unwrap(), sums);
                engine.execute(&plan.unsummed(), &src, &plain).unwrap();
                assert!(
                    contents(&summed[0]) == contents(&one[0]),
                    "{threads} threads, pieces of {piece}"
                );
                assert!(
                    contents(&plain[0]) == contents(&one[0]),
                    "{threads} threads, pieces of {piece}"
                );
            }
        }
    }
}

#[test]
fn every_row_size_at_every_alignment() {
    let src = vec![pattern(64 << 10, 1), pattern(64 << 10, 2)];
    for len in [
        1usize, 17, 63, 64, 65, 255, 256, 257, 656, 4095, 4096, 4097, 12_345,
    ] {
        for (from, to) in [(0, 0), (1, 0), (0, 1), (31, 33), (63, 64), (64, 63), (7, 4090)] {
            let rows: Vec<_> = (0..3)
                .map(|row| (row % 2, from + row as u64, 0, to, len as u64))
                .collect();
            let mut plan = CopyPlan::new();
            for (row, &(region, from, _, to, len)) in rows.iter().enumerate() {
                plan.push(
                    Span::new(region, from),
                    Span::new(0, to + row as u64 * (len + 3)),
                    len,
                );
            }
            let dst = vec![vec![0xa5; 8192 + 3 * (len + 3)]];
            check_against_naive(&plan, &src, &dst);
        }
    }
}

#[test]
fn many_regions_on_both_sides() {
    let src: Vec<_> = (0..4).map(|i| pattern(20_000, i)).collect();
    let dst: Vec<_> = (0..3).map(|i| vec![i; 30_000]).collect();
    let pieces: Vec<_> = (0..40u64)
        .map(|i| {
            (
                (i % 4) as u16,
                i * 131,
                (i % 3) as u16,
                (i / 3) * 2100 + i % 3,
                700 + i * 31,
            )
        })
        .collect();
    check_against_naive(&plan(&pieces), &src, &dst);
}

#[test]
fn adjacent_pieces_are_joined_and_others_not() {
    let joined = plan(&[
        (0, 0, 0, 100, 10),
        (0, 10, 0, 110, 5),
        (0, 15, 0, 115, 0),
        (0, 15, 0, 115, 1),
    ]);
    assert_eq!(
        joined.pieces(),
        [Piece {
            src: Span::new(0, 0),
            dst: Span::new(0, 100),
            len: 16
        }]
    );
    assert_eq!(joined.bytes(), 16);
    for second in [
        (1, 10, 0, 110, 5),
        (0, 10, 1, 110, 5),
        (0, 11, 0, 110, 5),
        (0, 10, 0, 111, 5),
    ] {
        assert_eq!(
            plan(&[(0, 0, 0, 100, 10), second]).pieces().len(),
            2,
            "{second:?}"
        );
    }
    let huge = plan(&[(0, 0, 0, 0, u64::MAX), (0, u64::MAX, 0, u64::MAX, 1)]);
    assert_eq!((huge.pieces().len(), huge.bytes()), (2, u64::MAX));
}

#[test]
fn an_empty_plan_needs_no_regions() {
    for engine in engines() {
        assert_eq!(engine.execute(&CopyPlan::new(), &[], &[]), Ok(0));
    }
}

#[test]
fn a_bad_piece_is_refused_before_any_byte_moves() {
    let src = [HostMemory::zeroed(100)];
    src[0].write(0, &[1; 100]).unwrap();
    let good = (0, 0, 0, 0, 50);
    let oob = |side, offset, len, region_len| CopyError::OutOfBounds {
        piece: 1,
        side,
        region: 0,
        offset,
        len,
        region_len,
    };
    let unknown = |side, region| CopyError::UnknownRegion {
        piece: 1,
        side,
        region,
        regions: 1,
    };
    let cases = [
        ((0, 51, 0, 60, 50), oob(Side::Source, 51, 50, 100)),
        ((0, u64::MAX, 0, 60, 2), oob(Side::Source, u64::MAX, 2, 100)),
        ((0, 0, 0, 150, 51), oob(Side::Destination, 150, 51, 200)),
        (
            (0, 0, 0, u64::MAX - 1, 3),
            oob(Side::Destination, u64::MAX - 1, 3, 200),
        ),
        ((1, 0, 0, 60, 1), unknown(Side::Source, 1)),
        ((0, 0, u16::MAX, 60, 1), unknown(Side::Destination, u16::MAX)),
    ];
    for engine in engines() {
        for (bad, want) in cases {
            let dst = [HostMemory::zeroed(200)];
            assert_eq!(engine.execute(&plan(&[good, bad]), &src, &dst), Err(want));
            assert_eq!(contents(&dst[0]), [0; 200]);
        }
    }
    assert_eq!(
        oob(Side::Source, 51, 50, 100).to_string(),
        "piece 1 needs 50 bytes at offset 51 of source region 0, which has 100: the plan was built for another \
         geometry"
    );
}

#[test]
fn a_read_only_region_is_no_destination() {
    let src = [HostMemory::zeroed(10)];
    let dst = [HostMemory::zeroed(10).read_only()];
    let want = CopyError::ReadOnly { piece: 0, region: 0 };
    assert_eq!(execute(&plan(&[(0, 0, 0, 0, 1)]), &src, &dst), Err(want));
    assert_eq!(dst[0].write(0, &[1]), Err(want));
    assert_eq!(execute(&plan(&[(0, 0, 0, 0, 1)]), &dst, &src), Ok(1));
}

#[test]
fn bytes_both_read_and_written_are_refused() {
    let memory = [region(&pattern(1000, 0))];
    let before = contents(&memory[0]);
    // Piece 1 writes into what piece 2 reads; a long write hides behind a later short one.
    let bad = plan(&[
        (0, 990, 0, 980, 5),
        (0, 900, 0, 0, 80),
        (0, 70, 0, 700, 20),
        (0, 960, 0, 50, 1),
    ]);
    let refused = execute(&bad, &memory, &memory);
    assert_eq!(refused, Err(CopyError::Overlap { read: 2, write: 1 }));
    for (from, to) in [(0, 0), (0, 9), (9, 0)] {
        let err = execute(&plan(&[(0, from, 0, to, 10)]), &memory, &memory);
        assert_eq!(err, Err(CopyError::Overlap { read: 0, write: 0 }));
    }
    assert_eq!(contents(&memory[0]), before);

    let good = plan(&[(0, 0, 0, 500, 300), (0, 300, 0, 800, 200)]);
    assert_eq!(execute(&good, &memory, &memory), Ok(500));
    let after = contents(&memory[0]);
    assert_eq!(after[500..], before[..500]);
    assert_eq!(after[..500], before[..500]);
}

#[test]
fn a_region_keeps_all_its_owners() {
    let owners = [Arc::new(1), Arc::new(2)];
    let memory = HostMemory::zeroed(5000)
        .keeping(owners[0].clone())
        .keeping(owners[1].clone());
    assert!(owners.iter().all(|owner| Arc::strong_count(owner) == 2));
    memory.write(0, &pattern(5000, 3)).unwrap();
    assert_eq!(contents(&memory), pattern(5000, 3));
    drop(memory);
    assert!(owners.iter().all(|owner| Arc::strong_count(owner) == 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn random_plans_equal_a_naive_copy(
        pieces in proptest::collection::vec((0usize..60_000, 0usize..130, 1usize..9000), 0..30),
    ) {
        let src = vec![pattern(64 << 10, 7), pattern(64 << 10, 9)];
        let (plan, end) = laid_out(&pieces, 64 << 10);
        check_against_naive(&plan, &src, &[vec![0x3c; end]]);
    }

    #[test]
    fn random_small_pieces_equal_a_naive_copy(
        pieces in proptest::collection::vec((0usize..8_000, 0usize..3, 1usize..700), 0..120),
    ) {
        let src = vec![pattern(16 << 10, 7), pattern(16 << 10, 9)];
        let (plan, end) = laid_out(&pieces, 16 << 10);
        check_against_naive(&plan, &src, &[vec![0x3c; end]]);
    }

    #[test]
    fn the_overlap_check_equals_a_check_of_every_pair(
        pieces in proptest::collection::vec((0u64..190, 0u64..190, 1u64..10), 1..8),
    ) {
        let memory = [HostMemory::zeroed(200)];
        let plan = plan(&pieces.iter().map(|p| (0, p.0, 0, p.1, p.2)).collect::<Vec<_>>());
        let hit = |a: u64, a_len, b: u64, b_len| a < b + b_len && b < a + a_len;
        let overlaps = plan.pieces().iter().any(|read| {
            plan.pieces().iter().any(|write| hit(read.src.offset, read.len, write.dst.offset, write.len))
        });
        match plan.check(&memory, &memory) {
            Ok(()) => prop_assert!(!overlaps),
            Err(CopyError::Overlap { read, write }) => {
                let (read, write) = (plan.pieces()[read], plan.pieces()[write]);
                prop_assert!(hit(read.src.offset, read.len, write.dst.offset, write.len));
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

/// Which is of 4 KiB, 16 KiB or 64 KiB. What is registered with a device or mapped begins on one.
#[test]
fn fresh_memory_begins_on_a_page_of_this_machine() {
    for len in [1, 100, 4097, 1 << 16] {
        let memory = HostMemory::zeroed(len);
        assert!(
            memory.address().is_multiple_of(crate::shm::page_size()),
            "{memory:?}"
        );
    }
}
