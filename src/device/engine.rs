//! The copy engine of a device: it submits plans, and keeps the memory of each copy until the copy has ended.

#![allow(unsafe_code)]

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{
    self, CUmemLocation, CUmemLocationType, CUmemcpyAttributes, CUmemcpySrcAccessOrder,
};

use crate::copy::CopyPlan;

use super::context::Context;
use super::descriptors::{Crossovers, Descriptor, PLAIN_FROM_BYTES, descriptors};
use super::driver::{Driver, check};
use super::error::DeviceError;
use super::memory::{Kept, PlanMemory};
use super::stream::{Event, Stream};

/// How often a wait asks whether a copy has ended.
const POLL: Duration = Duration::from_micros(50);

/// When the source may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceOrder {
    /// When the stream comes to the copy: for bytes that earlier work of the stream produces (stores).
    Stream,
    /// At any time until the copy has ended: for host memory that nobody changes meanwhile (loads).
    Any,
}

/// What an engine has submitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounts {
    /// Calls with many copies.
    pub batched_calls: u64,
    /// Calls with one copy.
    pub plain_calls: u64,
    /// Copies in them.
    pub descriptors: u64,
    /// Pieces of the plans that they came from.
    pub pieces: u64,
    /// Bytes.
    pub bytes: u64,
    /// Bytes from or to host memory that is not registered; also in `bytes`.
    pub pageable_bytes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    batched_calls: AtomicU64,
    plain_calls: AtomicU64,
    descriptors: AtomicU64,
    pieces: AtomicU64,
    bytes: AtomicU64,
    pageable_bytes: AtomicU64,
}

/// Copies of one context.
#[derive(Debug, Clone)]
pub struct DeviceCopyEngine(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    context: Context,
    batched: bool,
    crossovers: Crossovers,
    counters: Counters,
    /// Copies that nobody waits for any more and that have not ended.
    quarantine: Mutex<Vec<Held>>,
}

impl Drop for Inner {
    /// What may still run keeps its memory for the life of the process: freed memory would be written.
    fn drop(&mut self) {
        let held = mem::take(self.quarantine.get_mut().unwrap_or_else(PoisonError::into_inner));
        held.into_iter()
            .filter(|held| !held.has_ended())
            .for_each(mem::forget);
    }
}

/// A copy that was submitted, with the memory that it may touch.
struct Held {
    /// Done when the copy is; `None` if there is no way to tell.
    event: Option<Event>,
    bytes: u64,
    _memory: Vec<Kept>,
}

impl Held {
    /// Whether it is known that the copy has ended. After an error of the context it is not.
    fn has_ended(&self) -> bool {
        self.event
            .as_ref()
            .is_some_and(|event| event.is_done() == Ok(true))
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("event", &self.event)
            .field("bytes", &self.bytes)
            .finish()
    }
}

impl DeviceCopyEngine {
    /// An engine that batches pieces below [`PLAIN_FROM_BYTES`] if the driver can.
    pub fn new(driver: &Driver, context: &Context) -> Self {
        Self::with_crossovers(driver, context, Crossovers::both(PLAIN_FROM_BYTES))
    }

    /// An engine that batches pieces below the direction's crossover if the driver can.
    pub fn with_crossovers(driver: &Driver, context: &Context, crossovers: Crossovers) -> Self {
        Self(Arc::new(Inner {
            context: context.clone(),
            batched: driver.has_batched_copies(),
            crossovers,
            counters: Counters::default(),
            quarantine: Mutex::default(),
        }))
    }

