//! Threads, forks and signals.

#![allow(unsafe_code)] // forks, handlers, and pointers to values that live across the call

mod support;

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use kvasir_c::kvasir_code as Code;
use kvasir_c::*;
use nix::libc;
use support::*;

#[test]
fn a_child_cannot_use_its_parents_handles_and_can_have_its_own() {
    let mut engine = Engine::start("fork");
    engine.store(1);
    let chain = engine.chain(1, CHUNK);
    let (client, socket) = (engine.client, server());
    // SAFETY: the child calls the library, which may be used in a child, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = child_of(client, chain, socket);
        // SAFETY: ends the child without running anything of its parent's.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "step {} of the child", libc::WEXITSTATUS(status));
    // The parent goes on as before.
    assert!(engine.load(1));
    ok(kvasir_chain_free(chain));
    ok(kvasir_client_close(client));
}

/// What a child tries: 0, or the number of the step that was wrong.
fn child_of(client: kvasir_client, chain: kvasir_chain, socket: &std::path::Path) -> i32 {
    // SAFETY: pointers to locals.
    unsafe {
        let mut held = 0;
        if kvasir_reserve(client, 1, &mut held) != Code::Forked {
            return 1;
        }
        if look_up(client, chain, &mut []).0 != Code::Forked || kvasir_chain_free(chain) != Code::Forked {
            return 2;
        }
        if kvasir_client_close(client) != Code::Forked || !last().2.contains("before a fork") {
            return 3;
        }
        if kvasir_get_stats(client, &mut made()) != Code::Forked {
            return 4;
        }
        let own = open(socket);
        if own.id == client.id || health(own).healthy != 1 {
            return 5;
        }
        let mut length = 0;
        if kvasir_status_json(own, null_mut(), 0, &mut length) != Code::Ok || length == 0 {
            return 6;
        }
        if kvasir_client_close(own) != Code::Ok || kvasir_client_close(own) != Code::Closed {
            return 7;
        }
    }
    0
}

