//! What other processes can and cannot do with the shared regions, tried by real processes.
//!
//! Processes that have to be killed, or to run under another uid, are this test binary started again:
//! [`child_entry`] does in them what an environment variable says and reports on standard output.

// Mapping and protecting memory by hand is the point of these tests.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Lines};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use kvasir::control::{
    BootInfo, ChunkSizeConfig, ChunkWord, ControlRegion, ControlView, Counter, NegotiateRequest,
};
use kvasir::shm::lock::{byte_is_locked, try_lock_byte};
use kvasir::shm::lock_file::{LockAttempt, LockFile};
use kvasir::shm::{Memfd, OwnerAccess, fdpass, process, reopen_read_only, reopen_read_write};
use kvasir::sync::shared::Ordering;
use nix::errno::Errno;
use nix::fcntl::FallocateFlags;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags};
use nix::sys::stat::Mode;

const ROLE: &str = "KVASIR_TEST_ROLE";
const ARGUMENT: &str = "KVASIR_TEST_ARGUMENT";
const REPORT: &str = "report: ";
const NOBODY: u32 = 65534;

/// The other half of every test below that needs a second process. Started by itself, it has nothing to do.
#[test]
fn child_entry() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let argument = std::env::var(ARGUMENT).unwrap_or_default();
    match role.as_str() {
        "hold-byte" => hold_byte(argument.parse().unwrap()),
        "hold-lock-file" => hold_lock_file(Path::new(&argument)),
        "open-all" => argument.split(',').for_each(report_opens),
        "unprivileged-server" => unprivileged_server(),
        other => panic!("unknown role {other}"),
    }
}

