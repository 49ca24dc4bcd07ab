//! Copies between host and device memory, on the stand-in for `libcuda.so.1`: bytes, calls, order, and faults.

#![allow(unsafe_code)]

mod device_support;

use std::time::Duration;

use cudarc::driver::sys;
use device_support::*;
use kvasir::copy::{CopyError, CopyPlan, HostMemory, Span};
use kvasir::device::*;

/// A page table of an engine: `layers` regions of pages, with the blocks of a request in some order.
struct Layout {
    layers: u64,
    blocks: u64,
    page: u64,
    /// Whether a block's layers lie side by side, or a layer's blocks.
    block_outermost: bool,
}

impl Layout {
    fn at(&self, layer: u64, block: u64) -> u64 {
        let index = match self.block_outermost {
            true => block * self.layers + layer,
            false => layer * self.blocks + block,
        };
        index * self.page
    }

    fn bytes(&self) -> u64 {
        self.layers * self.blocks * self.page
    }

    /// A store of blocks into one object, block by block.
    fn gather(&self, blocks: &[u64]) -> CopyPlan {
        let mut plan = CopyPlan::new();
        for (place, &block) in blocks.iter().enumerate() {
            for layer in 0..self.layers {
                let to = (place as u64 * self.layers + layer) * self.page;
                plan.push(Span::new(0, self.at(layer, block)), Span::new(0, to), self.page);
            }
        }
        plan
    }
}

fn reversed(plan: &CopyPlan) -> CopyPlan {
    let mut found = CopyPlan::new();
    for piece in plan.pieces() {
        found.push(piece.dst, piece.src, piece.len);
    }
    found
}

/// What a plan does, byte by byte.
fn by_hand(plan: &CopyPlan, src: &[u8], dst: &mut [u8]) {
    for piece in plan.pieces() {
        let (from, to, len) = (
            piece.src.offset as usize,
            piece.dst.offset as usize,
            piece.len as usize,
        );
        dst[to..to + len].copy_from_slice(&src[from..from + len]);
    }
}

/// Stores and loads pieces of one size through device memory, and gives the engine's counts.
fn there_and_back(page: u64, block_outermost: bool) -> CopyCounts {
    let (driver, context) = context();
    let layout = Layout {
        layers: 4,
        blocks: 40,
        page,
        block_outermost,
    };
    let engine = DeviceCopyEngine::new(driver, &context);
    let device = DeviceMemory::allocate(&context, layout.bytes()).unwrap();
    let cache = pattern(page, layout.bytes() as usize);
    write(&engine, &device, 0, &cache);
    let blocks = [7, 3, 12, 13, 39, 1];
    let bytes = blocks.len() * (layout.layers * page) as usize;
    let pool = pinned(&context, bytes);
    let stream = Stream::new(&context).unwrap();
    let before = (count(0), count(1));

    let store = layout.gather(&blocks);
    let copying = engine
        .submit(&store, &[&device], &[&pool], &stream, SourceOrder::Stream)
        .unwrap();
    assert!(copying.wait(LONG).unwrap());
    let mut expected = vec![0; bytes];
    by_hand(&store, &cache, &mut expected);
    assert!(contents(pool.host()) == expected, "store of pieces of {page}");

    // Into a cache with other bytes, which stay where the plan writes none.
    let old = pattern(page + 1, layout.bytes() as usize);
    write(&engine, &device, 0, &old);
    let load = reversed(&store);
    let copying = engine
        .submit(&load, &[&pool], &[&device], &stream, SourceOrder::Any)
        .unwrap();
    assert!(copying.wait(LONG).unwrap());
    let mut wanted = old;
    by_hand(&load, &expected, &mut wanted);
    assert!(
        read(&engine, &device, 0, wanted.len()) == wanted,
        "load of pieces of {page}"
    );

    // The engine's own counts are those of the driver, but for the first `write`.
    let after = engine.counts();
    assert_eq!(after.batched_calls + after.plain_calls, count(0) - before.0 + 1);
    assert_eq!(after.descriptors, count(1) - before.1 + 1);
    // Without those of `write`, twice, and of `read`.
    CopyCounts {
        plain_calls: after.plain_calls - 3,
        descriptors: after.descriptors - 3,
        ..after
    }
}