    /// Checks `plan` and submits it to `stream`. It does not wait, but for host memory that is not registered.
    ///
    /// # Errors
    /// [`DeviceError::Plan`] and [`DeviceError::OtherDevice`] before anything is submitted; else what the driver says. If
    /// a part was submitted by then, its memory is kept until that has ended.
    pub fn submit(
        &self,
        plan: &CopyPlan,
        src: &[&dyn PlanMemory],
        dst: &[&dyn PlanMemory],
        stream: &Stream,
        order: SourceOrder,
    ) -> Result<Copying, DeviceError> {
        self.sweep();
        self.same_context(src, dst, stream)?;
        let found = descriptors(plan, src, dst)?;
        let event = Event::new(&self.0.context)?;
        let regions = || src.iter().chain(dst);
        let mut held = Held {
            event: None,
            bytes: found.iter().map(|descriptor| descriptor.bytes).sum(),
            _memory: regions().map(|memory| memory.keep()).collect(),
        };
        let direct = regions().all(|memory| memory.is_direct());
        let batched = self.0.batched && direct && !stream.is_default();
        let count = |counter: &AtomicU64, more: u64| counter.fetch_add(more, Ordering::Relaxed);
        let counters = &self.0.counters;
        let into_device = dst.iter().any(|memory| memory.context().is_some());
        let plain_from = match (batched, into_device) {
            (false, _) => 0,
            (true, true) => self.0.crossovers.to_device,
            (true, false) => self.0.crossovers.to_host,
        };
        let submitted = self.submit_all(&found, plain_from, stream, order);
        let recorded = event.record(stream);
        match (submitted, recorded) {
            (Ok(()), Ok(())) => {
                held.event = Some(event);
                count(&counters.pieces, plan.pieces().len() as u64);
                count(&counters.bytes, held.bytes);
                count(&counters.pageable_bytes, if direct { 0 } else { held.bytes });
                Ok(Copying {
                    engine: self.clone(),
                    held: Some(held),
                })
            }
            (submitted, recorded) => {
                // Some of it may run: the event says when it has ended, if there is one.
                held.event = recorded.is_ok().then_some(event);
                self.quarantine().push(held);
                self.sweep();
                submitted.and(recorded)?;
                unreachable!("one of the two failed")
            }
        }
    }

    /// What was submitted so far.
    pub fn counts(&self) -> CopyCounts {
        let counters = &self.0.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CopyCounts {
            batched_calls: read(&counters.batched_calls),
            plain_calls: read(&counters.plain_calls),
            descriptors: read(&counters.descriptors),
            pieces: read(&counters.pieces),
            bytes: read(&counters.bytes),
            pageable_bytes: read(&counters.pageable_bytes),
        }
    }

    /// Lets go of the memory of copies that nobody waits for and that have ended by now. It never waits.
    pub fn sweep(&self) {
        // What they keep goes when the lock is free again: it may be much, and may be somebody's who asks this engine.
        let ended: Vec<Held> = self
            .quarantine()
            .extract_if(.., |held| held.has_ended())
            .collect();
        drop(ended);
    }

    /// Bytes of copies that nobody waits for and that have not ended, as far as is known.
    pub fn quarantined_bytes(&self) -> u64 {
        self.sweep();
        self.quarantine().iter().map(|held| held.bytes).sum()
    }

    fn quarantine(&self) -> MutexGuard<'_, Vec<Held>> {
        self.0.quarantine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn same_context(
        &self,
        src: &[&dyn PlanMemory],
        dst: &[&dyn PlanMemory],
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        let wanted = self.0.context.device().uuid;
        for memory in src.iter().chain(dst) {
            if memory
                .context()
                .is_some_and(|context| !context.is_same(&self.0.context))
            {
                let what = format!("memory at {:#x}", memory.address());
                return Err(DeviceError::OtherDevice { what, wanted });
            }
        }
        if !stream.context().is_same(&self.0.context) {
            return Err(DeviceError::OtherDevice {
                what: "the stream".into(),
                wanted,
            });
        }
        Ok(())
    }

    /// One call for all that is small, and one for each that is large.
    fn submit_all(
        &self,
        all: &[Descriptor],
        plain_from: u64,
        stream: &Stream,
        order: SourceOrder,
    ) -> Result<(), DeviceError> {
        let _entered = self.0.context.enter()?;
        let small = |descriptor: &&Descriptor| descriptor.bytes < plain_from;
        let few: Vec<Descriptor> = all.iter().filter(small).copied().collect();
        // A batch of one is a plain copy with more to say.
        let batch: &[Descriptor] = if few.len() > 1 { &few } else { &[] };
        if !batch.is_empty() {
            self.submit_batch(batch, stream, order)?;
        }
        for descriptor in all
            .iter()
            .filter(|descriptor| batch.is_empty() || !small(descriptor))
        {
            self.submit_plain(descriptor, stream)?;
        }
        Ok(())
    }

