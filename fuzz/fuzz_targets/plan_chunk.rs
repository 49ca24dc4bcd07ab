//! Any words as spans and minimum: the least legal chunk or an error, never a panic.
#![no_main]

use kvasir::cli::plan::chunk;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let mut words = text.split(' ');
    let minimum = words.next().unwrap_or("").to_owned();
    let spans: Vec<String> = words.map(str::to_owned).collect();
    match chunk::answer(&spans, &minimum) {
        Ok(answer) => {
            let chunk = answer.json["chunk_size"].as_u64().unwrap();
            let alignment = answer.json["required_alignment"].as_u64().unwrap();
            let minimum: u64 = minimum.parse().unwrap();
            assert!(chunk >= minimum && chunk - minimum < alignment);
            let mut spans = spans.iter().map(|span| span.parse::<u64>().unwrap());
            assert!(spans.all(|span| span == 0 || chunk.is_multiple_of(span)));
        }
        Err(error) => assert!(!error.message.contains('\n'), "{error}"),
    }
});