#[test]
fn pieces_of_any_size_take_one_call_for_a_direction() {
    passes("pieces_of_any_size_take_one_call_for_a_direction", &[], || {
        for page in [1, 17, 656, 4097] {
            for block_outermost in [false, true] {
                let counts = there_and_back(page, block_outermost);
                assert_eq!(
                    (counts.batched_calls, counts.plain_calls),
                    (2, 0),
                    "{page} {block_outermost}"
                );
                // Blocks 12 and 13 follow each other, which the block-outermost layout alone can use.
                let descriptors = if block_outermost { 2 * 5 } else { 2 * 24 };
                assert_eq!(counts.descriptors, descriptors, "{page} {block_outermost}");
            }
        }
    });
}

/// Pieces of any size, in any order, whose destinations do not touch each other.
fn random(seed: u64, bytes: u64) -> CopyPlan {
    let numbers = pattern(seed, 4096);
    let mut words = numbers
        .chunks_exact(4)
        .map(|word| u64::from(u32::from_le_bytes(word.try_into().unwrap())));
    let mut next = |below: u64| words.next().unwrap() % below;
    let mut pieces = Vec::new();
    let mut at = next(5000);
    while at < bytes && pieces.len() < 200 {
        let size = [1, 17, 656, 4097, 70_000, 700_000][next(6) as usize];
        let len = size.min(bytes - at);
        // Often what follows the piece before on the source's side too.
        let follows = pieces
            .last()
            .map_or(0, |&(src, _, len): &(u64, u64, u64)| src + len);
        let src = if next(2) == 0 && follows + len <= bytes {
            follows
        } else {
            next(bytes - len + 1)
        };
        pieces.push((src, at, len));
        at += len + if next(2) == 0 { 0 } else { next(9000) };
    }
    let turned = next(pieces.len() as u64) as usize;
    pieces.rotate_left(turned);
    let mut plan = CopyPlan::new();
    for (src, dst, len) in pieces {
        plan.push(Span::new(0, src), Span::new(0, dst), len);
    }
    plan
}

#[test]
fn any_plan_moves_its_bytes_and_no_others() {
    passes("any_plan_moves_its_bytes_and_no_others", &[], || {
        let (driver, context) = context();
        let engine = DeviceCopyEngine::with_crossovers(driver, &context, Crossovers::both(50_000));
        // Over the end of an allocation, and of several registrations.
        let bytes = 1_200_000;
        let range = Virtual::new(&[GRANULE, GRANULE], true);
        let cache = range.memory(&context, GRANULE - 500_000, bytes);
        let host = HostMemory::zeroed(bytes as usize);
        let pool = PinnedMemory::register(&context, host, 256 << 10).unwrap();
        let stream = Stream::new(&context).unwrap();
        for seed in 0..8 {
            let (old, new) = (pattern(seed, bytes as usize), pattern(100 + seed, bytes as usize));
            let plan = random(seed, bytes);
            let (src, dst): (&dyn PlanMemory, &dyn PlanMemory) = if seed % 2 == 0 {
                (&cache, &pool)
            } else {
                (&pool, &cache)
            };
            write(&engine, src, 0, &new);
            write(&engine, dst, 0, &old);
            let copying = engine
                .submit(&plan, &[src], &[dst], &stream, SourceOrder::Stream)
                .unwrap();
            assert!(copying.wait(LONG).unwrap());
            let mut expected = old;
            by_hand(&plan, &new, &mut expected);
            assert!(read(&engine, dst, 0, bytes as usize) == expected, "plan {seed}");
        }
        // Both ways of submitting were taken.
        let counts = engine.counts();
        assert!(counts.batched_calls > 0 && counts.plain_calls > 0, "{counts:?}");
    });
}

#[test]
fn a_driver_without_batches_moves_the_same_bytes() {
    passes(
        "a_driver_without_batches_moves_the_same_bytes",
        &[("SOFTCUDA_VERSION", "12020")],
        || {
            assert!(!Driver::load().unwrap().has_batched_copies());
            let counts = there_and_back(656, true);
            assert_eq!((counts.batched_calls, counts.plain_calls), (0, 10));
        },
    );
}

