//! Clients that are killed while a child of theirs lives: what they held comes back, whoever has their socket.

#![allow(unsafe_code)] // forks, in processes of their own

mod common;

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::*;
use kvasir::client::{Client, ClientConfig};
use kvasir::object::*;
use kvasir::wire::*;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{ForkResult, Pid, fork};

/// Set in a victim: where to connect, and which child to leave.
const VICTIM: &str = "FORKED_CLIENT";
const MARK: &str = "victim: ready ";

/// A process that dies with everything that a client can hold, and the child that survives it.
struct Victim {
    process: Child,
    child: Pid,
}

impl Victim {
    fn start(server: &ServerProcess, kind: &str) -> Self {
        let socket = server.socket().to_str().unwrap();
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_victim", "--nocapture", "--test-threads=1"])
            .env(VICTIM, format!("{kind} {socket}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let child = lines
            .map(|line| line.unwrap())
            .find_map(|line| line.strip_prefix(MARK)?.parse().ok())
            .expect("the victim says which child it has");
        Self {
            process,
            child: Pid::from_raw(child),
        }
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn child_lives(&self) -> bool {
        kill(self.child, None).is_ok()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = kill(self.child, Signal::SIGKILL);
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs in the process of a [`Victim`]; as a test of its own it does nothing.
#[allow(clippy::zombie_processes, reason = "the child has to outlive this process")]
#[test]
fn a_victim() {
    let Ok(what) = std::env::var(VICTIM) else {
        return;
    };
    let (kind, socket) = what.split_once(' ').unwrap();
    let socket = Path::new(socket);
    match kind {
        "fork" => {
            let _client = library_client(socket);
            // SAFETY: the child sleeps and exits, and calls nothing else.
            match unsafe { fork() }.unwrap() {
                ForkResult::Child => sleep_and_exit(),
                ForkResult::Parent { child } => ready(child.as_raw()),
            }
        }
        "clone" => {
            let _client = library_client(socket);
            // SAFETY: as above. No handler of `fork` runs, as where a runtime makes its processes by itself.
            let child = unsafe { nix::libc::syscall(nix::libc::SYS_clone, nix::libc::SIGCHLD, 0, 0, 0, 0) };
            match child {
                0 => sleep_and_exit(),
                child => ready(child as i32),
            }
        }
        "exec" => {
            let mut client = RawClient::connect(socket);
            client.become_worker();
            hold(&mut client);
            let flags = FcntlArg::F_SETFD(FdFlag::empty());
            fcntl(client.stream().as_fd(), flags).unwrap();
            let child = Command::new("sleep").arg("600").spawn().unwrap();
            ready(child.id() as i32);
        }
        other => panic!("{other}"),
    }
}

fn library_client(socket: &Path) -> Client {
    let mut config = ClientConfig::new(socket, ClientKind::Worker, "engine", [7; 16]);
    config.deadline = WATCHDOG;
    config.grant_bytes = 0;
    let client = Client::new(config).unwrap();
    let Request::Negotiate(request) = negotiate(ALIGNMENT) else {
        unreachable!()
    };
    client.negotiate(request).unwrap();
    client.register(registration()).unwrap();
    assert!(client.reserve(4 * CHUNK_BYTES).unwrap() >= 4 * CHUNK_BYTES);
    let found = client.lookup(
        &Lookup {
            domain_seed: client.domain_seed().unwrap(),
            label: 1,
            keys: vec![key(1)],
            tails: TailList::default(),
            max_tokens: u64::MAX,
            local_tokens: 0,
            pin: true,
            describe: false,
        }
        .as_request(),
    );
    assert!(found.unwrap().pin.is_some());
    client
}

fn hold(client: &mut RawClient) {
    assert!(!client.grant(4 * CHUNK_BYTES).is_empty());
    assert!(matches!(client.call(&lookup(client, &[1])), Reply::Lookup(found) if found.pin != 0));
}

fn ready(child: i32) {
    println!("\n{MARK}{child}");
    loop {
        std::thread::park();
    }
}

fn sleep_and_exit() -> ! {
    std::thread::sleep(std::time::Duration::from_secs(600));
    // SAFETY: ends this process without running anything of its parent's.
    unsafe { nix::libc::_exit(0) }
}

/// Granted and pinned bytes, and slabs in use besides the bystander's.
fn held(server: &ServerProcess) -> (u64, u64, usize) {
    let status = server.status();
    assert_balanced(&status);
    let of = |name: &str| status["pool"][name].as_u64().unwrap();
    let clients = status["clients"].as_array().unwrap().len();
    (of("granted"), of("pinned"), clients - 1)
}

fn server_with_an_object() -> (ServerProcess, RawClient) {
    let server = ServerProcess::start();
    server.wait_prefaulted();
    let mut bystander = server.worker();
    store(&mut bystander, 1);
    (server, bystander)
}

#[test]
fn a_forked_child_keeps_nothing_of_its_dead_parent() {
    let (server, _bystander) = server_with_an_object();
    let mut victim = Victim::start(&server, "fork");
    let (granted, pinned, clients) = held(&server);
    assert!(granted >= 4 * CHUNK_BYTES && pinned > 0 && clients == 1);
    victim.kill();
    eventually("everything to come back", || held(&server) == (0, 0, 0));
    assert!(victim.child_lives());
}

#[test]
fn a_program_that_inherited_the_socket_keeps_nothing_of_its_dead_parent() {
    let (server, _bystander) = server_with_an_object();
    let mut victim = Victim::start(&server, "exec");
    let (granted, pinned, clients) = held(&server);
    assert!(granted >= 4 * CHUNK_BYTES && pinned > 0 && clients == 1);
    victim.kill();
    eventually("everything to come back", || held(&server) == (0, 0, 0));
    assert!(victim.child_lives());
}

/// Such a child has the lock, and a lock that is held means that somebody may still write. The connection ends with the
/// process that made it; the grants with the lock.
#[test]
fn a_child_that_holds_the_lock_keeps_the_grants_and_nothing_else() {
    let (server, _bystander) = server_with_an_object();
    let mut victim = Victim::start(&server, "clone");
    let before = held(&server);
    victim.kill();
    eventually("the connection to end", || {
        let status = server.status();
        let clients = status["clients"].as_array().unwrap();
        clients.iter().any(|client| client["connected"] == false)
    });
    assert!(victim.child_lives());
    server.wait_log("still holds its lock");
    assert_eq!(held(&server).0, before.0, "its own until the lock is free");
    kill(victim.child, Signal::SIGKILL).unwrap();
    eventually("everything to come back", || held(&server) == (0, 0, 0));
}
