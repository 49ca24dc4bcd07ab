//! What a store costs besides its copy: page faults of the engine's mapping of the pool.

mod client_support;

use client_support::*;
use kvasir::client::StoreOutcome;

/// Minor faults of this thread.
fn minor_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields = stat.rsplit(')').next().unwrap();
    fields.split_ascii_whitespace().nth(7).unwrap().parse().unwrap()
}

#[test]
fn stores_into_granted_space_take_no_fault_for_each_page() {
    let place = Place::with_server();
    place.wait_prefaulted();
    // 2 layers x 2 KiB rows x 64 tokens = 256 KiB an object, in 1 MiB that is granted.
    let engine = Engine::start(&place, &Shape::plain(2048, 0), 1);
    engine.fill(1);
    let granted = engine.client.reserve(0).unwrap();
    assert_eq!(granted, 1 << 20);
    eventually("the space to be populated", || {
        let stats = engine.client.stats();
        stats.populated_bytes + stats.unpopulated_bytes >= granted
    });
    // Linux has done this since 5.14.
    assert_eq!(engine.client.stats().unpopulated_bytes, 0);
    let chain = engine.chain(4 * CHUNK, 1);
    // Whatever a first call costs by itself: buffers, code.
    let store = |chunk: usize| {
        let item = store_chunk(&chain, chunk, 0, four(1 + 4 * chunk as i64));
        assert_eq!(
            engine.client.store(&[item], &[]).unwrap(),
            [StoreOutcome::Published]
        );
    };
    store(0);
    let before = minor_faults();
    (1..4).for_each(store);
    let (faults, pages) = (minor_faults() - before, 3 * (256 << 10) / 4096);
    assert!(
        faults < pages / 4,
        "{faults} faults for {pages} pages of 4 KiB in three stores"
    );
    // The space that replaced what was used is seen to as well, each frame once.
    eventually("the new space to be populated", || {
        let stats = engine.client.stats();
        stats.populated_bytes == granted + 4 * (256 << 10)
    });
}

#[test]
fn space_that_comes_back_is_not_populated_again() {
    let place = Place::with_server();
    place.wait_prefaulted();
    let engine = Engine::start(&place, &Shape::plain(64, 0), 1);
    let settled = || {
        let stats = engine.client.stats();
        stats.populated_bytes + stats.unpopulated_bytes
    };
    eventually("the first space", || settled() == 1 << 20);
    for _ in 0..3 {
        engine.client.give_back().unwrap();
        assert_eq!(engine.client.reserve(1 << 20).unwrap(), 1 << 20);
    }
    // The allocator gives the same frames again, so there was nothing to do.
    assert_eq!(settled(), 1 << 20);
}
