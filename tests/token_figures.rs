//! What engines reused, as `kvasir status` adds it up: in tokens, by model, over clients and servers that come and go.

mod client_support;

use std::process::Command;
use std::time::Duration;

use client_support::*;
use kvasir::client::{Client, ClientConfig};
use kvasir::index::counters::ReuseCounters;
use kvasir::object::ClientKind;
use serde_json::{Value, json};

fn scheduler(place: &Place, instance: u8, shape: &Shape) -> Client {
    let mut config = ClientConfig::new(place.socket(), ClientKind::Scheduler, "scheduler", [instance; 16]);
    config.deadline = WATCHDOG;
    config.heartbeat = Duration::from_millis(50);
    let client = Client::new(config).unwrap();
    client.negotiate(shape.negotiation()).unwrap();
    client
}

fn shape(model: &str) -> Shape {
    Shape {
        model: model.into(),
        ..Shape::plain(64, 0)
    }
}

fn row(status: &Value, model: &Value) -> Value {
    let rows = status["models"].as_array().unwrap();
    let mut found = rows.iter().filter(|row| row["model"] == *model);
    let row = found
        .next()
        .unwrap_or_else(|| panic!("no row of {model} in {rows:?}"));
    assert!(found.next().is_none(), "one row for each model: {rows:?}");
    row["tokens"].clone()
}

fn tokens(requests: u64, asked: u64, held: u64, hit: u64, percent: Option<f64>) -> Value {
    json!({
        "requests": requests, "asked": asked, "held": held, "hit": hit, "hit_percent": percent, "loaded": hit,
        "failed": 0, "preempted_asked": 0, "preempted_hit": 0,
    })
}

#[test]
fn tokens_are_added_up_by_model_and_stay() {
    let mut place = Place::with_server();
    let (one, two) = (shape("org/one"), shape("org/two"));
    let engines = [Engine::start(&place, &one, 1), Engine::start(&place, &two, 2)];
    let own = scheduler(&place, 1, &one);
    let asking = scheduler(&place, 2, &two);
    assert_eq!(place.status()["models"], json!([]), "nothing was counted");
    let count = |client: &Client, asked, held, hit| {
        client.count_reuse(ReuseCounters {
            requests: 1,
            asked,
            held,
            hit,
            loaded: hit,
            ..ReuseCounters::default()
        });
    };
    // Before the first lookup nobody knows for which model.
    count(&own, 100, 0, 0);
    assert_eq!(
        row(&place.status(), &Value::Null),
        tokens(1, 100, 0, 0, Some(0.0))
    );
    for (client, engine) in [(&own, &engines[0]), (&asking, &engines[1])] {
        let chain = engine.chain(3 * CHUNK, 1);
        client
            .lookup(&lookup(engine.seed(), &chain, 3, 16).as_request())
            .unwrap();
    }
    count(&own, 200, 50, 100);
    count(&asking, 0, 64, 0);
    let status = place.status();
    assert_eq!(
        row(&status, &json!("org/one")),
        tokens(2, 300, 50, 100, Some(33.3))
    );
    assert_eq!(row(&status, &json!("org/two")), tokens(1, 0, 64, 0, None));
    assert_eq!(
        status["models"].as_array().unwrap().len(),
        2,
        "no row without a model is left"
    );
    assert_eq!(status["tokens"], tokens(3, 300, 114, 100, Some(33.3)));
    let own_tokens = &status["clients"][2]["tokens"];
    assert_eq!(
        *own_tokens,
        tokens(2, 300, 50, 100, Some(33.3)),
        "the client's own"
    );
    let reported = status["reported"].as_object().unwrap();
    assert!(
        reported.values().all(Value::is_u64),
        "one number for each name: {reported:?}"
    );

    let table = Command::new(env!("CARGO_BIN_EXE_kvasir"))
        .args(["status", "--socket"])
        .arg(place.socket())
        .output()
        .unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(
        table.contains("300 asked, 100 hit (33.3 %), 100 loaded, 0 failed; 114 held by the engines"),
        "{table}"
    );
    let domain = status["models"][0]["domain"].as_str().unwrap()[..16].to_owned();
    assert!(
        table.contains(&format!("org/one (domain {domain}): 300 asked")),
        "{table}"
    );

    // The figures of a client that has gone stay; those of the next begin anew and are added.
    drop(own);
    eventually("the end of the client", || {
        place.status()["clients"].as_array().unwrap().len() == 3
    });
    assert_eq!(place.status()["models"], status["models"]);
    let next = scheduler(&place, 1, &one);
    let chain = engines[0].chain(3 * CHUNK, 1);
    next.lookup(&lookup(engines[0].seed(), &chain, 3, 16).as_request())
        .unwrap();
    count(&next, 100, 0, 100);
    assert_eq!(
        row(&place.status(), &json!("org/one")),
        tokens(3, 400, 50, 200, Some(50.0))
    );

    // What is counted while there is no server is told to the next one.
    place.kill();
    eventually("the hang-up", || !next.is_healthy());
    count(&next, 70, 0, 0);
    place.start();
    eventually("recovery", || next.is_healthy() && engines[0].client.is_healthy());
    next.lookup(&lookup(engines[0].seed(), &chain, 3, 16).as_request())
        .unwrap();
    assert_eq!(
        row(&place.status(), &json!("org/one")),
        tokens(1, 70, 0, 0, Some(0.0))
    );
    assert_eq!(next.stats().tokens.asked, 170, "the client's own figures go on");
}
