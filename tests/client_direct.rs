//! Lookups that need no server: the same answers, pins that hold, and what they may hold.

mod client_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use client_support::*;
use kvasir::client::{Client, ClientConfig, LookupAnswer, StoreOutcome, StoreRequest};
use kvasir::keys::KeyChain;
use kvasir::object::{ClientKind, Lookup};
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A scheduler, or a tool that looks up by message.
fn looker(place: &Place, kind: ClientKind) -> Client {
    let mut config = ClientConfig::new(place.socket(), kind, "looker", [9; 16]);
    config.deadline = WATCHDOG;
    let client = Client::new(config).unwrap();
    client.negotiate(Shape::plain(64, 0).negotiation()).unwrap();
    client
}

fn items(chain: &KeyChain, chunks: usize) -> Vec<StoreRequest> {
    (0..chunks)
        .map(|chunk| store_chunk(chain, chunk, 0, four(1)))
        .collect()
}

fn told(answer: &LookupAnswer) -> (u64, Vec<kvasir::object::LoadItem>, Vec<u64>, bool) {
    let present = answer.present_tokens.clone();
    (answer.hit_tokens, answer.loads.clone(), present, answer.degraded)
}

#[test]
fn answers_are_those_of_the_server_and_are_counted() {
    let place = Place::with_server();
    let engine = Engine::start(&place, &Shape::plain(64, 0), 1);
    let (own, asking) = (
        looker(&place, ClientKind::Scheduler),
        looker(&place, ClientKind::Tool),
    );
    let mut random = StdRng::seed_from_u64(1);
    let (mut asked, mut hit) = (0, 0);
    let looked_up = || place.status()["counters"]["lookups"].as_u64().unwrap();
    for salt in 0..40 {
        let chain = engine.chain(random.random_range(CHUNK..12 * CHUNK), salt);
        let chunks = chain.keys().len();
        engine
            .client
            .store(&items(&chain, random.random_range(0..=chunks)), &[])
            .unwrap();
        for _ in 0..4 {
            let question = Lookup {
                max_tokens: random.random_range(0..=chain.len_tokens() as u64),
                local_tokens: random.random_range(0..=4) * 64,
                pin: random.random(),
                ..lookup(engine.seed(), &chain, 3, 16)
            };
            let answers = [&own, &asking].map(|client| client.lookup(&question.as_request()).unwrap());
            assert_eq!(told(&answers[0]), told(&answers[1]), "{question:?}");
            assert_eq!(answers[0].pin.is_some(), answers[1].pin.is_some());
            asked += 1;
            hit += answers[0].hit_tokens / 16;
            for (client, answer) in [&own, &asking].into_iter().zip(&answers) {
                client.release(answer.pin.as_slice()).unwrap();
            }
        }
    }
    assert!(hit > 1000, "{hit} units hit: there is something to compare");
    assert_eq!(
        (own.stats().direct_lookups, asking.stats().direct_lookups),
        (asked, 0)
    );
    let status = place.status();
    let reported = &status["reported"];
    assert_eq!(
        (reported["lookups"].as_u64(), reported["hit"].as_u64()),
        (Some(asked), Some(hit))
    );
    assert_eq!(status["counters"]["requested"], reported["requested"]);
    assert_eq!(
        looked_up(),
        asked + 1,
        "the other client's, and one for the shape of the domain"
    );
    assert_eq!(status["counters"]["hit"], hit);
    assert_eq!(status["pool"]["pinned"], 0);
}

/// What one prompt's chunks take of the pool: a frame each.
const FRAME: u64 = 65536;

/// Stores prompts until something has been evicted `times` more.
fn churn(engine: &Engine, place: &Place, salt: &mut u32, times: u64) {
    let evicted = || place.status()["counters"]["evicted"].as_u64().unwrap();
    let until = evicted() + times;
    while evicted() < until {
        *salt += 1;
        let chain = engine.chain(32 * CHUNK + 1, *salt);
        engine.client.store(&items(&chain, 32), &[]).unwrap();
    }
}

