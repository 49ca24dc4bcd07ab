use std::sync::mpsc::{self, Receiver};

use super::*;
use crate::shm::huge::huge_page_bytes;
use crate::shm::{Memfd, OwnerAccess};

const STEP: u64 = PREFAULT_STEP as u64;

fn pages(bytes: u64, threads: usize) -> Pages {
    let memfd = Memfd::create("prefault", bytes, OwnerAccess::ReadWrite).unwrap();
    Pages {
        mapping: Arc::new(memfd.map().unwrap()),
        backing: Backing::Small,
        node: None,
        threads,
    }
}

/// The next event that is not about what the pages are.
fn next(events: &Receiver<PrefaultEvent>) -> String {
    loop {
        match events.recv().unwrap() {
            PrefaultEvent::Seen(_) => {}
            event => return format!("{event:?}"),
        }
    }
}

#[test]
fn reports_each_step_and_the_end() {
    let (send, events) = mpsc::channel();
    let bytes = STEP * 2 + 4096;
    let _threads = Prefault::start(pages(bytes, 1), || None, move |e| send.send(e).unwrap()).unwrap();
    for ready in [STEP, 2 * STEP, bytes] {
        assert_eq!(next(&events), format!("Ready({ready})"));
    }
    assert_eq!(next(&events), "Done");
}