/// 32 layers, pages of 16 tokens with 8 KV heads of 128 numbers in 16 bits: 8B models have such caches.
#[test]
fn merged_pieces_of_a_real_layout_are_few() {
    passes("merged_pieces_of_a_real_layout_are_few", &[], || {
        let (driver, context) = context();
        let descriptors = |page: u64, block_outermost, blocks: &[u64]| {
            let layout = Layout {
                layers: 32,
                blocks: 20,
                page,
                block_outermost,
            };
            let engine = DeviceCopyEngine::new(driver, &context);
            let device = DeviceMemory::allocate(&context, layout.bytes()).unwrap();
            let pool = pinned(&context, blocks.len() * 32 * page as usize);
            let stream = Stream::new(&context).unwrap();
            let plan = layout.gather(blocks);
            let copying = engine
                .submit(&plan, &[&device], &[&pool], &stream, SourceOrder::Stream)
                .unwrap();
            assert!(copying.wait(LONG).unwrap());
            let counts = engine.counts();
            (counts.batched_calls, counts.plain_calls, counts.descriptors)
        };
        let scattered: Vec<u64> = (0..16).map(|place| (place * 7) % 20).collect();
        let row: Vec<u64> = (2..18).collect();
        // Key and value pages of 32 KiB each: a chunk of 256 tokens is 16 blocks of 32 layers of 64 KiB.
        let page = 64 << 10;
        assert_eq!(descriptors(page, true, &row), (0, 1, 1));
        assert_eq!(descriptors(page, true, &scattered), (0, 16, 16));
        assert_eq!(descriptors(page, false, &row), (1, 0, 512));
        assert_eq!(descriptors(page, false, &scattered), (1, 0, 512));
        // Pages of 2 KiB: a block of all layers is small enough for a batch.
        assert_eq!(descriptors(2 << 10, true, &scattered), (1, 0, 16));
    });
}

#[test]
fn large_pieces_have_calls_of_their_own_beside_the_batch() {
    passes(
        "large_pieces_have_calls_of_their_own_beside_the_batch",
        &[],
        || {
            let (driver, context) = context();
            let engine = DeviceCopyEngine::with_crossovers(driver, &context, Crossovers::both(4096));
            let (device, host) = (
                DeviceMemory::allocate(&context, 1 << 16).unwrap(),
                pinned(&context, 1 << 16),
            );
            let bytes = pattern(5, 1 << 16);
            host.host().write(0, &bytes).unwrap();
            let stream = Stream::new(&context).unwrap();
            let mut plan = CopyPlan::new();
            for (src, dst, len) in [
                (0, 100, 4095),
                (8192, 20000, 4096),
                (30000, 9000, 17),
                (40000, 50000, 9000),
            ] {
                plan.push(Span::new(0, src), Span::new(0, dst), len);
            }
            let copying = engine
                .submit(&plan, &[&host], &[&device], &stream, SourceOrder::Any)
                .unwrap();
            assert!(copying.wait(LONG).unwrap());
            let counts = engine.counts();
            assert_eq!(
                (counts.batched_calls, counts.plain_calls, counts.descriptors),
                (1, 2, 4)
            );
            assert_eq!(
                (counts.pieces, counts.bytes, counts.pageable_bytes),
                (4, 4095 + 4096 + 17 + 9000, 0)
            );
            let mut expected = vec![0; 1 << 16];
            by_hand(&plan, &bytes, &mut expected);
            assert!(read(&engine, &device, 0, 1 << 16) == expected);
        },
    );
}

#[test]
fn a_piece_over_the_end_of_a_registration_is_cut_there() {
    passes("a_piece_over_the_end_of_a_registration_is_cut_there", &[], || {
        let (driver, context) = context();
        let engine = DeviceCopyEngine::new(driver, &context);
        let host = PinnedMemory::register(&context, HostMemory::zeroed(4 * 4096), 4096).unwrap();
        let device = DeviceMemory::allocate(&context, 4 * 4096).unwrap();
        let bytes = pattern(6, 4 * 4096);
        host.host().write(0, &bytes).unwrap();
        let stream = Stream::new(&context).unwrap();
        let plan = whole(1000, 0, 10_000);
        let copying = engine
            .submit(&plan, &[&host], &[&device], &stream, SourceOrder::Any)
            .unwrap();
        assert!(copying.wait(LONG).unwrap());
        assert_eq!(engine.counts().descriptors, 3);
        assert!(read(&engine, &device, 0, 10_000) == bytes[1000..11_000]);
    });
}

