//! Any bytes as a description of KV cache groups: an answer or an error, never a panic, and answers that are
//! legal.
#![no_main]

use kvasir::cli::plan::groups;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for (minimum, dcp) in [(256, None), (1, Some(3))] {
        match groups::answer(bytes, minimum, dcp) {
            Ok(answer) => {
                let chunk = answer.json["chunk_size"].as_u64().unwrap();
                assert!(chunk >= minimum);
                for group in answer.json["groups"].as_array().unwrap() {
                    let tokens = group["tokens_per_block"].as_u64().unwrap();
                    assert!(tokens == 0 || chunk.is_multiple_of(tokens));
                }
            }
            Err(error) => assert!(!error.message.contains('\n'), "{error}"),
        }
    }
});
