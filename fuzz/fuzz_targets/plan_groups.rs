//! Any bytes as a description of KV cache groups: an answer or an error, never a panic, and answers that are legal.
#![no_main]

use kvasir::cli::plan::groups;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u16, Option<u8>, &[u8])| {
    let (minimum, dcp, bytes) = input;
    match groups::answer(bytes, u64::from(minimum), dcp.map(u64::from)) {
        Ok(answer) => {
            let chunk = answer.json["chunk_size"].as_u64().unwrap();
            assert!(chunk >= u64::from(minimum));
            for group in answer.json["groups"].as_array().unwrap() {
                let tokens = group["tokens_per_block"].as_u64().unwrap();
                assert!(tokens == 0 || chunk.is_multiple_of(tokens));
            }
        }
        Err(error) => assert!(!error.message.contains('\n'), "{error}"),
    }
});
