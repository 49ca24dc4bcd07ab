//! Memory of GPUs: what speaks to a CUDA driver.
//!
//! The driver is loaded when [`Driver::load`] is called for the first time, and a context is made by
//! [`Context::retain`]. Before that nothing is pinned, mapped or allocated. The same program runs where there is no
//! driver. What uses it is the client library, with [`EngineMemory`] (docs/gpu.md).
//!
//! A copy plan names memory as [`PlanMemory`]: host memory, registered or not, and device memory, own or of another
//! process. [`DeviceCopyEngine`] checks a plan, submits it to a stream, and keeps the memory until the copy has ended.
//!
//! ```text
//! uuid, error              names of devices; what can go wrong, with its numbers
//! driver, devices          the driver and what it shows
//! context, memory          where work is submitted; what a plan may name
//! stream                   streams, events and flags, also of other processes
//! allocated                device memory of this process
//! engine_memory            what an engine registers of its own
//! pinned                   host memory that devices reach
//! ipc, vmm                 memory of another process, by handles or by descriptors
//! descriptors, engine      plans as calls, and what becomes of them
//! crossover                which way of copying is faster for which size, measured
//! ```
//!
//! `unsafe` is opened in every file that calls the driver. The invariant, unless a block says more: pointers that a call
//! gets are of live values of the call's types, and handles are of objects that the caller owns or has retained.

mod allocated;
mod context;
mod crossover;
mod descriptors;
mod devices;
mod driver;
mod engine;
mod engine_memory;
mod error;
mod ipc;
mod memory;
mod pinned;
mod stream;
mod uuid;
mod vmm;

pub use allocated::DeviceMemory;
pub use context::Context;
pub use crossover::{MEASURE_BYTES, measure};
pub use descriptors::{Crossovers, PLAIN_FROM_BYTES};
pub use devices::{Device, find, visible};
pub use driver::Driver;
pub use engine::{CopyCounts, Copying, DeviceCopyEngine, SourceOrder};
pub use engine_memory::{EngineMemory, EngineSegment};
pub use error::DeviceError;
pub use ipc::{IpcImports, IpcMemory};
pub use memory::{Kept, PlanMemory};
pub use pinned::{PINNED_PIECE_BYTES, PinnedMemory, Registering};
pub use stream::{Event, EventHandle, Stream};
pub use uuid::{BadUuid, DeviceUuid};
pub use vmm::{MAX_CHUNKS, VmmChunk, VmmMemory};
