//! What the tests of payload rings share.

use kvasir::client::Maps;
use serde_json::Value;

use crate::client_support::{Engine, Place, Shape};

/// The shortest lane: 32 KiB go through it at a time.
pub(crate) const SHORT: u64 = 64 << 10;

pub(crate) fn ring_engine(place: &Place, shape: &Shape, instance: u8, lane: u64) -> Engine {
    Engine::start_with(place, shape, instance, |config| {
        config.maps = Maps::Ring;
        config.ring_bytes = lane;
    })
}

pub(crate) fn clients(place: &Place) -> Vec<Value> {
    place.status()["clients"].as_array().unwrap().clone()
}

/// The pages of the four blocks from `first` on.
pub(crate) fn pages(engine: &Engine, first: i64) -> Vec<Vec<u8>> {
    (first..first + 4)
        .map(|block| engine.block(0, 0, block))
        .collect()
}
