//! Host memory that devices reach: registered with the driver, in pieces, all or nothing.

#![allow(unsafe_code)]

use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cudarc::driver::sys::{self, CUresult};
use nix::sys::resource::{Resource, getrlimit};

use crate::copy::HostMemory;
use crate::shm::page_size;

use super::context::Context;
use super::driver::name;
use super::error::DeviceError;
use super::memory::{Kept, PlanMemory};

/// Most bytes of one registration: drivers refuse far larger ones.
pub const PINNED_PIECE_BYTES: u64 = 64 << 30;

/// How soon a thread asks again whether it may begin, and after how long at the latest: a pool may never be present as a whole.
const FIRST_POLL: Duration = Duration::from_millis(5);
const LAST_POLL: Duration = Duration::from_millis(100);

/// `CU_MEMHOSTREGISTER_PORTABLE`: for every context of the process.
const PORTABLE: u32 = 1;
/// `CU_MEMHOSTREGISTER_READ_ONLY`: for memory that is mapped for reading alone.
const READ_ONLY: u32 = 8;

/// Registered host memory; the last clone unregisters it, the last piece first.
#[derive(Debug, Clone)]
pub struct PinnedMemory(Arc<Registered>);

struct Registered {
    context: Context,
    host: HostMemory,
    piece_bytes: u64,
    /// Pieces that are registered, the first ones.
    pieces: usize,
}

impl PinnedMemory {
    /// Registers `host` in pieces of `piece_bytes`, which a caller takes as a multiple of its blocks, so that none of
    /// them lies in two pieces. It takes about a second for some gigabytes; [`Self::register_in_background`] waits for
    /// nothing.
    ///
    /// # Errors
    /// [`DeviceError::NotAligned`], and [`DeviceError::Registration`] with the piece that failed. The pieces before it
    /// are unregistered then, the last one first.
    pub fn register(context: &Context, host: HostMemory, piece_bytes: u64) -> Result<Self, DeviceError> {
        Self::register_watched(
            context,
            host,
            piece_bytes,
            &AtomicUsize::new(0),
            &AtomicBool::new(false),
        )
    }

    /// Registers `host` in a thread of its own.
    ///
    /// # Errors
    /// [`DeviceError::NoThread`]. What else can fail is told by [`Registering::take`].
    pub fn register_in_background(
        context: &Context,
        host: HostMemory,
        piece_bytes: u64,
    ) -> Result<Registering, DeviceError> {
        Self::register_when(context, host, piece_bytes, || true, |_| ())
    }

    /// The same once `ready` says so, which the thread asks now and then. `ended` is told by the thread what came of it.
    ///
    /// # Errors
    /// As [`Self::register_in_background`].
    pub fn register_when(
        context: &Context,
        host: HostMemory,
        piece_bytes: u64,
        ready: impl Fn() -> bool + Send + 'static,
        ended: impl FnOnce(Result<(), &DeviceError>) + Send + 'static,
    ) -> Result<Registering, DeviceError> {
        let (done, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (context, done, stop) = (context.clone(), Arc::clone(&done), Arc::clone(&stop));
            let work = move || {
                let mut pause = FIRST_POLL;
                while !ready() && !stop.load(Ordering::Relaxed) {
                    thread::sleep(pause);
                    pause = (pause * 2).min(LAST_POLL);
                }
                let result = Self::register_watched(&context, host, piece_bytes, &done, &stop);
                ended(result.as_ref().map(|_| ()));
                result
            };
            thread::Builder::new().name("kvasir-pin".into()).spawn(work)
        };
        let thread = thread.map_err(|error| DeviceError::NoThread {
            reason: error.to_string(),
        })?;
        Ok(Registering {
            thread: Some(thread),
            done,
            stop,
        })
    }

