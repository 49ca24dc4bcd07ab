//! Facts and settings of processes: no core dumps, a handle on a peer, random identities.
//!
//! Unsafe is opened here for calls that have no safe wrapper. The invariant: each passes only integers or
//! a buffer it owns, and a descriptor the kernel returns is owned at once.

#![allow(unsafe_code)]

use std::io;
#[cfg(feature = "server")]
use std::os::fd::BorrowedFd;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use nix::sys::signal::{SigHandler, Signal, signal};

use super::ShmError;

/// Keeps other processes of this uid from attaching to this one, and keeps it from dumping core.
///
/// # Errors
/// [`ShmError::Os`] when the kernel refuses.
pub fn set_not_dumpable() -> Result<(), ShmError> {
    nix::sys::prctl::set_dumpable(false)
        .map_err(|e| ShmError::os("prctl(PR_SET_DUMPABLE)", "this process", e))
}

/// From here on a signal does nothing to this process, nor to programs that it starts.
///
/// # Errors
/// [`ShmError::Os`] when the kernel refuses.
pub fn ignore_signal(which: Signal) -> Result<(), ShmError> {
    // SAFETY: to ignore a signal runs no code of ours.
    unsafe { signal(which, SigHandler::SigIgn) }
        .map(drop)
        .map_err(|e| ShmError::os("signal", which.as_str(), e))
}

/// Whether a signal is ignored, as who started this process may have decided (`nohup`, a shell's background job).
///
/// # Errors
/// [`ShmError::Os`] when the kernel refuses.
pub fn signal_is_ignored(which: Signal) -> Result<bool, ShmError> {
    // SAFETY: all zeroes is a valid `sigaction`; it is only written to.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without a new action nothing is changed; the old one is written to `now`, which lives across the call.
    let rc = unsafe { libc::sigaction(which as libc::c_int, std::ptr::null(), &mut now) };
    if rc != 0 {
        return Err(ShmError::os(
            "sigaction",
            which.as_str(),
            io::Error::last_os_error(),
        ));
    }
    Ok(now.sa_sigaction == libc::SIG_IGN)
}

/// A descriptor that becomes readable when the process ends. `None` where the kernel has no such thing.
///
/// # Errors
/// [`ShmError::Os`] when there is no such process, or descriptors have run out.
pub fn pidfd_open(pid: u32) -> Result<Option<OwnedFd>, ShmError> {
    // SAFETY: two integers go in; the kernel reads no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    if fd >= 0 {
        // SAFETY: the kernel made this descriptor for us just now, CLOEXEC, and nobody else knows it.
        return Ok(Some(unsafe { OwnedFd::from_raw_fd(fd as i32) }));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // Older kernels, and sandboxes that filter the call.
        Some(libc::ENOSYS | libc::EPERM) => Ok(None),
        _ => Err(ShmError::os("pidfd_open", format!("process {pid}"), error)),
    }
}

/// A descriptor that becomes readable when the process that connected a Unix socket ends. `None` where the kernel has
/// no such thing, or that process is gone already.
///
/// # Errors
/// [`ShmError::Os`] when descriptors have run out.
pub fn peer_pidfd(socket: impl AsFd, pid: u32) -> Result<Option<OwnedFd>, ShmError> {
    /// Linux 6.5; not in every version of the C library's headers.
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut fd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: value and length are integers that live across the call, and the length is the value's.
    let rc = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut len,
        )
    };
    if rc == 0 && fd >= 0 {
        // SAFETY: the kernel made this descriptor for us just now, CLOEXEC, and nobody else knows it.
        return Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => Err(ShmError::os(
            "getsockopt(SO_PEERPIDFD)",
            format!("process {pid}"),
            error,
        )),
        // An older kernel. The number may be another process's if the peer has ended before this; a kick then looks at its uid alone.
        Some(libc::ENOPROTOOPT) if pid != 0 => match pidfd_open(pid) {
            Err(ShmError::Os { source, .. }) if source.raw_os_error() == Some(libc::ESRCH) => Ok(None),
            opened => opened,
        },
        _ => Ok(None),
    }
}

/// Ends a process that a descriptor names, whatever it does: never another one that was given its number since. Fine for
/// one that has ended.
///
/// # Errors
/// [`ShmError::Os`] when the kernel refuses: no right to, or a process of another name space.
#[cfg(feature = "server")]
pub(crate) fn kill_process(pidfd: BorrowedFd<'_>) -> Result<(), ShmError> {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: three integers and a null pointer go in, which stands for the usual information about a signal.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            libc::SIGKILL,
            none,
            0,
        )
    };
    if sent == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ESRCH) => Ok(()),
        _ => Err(ShmError::os("pidfd_send_signal", "SIGKILL", error)),
    }
}

/// What the system says of a process of some number: who it belongs to, and whether it is stopped.
#[cfg(feature = "server")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessFacts {
    /// Its effective uid.
    pub(crate) uid: u32,
    /// By a signal or a debugger.
    pub(crate) is_stopped: bool,
}