/// Work that fills `memory` when `gate` is opened: what a model's kernels are for a store.
fn compute(stream: u64, memory: &DeviceMemory, gate: &DeviceMemory, context: &Context, value: u8) -> Stream {
    // SAFETY: the stream was made by this test and is not destroyed; the addresses are of live memory.
    unsafe {
        let raw = stream as sys::CUstream;
        good(sys::cuStreamWaitValue32_v2(raw, gate.address(), 1, 1));
        good(sys::cuMemsetD8Async(
            memory.address(),
            value,
            memory.bytes() as usize,
            raw,
        ));
        Stream::of_engine(context, stream).unwrap()
    }
}

/// A stream as an engine has it: a handle, of the context of the first device.
fn engine_stream() -> u64 {
    let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: pointers are to live values of the calls' types. The process ends with the test.
    unsafe {
        good(sys::cuDevicePrimaryCtxRetain(&mut context, 0));
        good(sys::cuCtxSetCurrent(context));
        good(sys::cuStreamCreate(&mut stream, 1));
    }
    stream as u64
}

#[test]
fn a_store_finds_what_the_stream_computes_before_it() {
    passes("a_store_finds_what_the_stream_computes_before_it", &[], || {
        let (driver, context) = context();
        let engine = DeviceCopyEngine::new(driver, &context);
        let raw = engine_stream();
        let (cache, gate) = (
            DeviceMemory::allocate(&context, 8192),
            DeviceMemory::allocate(&context, 4),
        );
        let (cache, gate) = (cache.unwrap(), gate.unwrap());
        write(&engine, &cache, 0, &pattern(7, 8192));
        write(&engine, &gate, 0, &[0; 4]);
        let pool = pinned(&context, 8192);
        let stream = compute(raw, &cache, &gate, &context, 0xAB);
        let mut plan = whole(0, 4096, 1000);
        plan.push(Span::new(0, 5000), Span::new(0, 0), 1000);
        let store = engine
            .submit(&plan, &[&cache], &[&pool], &stream, SourceOrder::Stream)
            .unwrap();
        assert_eq!(engine.counts().batched_calls, 1);
        assert!(!store.wait(Duration::from_millis(20)).unwrap());
        write(&engine, &gate, 0, &1u32.to_le_bytes());
        assert!(store.wait(LONG).unwrap());
        let found = contents(pool.host());
        assert!(found[..1000] == [0xAB; 1000] && found[4096..5096] == [0xAB; 1000]);
    });
}

#[test]
fn a_load_is_there_for_the_stream_that_waits_for_it() {
    passes("a_load_is_there_for_the_stream_that_waits_for_it", &[], || {
        let (driver, context) = context();
        let engine = DeviceCopyEngine::new(driver, &context);
        let (copies, computes) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
        let (cache, pool, out) = (
            DeviceMemory::allocate(&context, 4096).unwrap(),
            pinned(&context, 4096),
            pinned(&context, 4096),
        );
        pool.host().write(0, &pattern(8, 4096)).unwrap();
        let gate = Gate::new(&context);
        gate.hold(&copies);
        let load = engine
            .submit(&whole(0, 0, 4096), &[&pool], &[&cache], &copies, SourceOrder::Any)
            .unwrap();
        assert!(!load.is_done().unwrap());
        load.before(&computes).unwrap();
        let used = engine
            .submit(
                &whole(0, 0, 4096),
                &[&cache],
                &[&out],
                &computes,
                SourceOrder::Stream,
            )
            .unwrap();
        assert!(!used.wait(Duration::from_millis(20)).unwrap());
        gate.open();
        assert!(used.wait(LONG).unwrap());
        assert!(contents(out.host()) == pattern(8, 4096));
    });
}

