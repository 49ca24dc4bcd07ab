//! The command line: serve, status, plan, vllm-args.
//!
//! The top of the crate; may import everything.

pub mod plan;
