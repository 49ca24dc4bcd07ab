//! `kvasir plan chunk`: the chunk size for a list of spans.

use std::fmt::Write as _;

use clap::Args;
use serde_json::json;

use super::{Answer, PlanError, number};
use crate::geometry::Warning;
use crate::geometry::chunk::{self, ChunkError, MAX_CHUNK_TOKENS};

/// Arguments of `kvasir plan chunk`.
// Numbers are taken as text, so that a bad one is answered in the same shape as every other bad input.
#[derive(Debug, Args)]
pub struct ChunkArgs {
    /// Tokens that one block id of a group spans; once per group, 0 for scratch
    #[arg(long = "span", value_name = "TOKENS", allow_hyphen_values = true)]
    spans: Vec<String>,
    /// Least chunk size in tokens
    #[arg(
        long,
        value_name = "TOKENS",
        default_value = "256",
        allow_hyphen_values = true
    )]
    chunk_size: String,
    /// Answer in JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(args: &ChunkArgs) -> Result<Answer, PlanError> {
    answer(&args.spans, &args.chunk_size)
}

/// The chunk size for spans and a minimum, both as given on the command line.
pub fn answer(spans: &[String], minimum: &str) -> Result<Answer, PlanError> {
    let mut numbers = Vec::with_capacity(spans.len());
    let mut bad = Vec::new();
    for (index, text) in spans.iter().enumerate() {
        match number("--span", text) {
            Ok(span) if span > MAX_CHUNK_TOKENS => {
                bad.push((index, ChunkError::SpanTooLarge { span }.to_string()))
            }
            Ok(span) => numbers.push(span),
            Err(error) => bad.push((index, error.message)),
        }
    }
    if !bad.is_empty() {
        return Err(PlanError::listing("invalid", "span", bad));
    }
    let minimum = number("--chunk-size", minimum)?;
    let required_alignment = chunk::alignment(&numbers).map_err(chunk_error)?;
    let chunk_size = chunk::resolve_chunk(required_alignment, minimum).map_err(chunk_error)?;
    let warnings: Vec<Warning> = chunk::near_coprime(required_alignment, &numbers)
        .into_iter()
        .collect();
    let mut text = explain(&numbers, required_alignment, minimum, chunk_size);
    push_warnings(&mut text, &warnings);
    Ok(Answer {
        json: json!({
            "required_alignment": required_alignment,
            "chunk_size": chunk_size,
            "warnings": warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        }),
        text,
        unknown_fields: Vec::new(),
    })
}

pub(super) fn chunk_error(error: ChunkError) -> PlanError {
    PlanError::new(error.kind(), error)
}

/// Why the chunk has the size it has, from the prime factors of the spans.
pub(super) fn explain(spans: &[u64], alignment: u64, minimum: u64, chunk: u64) -> String {
    let mut distinct: Vec<u64> = spans.iter().copied().filter(|&span| span > 0).collect();
    distinct.sort_unstable();
    distinct.dedup();
    let mut text = String::new();
    // Writing to a String cannot fail.
    if let [span] = distinct[..] {
        let _ = writeln!(
            text,
            "required alignment  {alignment} tokens: every cacheable group spans {span} tokens per block"
        );
    } else {
        let list: Vec<String> = distinct.iter().map(ToString::to_string).collect();
        let _ = writeln!(
            text,
            "required alignment  {alignment} tokens = lcm({})",
            list.join(", ")
        );
        for &span in &distinct {
            let times = alignment / span;
            let plural = if times == 1 { "" } else { "s" };
            let _ = writeln!(
                text,
                "                    {span} = {}; {times} block{plural} in {alignment}",
                factors(span)
            );
        }
        let _ = writeln!(
            text,
            "                    {alignment} = {}, the highest power of every prime",
            factors(alignment)
        );
    }
    let times = chunk / alignment;
    let _ = writeln!(
        text,
        "chunk size          {chunk} tokens = {times} x {alignment}, the least multiple that reaches the \
         minimum of {minimum}"
    );
    text
}

pub(super) fn push_warnings(text: &mut String, warnings: &[Warning]) {
    for warning in warnings {
        let _ = writeln!(text, "warning             {warning}");
    }
}

/// `2^5 x 17` for 544. Numbers are at most 2^24, so trial division is short.
fn factors(number: u64) -> String {
    let mut parts = Vec::new();
    let (mut rest, mut prime) = (number, 2_u64);
    while prime * prime <= rest {
        let mut power = 0;
        while rest.is_multiple_of(prime) {
            rest /= prime;
            power += 1;
        }
        match power {
            0 => {}
            1 => parts.push(prime.to_string()),
            _ => parts.push(format!("{prime}^{power}")),
        }
        prime += 1;
    }
    if rest > 1 || parts.is_empty() {
        parts.push(rest.to_string());
    }
    parts.join(" x ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_multiply_back() {
        assert_eq!(factors(544), "2^5 x 17");
        assert_eq!(factors(1), "1");
        assert_eq!(factors(97), "97");
        assert_eq!(factors(1088), "2^6 x 17");
    }
}