#[test]
fn a_plan_is_checked_before_anything_is_submitted() {
    passes(
        "a_plan_is_checked_before_anything_is_submitted",
        &[("SOFTCUDA_DEVICES", "2")],
        || {
            let ((driver, first), (_, second)) = (context_on(0), context_on(1));
            let engine = DeviceCopyEngine::new(driver, &first);
            let (own, other) = (Stream::new(&first).unwrap(), Stream::new(&second).unwrap());
            let (here, there) = (
                DeviceMemory::allocate(&first, 64).unwrap(),
                DeviceMemory::allocate(&second, 64).unwrap(),
            );
            let host = pinned(&first, 4096);
            let submit = |plan: &CopyPlan, device: &DeviceMemory, stream: &Stream| {
                engine
                    .submit(plan, &[&host], &[device], stream, SourceOrder::Any)
                    .map(drop)
                    .unwrap_err()
            };
            let error = submit(&whole(0, 60, 5), &here, &own);
            assert!(
                matches!(
                    error,
                    DeviceError::Plan(CopyError::OutOfBounds {
                        offset: 60,
                        len: 5,
                        ..
                    })
                ),
                "{error}"
            );
            for error in [
                submit(&whole(0, 0, 8), &there, &own),
                submit(&whole(0, 0, 8), &here, &other),
            ] {
                assert!(matches!(&error, DeviceError::OtherDevice { .. }), "{error}");
                assert!(
                    error.to_string().contains(&first.device().uuid.to_string()),
                    "{error}"
                );
            }
            let twice = engine
                .submit(&whole(0, 8, 16), &[&here], &[&here], &own, SourceOrder::Any)
                .unwrap_err();
            assert_eq!(twice, DeviceError::Plan(CopyError::Overlap { read: 0, write: 0 }));
            assert_eq!(
                (count(0), engine.counts(), engine.quarantined_bytes()),
                (0, CopyCounts::default(), 0)
            );
        },
    );
}

#[test]
fn a_stream_of_another_device_is_no_stream_of_this_one() {
    passes(
        "a_stream_of_another_device_is_no_stream_of_this_one",
        &[("SOFTCUDA_DEVICES", "2")],
        || {
            let (_, second) = context_on(1);
            let raw = engine_stream();
            // SAFETY: the handle is a live stream's.
            let error = unsafe { Stream::of_engine(&second, raw) }.unwrap_err();
            assert!(matches!(error, DeviceError::OtherDevice { .. }), "{error}");
        },
    );
}

#[test]
fn pageable_memory_works_and_is_counted() {
    passes("pageable_memory_works_and_is_counted", &[], || {
        let (driver, context) = context();
        let engine = DeviceCopyEngine::new(driver, &context);
        let stream = Stream::new(&context).unwrap();
        let (device, host) = (
            DeviceMemory::allocate(&context, 64).unwrap(),
            HostMemory::zeroed(64),
        );
        host.write(0, &pattern(10, 64)).unwrap();
        let mut plan = whole(0, 32, 16);
        plan.push(Span::new(0, 32), Span::new(0, 0), 16);
        assert!(
            engine
                .submit(&plan, &[&host], &[&device], &stream, SourceOrder::Any)
                .unwrap()
                .wait(LONG)
                .unwrap()
        );
        let counts = engine.counts();
        assert_eq!(
            (counts.batched_calls, counts.plain_calls, counts.pageable_bytes),
            (0, 2, 32)
        );
        let mut expected = vec![0; 64];
        by_hand(&plan, &pattern(10, 64), &mut expected);
        assert!(read(&engine, &device, 0, 64) == expected);
    });
}

#[test]
fn the_legacy_default_stream_takes_plain_copies() {
    passes("the_legacy_default_stream_takes_plain_copies", &[], || {
        let (driver, context) = context();
        let engine = DeviceCopyEngine::new(driver, &context);
        // SAFETY: 0 is the legacy default stream.
        let stream = unsafe { Stream::of_engine(&context, 0) }.unwrap();
        let (device, host) = (
            DeviceMemory::allocate(&context, 64).unwrap(),
            pinned(&context, 4096),
        );
        let mut plan = whole(0, 32, 16);
        plan.push(Span::new(0, 32), Span::new(0, 0), 16);
        assert!(
            engine
                .submit(&plan, &[&host], &[&device], &stream, SourceOrder::Any)
                .unwrap()
                .wait(LONG)
                .unwrap()
        );
        assert_eq!(
            (engine.counts().batched_calls, engine.counts().plain_calls),
            (0, 2)
        );
    });
}
