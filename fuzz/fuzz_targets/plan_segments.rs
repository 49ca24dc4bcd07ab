//! Any bytes as tensor placements: an answer or an error, never a panic, and padding that keeps its promises.
#![no_main]

use kvasir::cli::plan::segments;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for register in [true, false] {
        match segments::answer(bytes, &[1, 7, u64::MAX], register) {
            Ok(answer) => check(&answer.json, register),
            Err(error) => assert!(!error.message.contains('\n'), "{error}"),
        }
    }
});

fn check(answer: &serde_json::Value, register: bool) {
    let segments = answer["segments"].as_array().unwrap();
    let padded = answer["padded"]["segments"].as_array().unwrap();
    assert_eq!(segments.len(), padded.len());
    let mut end = 0;
    for (plain, padded) in segments.iter().zip(padded) {
        let offset = padded["offset"].as_u64().unwrap();
        assert!(offset >= end && offset >= plain["offset"].as_u64().unwrap());
        assert_eq!(plain["block_stride"], padded["block_stride"]);
        end = offset + 1;
    }
    for commit in answer["commits"].as_array().unwrap() {
        assert!(!register || commit["padded_every_segment_one_chunk"].as_bool().unwrap());
        assert!(commit["padded_physical_bytes"].as_u64() >= commit["nominal_bytes"].as_u64());
    }
}
