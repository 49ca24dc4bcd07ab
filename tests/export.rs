//! `kvasir serve --export NAME`: a client without descriptors maps its ring by name, and names never stay.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::*;
use kvasir::shm::ring::RING_HEADER_BYTES;
use kvasir::wire::*;
use nix::sys::signal::Signal;
use nix::unistd::geteuid;

const LANE: u64 = 1 << 20;

/// A name that no other test has at this time.
fn unique(what: &str) -> String {
    format!("test-{what}-{}", std::process::id())
}

/// What is there under a name.
fn names(name: &str) -> Vec<String> {
    let entries = fs::read_dir("/dev/shm").unwrap().flatten();
    let mut found: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|file| file.starts_with(&format!("kvasir.{name}.")))
        .collect();
    found.sort();
    found
}

fn serve(name: &str) -> ServerProcess {
    let server = ServerProcess::with_args(&["--pool-size", "16MiB", "--export", name]);
    server.wait_prefaulted();
    server
}

/// A client that has said hello and got a name.
fn named(server: &ServerProcess, lane: u64) -> (RawClient, PathBuf, u64) {
    let mut client = server.connect();
    let Request::Hello(hello) = hello(false) else {
        panic!("a hello")
    };
    let hello = Request::Hello(Hello {
        ring_bytes: lane,
        named: true,
        ..hello
    });
    let reply = match client.call(&hello) {
        Reply::Hello(reply) => reply,
        other => panic!("{other:?}"),
    };
    assert!(reply.regions.is_empty(), "no descriptor came");
    let [region] = &reply.named[..] else {
        panic!("{:?}", reply.named)
    };
    assert_eq!(region.kind, RegionKind::Ring);
    (client, PathBuf::from(&region.path), region.bytes)
}

#[test]
fn a_name_is_the_owners_and_goes_when_the_client_attaches() {
    let name = unique("attach");
    let server = serve(&name);
    let (mut client, path, bytes) = named(&server, LANE);
    assert_eq!(bytes, RING_HEADER_BYTES + 2 * LANE);
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(metadata.mode() & 0o7777, 0o600);
    assert_eq!((metadata.len(), metadata.uid()), (bytes, geteuid().as_raw()));
    assert_eq!(client.call(&Request::Attach), Reply::Ack);
    assert!(!path.exists());
    assert_eq!(names(&name), [format!("kvasir.{name}.lock")]);
    // Of one that never attaches it goes with the connection.
    let (client, path, _) = named(&server, LANE);
    assert!(path.exists());
    drop(client);
    eventually("the name to go", || !path.exists());
    assert_eq!(server.status()["clients"][0]["ring"]["named"], true);
}