#[test]
fn a_pin_of_the_deepest_chunk_keeps_the_whole_prefix_until_it_is_released() {
    let place = Place::with_server();
    let engine = Engine::start(&place, &Shape::plain(64, 0), 1);
    let scheduler = looker(&place, ClientKind::Scheduler);
    engine.fill(5);
    let chain = engine.chain(20 * CHUNK + 1, 1);
    assert_published(&engine.client.store(&items(&chain, 20), &[]).unwrap());
    let question = || lookup(engine.seed(), &chain, 4, 16);
    let first = scheduler.lookup(&question().as_request()).unwrap();
    let second = scheduler.lookup(&question().as_request()).unwrap();
    assert_eq!((first.hit_tokens, first.loads.len()), (20 * 64, 20));
    let row = |status: &serde_json::Value| {
        let clients = status["clients"].as_array().unwrap().clone();
        clients
            .into_iter()
            .find(|row| row["kind"] == "scheduler")
            .unwrap()
    };
    let status = place.status();
    let row_now = row(&status);
    assert_eq!((&row_now["pins"], &row_now["pin_words"]), (&0.into(), &2.into()));
    assert_eq!(row_now["kept"], 20 * FRAME, "the chunks before it too, each once");
    let mut salt = 100;
    churn(&engine, &place, &mut salt, 2000);
    for chunk in 0..20 {
        let load = [load_chunk(&chain, chunk, four(30))];
        assert_eq!(engine.client.load(1, 0, &load).unwrap(), [true], "chunk {chunk}");
    }
    scheduler.release(&[first.pin.unwrap()]).unwrap();
    churn(&engine, &place, &mut salt, 1000);
    assert_eq!(
        scheduler.lookup(&question().as_request()).unwrap().hit_tokens,
        20 * 64,
        "one pin is enough"
    );
    scheduler
        .release(&[second.pin.unwrap(), first.pin.unwrap()])
        .unwrap_err();
    scheduler.release(&[second.pin.unwrap()]).unwrap();
    scheduler.release_label(4).unwrap();
    assert_eq!(row(&place.status())["pin_words"], 0);
    churn(&engine, &place, &mut salt, 2000);
    assert_eq!(
        scheduler.lookup(&question().as_request()).unwrap().hit_tokens,
        0,
        "it was the oldest"
    );
}

/// Of 1024 frames a client may keep 256.
#[test]
fn a_client_keeps_a_quarter_of_the_pool_by_its_own_account() {
    let place = Place::with_server();
    let engine = Engine::start(&place, &Shape::plain(64, 0), 1);
    let scheduler = looker(&place, ClientKind::Scheduler);
    let prompts: Vec<KeyChain> = (0..10).map(|salt| engine.chain(60 * CHUNK + 1, salt)).collect();
    for chain in &prompts {
        assert_published(&engine.client.store(&items(chain, 60), &[]).unwrap());
    }
    let ask = |chain| {
        scheduler
            .lookup(&lookup(engine.seed(), chain, 6, 16).as_request())
            .unwrap()
    };
    let hits: Vec<u64> = prompts.iter().map(|chain| ask(chain).hit_tokens / 64).collect();
    assert_eq!(
        hits,
        [60, 60, 60, 60, 16, 0, 0, 0, 0, 0],
        "240 frames and 16 more"
    );
    // What is kept already costs nothing more.
    assert_eq!(ask(&prompts[0]).hit_tokens, 60 * 64);
    let status = place.status();
    assert_eq!(status["reported"]["shortened"], 6);
    // Others store as if nothing were pinned, up to what is.
    let mut salt = 100;
    churn(&engine, &place, &mut salt, 1000);
    let last = engine.chain(CHUNK + 1, salt + 1);
    assert_published(&engine.client.store(&items(&last, 1), &[]).unwrap());
    scheduler.release_label(6).unwrap();
    assert_eq!(place.status()["pool"]["pinned"], 0);
    assert_eq!(ask(&last).hit_tokens, 64);
}

#[test]
fn pin_words_run_out_without_harm() {
    let place = Place::with_server();
    let engine = Engine::start(&place, &Shape::plain(64, 0), 1);
    let scheduler = looker(&place, ClientKind::Scheduler);
    let chain = engine.chain(CHUNK + 1, 1);
    assert_published(&engine.client.store(&items(&chain, 1), &[]).unwrap());
    let ask = |session| {
        scheduler
            .lookup(&lookup(engine.seed(), &chain, session, 16).as_request())
            .unwrap()
    };
    for number in 0..4096 {
        assert_eq!(ask(number % 2).hit_tokens, 64, "pin {number}");
    }
    assert_eq!(scheduler.stats().evicted_pins, 0);
    scheduler.release_label(1).unwrap();
    for _ in 0..2048 {
        assert_eq!(ask(2).hit_tokens, 64, "words are used again");
    }
    assert_eq!(scheduler.stats().evicted_pins, 0);
    drop(scheduler);
    eventually("the slab of a client that left", || {
        place.status()["pool"]["pinned"] == 0
    });
}

