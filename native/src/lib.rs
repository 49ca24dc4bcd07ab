//! The C interface of the Kvasir client: `native/include/kvasir.h` is made of this crate by `cargo xtask codegen`.
//!
//! Each function of the header reads its arguments, calls one function of the Rust client and writes the answer. The rules of
//! the interface stand at the header's top, which is in `cbindgen.toml`.
//!
//! ```text
//! values, options   what C sees: plain values, structs with their size in front, numbers
//! failure           error codes, and the last error of each thread
//! guard             what every function runs in: no panic leaves it, no call begins in another
//! input             arguments: pointers, counts, structs of other versions, text
//! output            answers: structs, arrays, text
//! table             handles, none of which is an address
//! client, memory, join, chain, weights, lookup, payload, report   the functions
//! layout            sizes and offsets, as C compilers see them
//! ```
//!
//! Unsafe is opened in `input` and `output`, where memory of the caller is read and written, and in the files with
//! functions, each of which hands its caller's pointers on to those two. What C has to promise is what the header's
//! rules say; what can be checked of it is checked.

// No panic may end the engine's process.
#[cfg(all(panic = "abort", not(test)))]
compile_error!("the C interface catches panics, so it needs `panic = \"unwind\"`");

mod chain;
mod client;
mod failure;
mod guard;
mod input;
mod join;
mod layout;
mod lookup;
mod memory;
mod options;
mod output;
mod payload;
mod report;
mod table;
mod values;
mod weights;

pub use chain::*;
pub use client::*;
pub use failure::*;
pub use join::*;
pub use lookup::*;
pub use memory::*;
pub use options::*;
pub use payload::*;
pub use report::*;
pub use values::*;
pub use weights::*;
