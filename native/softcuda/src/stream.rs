//! Streams: a thread each, which does what was submitted in order, some time later.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::abi::Code;
use crate::access::{self, Transfer, Write};
use crate::event::Event;
use crate::lock;
use crate::state::{Tables, state};

/// One thing that a stream does.
pub(crate) enum Work {
    Copy {
        transfers: Vec<Transfer>,
        /// A fault that was drawn when it was submitted.
        fails: bool,
        never: bool,
    },
    /// Fills memory with one byte.
    Set {
        to: u64,
        value: u8,
        bytes: u64,
    },
    Record(Arc<Event>, u64),
    Wait(Arc<Event>, u64),
    WaitValue {
        at: u64,
        value: u64,
        bytes: u64,
        flags: u32,
    },
    WriteValue(Write),
}

/// Work, and what has to be done before: numbers of other streams' work.
struct Task {
    after: Vec<(Arc<Stream>, u64)>,
    work: Work,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    submitted: u64,
    completed: u64,
    closed: bool,
}

/// One stream.
pub(crate) struct Stream {
    pub(crate) context: u64,
    /// Whether it and the default stream wait for each other.
    pub(crate) blocking: bool,
    error: Arc<AtomicU32>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Stream {
    /// A stream with its thread.
    pub(crate) fn start(context: u64, blocking: bool, error: Arc<AtomicU32>) -> Arc<Self> {
        let stream = Arc::new(Self {
            context,
            blocking,
            error,
            queue: Mutex::default(),
            changed: Condvar::new(),
        });
        let own = Arc::clone(&stream);
        if let Err(error) = thread::Builder::new()
            .name("softcuda".into())
            .spawn(move || own.run())
        {
            fatal!("cannot start a stream's thread: {error}");
        }
        stream
    }

    /// Appends work. The caller holds the tables, so that the order of submissions is one for all streams.
    fn push(&self, after: Vec<(Arc<Self>, u64)>, work: Work) -> u64 {
        let mut queue = lock(&self.queue);
        queue.tasks.push_back(Task { after, work });
        queue.submitted += 1;
        self.changed.notify_all();
        queue.submitted
    }

    /// The number of the last work.
    pub(crate) fn submitted(&self) -> u64 {
        lock(&self.queue).submitted
    }

    /// Whether all work is done.
    pub(crate) fn is_idle(&self) -> bool {
        let queue = lock(&self.queue);
        queue.completed == queue.submitted
    }

    /// Waits until work `number` is done.
    pub(crate) fn wait_for(&self, number: u64) {
        let mut queue = lock(&self.queue);
        while queue.completed < number {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the thread once all work is done.
    pub(crate) fn close(&self) {
        lock(&self.queue).closed = true;
        self.changed.notify_all();
    }

    fn run(&self) {
        loop {
            let task = {
                let mut queue = lock(&self.queue);
                loop {
                    if let Some(task) = queue.tasks.pop_front() {
                        break task;
                    }
                    if queue.closed {
                        return;
                    }
                    queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            };
            for (stream, number) in task.after {
                stream.wait_for(number);
            }
            self.execute(task.work);
            lock(&self.queue).completed += 1;
            self.changed.notify_all();
        }
    }

    fn execute(&self, work: Work) {
        // After an error nothing runs in a context, and waiting for it ends.
        if self.error.load(Ordering::Acquire) != 0 {
            if let Work::Record(event, number) = work {
                event.complete(number);
            }
            return;
        }
        let result = match work {
            Work::Copy { never: true, .. } => loop {
                thread::park();
            },
            Work::Copy { transfers, fails, .. } => {
                thread::sleep(Duration::from_millis(state().faults.late_ms()));
                if fails {
                    Err(Code::ILLEGAL_ADDRESS)
                } else {
                    transfers.iter().try_for_each(Transfer::execute)
                }
            }
            Work::Set { to, value, bytes } => access::fill(to, value, bytes),
            Work::Record(event, number) => {
                event.complete(number);
                Ok(())
            }
            Work::Wait(event, number) => {
                event.wait(number);
                Ok(())
            }
            Work::WaitValue {
                at,
                value,
                bytes,
                flags,
            } => loop {
                match access::load_word(at, bytes).map(|now| holds(now, value, flags, bytes)) {
                    Ok(false) => thread::sleep(Duration::from_micros(100)),
                    Ok(true) => break Ok(()),
                    Err(code) => break Err(code),
                }
            },
            Work::WriteValue(write) => write.execute(),
        };
        if let Err(code) = result {
            self.error.store(code.0, Ordering::Release);
        }
    }
}

/// The conditions of `cuStreamWaitValue32` and its sister of 64 bits.
fn holds(now: u64, value: u64, flags: u32, bytes: u64) -> bool {
    match flags & 3 {
        0 if bytes == 4 => (now as u32).wrapping_sub(value as u32) as i32 >= 0,
        0 => now.wrapping_sub(value) as i64 >= 0,
        1 => now == value,
        2 => now & value != 0,
        _ => !(now | value) & (u64::MAX >> (64 - 8 * bytes)) != 0,
    }
}

/// Submits work to a stream under the rules of the legacy default stream: it begins after all earlier work of the
/// blocking streams of its context, and their later work begins after it.
pub(crate) fn submit(tables: &Tables, stream: &Arc<Stream>, work: Work) -> Result<u64, Code> {
    let context = tables.context(stream.context)?;
    let default = &context.default_stream;
    let mut after = Vec::new();
    if Arc::ptr_eq(stream, default) {
        for other in tables.streams.values() {
            if other.context == stream.context && other.blocking {
                after.push((Arc::clone(other), other.submitted()));
            }
        }
    } else if stream.blocking {
        after.push((Arc::clone(default), default.submitted()));
    }
    Ok(stream.push(after, work))
}
