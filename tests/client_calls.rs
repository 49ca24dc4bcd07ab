//! The calls around stores and loads: pins, tickets, and mistakes that are told.

mod client_support;

use std::time::Duration;

use client_support::*;
use kvasir::client::{ClientError, Pin, StoreRequest, Ticket};
use kvasir::object::ObjectId;
use kvasir::wire::ErrorCode;

#[test]
fn pins_belong_to_their_connection_and_are_released_once() {
    let place = Place::with_server();
    let (a, b) = (
        Engine::start(&place, &Shape::plain(64, 0), 1),
        Engine::start(&place, &Shape::plain(64, 0), 2),
    );
    let chain = a.chain(2 * CHUNK, 1);
    let items = [
        store_chunk(&chain, 0, 0, four(1)),
        store_chunk(&chain, 1, 0, four(5)),
    ];
    assert_published(&a.client.store(&items, &[]).unwrap());
    let pin = a.lookup(&chain, 1).pin.unwrap();
    let unknown = |result: Result<(), ClientError>| assert_eq!(result.unwrap_err().kind(), "UnknownPin");
    unknown(b.client.release(&[pin]));
    a.client.release(&[pin]).unwrap();
    unknown(a.client.release(&[pin]));
    let foreign = Pin {
        connection: pin.connection + 1,
        ..pin
    };
    a.client.release(&[foreign]).unwrap(); // of another connection: it ended with that
    a.lookup(&chain, 5);
    a.client.release_label(5).unwrap();
    assert!(a.client.clear().unwrap());
    eventually("clear", || a.lookup(&chain, 1).hit_tokens == 0);
    assert!(a.client.is_healthy() && b.client.is_healthy());
}

#[test]
fn tickets_answer_once_and_cancelled_ones_keep_nothing_pinned() {
    let place = Place::with_server();
    let engine = Engine::start(&place, &Shape::plain(64, 0), 1);
    let chain = engine.chain(2 * CHUNK + 1, 1);
    let items = [
        store_chunk(&chain, 0, 0, four(1)),
        store_chunk(&chain, 1, 0, four(5)),
    ];
    assert_published(&engine.client.store(&items, &[]).unwrap());
    let request = lookup(engine.seed(), &chain, 1, 16);
    let ticket = engine.client.lookup_start(&request.as_request()).unwrap();
    let hit = engine.client.lookup_poll(ticket, WATCHDOG).unwrap().unwrap();
    assert_eq!(hit.hit_tokens, 128);
    engine.client.release(&[hit.pin.unwrap()]).unwrap();
    let again = engine.client.lookup_poll(ticket, Duration::ZERO);
    assert!(
        matches!(again, Err(ClientError::UnknownTicket { .. })),
        "{again:?}"
    );
    let never = engine.client.lookup_poll(Ticket(u64::MAX), Duration::ZERO);
    assert!(
        matches!(never, Err(ClientError::UnknownTicket { .. })),
        "{never:?}"
    );

    for _ in 0..100 {
        let ticket = engine.client.lookup_start(&request.as_request()).unwrap();
        engine.client.lookup_cancel(ticket);
        engine.client.lookup_cancel(ticket); // ended: ignored
    }
    eventually("cancelled lookups to let go", || {
        place.status()["pool"]["pinned"] == 0
    });
}

#[test]
fn calls_in_the_wrong_order_are_typed_errors() {
    let place = Place::with_server();
    let shape = Shape::plain(64, 0);
    let engine = Engine::unregistered(
        &place,
        &shape,
        1,
        Duration::from_secs(20),
        Duration::from_secs(10),
    );
    let chain = chain(kvasir::keys::ChunkKey::from_bytes([1; 32]), CHUNK, 1);
    let item = [store_chunk(&chain, 0, 0, four(1))];
    assert!(matches!(
        engine.client.store(&item, &[]),
        Err(ClientError::NoRegistration)
    ));
    match engine.client.register(shape.registration()) {
        Err(ClientError::Refused(error)) => assert_eq!(error.code, ErrorCode::NotNegotiated),
        other => panic!("{other:?}"),
    }
    let mut odd = shape.negotiation();
    odd.required_alignment = 0;
    assert!(matches!(
        engine.client.negotiate(odd),
        Err(ClientError::Refused(_))
    ));
    assert!(engine.client.is_healthy(), "a refusal costs nothing");
    assert_eq!(
        engine.client.negotiate(shape.negotiation()).unwrap().chunk_size,
        64
    );
    engine.client.register(shape.registration()).unwrap();
    let unknown = StoreRequest {
        id: ObjectId {
            key: chain.keys()[0],
            group: 9,
        },
        ..item[0].clone()
    };
    assert!(matches!(
        engine.client.store(&[unknown], &[]),
        Err(ClientError::UnknownGroup { group: 9, .. })
    ));
    let tool = place.tool();
    assert!(tool.status().unwrap().contains("pool"));
    assert!(matches!(tool.store(&item, &[]), Err(ClientError::NoMemory)));
}
