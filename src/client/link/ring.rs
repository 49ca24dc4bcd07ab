//! The payload ring of a client that maps nothing of the pool.

use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use super::regions::{Regions, length};
use crate::client::ClientError;
use crate::copy::HostMemory;
use crate::object::Extent;
use crate::shm::ring::{Consumer, LANE_ALIGN, Lane, Producer, RingLayout, RingMemory, RingWord, lane_bytes};
use crate::shm::{Mapping, ReadWrite};
use crate::wire::RegionKind;

/// This client's end of its ring.
#[derive(Debug)]
pub(crate) struct RingSide {
    /// All of the region, for copies.
    memory: [HostMemory; 1],
    layout: RingLayout,
    store: OneAtATime<Producer<RingWord>>,
    load: OneAtATime<Consumer<RingWord>>,
}

impl RingSide {
    /// Maps what came with the hello reply.
    pub(crate) fn open(regions: &mut Regions<'_>) -> Result<Self, ClientError> {
        let (at, fd) = regions.take(RegionKind::Ring)?;
        let mapping = Mapping::<ReadWrite>::map_foreign_at(fd.as_fd(), at.offset, length(&at)?);
        let mapping = Arc::new(mapping.map_err(ClientError::unavailable)?);
        let layout = RingLayout::read(&mapping).map_err(ClientError::unavailable)?;
        let memory = RingMemory::Mapped(Arc::clone(&mapping));
        Ok(Self {
            store: OneAtATime::new(layout.producer(Lane::Store, &memory)),
            load: OneAtATime::new(layout.consumer(Lane::Load, &memory)),
            memory: [HostMemory::mapped(mapping)],
            layout,
        })
    }

    /// The region, as a side of copy plans.
    pub(crate) fn memory(&self) -> &[HostMemory] {
        &self.memory
    }

    /// Bytes that go through a lane at a time: half of it, so that the other half moves meanwhile.
    pub(crate) fn window(&self) -> u64 {
        self.layout.lane_bytes() / 2
    }

    /// The lane for stores, once no other call has it.
    pub(crate) fn store(
        &self,
        deadline: Instant,
    ) -> Result<impl DerefMut<Target = Producer<RingWord>>, ClientError> {
        self.store.take(deadline)
    }

    /// The lane for loads, once no other call has it.
    pub(crate) fn load(
        &self,
        deadline: Instant,
    ) -> Result<impl DerefMut<Target = Consumer<RingWord>>, ClientError> {
        self.load.take(deadline)
    }

    /// A place in a lane as extents of units of [`LANE_ALIGN`] bytes of the region.
    pub(crate) fn extents(&self, lane: Lane, position: u64, bytes: u64) -> [Extent; 2] {
        let spans = self.layout.spans(lane, position, lane_bytes(bytes));
        // A region has at most 2^28 bytes.
        spans.map(|span| {
            Extent::new(
                (span.offset / LANE_ALIGN) as u32,
                (span.bytes / LANE_ALIGN) as u32,
            )
        })
    }

    /// Puts bytes into a lane.
    pub(crate) fn write(&self, lane: Lane, position: u64, bytes: &[u8]) -> Result<(), ClientError> {
        let [first, second] = self.layout.spans(lane, position, bytes.len() as u64);
        let (front, back) = bytes.split_at(first.bytes as usize);
        self.memory[0].write(first.offset, front)?;
        Ok(self.memory[0].write(second.offset, back)?)
    }

    /// Takes bytes out of a lane.
    pub(crate) fn read(&self, lane: Lane, position: u64, into: &mut [u8]) -> Result<(), ClientError> {
        let [first, second] = self.layout.spans(lane, position, into.len() as u64);
        let (front, back) = into.split_at_mut(first.bytes as usize);
        self.memory[0].read(first.offset, front)?;
        Ok(self.memory[0].read(second.offset, back)?)
    }
}

/// Something that one call has at a time. The others wait until their deadline.
#[derive(Debug)]
struct OneAtATime<T> {
    free: Mutex<Option<T>>,
    given_back: Condvar,
}

impl<T> OneAtATime<T> {
    fn new(value: T) -> Self {
        Self {
            free: Mutex::new(Some(value)),
            given_back: Condvar::new(),
        }
    }

    fn take(&self, deadline: Instant) -> Result<Taken<'_, T>, ClientError> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(value) = free.take() {
                let value = Some(value);
                return Ok(Taken { from: self, value });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let reason = "earlier calls took the payload ring for all the time of this one";
                return Err(ClientError::unavailable(reason));
            }
            let waited = self.given_back.wait_timeout(free, left);
            free = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

struct Taken<'a, T> {
    from: &'a OneAtATime<T>,
    /// Always there until the drop.
    value: Option<T>,
}

impl<T> Deref for Taken<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("taken until the drop")
    }
}

impl<T> DerefMut for Taken<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("taken until the drop")
    }
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        *self.from.free.lock().unwrap_or_else(PoisonError::into_inner) = self.value.take();
        self.from.given_back.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_waits_longer_than_its_deadline_is_told() {
        let one = OneAtATime::new(7);
        let taken = one.take(Instant::now()).unwrap();
        let soon = Instant::now() + Duration::from_millis(5);
        assert!(matches!(one.take(soon), Err(ClientError::Unavailable { .. })));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| *one.take(Instant::now() + Duration::from_secs(60)).unwrap());
            drop(taken);
            assert_eq!(waits.join().unwrap(), 7);
        });
    }
}
