//! Bytes of a peer: cutting them into frames and decoding these never panics, and what was decoded is encoded to
//! something that decodes to the same.
#![no_main]

use kvasir::wire::{Encoder, FrameReader, decode_reply, decode_request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut reader = FrameReader::new();
    let mut encoder = Encoder::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let Ok(space) = reader.space() else { return };
        let taken = space.len().min(rest.len());
        space[..taken].copy_from_slice(&rest[..taken]);
        reader.received(taken);
        rest = &rest[taken..];
        while let Ok(Some(frame)) = reader.next_frame() {
            if let Ok((id, request)) = decode_request(frame) {
                if let Ok(again) = encoder.request(id, &request) {
                    assert_eq!(decode_request(again), Ok((id, request)));
                }
            }
            if let Ok((id, reply)) = decode_reply(frame) {
                if let Ok(again) = encoder.reply(id, &reply) {
                    assert_eq!(decode_reply(again), Ok((id, reply)));
                }
            }
        }
    }
});
