//! `--fleet-file`: servers that have never heard of each other agree on one chunk size, or say why not.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Barrier;

use common::*;
use kvasir::control::ChunkWord;
use kvasir::wire::*;

fn server(fleet: &Path, more: &[&str]) -> ServerProcess {
    let fleet = fleet.to_str().unwrap();
    let mut args = vec!["--pool-size", "1MiB", "--fleet-file", fleet];
    args.extend(more);
    ServerProcess::with_args(&args)
}

fn size(client: &mut RawClient, alignment: u64) -> u64 {
    match client.negotiate(alignment) {
        Reply::Negotiate(reply) => reply.chunk_size,
        other => panic!("{alignment}: {other:?}"),
    }
}

fn record(fleet: &Path) -> u64 {
    let text = fs::read_to_string(fleet).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("chunk-size "));
    line.unwrap().parse().unwrap()
}

fn place() -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fleet");
    (directory, path)
}

#[test]
fn a_later_server_takes_the_size_of_the_first() {
    let (_directory, fleet) = place();
    let first = server(&fleet, &[]);
    let later = server(&fleet, &[]);
    assert!(!fleet.exists(), "starting decides nothing");
    assert_eq!(size(&mut first.tool(), 48), 288);
    assert_eq!(record(&fleet), 288);
    // Alone, this client would have led to 256.
    assert_eq!(size(&mut later.tool(), 32), 288);
    // Also a server that starts now, and is asked by somebody without a geometry.
    let last = server(&fleet, &[]);
    let reply = last.tool().call(&Request::GetChunkSize);
    assert!(
        matches!(reply, Reply::Negotiate(NegotiateReply { chunk_size: 288, .. })),
        "{reply:?}"
    );
    let fixed = server(&fleet, &["--chunk-size", "288", "--chunk-size-policy", "fixed"]);
    assert_eq!(size(&mut fixed.tool(), 96), 288);
    // The record outlives all of them.
    drop((first, later, last, fixed));
    assert_eq!(size(&mut server(&fleet, &[]).tool(), 16), 288);
}

#[test]
fn what_does_not_suit_the_fleet_is_refused_and_decides_nothing() {
    let (_directory, fleet) = place();
    assert_eq!(size(&mut server(&fleet, &[]).tool(), 48), 288);
    let other = server(&fleet, &[]);
    let mut client = other.tool();
    let refusal = client.refused(&negotiate(544));
    assert_eq!(
        (refusal.code, refusal.numbers),
        (ErrorCode::IncompatibleChunkSize, vec![288, 544])
    );
    assert!(
        refusal.message.contains(fleet.to_str().unwrap()),
        "{}",
        refusal.message
    );
    assert_eq!(client.control().chunk_word(), Ok(ChunkWord::Unbound));
    assert_eq!(size(&mut client, 48), 288);
    for settings in [
        &["--chunk-size", "512"][..],
        &["--chunk-size", "256", "--chunk-size-policy", "fixed"],
    ] {
        let other = server(&fleet, settings);
        let mut client = other.tool();
        for request in [negotiate(16), Request::GetChunkSize] {
            let refusal = client.refused(&request);
            assert_eq!(refusal.code, ErrorCode::IncompatibleChunkSize, "{settings:?}");
            assert_eq!(refusal.numbers[0], 288);
        }
        assert_eq!(client.control().chunk_word(), Ok(ChunkWord::Unbound));
    }
    assert_eq!(record(&fleet), 288);
}

#[test]
fn a_record_that_cannot_be_trusted_stops_negotiation_until_it_is_mended() {
    let (_directory, fleet) = place();
    let server_before = server(&fleet, &[]);
    let mut client = server_before.tool();
    fs::write(&fleet, "kvasir-fleet 1\nchunk-size 512\ndomain -\n").unwrap();
    fs::set_permissions(&fleet, fs::Permissions::from_mode(0o644)).unwrap();
    let refusal = client.refused(&negotiate(16));
    assert_eq!(
        (refusal.code, refusal.numbers),
        (ErrorCode::BindingListenerFailed, vec![0])
    );
    assert!(refusal.message.contains("0644"), "{}", refusal.message);
    assert_eq!(client.control().chunk_word(), Ok(ChunkWord::Unbound));
    let start = |path: &Path| {
        let socket = server_before.directory().join("other.sock");
        let (socket, path) = (socket.to_str().unwrap(), path.to_str().unwrap());
        run(&["serve", "--socket", socket, "--fleet-file", path], |_| {})
    };
    let (code, _, log) = start(&fleet);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("0644"), "{log}");
    let link = fleet.with_file_name("link");
    symlink(&fleet, &link).unwrap();
    let (code, _, log) = start(&link);
    assert_eq!(code, Some(1));
    assert!(log.contains("symbolic link"), "{log}");
    let (code, _, log) = start(&fleet.with_file_name("missing").join("fleet"));
    assert_eq!(code, Some(1), "{log}");
    fs::set_permissions(&fleet, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(size(&mut client, 16), 512);
}