struct Helper {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Helper {
    /// Starts this binary in a role, with `stdin` as its standard input.
    fn start(role: &str, argument: &str, stdin: Stdio, uid: Option<u32>) -> Self {
        // Started through a descriptor, since another uid may not be able to search the build directory.
        let binary = std::fs::File::open("/proc/self/exe").unwrap();
        let mut command = Command::new(format!("/proc/self/fd/{}", binary.as_raw_fd()));
        command
            .args(["--exact", "child_entry", "--nocapture"])
            .env(ROLE, role)
            .env(ARGUMENT, argument);
        command.stdin(stdin).stdout(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The next report; `None` when the process has ended.
    fn report(&mut self) -> Option<String> {
        let report = |line: std::io::Result<String>| {
            line.unwrap()
                .split_once(REPORT)
                .map(|(_, report)| report.to_owned())
        };
        self.lines.by_ref().find_map(report)
    }

    /// Kills the process and waits until it is gone.
    fn kill(self) {}

    fn finish(mut self) -> Vec<String> {
        let reports = std::iter::from_fn(|| self.report()).collect();
        assert!(
            self.child.wait().unwrap().success(),
            "the helper process failed: {reports:?}"
        );
        reports
    }
}

/// No helper outlives its test, also when the test fails. One that has ended is not killed again.
impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn report(text: &str) {
    println!("{REPORT}{text}");
}

fn wait_to_be_killed() -> ! {
    loop {
        std::thread::park();
    }
}

fn am_root() -> bool {
    nix::unistd::geteuid().is_root()
}

// ---------------------------------------------------------------------------------------------------
// The control region

fn control_region() -> Arc<ControlRegion> {
    Arc::new(ControlRegion::create(BootInfo::fresh(1).unwrap()).unwrap())
}

/// Passes a descriptor through a socket, as a client gets it.
fn received(fd: OwnedFd) -> OwnedFd {
    let (server, client) = UnixStream::pair().unwrap();
    fdpass::send_with_fds(&server, b"regions", &[fd.as_fd()]).unwrap();
    let mut message = fdpass::recv_with_fds(&client, &mut [0; 16], 1).unwrap();
    message.fds.pop().unwrap()
}

fn map_page(fd: BorrowedFd<'_>, prot: ProtFlags) -> Result<std::ptr::NonNull<std::ffi::c_void>, Errno> {
    let page = NonZeroUsize::new(4096).unwrap();
    // SAFETY: a new mapping at an address of the kernel's choice; nothing of ours is replaced.
    unsafe { nix::sys::mman::mmap(None, page, prot, MapFlags::MAP_SHARED, fd, 0) }
}

/// Tries every way there is to change the region's bytes or its size through a descriptor.
fn assert_cannot_change(fd: BorrowedFd<'_>, what: &str) {
    let refused = [Errno::EBADF, Errno::EPERM, Errno::EACCES, Errno::EINVAL];
    let check = |how: &str, result: Result<(), Errno>| match result {
        Err(errno) if refused.contains(&errno) => {}
        other => panic!("{how} through {what}: {other:?}"),
    };
    check("write", nix::unistd::write(fd, &[0xff; 8]).map(drop));
    check("pwrite", nix::sys::uio::pwrite(fd, &[0xff; 8], 128).map(drop));
    check("ftruncate to 0", nix::unistd::ftruncate(fd, 0));
    check("ftruncate to 8192", nix::unistd::ftruncate(fd, 8192));
    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    check("punching a hole", nix::fcntl::fallocate(fd, punch, 0, 4096));
    check(
        "growing",
        nix::fcntl::fallocate(fd, FallocateFlags::empty(), 4096, 4096),
    );
    check(
        "a writable mapping",
        map_page(fd, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE).map(drop),
    );
    check(
        "a write-only mapping",
        map_page(fd, ProtFlags::PROT_WRITE).map(drop),
    );

    let page = map_page(fd, ProtFlags::PROT_READ).unwrap();
    // SAFETY: the page was mapped just now and nothing refers to it.
    check("mprotect", unsafe {
        nix::sys::mman::mprotect(page, 4096, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)
    });
    // SAFETY: as above; were it allowed, it would drop the page's contents.
    check("madvise", unsafe {
        nix::sys::mman::madvise(page, 4096, MmapAdvise::MADV_REMOVE)
    });
    // SAFETY: as above; it is not used again.
    unsafe { nix::sys::mman::munmap(page, 4096) }.unwrap();
}

#[test]
fn no_client_can_change_the_control_region() {
    let region = control_region();
    let fd = received(region.client_fd().unwrap());
    let view = ControlView::open(fd.as_fd()).unwrap();
    let binding = kvasir::control::Binding::new(region.chunk_size_cell(), ChunkSizeConfig::default());
    binding
        .negotiate(NegotiateRequest {
            required_alignment: 544,
            ..Default::default()
        })
        .unwrap();

    assert_cannot_change(fd.as_fd(), "the received descriptor");
    assert_cannot_change(
        reopen_read_only(fd.as_fd()).unwrap().as_fd(),
        "one reopened read-only",
    );
    match reopen_read_write(fd.as_fd()) {
        Ok(writable) => {
            assert!(am_root(), "mode 0400 stops everybody but root");
            assert_cannot_change(writable.as_fd(), "one that root reopened writable");
        }
        Err(e) => assert!(!am_root() && e.to_string().contains("ermission denied"), "{e}"),
    }
    // The owner can give itself the mode; then only the seals are left.
    nix::sys::stat::fchmod(&fd, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let writable = reopen_read_write(fd.as_fd()).unwrap();
    assert_cannot_change(writable.as_fd(), "one reopened writable after chmod");
    assert_cannot_change(region.as_fd(), "the server's own descriptor");

    assert_eq!(view.chunk_word(), Ok(ChunkWord::Bound(544)));
    assert_eq!(view.boot(), ControlView::open(fd.as_fd()).unwrap().boot());
    region.counter(Counter::HitUnits).store(9, Ordering::Relaxed);
    assert_eq!(view.counter(Counter::HitUnits), 9, "the server can still write");
}

/// The attempts above do change a region that is not protected: the test can fail.
#[test]
fn an_unprotected_region_can_be_changed() {
    let memfd = Memfd::create("unprotected", 4096, OwnerAccess::ReadWrite).unwrap();
    let fd = memfd.reopen_read_write().unwrap();
    assert_eq!(nix::unistd::write(&fd, &[0xff; 8]), Ok(8));
    let page = map_page(fd.as_fd(), ProtFlags::PROT_READ | ProtFlags::PROT_WRITE).unwrap();
    // SAFETY: mapped just now, not used again.
    unsafe { nix::sys::mman::munmap(page, 4096) }.unwrap();
    assert_eq!(
        memfd
            .map()
            .unwrap()
            .atomic_u64(0)
            .unwrap()
            .load(Ordering::Relaxed),
        u64::MAX
    );
}

// ---------------------------------------------------------------------------------------------------
// Another uid

/// Reports, for one path, what opening it for reading and for writing gives.
fn report_opens(path: &str) {
    let open = |write: bool| match OpenOptions::new().read(!write).write(write).open(path) {
        Ok(_) => "opened".to_owned(),
        Err(e) => format!("{:?}", e.kind()),
    };
    report(&format!("read {}, write {}", open(false), open(true)));
}

#[test]
fn another_uid_cannot_open_the_control_region() {
    if !am_root() {
        eprintln!("SKIPPED: needs root to start a process of another uid");
        return;
    }
    let region = control_region();
    let server_fd = region.as_fd().as_raw_fd();
    let paths = format!("/proc/{}/fd/{server_fd},/proc/self/fd/0", std::process::id());
    let client_fd = region.client_fd().unwrap();
    let helper = Helper::start("open-all", &paths, client_fd.into(), Some(NOBODY));
    let denied = "read PermissionDenied, write PermissionDenied";
    assert_eq!(helper.finish(), [denied, denied]);

    // With the mode that memfds have by default, the second way is open.
    let lax = Memfd::create("lax", 4096, OwnerAccess::Read).unwrap();
    let fd = lax.reopen_read_only().unwrap();
    nix::sys::stat::fchmod(&fd, Mode::from_bits_retain(0o666)).unwrap();
    let helper = Helper::start("open-all", "/proc/self/fd/0", fd.into(), Some(NOBODY));
    assert_eq!(helper.finish(), ["read opened, write opened"]);
}

/// What a server that is not root does, after it has made itself undumpable.
fn unprivileged_server() {
    process::set_not_dumpable().unwrap();
    assert!(!nix::sys::prctl::get_dumpable().unwrap());
    no_client_can_change_the_control_region();
    report(&format!("uid {}", nix::unistd::geteuid()));
}

#[test]
fn the_regions_work_for_an_undumpable_server() {
    let uid = if am_root() {
        NOBODY
    } else {
        eprintln!("SKIPPED in part: not root, so only this uid is tried");
        nix::unistd::geteuid().as_raw()
    };
    let helper = Helper::start("unprivileged-server", "", Stdio::null(), am_root().then_some(uid));
    assert_eq!(helper.finish(), [format!("uid {uid}")]);
}

// ---------------------------------------------------------------------------------------------------
// Locks of processes that are killed

/// Locks a byte of the file that is its standard input.
fn hold_byte(byte: u64) {
    let locked = try_lock_byte(std::io::stdin().as_fd(), byte).unwrap();
    report(if locked { "locked" } else { "taken" });
    wait_to_be_killed();
}

#[test]
fn a_killed_client_frees_its_byte_and_nobody_elses() {
    let liveness = Memfd::create("liveness", 64, OwnerAccess::ReadWrite).unwrap();
    liveness.seal_writes().unwrap();
    let start = |byte: u64| {
        // The helper gets a description of its own, of which no copy stays here.
        let description = liveness.reopen_read_write().unwrap();
        Helper::start("hold-byte", &byte.to_string(), description.into(), None)
    };
    let locked = |byte| byte_is_locked(liveness.as_fd(), byte).unwrap();

    let (mut one, mut two) = (start(1), start(2));
    assert_eq!(one.report().as_deref(), Some("locked"));
    assert_eq!(two.report().as_deref(), Some("locked"));
    let mut rival = start(1);
    assert_eq!(rival.report().as_deref(), Some("taken"));
    rival.kill();
    assert_eq!((locked(0), locked(1), locked(2)), (false, true, true));
    one.kill();
    assert_eq!((locked(1), locked(2)), (false, true));
    let mut next = start(1);
    assert_eq!(
        next.report().as_deref(),
        Some("locked"),
        "the byte serves the next client"
    );
    next.kill();
    two.kill();
    assert_eq!((locked(1), locked(2)), (false, false));
}

fn hold_lock_file(path: &Path) {
    match LockFile::acquire(path).unwrap() {
        LockAttempt::Taken(_lock) => {
            report("locked");
            wait_to_be_killed();
        }
        LockAttempt::Held { .. } => report("held"),
    }
}

#[test]
fn a_lock_file_outlives_its_killed_holder_but_the_lock_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kvasir.lock");
    let mut holder = Helper::start("hold-lock-file", path.to_str().unwrap(), Stdio::null(), None);
    assert_eq!(holder.report().as_deref(), Some("locked"));
    match LockFile::acquire(&path).unwrap() {
        LockAttempt::Held { holder_pid } => assert_eq!(holder_pid, Some(holder.child.id())),
        LockAttempt::Taken(_) => panic!("two holders"),
    }
    holder.kill();
    assert!(path.exists());
    let LockAttempt::Taken(lock) = LockFile::acquire(&path).unwrap() else {
        panic!("still held")
    };
    let second = Helper::start("hold-lock-file", path.to_str().unwrap(), Stdio::null(), None);
    assert_eq!(second.finish(), ["held"]);
    lock.remove().unwrap();
}
