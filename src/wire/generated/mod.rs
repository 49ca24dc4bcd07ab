//! What flatc makes of `schema/`. Only `encode` and `decode` look in here; everybody else sees owned types.
//!
//! Generated code reads fields through raw pointers after the verifier has accepted the whole buffer, and is
//! spared the lints that hand-written code obeys.

#![allow(
    unsafe_code,
    unsafe_op_in_unsafe_fn,
    missing_docs,
    unreachable_pub,
    unused_imports,
    dead_code,
    deprecated,
    non_snake_case,
    non_camel_case_types,
    mismatched_lifetime_syntaxes,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]

mod envelope_generated;

pub(super) use envelope_generated::kvasir::wire::*;