/// The size is selected, the record cannot be made: the next negotiation resumes there.
#[test]
fn a_record_that_cannot_be_made_leaves_the_size_selected() {
    let (directory, _) = place();
    let below = directory.path().join("below");
    fs::create_dir(&below).unwrap();
    let server = server(&below.join("fleet"), &[]);
    let mut client = server.tool();
    fs::remove_dir(&below).unwrap();
    let refusal = client.refused(&negotiate(544));
    assert_eq!(
        (refusal.code, refusal.numbers),
        (ErrorCode::BindingListenerFailed, vec![544, 1])
    );
    assert!(refusal.message.contains("fleet"), "{}", refusal.message);
    assert_eq!(client.control().chunk_word(), Ok(ChunkWord::Selected(544)));
    fs::create_dir(&below).unwrap();
    assert_eq!(size(&mut client, 272), 544);
    assert_eq!(record(&below.join("fleet")), 544);
}

/// A record that appears after the size was selected: both sizes and the file are named, and only a restart helps.
#[test]
fn a_server_that_was_too_slow_says_so_until_it_is_restarted() {
    let (directory, _) = place();
    let below = directory.path().join("below");
    let fleet = below.join("fleet");
    fs::create_dir(&below).unwrap();
    let slow = server(&fleet, &[]);
    // Answered: it has started, and looked at the directory.
    let mut client = slow.tool();
    fs::remove_dir(&below).unwrap();
    client.refused(&negotiate(32));
    fs::create_dir(&below).unwrap();
    assert_eq!(size(&mut server(&fleet, &[]).tool(), 48), 288);
    for _ in 0..2 {
        let refusal = client.refused(&negotiate(32));
        assert_eq!(
            (refusal.code, refusal.numbers),
            (ErrorCode::BindingListenerFailed, vec![256, 1])
        );
        for part in ["288", "256", fleet.to_str().unwrap()] {
            assert!(refusal.message.contains(part), "{}", refusal.message);
        }
        assert_eq!(client.control().chunk_word(), Ok(ChunkWord::Selected(256)));
    }
    drop(slow);
    assert_eq!(size(&mut server(&fleet, &[]).tool(), 32), 288);
}

/// Two servers, two first clients that suit no common size, at the same moment: one size, and the other side is told.
#[test]
fn racing_servers_never_bind_two_sizes() {
    const ROUNDS: usize = 60;
    let (mut wins, mut late) = ([0; 2], 0);
    for round in 0..ROUNDS {
        let (directory, fleet) = place();
        let servers = [server(&fleet, &[]), server(&fleet, &[])];
        let barrier = Barrier::new(2);
        let answers: Vec<Reply> = std::thread::scope(|scope| {
            let racers = [48, 544].map(|alignment| {
                let (barrier, mut client) = (&barrier, servers[usize::from(alignment == 544)].tool());
                scope.spawn(move || {
                    barrier.wait();
                    client.negotiate(alignment)
                })
            });
            racers.into_iter().map(|racer| racer.join().unwrap()).collect()
        });
        let decided = record(&fleet);
        let mut bound = 0;
        for (side, answer) in answers.iter().enumerate() {
            let word = servers[side].tool().control().chunk_word().unwrap();
            let own = [288, 544][side];
            match answer {
                Reply::Negotiate(reply) => {
                    assert_eq!((reply.chunk_size, own), (decided, decided), "round {round}");
                    assert_eq!(u64::from(word.bound().unwrap()), decided);
                    bound += 1;
                    wins[side] += 1;
                }
                Reply::Error(error) => {
                    let text = &error.message;
                    assert!(text.contains(&decided.to_string()), "round {round}: {text}");
                    assert!(text.contains(fleet.to_str().unwrap()), "round {round}: {text}");
                    assert_eq!(word.bound(), None, "round {round}");
                    match error.code {
                        // It saw the record before it selected a size, or only after.
                        ErrorCode::IncompatibleChunkSize => assert_eq!(word, ChunkWord::Unbound),
                        ErrorCode::BindingListenerFailed => {
                            assert_eq!(word, ChunkWord::Selected(own as u32));
                            late += 1;
                            assert!(text.contains(&own.to_string()), "round {round}: {text}");
                        }
                        other => panic!("round {round}: {other:?}: {text}"),
                    }
                }
                other => panic!("round {round}: {other:?}"),
            }
        }
        assert_eq!(bound, 1, "round {round}: {answers:?}");
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            1,
            "nothing but the record"
        );
    }
    println!(
        "{ROUNDS} rounds, won by 288: {}, by 544: {}; {late} losers had selected already",
        wins[0], wins[1]
    );
}

#[test]
fn every_domain_has_a_record_of_its_own() {
    let (directory, fleet) = place();
    let servers = [0, 1].map(|_| server(&fleet, &["--chunk-scope", "model"]));
    let ask = |server: &ServerProcess, alignment, domain: u8| {
        let reply = server.tool().call(&Request::Negotiate(Negotiate {
            required_alignment: alignment,
            binding_domain: Some([domain; 32]),
            ..Negotiate::default()
        }));
        match reply {
            Reply::Negotiate(reply) => reply.chunk_size,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(&servers[0], 544, 1), 544);
    assert_eq!(ask(&servers[1], 640, 2), 640);
    assert_eq!(ask(&servers[0], 320, 2), 640);
    assert_eq!(ask(&servers[1], 272, 1), 544);
    let mut names: Vec<_> = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [1, 2].map(|n| format!("fleet.{}", format!("{n:02x}").repeat(16)))
    );
}
