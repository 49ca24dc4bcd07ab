//! The payload ring of a client that maps nothing of the pool.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
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
    pub(crate) fn store(&self, deadline: Instant) -> Result<Taken<'_, Producer<RingWord>>, ClientError> {
        self.store.take(deadline)
    }

    /// The lane for loads, once no other call has it.
    pub(crate) fn load(&self, deadline: Instant) -> Result<Taken<'_, Consumer<RingWord>>, ClientError> {
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

/// Something that one call has at a time. The others get it in the order in which they came, or give up at their deadline.
#[derive(Debug)]
struct OneAtATime<T> {
    queue: Mutex<Queue<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct Queue<T> {
    free: Option<T>,
    /// Who waits, the first of them first, by numbers that are given out once.
    waiting: VecDeque<u64>,
    next: u64,
}

impl<T> OneAtATime<T> {
    fn new(value: T) -> Self {
        let queue = Queue {
            free: Some(value),
            waiting: VecDeque::new(),
            next: 0,
        };
        Self {
            queue: Mutex::new(queue),
            changed: Condvar::new(),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, deadline: Instant) -> Result<Taken<'_, T>, ClientError> {
        let queue = self.queue();
        self.take_of(queue, deadline)
    }

    fn take_of<'a>(
        &'a self,
        mut queue: MutexGuard<'a, Queue<T>>,
        deadline: Instant,
    ) -> Result<Taken<'a, T>, ClientError> {
        let number = queue.next;
        queue.next += 1;
        queue.waiting.push_back(number);
        loop {
            if queue.waiting.front() == Some(&number)
                && let Some(value) = queue.free.take()
            {
                queue.waiting.pop_front();
                let value = Some(value);
                return Ok(Taken { from: self, value });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                queue.waiting.retain(|waits| *waits != number);
                // Whoever comes after it may be the first now.
                self.changed.notify_all();
                let reason = "earlier calls took the payload ring for all the time of this one";
                return Err(ClientError::unavailable(reason));
            }
            let waited = self.changed.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// What a call has for now.
pub(crate) struct Taken<'a, T> {
    from: &'a OneAtATime<T>,
    /// Always there, but for the moment in which others have their turn.
    value: Option<T>,
}

impl<T> Taken<'_, T> {
    /// Whether another call waits for it.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.from.queue().waiting.is_empty()
    }

    /// Lets those that wait have it first. What this call has begun with it must have ended.
    ///
    /// # Errors
    /// [`ClientError::Unavailable`] when they have it until the deadline. It is theirs then.
    pub(crate) fn let_others(mut self, deadline: Instant) -> Result<Self, ClientError> {
        let from = self.from;
        let mut queue = from.queue();
        queue.free = self.value.take();
        from.changed.notify_all();
        // With the lock held: those that wait stand before this call.
        from.take_of(queue, deadline)
    }
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
        if let Some(value) = self.value.take() {
            self.from.queue().free = Some(value);
            self.from.changed.notify_all();
        }
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

    #[test]
    fn who_lets_others_first_comes_after_all_that_wait_and_before_those_that_come_later() {
        let one = OneAtATime::new(Vec::new());
        let far = Instant::now() + Duration::from_secs(60);
        let own = one.take(far).unwrap();
        assert!(!own.is_wanted());
        let own = std::thread::scope(|scope| {
            for (number, waiting) in [(1, 1), (2, 2)] {
                let one = &one;
                scope.spawn(move || one.take(far).unwrap().push(number));
                while one.queue().waiting.len() < waiting {
                    std::thread::yield_now();
                }
            }
            // Gives up while it is the last one.
            let soon = Instant::now() + Duration::from_millis(5);
            assert!(matches!(one.take(soon), Err(ClientError::Unavailable { .. })));
            assert!(own.is_wanted());
            let mut own = own.let_others(far).unwrap();
            assert_eq!((&own[..], own.is_wanted()), (&[1, 2][..], false));
            own.push(3);
            // Nobody waits: it comes back at once.
            own.let_others(Instant::now()).unwrap()
        });
        assert_eq!(own[..], [1, 2, 3]);
    }

    #[test]
    fn who_gives_up_as_the_first_of_those_that_wait_keeps_nobody() {
        let one = OneAtATime::new(7);
        let taken = one.take(Instant::now()).unwrap();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| one.take(Instant::now() + Duration::from_millis(20)).is_err());
            while one.queue().waiting.is_empty() {
                std::thread::yield_now();
            }
            let second = scope.spawn(|| *one.take(Instant::now() + Duration::from_secs(60)).unwrap());
            assert!(first.join().unwrap());
            drop(taken);
            assert_eq!(second.join().unwrap(), 7);
        });
    }
}