    fn submit_plain(&self, descriptor: &Descriptor, stream: &Stream) -> Result<(), DeviceError> {
        let Descriptor { to, from, bytes } = *descriptor;
        self.0.counters.plain_calls.fetch_add(1, Ordering::Relaxed);
        // SAFETY: both ranges lie in regions of the plan, which were checked, and whose memory is kept until the copy has
        // ended.
        let result = unsafe { sys::cuMemcpyAsync(to, from, bytes as usize, stream.raw()) };
        check("cuMemcpyAsync", result, || {
            format!("{bytes} bytes from {from:#x} to {to:#x}")
        })?;
        self.0.counters.descriptors.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn submit_batch(
        &self,
        batch: &[Descriptor],
        stream: &Stream,
        order: SourceOrder,
    ) -> Result<(), DeviceError> {
        let mut to: Vec<u64> = batch.iter().map(|descriptor| descriptor.to).collect();
        let mut from: Vec<u64> = batch.iter().map(|descriptor| descriptor.from).collect();
        let mut bytes: Vec<usize> = batch.iter().map(|descriptor| descriptor.bytes as usize).collect();
        let anywhere = CUmemLocation {
            type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID,
            id: 0,
        };
        let mut attributes = [CUmemcpyAttributes {
            srcAccessOrder: match order {
                SourceOrder::Stream => CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
                SourceOrder::Any => CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_ANY,
            },
            srcLocHint: anywhere,
            dstLocHint: anywhere,
            flags: 0,
        }];
        let mut starts = [0usize];
        let mut failed = usize::MAX;
        self.0.counters.batched_calls.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the three lists have the same length, which is passed; else as in `submit_plain`.
        let result = unsafe {
            sys::cuMemcpyBatchAsync(
                to.as_mut_ptr(),
                from.as_mut_ptr(),
                bytes.as_mut_ptr(),
                batch.len(),
                attributes.as_mut_ptr(),
                starts.as_mut_ptr(),
                1,
                &mut failed,
                stream.raw(),
            )
        };
        check("cuMemcpyBatchAsync", result, || match batch.get(failed) {
            Some(Descriptor { to, from, bytes }) => {
                format!(
                    "copy {failed} of {}: {bytes} bytes from {from:#x} to {to:#x}",
                    batch.len()
                )
            }
            None => format!("{} copies", batch.len()),
        })?;
        self.0
            .counters
            .descriptors
            .fetch_add(batch.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// A copy that was submitted. Dropped before it has ended, its memory is kept by the engine until it has.
#[derive(Debug)]
pub struct Copying {
    engine: DeviceCopyEngine,
    held: Option<Held>,
}

impl Copying {
    /// Whether the copy has ended: the destination holds its bytes. It never waits.
    ///
    /// # Errors
    /// The error of the context: the destination may hold anything.
    pub fn is_done(&self) -> Result<bool, DeviceError> {
        match self.held.as_ref().and_then(|held| held.event.as_ref()) {
            Some(event) => event.is_done(),
            None => Ok(true),
        }
    }

    /// Waits until it has ended, at most `limit`; says whether it has.
    ///
    /// # Errors
    /// As [`Self::is_done`].
    pub fn wait(&self, limit: Duration) -> Result<bool, DeviceError> {
        let started = Instant::now();
        loop {
            if self.is_done()? {
                return Ok(true);
            }
            let left = limit.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            thread::sleep(POLL.min(left));
        }
    }

    /// [`Self::wait`] without a sleep between two looks: for times that are measured.
    ///
    /// # Errors
    /// As [`Self::is_done`].
    pub(super) fn wait_awake(&self, limit: Duration) -> Result<bool, DeviceError> {
        let started = Instant::now();
        while !self.is_done()? {
            if started.elapsed() >= limit {
                return Ok(false);
            }
            thread::yield_now();
        }
        Ok(true)
    }

    /// Lets `stream` wait for it: what is submitted there from now on finds the copied bytes.
    ///
    /// # Errors
    /// What the driver says.
    pub fn before(&self, stream: &Stream) -> Result<(), DeviceError> {
        match self.held.as_ref().and_then(|held| held.event.as_ref()) {
            Some(event) => stream.wait_for(event),
            None => Ok(()),
        }
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        if let Some(held) = self.held.take().filter(|held| !held.has_ended()) {
            self.engine.quarantine().push(held);
        }
    }
}