/// The facts of a process. Its number may be another one's by now: ask its descriptor afterwards. `None` where the system
/// does not say.
#[cfg(feature = "server")]
pub(crate) fn process_facts(pid: u32) -> Option<ProcessFacts> {
    facts_of(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

#[cfg(feature = "server")]
fn facts_of(status: &str) -> Option<ProcessFacts> {
    let field = |name| status.lines().find_map(|line: &str| line.strip_prefix(name));
    let state = field("State:")?.trim_start().chars().next()?;
    Some(ProcessFacts {
        uid: field("Uid:")?.split_whitespace().nth(1)?.parse().ok()?,
        is_stopped: matches!(state, 'T' | 't'),
    })
}

/// From here on the calling thread gives way to every thread of usual priority. As far as the system allows.
pub fn give_way() {
    /// Of 19.
    const NICE: libc::c_int = 10;
    // SAFETY: three integers go in; on Linux the call is about the calling thread alone.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

/// Sixteen bytes from the kernel's random number generator.
///
/// # Errors
/// [`ShmError::Os`] when the kernel refuses.
pub fn random_id() -> Result<[u8; 16], ShmError> {
    let mut id = [0u8; 16];
    loop {
        // SAFETY: the pointer and length describe `id`, which lives across the call.
        let got = unsafe { libc::getrandom(id.as_mut_ptr().cast(), id.len(), 0) };
        if got == id.len() as isize {
            return Ok(id);
        }
        let error = io::Error::last_os_error();
        if got < 0 && error.kind() != io::ErrorKind::Interrupted {
            return Err(ShmError::os("getrandom", "16 bytes", error));
        }
    }
}

/// The monotonic clock in milliseconds: the same for all processes of a machine, stopped by nothing but
/// suspend, and unrelated to the time of day.
pub fn monotonic_ms() -> u64 {
    // The call fails only for a clock that does not exist.
    match nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC) {
        Ok(now) => now.tv_sec() as u64 * 1000 + now.tv_nsec() as u64 / 1_000_000,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    #[test]
    fn a_pidfd_is_readable_once_the_process_is_gone() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let Some(pidfd) = pidfd_open(child.id()).unwrap() else {
            eprintln!("SKIPPED: this kernel has no pidfd_open");
            child.kill().unwrap();
            child.wait().unwrap();
            return;
        };
        let mut fds = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, PollTimeout::ZERO).unwrap(), 0, "still running");
        child.kill().unwrap();
        assert_eq!(poll(&mut fds, PollTimeout::NONE).unwrap(), 1);
        child.wait().unwrap();
    }

    #[cfg(feature = "server")]
    #[test]
    fn a_process_is_killed_by_its_descriptor_and_what_is_known_of_it_is_its_own() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let Some(pidfd) = pidfd_open(child.id()).unwrap() else {
            eprintln!("SKIPPED: this kernel has no pidfd_open");
            child.kill().unwrap();
            child.wait().unwrap();
            return;
        };
        let pid = nix::unistd::Pid::from_raw(child.id() as i32);
        let has_ended = |pidfd: BorrowedFd<'_>| {
            let mut fds = [PollFd::new(pidfd, PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
        };
        let uid = nix::unistd::geteuid().as_raw();
        let facts = |is_stopped| Some(ProcessFacts { uid, is_stopped });
        assert_eq!(process_facts(child.id()), facts(false));
        nix::sys::signal::kill(pid, Signal::SIGSTOP).unwrap();
        nix::sys::wait::waitpid(pid, Some(nix::sys::wait::WaitPidFlag::WUNTRACED)).unwrap();
        assert_eq!(process_facts(child.id()), facts(true));
        assert!(!has_ended(pidfd.as_fd()));
        kill_process(pidfd.as_fd()).unwrap();
        child.wait().unwrap();
        assert!(has_ended(pidfd.as_fd()));
        kill_process(pidfd.as_fd()).unwrap();
        assert_eq!(process_facts(child.id()), None);
        assert_eq!(
            facts_of("State:\tS (sleeping)\nUid:\t0\t7\t0\t0\n").unwrap().uid,
            7
        );
        assert_eq!(facts_of("State:\tS (sleeping)\n"), None);
    }

    #[test]
    fn an_ignored_signal_is_seen_as_one() {
        // Nobody else in this process uses it.
        assert!(!signal_is_ignored(Signal::SIGURG).unwrap());
        ignore_signal(Signal::SIGURG).unwrap();
        assert!(signal_is_ignored(Signal::SIGURG).unwrap());
    }

    #[test]
    fn a_peer_that_lives_is_not_taken_for_dead() {
        use std::os::unix::net::UnixListener;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        // A shell connects nothing by itself, so this process is its own peer: alive as long as it asks.
        let _stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let Some(pidfd) = peer_pidfd(&accepted, std::process::id()).unwrap() else {
            eprintln!("SKIPPED: this kernel has no descriptors of processes");
            return;
        };
        let mut fds = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, PollTimeout::ZERO).unwrap(), 0, "still running");
        // (What it says of one that has died is tested with real processes in tests/client_forks.rs.)
    }

    #[test]
    fn a_pid_nobody_has_is_an_error() {
        // The largest pid a kernel can be set to is 2^22.
        if let Ok(None) = pidfd_open(1) {
            eprintln!("SKIPPED: this kernel has no pidfd_open");
            return;
        }
        assert!(matches!(
            pidfd_open((1 << 22) + 1),
            Err(ShmError::Os {
                call: "pidfd_open",
                ..
            })
        ));
    }

    #[test]
    fn random_ids_differ() {
        assert_ne!(random_id().unwrap(), random_id().unwrap());
    }
}