/// A client that never releases: the pins of its oldest session go, and what they promised is a load that fails or succeeds
/// as any other, with the right bytes.
#[test]
fn when_pin_words_run_out_the_oldest_session_gives_way() {
    let mut place = Place::empty(&["--pool-size", "16MiB", "--chunk-size", "64"]);
    place.start();
    place.wait_prefaulted();
    let engine = Engine::start(&place, &Shape::plain(64, 0), 1);
    let scheduler = looker(&place, ClientKind::Scheduler);
    let (old, new) = (engine.chain(CHUNK + 1, 1), engine.chain(CHUNK + 1, 2));
    engine.fill(1);
    let bytes = engine.block(0, 0, 1);
    assert_published(&engine.client.store(&items(&old, 1), &[]).unwrap());
    assert_published(&engine.client.store(&items(&new, 1), &[]).unwrap());
    let ask = |chain, session| {
        scheduler
            .lookup(&lookup(engine.seed(), chain, session, 16).as_request())
            .unwrap()
    };
    // The first session holds the old object, the next ones the new one.
    let first: Vec<_> = (0..96).map(|_| ask(&old, 7).pin.unwrap()).collect();
    for number in 96..4096 {
        assert_eq!(ask(&new, 100 + number).hit_tokens, 64);
    }
    let full = |place: &Place| {
        let status = place.status();
        let clients = status["clients"].as_array().unwrap().clone();
        clients.iter().any(|client| client["pin_words"] == 4096)
    };
    assert!(full(&place), "{}", place.status());
    let report = common_doctor(&place);
    assert!(
        report.contains("pin_words") && report.contains("4096"),
        "{report}"
    );
    assert_eq!(scheduler.stats().evicted_pins, 0);
    assert_eq!(scheduler.state_text(), "healthy");

    // Nobody has released anything, and it goes on hitting.
    let hit = ask(&new, 1);
    assert_eq!((hit.hit_tokens, hit.degraded), (64, false));
    assert_eq!(scheduler.stats().evicted_pins, 96, "one session, all of it");
    assert!(
        scheduler.state_text().contains("96 pins"),
        "{}",
        scheduler.state_text()
    );
    scheduler.release(&first[..2]).unwrap();
    scheduler.release(&first[2..]).unwrap();
    assert!(scheduler.release(&first[..1]).is_err(), "only once, as ever");
    for session in 0..200 {
        assert_eq!(ask(&new, 10_000 + session).hit_tokens, 64);
    }
    // A single session that fills all words gives its own oldest, and no more than it needs.
    let alone = looker(&place, ClientKind::Scheduler);
    let ask_alone = || {
        alone
            .lookup(&lookup(engine.seed(), &new, 3, 16).as_request())
            .unwrap()
    };
    for _ in 0..4100 {
        assert_eq!(ask_alone().hit_tokens, 64);
    }
    assert_eq!(alone.stats().evicted_pins, 4);
    drop(alone);

    // What nobody pins any more may go; its promise is then a load that fails, and never other bytes.
    for round in 0..8 {
        let churn = engine.chain(32 * CHUNK + 1, 1000 + round);
        let _ = engine.client.store(&items(&churn, 32), &[]).unwrap();
    }
    let loaded = engine
        .client
        .load(9, 0, &[load_chunk(&old, 0, four(30))])
        .unwrap();
    if loaded == [true] {
        assert_eq!(engine.block(0, 0, 30), bytes);
    }
    assert_eq!(ask(&new, 5).hit_tokens, 64, "what is pinned stays");
}

