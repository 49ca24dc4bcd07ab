//! Any bytes as tensor placements: an answer or an error, never a panic, and padding that keeps its promises.
#![no_main]

use kvasir::cli::plan::segments;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u64, bool, &[u8])| {
    let (commit, register, bytes) = input;
    match segments::answer(bytes, &[commit, 1], register) {
        Ok(answer) => {
            let mut end = 0;
            for (plain, padded) in answer.json["segments"]
                .as_array()
                .unwrap()
                .iter()
                .zip(answer.json["padded"]["segments"].as_array().unwrap())
            {
                let offset = padded["offset"].as_u64().unwrap();
                assert!(offset >= end && offset >= plain["offset"].as_u64().unwrap());
                assert_eq!(plain["block_stride"], padded["block_stride"]);
                end = offset + 1;
            }
            for commit in answer.json["commits"].as_array().unwrap() {
                assert!(!register || commit["padded_every_segment_one_chunk"].as_bool().unwrap());
                assert!(commit["padded_physical_bytes"].as_u64() >= commit["nominal_bytes"].as_u64());
            }
        }
        Err(error) => assert!(!error.message.contains('\n'), "{error}"),
    }
});
