//! Processes of clients whose payload a device copies, and when they are past writing.
//!
//! The kernel frees the lock of a process that dies while it closes its descriptors, and a driver stops the device's copies
//! when its own are closed, which may be a moment later. So what such a client was granted is taken back once its process
//! is gone, or if it lives on: then it has let go of the lock by itself, after its last copy.

use std::collections::BTreeMap;
use std::fs;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::cache::ClientId;
use crate::shm::readable::Readable;

/// So long a process may take to die of which nothing can be seen.
const UNSEEN: Duration = Duration::from_secs(2);

/// `PF_EXITING` of the kernel's flags of a process.
const EXITING: u64 = 4;

/// The process of one client.
#[derive(Debug)]
struct Process {
    pid: u32,
    /// Readable once it is gone, where the kernel has such a thing.
    end: Option<Rc<Readable>>,
    /// When its lock was first seen to be free.
    let_go: Option<Instant>,
}

/// Those whose connection is closed.
#[derive(Debug, Default)]
pub(super) struct Dying(BTreeMap<ClientId, Process>);

impl Dying {
    pub(super) fn add(&mut self, client: ClientId, pid: u32, end: Option<Rc<Readable>>) {
        let let_go = None;
        self.0.insert(client, Process { pid, end, let_go });
    }

    pub(super) fn remove(&mut self, client: ClientId) {
        self.0.remove(&client);
    }

    /// Whether a client is one of these.
    pub(super) fn has(&self, client: ClientId) -> bool {
        self.0.contains_key(&client)
    }

    /// Whether what a client was granted may be taken back. Its lock has been seen to be free before this is asked.
    pub(super) fn may_take(&mut self, client: ClientId) -> bool {
        let Some(process) = self.0.get_mut(&client) else {
            return true;
        };
        let since = *process.let_go.get_or_insert_with(Instant::now);
        let gone = process.end.as_ref().is_some_and(|end| end.is_ready());
        is_past_writing(gone, is_exiting(process.pid), since.elapsed())
    }
}

/// Of a process whose lock is free: whether it is gone, whether it is about to be where that can be seen, and for how long
/// the lock has been free.
fn is_past_writing(gone: bool, exiting: Option<bool>, free: Duration) -> bool {
    gone || match exiting {
        Some(exiting) => !exiting,
        None => free >= UNSEEN,
    }
}

/// Whether a process is about to end; nothing where it cannot be seen.
fn is_exiting(pid: u32) -> Option<bool> {
    if pid == 0 {
        return None; // of another namespace
    }
    flags(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?).map(|flags| flags & EXITING != 0)
}

/// The flags in a process's `stat`: the seventh field behind its name, which may hold anything.
fn flags(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(6)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn only_who_is_gone_or_lives_on_is_past_writing() {
        let soon = Duration::from_millis(1);
        assert!(is_past_writing(true, Some(true), soon));
        assert!(!is_past_writing(false, Some(true), UNSEEN));
        assert!(is_past_writing(false, Some(false), soon));
        assert!(!is_past_writing(false, None, soon));
        assert!(is_past_writing(false, None, UNSEEN));
    }

    #[test]
    fn a_process_that_ends_is_seen_to() {
        assert_eq!(is_exiting(std::process::id()), Some(false));
        assert_eq!(is_exiting(0), None);
        let mut child = Command::new("true").spawn().unwrap();
        // It has ended and is not waited for: the kernel still shows it.
        while is_exiting(child.id()) == Some(false) {
            std::thread::yield_now();
        }
        assert_eq!(is_exiting(child.id()), Some(true));
        child.wait().unwrap();
    }

    #[test]
    fn names_of_processes_do_not_shift_the_flags() {
        let stat = "12 (a) 9 9 9 9 9 9 b) R 1 12 12 0 -1 4194308 0 0";
        assert_eq!(flags(stat), Some(4_194_308));
        assert_eq!(flags("12 (short) R 1"), None);
        assert_eq!(flags(""), None);
    }
}