/// The doctor's words about the server here.
fn common_doctor(place: &Place) -> String {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kvasir"));
    let output = command
        .args(["doctor", "--json", "--socket"])
        .arg(place.socket())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Every moment may be the one between a reader's pin and its look at the record: what is hit and pinned is there, and
/// nothing wrong is ever loaded.
#[test]
fn readers_beside_a_writer_that_evicts_all_the_time() {
    let place = Place::with_server();
    let shape = Shape::plain(64, 0);
    let writer = Engine::start(&place, &shape, 1);
    writer.fill(1);
    let stop = Arc::new(AtomicBool::new(false));
    let latest = Arc::new(AtomicU64::new(0));
    let pages: Vec<Vec<u8>> = (1..5).map(|block| writer.block(0, 0, block)).collect();
    let readers: Vec<_> = (0..2_u8)
        .map(|number| {
            let (stop, latest, pages) = (Arc::clone(&stop), Arc::clone(&latest), pages.clone());
            let engine = Engine::start(&place, &shape, 10 + number);
            let scheduler = looker(&place, ClientKind::Scheduler);
            std::thread::spawn(move || {
                let mut random = StdRng::seed_from_u64(number.into());
                let (mut hits, mut loads) = (0, 0);
                while !stop.load(Ordering::Relaxed) {
                    // Old enough that it may go at any time.
                    let back = random.random_range(0..40);
                    let salt = latest.load(Ordering::Relaxed).saturating_sub(back) as u32;
                    let chain = engine.chain(32 * CHUNK + 1, salt);
                    let hit = scheduler
                        .lookup(&lookup(engine.seed(), &chain, 1, 16).as_request())
                        .unwrap();
                    let Some(load) = hit.loads.last() else { continue };
                    hits += 1;
                    engine.fill(7);
                    let wanted = [load_chunk(&chain, load.chunk as usize, four(20))];
                    // Pinned, so it is there: with a rare exception, which the engine computes instead. A batch that had
                    // taken the object out of the index before it saw the pin keeps its bytes, but nobody finds them.
                    if engine.client.load(1, 0, &wanted).unwrap() == [true] {
                        loads += 1;
                        let found: Vec<Vec<u8>> = (20..24).map(|block| engine.block(0, 0, block)).collect();
                        assert_eq!(found, pages);
                    }
                    scheduler.release(&[hit.pin.unwrap()]).unwrap();
                }
                (hits, loads)
            })
        })
        .collect();
    let before = place.status()["counters"]["evicted"].as_u64().unwrap();
    for salt in 1..400 {
        let chain = writer.chain(32 * CHUNK + 1, salt);
        let outcomes = writer.client.store(&items(&chain, 32), &[]).unwrap();
        assert!(
            outcomes
                .iter()
                .all(|outcome| *outcome != StoreOutcome::Unavailable)
        );
        latest.store(salt.into(), Ordering::Relaxed);
    }
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        let (hits, loads) = reader.join().unwrap();
        assert!(hits > 0 && loads * 10 >= hits * 9, "{loads} loads of {hits} hits");
    }
    let status = place.status();
    assert!(
        status["counters"]["evicted"].as_u64().unwrap() > before + 5000,
        "{status}"
    );
    let pool = &status["pool"];
    let classes = ["free", "used", "granted", "quarantined"].map(|class| pool[class].as_u64().unwrap());
    assert_eq!(classes.iter().sum::<u64>(), pool["total"].as_u64().unwrap());
}

/// Nothing of the old server is taken for the new one's: neither its index nor its pins.
#[test]
fn a_new_server_is_asked_anew() {
    let mut place = Place::with_server();
    let engine = Engine::start(&place, &Shape::plain(64, 0), 1);
    let mut config = ClientConfig::new(place.socket(), ClientKind::Scheduler, "looker", [9; 16]);
    config.heartbeat = Duration::from_millis(100);
    let scheduler = Client::new(config).unwrap();
    scheduler.negotiate(engine.shape.negotiation()).unwrap();
    let chain = engine.chain(2 * CHUNK + 1, 1);
    assert_published(&engine.client.store(&items(&chain, 2), &[]).unwrap());
    let ask = || {
        scheduler
            .lookup(&lookup(engine.seed(), &chain, 1, 16).as_request())
            .unwrap()
    };
    let old = ask();
    assert_eq!(old.hit_tokens, 128);
    // Stopped, it is missed by nobody who only looks.
    place.signal(Signal::SIGSTOP);
    let again = ask();
    assert_eq!((again.hit_tokens, again.degraded), (128, false));
    place.kill();
    eventually("the hang-up", || !scheduler.is_healthy());
    // Killed, neither.
    let dead = ask();
    assert_eq!((dead.hit_tokens, dead.degraded), (128, false));
    place.start();
    eventually("both to be back", || {
        scheduler.is_healthy() && engine.client.is_healthy()
    });
    assert_eq!((ask().hit_tokens, ask().degraded), (0, false));
    scheduler
        .release(&[old.pin.unwrap(), again.pin.unwrap(), dead.pin.unwrap()])
        .unwrap();
    place.wait_prefaulted();
    assert_published(&engine.client.store(&items(&chain, 2), &[]).unwrap());
    let lookups = || place.status()["counters"]["lookups"].as_u64();
    let before = lookups();
    assert_eq!(ask().hit_tokens, 128);
    assert_eq!(lookups(), before);
}
