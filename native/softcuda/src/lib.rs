//! A stand-in for `libcuda.so.1`: the part of the CUDA driver API that Kvasir uses, over ordinary shared memory.
//!
//! It is for tests on machines without a card. Device memory is a memory file. A device address is an address that the
//! host cannot touch. A stream is a thread. What a real driver leaves undefined ends the process with a message: memory
//! used after it was freed or closed, a stream of another context, host memory that is gone when a copy comes to it.
//!
//! It shows which calls are made, in which order, and what they move. It shows nothing about speed, and a real driver
//! may refuse what it accepts.
//!
//! ```text
//! abi                        the API's numbers and structures
//! config                     the machine, and its faults, by environment variables
//! backing                    memory files, also of other processes
//! arena, state               device addresses, and all that the process has
//! stream, event, access      what runs later, and the bytes that it moves
//! device, memory, vmm, ipc, host, copy, order   the calls
//! ```
//!
//! Environment: `SOFTCUDA_DEVICES` (1), `SOFTCUDA_SAME_UUID` (0), `SOFTCUDA_MEMORY` (bytes of a device, 1 GiB),
//! `SOFTCUDA_VERSION` (12080), `SOFTCUDA_REGISTER_LIMIT` (bytes), `SOFTCUDA_FAULTS` (a list, see `Faults::arm`).

// The calls have the API's names.
#![allow(non_snake_case)]

/// Ends the process: the program did what a real driver leaves undefined.
macro_rules! fatal {
    ($($part:tt)*) => {{
        eprintln!("softcuda (a stand-in for libcuda): {}", format_args!($($part)*));
        std::process::abort()
    }};
}

/// Defines calls of the API: exported under their names, and checked for what holds for all of them.
macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// That of the call of this name in the CUDA driver API.
        #[allow(unsafe_code, clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
            $crate::state::call(move || -> $crate::abi::Outcome { $body })
        }
    )*};
}

pub mod abi;
mod access;
mod arena;
mod backing;
mod config;
pub mod copy;
pub mod device;
mod event;
pub mod host;
pub mod ipc;
pub mod memory;
pub mod order;
mod state;
mod stream;
pub mod vmm;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lock, also after a panic: a panic in a call ends the process anyway.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