#[test]
fn a_chain_is_extended_by_one_thread_at_a_time() {
    let engine = Engine::start("chain");
    let chain = engine.chain(1, 0);
    let start = Arc::new(Barrier::new(3));
    let (busy, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (start, busy, done) = (Arc::clone(&start), Arc::clone(&busy), Arc::clone(&done));
            thread::spawn(move || {
                let tokens = vec![7_u32; 1 << 12];
                start.wait();
                for _ in 0..200 {
                    // SAFETY: the tokens live across the call.
                    match unsafe { kvasir_chain_extend(chain, tokens.as_ptr(), tokens.len()) } {
                        Code::Ok => done.fetch_add(1, Ordering::SeqCst),
                        Code::Busy => {
                            assert!(last().2.contains("another thread is using this chain"));
                            busy.fetch_add(1, Ordering::SeqCst)
                        }
                        other => panic!("{other:?}"),
                    };
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let (mut tokens, mut chunks) = (0, 0);
    // SAFETY: the counts live across the call.
    ok(unsafe { kvasir_chain_size(chain, &mut tokens, &mut chunks) });
    // Every call was done whole or not at all.
    assert_eq!(tokens as u64, done.load(Ordering::SeqCst) << 12);
    assert_eq!(chunks, tokens / CHUNK as usize);
    assert_eq!(done.load(Ordering::SeqCst) + busy.load(Ordering::SeqCst), 600);
    ok(kvasir_chain_free(chain));
    ok(kvasir_client_close(engine.client));
}

#[test]
fn a_client_that_is_closed_under_other_threads_ends_their_calls() {
    for round in 0..20 {
        let mut engine = Engine::start("close");
        engine.store(round % 4);
        let chain = engine.chain(round % 4, CHUNK);
        let (client, memory) = (engine.client, std::mem::take(&mut engine.memory));
        let stop = Arc::new(AtomicBool::new(false));
        let started = Arc::new(Barrier::new(3));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (stop, started) = (Arc::clone(&stop), Arc::clone(&started));
                thread::spawn(move || {
                    started.wait();
                    let mut room = [kvasir_found::default(); 2];
                    let mut codes = Vec::new();
                    while !stop.load(Ordering::SeqCst) {
                        codes.push(look_up(client, chain, &mut room).0);
                        let mut length = 0;
                        // SAFETY: the length lives across the call.
                        codes.push(unsafe { kvasir_status_json(client, null_mut(), 0, &mut length) });
                    }
                    codes
                })
            })
            .collect();
        started.wait();
        thread::sleep(Duration::from_millis(2));
        ok(kvasir_client_close(client));
        drop(memory); // from here on nobody may look at it
        stop.store(true, Ordering::SeqCst);
        for thread in threads {
            for code in thread.join().unwrap() {
                assert!(
                    matches!(code, Code::Ok | Code::Closed | Code::Unavailable),
                    "{code:?}"
                );
            }
        }
        ok(kvasir_chain_free(chain));
    }
}

#[test]
fn every_thread_has_its_own_last_error() {
    assert_eq!(kvasir_give_back(kvasir_client { id: 0 }), Code::InvalidHandle);
    thread::spawn(|| {
        assert_eq!(last(), (0, vec![], String::new()));
        assert_eq!(kvasir_chain_free(kvasir_chain { id: 0 }), Code::InvalidHandle);
        assert!(last().2.contains("chain"));
    })
    .join()
    .unwrap();
    assert!(last().2.contains("client"), "{}", last().2);
}

static INTERRUPTED: AtomicU32 = AtomicU32::new(0);
static REFUSED: AtomicU32 = AtomicU32::new(0);
static OTHER: AtomicI32 = AtomicI32::new(0);
/// Whether the thread is at a call. Elsewhere it may be in the middle of an allocation, and a handler that calls the library
/// then is the engine's own fault.
static AT_A_CALL: AtomicBool = AtomicBool::new(false);

/// Breaks the rule: a handler that calls the library.
extern "C" fn on_signal(_: libc::c_int) {
    INTERRUPTED.fetch_add(1, Ordering::Relaxed);
    if !AT_A_CALL.load(Ordering::Relaxed) {
        return;
    }
    match kvasir_give_back(kvasir_client { id: 0 }) {
        Code::Busy => drop(REFUSED.fetch_add(1, Ordering::Relaxed)),
        Code::InvalidHandle => {}
        other => OTHER.store(other as i32, Ordering::Relaxed),
    }
}

/// The handler interrupts only the thread that is told, without SA_RESTART, so that system calls end early.
#[test]
fn signals_interrupt_nothing_and_handlers_cannot_call_in() {
    let mut engine = Engine::start("signals");
    // SAFETY: all zeroes is a valid `sigaction`; the handler touches atomics and calls one function, which is what is tried.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, null_mut()), 0);
    }
    // SAFETY: this thread's own id.
    let own = unsafe { libc::pthread_self() } as usize;
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let sender = thread::spawn(move || {
        while !told.load(Ordering::SeqCst) {
            // SAFETY: the thread waits for this one before it ends.
            unsafe { libc::pthread_kill(own as libc::pthread_t, libc::SIGUSR1) };
            thread::sleep(Duration::from_micros(200));
        }
    });
    let mut rounds = 0;
    // Until the handler has come in the middle of calls; those are most of the time.
    while REFUSED.load(Ordering::Relaxed) < 50 || rounds < 20 {
        rounds += 1;
        engine.store(rounds % 4);
        assert!(engine.load(rounds % 4), "round {rounds}");
        for _ in 0..10 {
            let mut length = 0;
            AT_A_CALL.store(true, Ordering::Relaxed);
            // SAFETY: the length lives across the call.
            let code = unsafe { kvasir_status_json(engine.client, null_mut(), 0, &mut length) };
            AT_A_CALL.store(false, Ordering::Relaxed);
            ok(code);
        }
    }
    stop.store(true, Ordering::SeqCst);
    sender.join().unwrap();
    assert_eq!(OTHER.load(Ordering::Relaxed), 0);
    assert!(INTERRUPTED.load(Ordering::Relaxed) >= REFUSED.load(Ordering::Relaxed));
    ok(kvasir_client_close(engine.client));
}
