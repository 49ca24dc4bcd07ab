//! Shared memory: memfds, seals, mappings, lock bytes, descriptor passing, payload rings.
//!
//! Everything that needs `unsafe` to talk to the kernel about shared memory is in this module, so that
//! the layers above can be safe code. The invariants its files rely on:
//!
//! - **No reference to shared bytes is ever formed.** Another process may write a mapping at any time, so
//!   bytes are reached through atomics, volatile copies, or raw pointers given to the copy engine.
//! - **A mapping is inside its file.** The file's size is checked when it is mapped, and a file made by
//!   another process must be sealed against shrinking, so no access can raise `SIGBUS`.
//! - **A descriptor is owned from the moment the kernel hands it out**, and is always `CLOEXEC`.

pub mod atfork;
mod error;
pub mod fdpass;
pub mod first;
#[cfg(feature = "cli")] // the allocator is the program's
pub mod heap;
pub mod huge;
pub mod lock;
#[cfg(feature = "server")]
pub mod lock_file;
pub(crate) mod mapping;
pub(crate) mod memfd;
pub mod numa;
pub mod process;
mod raw_map;
#[cfg(all(feature = "server", not(loom)))] // waits in the event loop
pub(crate) mod readable;
pub mod ring;
pub(crate) mod socket_path;
#[cfg(all(feature = "server", not(loom)))] // waits in the event loop
pub(crate) mod watched;
mod words;

pub use error::ShmError;
pub use mapping::{Mapping, ReadOnly, ReadWrite};
pub use memfd::{Memfd, OwnerAccess, page_size, reopen_read_only, reopen_read_write};
pub use words::{LoadU32, LoadU64};
