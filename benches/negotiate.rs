//! What does it cost to agree on a chunk size, and to talk to a server at all?
//!
//! The decision alone, the codec of the messages on the hot path, and round trips to a real server process over its
//! socket. The last line puts the round trip beside that of one byte over a socket pair, which is its floor here: the ratio
//! of the medians, taken alternately so that a busy machine disturbs both alike.

use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use criterion::Criterion;
use kvasir::control::{Binding, ChunkSizeConfig, NegotiateRequest};
use kvasir::object::{Lookup, TailList};
use kvasir::sync::AtomicU64;
use kvasir::wire::{Encoder, Reply, Request, decode_request};

use common::{ALIGNMENT, RawClient, ServerProcess, key, negotiate};
use report::Report;

#[path = "../tests/common/mod.rs"]
mod common;
mod report;

const KEYS: u64 = 128;
/// Odd, so that there is a middle one.
const ROUNDS: usize = 2001;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    decision(&mut criterion);
    codec(&mut criterion);
    let mut report = Report::new("negotiate");
    round_trips(&mut criterion, &mut report);
    criterion.final_summary();
    report.finish();
}

fn decision(criterion: &mut Criterion) {
    let binding = Binding::new(AtomicU64::new(0), ChunkSizeConfig::default());
    let request = || NegotiateRequest {
        required_alignment: ALIGNMENT,
        ..NegotiateRequest::default()
    };
    binding.negotiate(request()).expect("a compatible alignment");
    criterion.bench_function("negotiate/decision", |bencher| {
        bencher.iter(|| binding.negotiate(black_box(request())));
    });
}

fn codec(criterion: &mut Criterion) {
    let lookup = Request::Lookup(Lookup {
        domain_seed: key(0),
        label: 1,
        keys: (0..KEYS).map(key).collect(),
        tails: TailList::default(),
        max_tokens: 32_767,
        local_tokens: 0,
        pin: true,
        describe: false,
    });
    let mut encoder = Encoder::new();
    let frame = encoder.request(1, &lookup).expect("a small frame").to_vec();
    criterion.bench_function("wire/encode a lookup of 128 keys", |bencher| {
        bencher.iter(|| encoder.request(1, black_box(&lookup)).map(<[u8]>::len));
    });
    criterion.bench_function("wire/decode a lookup of 128 keys", |bencher| {
        bencher.iter(|| decode_request(black_box(&frame)));
    });
}

fn round_trips(criterion: &mut Criterion, report: &mut Report) {
    let server = ServerProcess::with_args(&["--pool-size", "1MiB", "--log-level", "error"]);
    let mut client = server.tool();
    let expect = |reply: Reply| assert!(matches!(reply, Reply::Negotiate(_)), "{reply:?}");
    criterion.bench_function("negotiate/round trip", |bencher| {
        bencher.iter(|| expect(client.negotiate(ALIGNMENT)));
    });
    criterion.bench_function("negotiate/connect, hello and negotiate", |bencher| {
        bencher.iter(|| {
            let mut client = RawClient::connect(server.socket());
            client.hello(false);
            expect(client.call(&negotiate(ALIGNMENT)));
        });
    });
    let (mut near, mut far) = UnixStream::pair().expect("a socket pair");
    std::thread::spawn(move || {
        let mut byte = [0];
        while far.read_exact(&mut byte).is_ok() && far.write_all(&byte).is_ok() {}
    });
    let mut there_and_back = || {
        let mut byte = [7];
        near.write_all(&byte).and_then(|()| near.read_exact(&mut byte))
    };
    criterion.bench_function("floor/one byte there and back", |bencher| {
        bencher.iter(&mut there_and_back);
    });
    if !report.is_wanted() {
        return;
    }
    let (mut trips, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        trips.push(timed(|| expect(client.negotiate(ALIGNMENT))));
        floor.push(timed(|| there_and_back().expect("an open socket pair")));
    }
    let (trip, floor) = (report::median(trips), report::median(floor));
    report.figure("round trip", trip * 1e6, "us");
    report.figure("one byte there and back", floor * 1e6, "us");
    let ratio = report.ratio("round trip of one byte there and back", trip, floor);
    println!(
        "negotiate: round trip {:.1} us, one byte there and back {:.1} us, ratio {ratio:.2}",
        trip * 1e6,
        floor * 1e6
    );
}

fn timed(call: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    call();
    begin.elapsed()
}