/// A process of another language, which opens the name and knows of the layout what its page says.
#[test]
fn a_process_stores_and_loads_by_name() {
    let name = unique("python");
    let server = serve(&name);
    let (mut client, path, bytes) = named(&server, LANE);
    assert!(matches!(client.negotiate(ALIGNMENT), Reply::Negotiate(_)));
    match client.call(&Request::RegisterKvCache(RegisterKvCache {
        payload_path: kvasir::object::PayloadPath::ShmRing,
        ..registration()
    })) {
        Reply::Register(reply) => client.seed = Some(reply.domain_seed),
        other => panic!("{other:?}"),
    }
    let script = r#"
import mmap, struct, sys
path, size = sys.argv[1], int(sys.argv[2])
file = open(path, "r+b")
ring = mmap.mmap(file.fileno(), size)
magic, version, lane, total = struct.unpack_from("<8sQQQ", ring, 0)
assert (magic, version & 0xffffffff, total) == (b"KVASIRR1", 1, size), (magic, version, total)
header = version >> 32
def word(at, value=None):
    if value is not None:
        struct.pack_into("<Q", ring, at, value)
    return struct.unpack_from("<Q", ring, at)[0]
def say(text):
    print(text, flush=True)
content = bytes((at * 31 + 7) % 251 for at in range(65536))
say("mapped"); sys.stdin.readline()
ring[header:header + 65536] = content
word(128, 65536)
say("put"); sys.stdin.readline()
assert word(256) == 65536, "the server has read it"
assert word(384) == 65536, "and has written as much"
same = ring[header + lane:header + lane + 65536] == content
word(512, 65536)
say("same" if same else "other bytes")
sys.stdin.readline()
"#;
    let mut child = Command::new("python3")
        .args(["-c", script, &path.display().to_string(), &bytes.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut hears = |expected: &str| {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        assert_eq!(line.trim(), expected);
    };
    let mut input = child.stdin.take().unwrap();
    let mut go_on = || std::io::Write::write_all(&mut input, b"\n").unwrap();
    hears("mapped");
    assert_eq!(client.call(&Request::Attach), Reply::Ack);
    go_on();
    hears("put");
    let extent = grant_one(&mut client);
    let run = kvasir::object::RingRun {
        frame: extent.frame,
        offset: 0,
        bytes: CHUNK_BYTES,
    };
    assert_eq!(client.call(&Request::RingWrite { runs: vec![run] }), Reply::Ack);
    let commit = commit_of(&client, 1, extent);
    match client.call(&Request::Commit(commit)) {
        Reply::Commit(reply) => assert_eq!(reply.outcomes, [kvasir::object::CommitOutcome::Published]),
        other => panic!("{other:?}"),
    }
    let retrieve = kvasir::object::RetrieveRequest {
        domain_seed: client.seed.unwrap(),
        label: 1,
        part: 0,
        ids: vec![object(1)],
    };
    let pin = match client.call(&Request::Retrieve(retrieve)) {
        Reply::Retrieve(found) => found.pin,
        other => panic!("{other:?}"),
    };
    let part = kvasir::object::RingPart {
        place: 0,
        offset: 0,
        bytes: CHUNK_BYTES,
    };
    let read = Request::RingRead {
        pin,
        parts: vec![part],
    };
    assert_eq!(client.call(&read), Reply::Ack);
    go_on();
    hears("same");
    go_on();
    assert!(child.wait().unwrap().success());
}

#[test]
fn another_user_opens_no_name() {
    if !geteuid().is_root() {
        eprintln!("only root can become another user");
        return;
    }
    let name = unique("uid");
    let server = serve(&name);
    let (_client, path, _) = named(&server, LANE);
    let read = |uid: Option<u32>| {
        let mut cat = Command::new("dd");
        cat.args(["count=1", "status=none"])
            .arg(format!("if={}", path.display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if let Some(uid) = uid {
            cat.uid(uid).gid(uid);
        }
        cat.status().unwrap().success()
    };
    assert!(read(None), "the owner can");
    assert!(!read(Some(65534)));
}

#[test]
fn an_owner_that_cuts_its_ring_short_is_dropped_and_the_server_lives() {
    let name = unique("cut");
    let mut server = serve(&name);
    let mut bystander = server.worker();
    let (mut client, path, _) = named(&server, LANE);
    assert!(matches!(client.negotiate(ALIGNMENT), Reply::Negotiate(_)));
    match client.call(&Request::RegisterKvCache(RegisterKvCache {
        payload_path: kvasir::object::PayloadPath::ShmRing,
        ..registration()
    })) {
        Reply::Register(reply) => client.seed = Some(reply.domain_seed),
        other => panic!("{other:?}"),
    }
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let extent = grant_one(&mut client);
    // The words are there, the lane is not.
    file.write_all_at(&65536_u64.to_le_bytes(), 128).unwrap();
    file.set_len(4096).unwrap();
    let run = kvasir::object::RingRun {
        frame: extent.frame,
        offset: 0,
        bytes: CHUNK_BYTES,
    };
    let error = client.refused(&Request::RingWrite { runs: vec![run] });
    assert_eq!(error.code, ErrorCode::RingBroken);
    client.expect_closed();
    let (mut client, path, _) = named(&server, LANE);
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(0)
        .unwrap();
    let error = client.refused(&Request::RingWrite { runs: vec![] });
    assert_eq!(error.code, ErrorCode::RingBroken);
    assert_eq!(server.status()["rings"]["broken"], 2);
    server.assert_serves(&mut bystander);
}

#[test]
fn nothing_is_left_after_an_end_and_after_a_kill_somebody_cleans_up() {
    let name = unique("kill");
    let mut server = serve(&name);
    let (_client, path, _) = named(&server, LANE);
    server.signal(Signal::SIGTERM);
    assert!(server.wait().success());
    assert!(!path.exists());
    assert_eq!(names(&name), Vec::<String>::new(), "after an end");

    let mut server = serve(&name);
    let (_client, _, _) = named(&server, LANE);
    let (_second, _, _) = named(&server, LANE);
    assert_eq!(names(&name).len(), 3);
    server.signal(Signal::SIGKILL);
    server.wait();
    // Any server that starts meanwhile, another test's too, removes what is left. A server with the same name, one with another, and one with none: each removes what the dead left.
    let again = serve(&name);
    assert_eq!(names(&name), [format!("kvasir.{name}.lock")]);
    let (_client, _, _) = named(&again, LANE);
    again.signal(Signal::SIGKILL);
    let mut again = again;
    again.wait();
    let living = serve(&unique("living"));
    assert_eq!(names(&name), Vec::<String>::new());
    // What a living one has is left to it.
    let (_client, path, _) = named(&living, LANE);
    let plain = ServerProcess::start();
    assert!(path.exists());
    assert_eq!(plain.status()["rings"]["bytes"], 0);
}

#[test]
fn a_name_is_one_servers_and_has_to_be_one() {
    let name = unique("twice");
    let _server = serve(&name);
    let directory = tempfile::tempdir().unwrap();
    let start = |export: &str, socket: &Path| {
        let socket = socket.display().to_string();
        run(
            &[
                "serve",
                "--pool-size",
                "1MiB",
                "--socket",
                &socket,
                "--export",
                export,
            ],
            |_| {},
        )
    };
    let (code, _, error) = start(&name, &directory.path().join("a.sock"));
    assert_eq!(code, Some(1));
    assert!(error.contains("another server exports under the name"), "{error}");
    let (code, _, error) = start("a/b", &directory.path().join("b.sock"));
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("letters, digits"), "{error}");
    assert_eq!(
        fs::read_dir(directory.path()).unwrap().count(),
        0,
        "nor is a socket left"
    );
}