#[test]
fn several_threads_report_what_is_present_without_a_gap() {
    let (send, events) = mpsc::channel();
    let bytes = STEP * 9 + 4096;
    let pages = pages(bytes, 4);
    let mapping = Arc::clone(&pages.mapping);
    let threads = Prefault::start(pages, || None, move |e| send.send(e).unwrap()).unwrap();
    assert_eq!(threads.threads.len(), 4);
    let mut last = 0;
    loop {
        match events.recv().unwrap() {
            PrefaultEvent::Ready(ready) => {
                assert!(
                    ready > last && (ready % STEP == 0 || ready == bytes),
                    "{ready} after {last}"
                );
                last = ready;
                // What was reported is there: nothing of it has to be made any more.
                assert_eq!(resident(&mapping, ready), ready);
            }
            PrefaultEvent::Seen(seen) => {
                assert_eq!(seen.huge_bytes, None, "nobody wanted any");
                let on_nodes: u64 = seen.nodes.values().sum();
                assert!(on_nodes == 0 || on_nodes >= last, "{seen:?} at {last}");
            }
            PrefaultEvent::Done => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(last, bytes);
}

/// Bytes of the first so many that are in this process's page tables.
fn resident(mapping: &Mapping<ReadWrite>, bytes: u64) -> u64 {
    let start = mapping.base() as u64;
    let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut words = vec![0_u8; (bytes / 4096 * 8) as usize];
    let read = std::os::unix::fs::FileExt::read_at(&pagemap, &mut words, start / 4096 * 8).unwrap();
    assert_eq!(read, words.len());
    let present = words.chunks(8).filter(|word| word[7] & 0x80 != 0).count();
    present as u64 * 4096
}

#[test]
fn stops_between_steps() {
    let (send, events) = mpsc::channel();
    let (go, gate) = mpsc::channel::<()>();
    let threads = Prefault::start(
        pages(STEP * 3, 1),
        || None,
        move |e| {
            send.send(e).unwrap();
            let _ = gate.recv();
        },
    )
    .unwrap();
    assert!(matches!(events.recv().unwrap(), PrefaultEvent::Ready(_)));
    threads.stop();
    drop(go);
    drop(threads);
    let rest: Vec<PrefaultEvent> = events.iter().collect();
    assert!(
        rest.iter().all(|event| matches!(event, PrefaultEvent::Seen(_))),
        "no step is begun after the stop: {rest:?}"
    );
}

#[test]
fn a_step_that_takes_long_keeps_nobody_who_stops_it() {
    let (send, events) = mpsc::channel();
    let (go, gate) = mpsc::channel::<()>();
    let pages = pages(STEP * 3, 1);
    let mapping = Arc::downgrade(&pages.mapping);
    let threads = Prefault::start(
        pages,
        || None,
        move |e| {
            send.send(e).unwrap();
            let _ = gate.recv();
        },
    )
    .unwrap();
    assert!(matches!(events.recv().unwrap(), PrefaultEvent::Ready(_)));
    // The thread is held; this comes back nevertheless.
    drop(threads);
    assert!(
        mapping.upgrade().is_some(),
        "what it works on stays until it has ended"
    );
    drop(go);
    assert!(events.iter().all(|event| matches!(event, PrefaultEvent::Seen(_))));
}

/// Room for so many steps beside the reserve, whose pages are taken out of it.
fn limited(threads: usize) {
    let (send, events) = mpsc::channel();
    let bytes = 6 * STEP;
    let reserve = prefault_reserve(bytes);
    let pages = pages(bytes, threads);
    let mapping = Arc::clone(&pages.mapping);
    // As the system does: what is present counts, and a step under way counts as much of it as is present.
    let room = Arc::new(Mutex::new(reserve + 2 * STEP + 1));
    let seen = Arc::clone(&room);
    let available = move || Some(seen.lock().unwrap().saturating_sub(resident(&mapping, bytes)));
    let prefault = Prefault::start(pages, available, move |event| send.send(event).unwrap()).unwrap();
    // Several threads may say both steps at once.
    let until = |last: u64| {
        let mut before = 0;
        while before < last {
            let said = next(&events);
            let ready = said.trim_start_matches("Ready(").trim_end_matches(')').parse();
            let ready: u64 = ready.unwrap_or_else(|_| panic!("{said}"));
            assert!(ready > before && ready <= last, "{said}");
            before = ready;
        }
    };
    until(2 * STEP);
    let said = format!("Limited {{ ready: {}, available: {} }}", 2 * STEP, reserve + 1);
    assert_eq!(next(&events), said);
    // A look that finds nothing new says nothing.
    prefault.wake();
    *room.lock().unwrap() = u64::MAX / 2;
    prefault.wake();
    until(bytes);
    assert_eq!(next(&events), "Done");
}

#[test]
fn goes_no_further_than_memory_allows_and_on_when_it_does() {
    limited(1);
}

#[test]
fn several_threads_go_no_further_than_memory_allows() {
    for _ in 0..4 {
        limited(4);
    }
}

#[test]
fn what_is_huge_is_found_in_smaps_and_what_has_to_be_is_waited_for() {
    let Some(huge) = huge_page_bytes() else {
        eprintln!("SKIPPED: this kernel has no transparent huge pages");
        return;
    };
    let run = |required: bool, disabled: bool| {
        let (send, events) = mpsc::channel();
        let mut pages = pages(2 * STEP + 4096 * u64::from(!required), 2);
        pages.backing = Backing::Transparent { required };
        nix::sys::prctl::set_thp_disable(disabled).unwrap();
        let prefault = Prefault::start(pages, || None, move |e| send.send(e).unwrap()).unwrap();
        let mut huge_bytes = None;
        let last = loop {
            match events.recv().unwrap() {
                PrefaultEvent::Seen(seen) => huge_bytes = seen.huge_bytes,
                PrefaultEvent::Ready(_) => {}
                other => break format!("{other:?}"),
            }
        };
        nix::sys::prctl::set_thp_disable(false).unwrap();
        if last.starts_with("NoHugePages") {
            assert!(!disabled || huge_bytes == Some(0));
            // They are there again: it goes on. The kernel may have none in the moment, and then it is asked again.
            prefault.wake();
            loop {
                match events.recv().unwrap() {
                    PrefaultEvent::Done => break,
                    PrefaultEvent::Seen(seen) => huge_bytes = seen.huge_bytes,
                    PrefaultEvent::Ready(_) => {}
                    PrefaultEvent::NoHugePages { .. } => {
                        std::thread::sleep(Duration::from_millis(20));
                        prefault.wake();
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        (last, huge_bytes)
    };
    let (last, found) = run(false, false);
    assert_eq!(last, "Done");
    if found == Some(0) {
        eprintln!("SKIPPED: this kernel makes no huge pages of shared memory (page of {huge})");
        return;
    }
    if found != Some(2 * STEP) {
        eprintln!("SKIPPED: this kernel has too few huge pages in the moment ({found:?})");
        return;
    }
    assert_eq!(
        run(false, true),
        ("Done".to_owned(), Some(0)),
        "small ones will do"
    );
    let (last, found) = run(true, true);
    assert_eq!(
        (last.as_str(), found),
        ("NoHugePages { ready: 0 }", Some(2 * STEP))
    );
    let (last, found) = run(true, false);
    assert!(last == "Done" || last.starts_with("NoHugePages"), "{last}");
    assert_eq!(found, Some(2 * STEP));
}

#[test]
fn steps_of_which_all_but_one_page_are_huge_are_worth_asking_for() {
    let mut asked = MadeHuge::default();
    for _ in 0..HUGE_TRIES {
        asked.add(&MadeHuge {
            made: 7,
            refused: [(nix::libc::ENOMEM, 1)].into(),
        });
        assert!(!is_hopeless(&asked), "{asked:?}");
    }
    let refused = |pages| MadeHuge {
        made: 0,
        refused: [(nix::libc::ENOMEM, pages)].into(),
    };
    assert!(!is_hopeless(&refused(HUGE_TRIES - 1)));
    assert!(is_hopeless(&refused(HUGE_TRIES)));
}