    fn register_watched(
        context: &Context,
        host: HostMemory,
        piece_bytes: u64,
        done: &AtomicUsize,
        stop: &AtomicBool,
    ) -> Result<Self, DeviceError> {
        let unit = page_size() as u64;
        for (what, value) in [
            ("the address of host memory", PlanMemory::address(&host)),
            ("a piece's size", piece_bytes),
        ] {
            if value == 0 || !value.is_multiple_of(unit) {
                return Err(DeviceError::NotAligned { what, value, unit });
            }
        }
        let mut registered = Registered {
            context: context.clone(),
            host,
            piece_bytes,
            pieces: 0,
        };
        let count = registered.count();
        let _entered = context.enter()?;
        while registered.pieces < count {
            // What is registered already is undone by `registered`, also below.
            if stop.load(Ordering::Relaxed) {
                return Err(DeviceError::GivenUp {
                    pieces: registered.pieces,
                });
            }
            let (offset, bytes) = registered.piece(registered.pieces);
            let flags = if registered.host.is_writable() {
                PORTABLE
            } else {
                PORTABLE | READ_ONLY
            };
            // SAFETY: the piece lies in the region, which `registered` keeps until it is unregistered.
            let result =
                unsafe { sys::cuMemHostRegister_v2(registered.start(offset), bytes as usize, flags) };
            if result != CUresult::CUDA_SUCCESS {
                return Err(DeviceError::Registration {
                    piece: registered.pieces + 1,
                    pieces: count,
                    offset,
                    bytes,
                    name: name(result),
                    undone: registered.pieces,
                    limit: locked_limit(),
                });
            }
            registered.pieces += 1;
            done.store(registered.pieces, Ordering::Relaxed);
        }
        Ok(Self(Arc::new(registered)))
    }

    /// Pieces that it is registered in.
    pub fn pieces(&self) -> usize {
        self.0.pieces
    }

    /// The memory, for the host's own copies.
    pub fn host(&self) -> &HostMemory {
        &self.0.host
    }
}

impl Registered {
    fn count(&self) -> usize {
        self.host.bytes().div_ceil(self.piece_bytes) as usize
    }

    /// Offset and bytes of a piece.
    fn piece(&self, index: usize) -> (u64, u64) {
        let offset = index as u64 * self.piece_bytes;
        (offset, self.piece_bytes.min(self.host.bytes() - offset))
    }

    fn start(&self, offset: u64) -> *mut std::ffi::c_void {
        ptr::with_exposed_provenance_mut((PlanMemory::address(&self.host) + offset) as usize)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else {
            return;
        };
        for index in (0..self.pieces).rev() {
            let (offset, _) = self.piece(index);
            // SAFETY: this piece was registered at this address, and no copy of it runs: copies keep a clone.
            let _ = unsafe { sys::cuMemHostUnregister(self.start(offset)) };
        }
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered")
            .field("host", &self.host)
            .field("pieces", &self.pieces)
            .finish()
    }
}

impl PlanMemory for PinnedMemory {
    fn bytes(&self) -> u64 {
        self.0.host.bytes()
    }

    fn is_writable(&self) -> bool {
        self.0.host.is_writable()
    }

    fn address(&self) -> u64 {
        PlanMemory::address(&self.0.host)
    }

    fn run(&self, offset: u64) -> u64 {
        let to_cut = self.0.piece_bytes - offset % self.0.piece_bytes;
        to_cut.min(self.bytes().saturating_sub(offset))
    }

    fn context(&self) -> Option<&Context> {
        None
    }

    fn is_direct(&self) -> bool {
        true
    }

    fn keep(&self) -> Kept {
        Arc::new(self.clone())
    }
}

/// A registration that is under way. Dropped, it stops after the piece at hand, and what is registered is undone.
#[derive(Debug)]
pub struct Registering {
    thread: Option<JoinHandle<Result<PinnedMemory, DeviceError>>>,
    done: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl Registering {
    /// Pieces that are registered by now.
    pub fn pieces(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }

    /// What came of it, once; `None` while it runs and after it was taken. It never waits.
    pub fn take(&mut self) -> Option<Result<PinnedMemory, DeviceError>> {
        let thread = self.thread.take_if(|thread| thread.is_finished())?;
        Some(
            thread
                .join()
                .unwrap_or_else(|_| Err(DeviceError::GivenUp { pieces: 0 })),
        )
    }

    /// Asks it to stop. What is registered by then is undone in its thread.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Drop for Registering {
    fn drop(&mut self) {
        self.stop();
    }
}

/// `RLIMIT_MEMLOCK`, in words.
fn locked_limit() -> String {
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((soft, _)) if soft == nix::libc::RLIM_INFINITY => "none".to_owned(),
        Ok((soft, _)) => format!("{soft} bytes"),
        Err(error) => format!("unknown ({error})"),
    }
}
