//! Long frames are read and written on other threads: four megabytes take milliseconds, and the thread that serves has
//! none to spare.

use tokio::sync::Semaphore;

use crate::wire::{BadFrame, EncodeError, Encoder, Reply, Request, decode_request};

/// Frames of more bytes than this are long: a few tens of microseconds.
pub(super) const LONG_BYTES: usize = 32 << 10;
/// Bytes of a frame that count as one step of a turn.
const BYTES_PER_STEP: usize = 512;
/// Long frames that are worked on at a time, so that no more of the machine goes to them.
const AT_ONCE: usize = 2;

/// Steps of reading or writing so many bytes of a frame.
pub(super) fn steps(bytes: usize) -> u32 {
    (bytes / BYTES_PER_STEP) as u32
}

/// Who may work on a long frame.
#[derive(Debug)]
pub(super) struct Offload {
    permits: Semaphore,
}

/// A reply that was too long for a frame.
pub(super) type TooLong = (EncodeError, Box<Reply>);

impl Offload {
    /// Nobody does yet.
    pub(super) fn new() -> Self {
        Self::at_once(AT_ONCE)
    }

    /// The same for so much work at a time.
    pub(super) fn at_once(limit: usize) -> Self {
        Self {
            permits: Semaphore::new(limit),
        }
    }

    /// Reads a long request.
    pub(super) async fn decode(&self, frame: Vec<u8>) -> Result<(u64, Request), BadFrame> {
        self.run(move || decode_request(&frame)).await
    }

    /// Writes a long reply.
    pub(super) async fn encode(&self, id: u64, reply: Reply) -> Result<Vec<u8>, TooLong> {
        self.run(move || match Encoder::new().reply(id, &reply) {
            Ok(frame) => Ok(frame.to_vec()),
            Err(error) => Err((error, Box::new(reply))),
        })
        .await
    }

    /// Does something that takes long, on another thread and when it is its turn.
    pub(super) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        // Never closed, so there is always a permit to wait for.
        let _permit = self.permits.acquire().await;
        match tokio::task::spawn_blocking(work).await {
            Ok(done) => done,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is going down, and with it whoever waits for this.
                Err(_) => std::future::pending().await,
            },
        }
    }
}

/// About how many bytes a reply takes.
pub(super) fn reply_bytes(reply: &Reply) -> usize {
    match reply {
        Reply::Lookup(found) => size_of_val(found.loads.as_slice()) + found.present_tokens.len() * 8,
        Reply::Retrieve(found) => {
            size_of_val(found.locations.as_slice()) + size_of_val(found.extents.as_slice())
        }
        Reply::Grant { extents } => size_of_val(extents.as_slice()),
        Reply::Commit(answer) => answer.outcomes.len() + size_of_val(answer.granted.as_slice()),
        Reply::Status { json } => json.len(),
        Reply::Kick { clients } => size_of_val(clients.as_slice()),
        Reply::Error(error) => error.message.len() + error.numbers.len() * 8,
        Reply::Ack | Reply::Hello(_) | Reply::Negotiate(_) | Reply::Register(_) => 0,
    }
}
