//! From which size on a piece is better copied by a call of its own: measured, for each direction of a device.

use std::time::{Duration, Instant};

use crate::copy::{CopyPlan, HostMemory, Span};

use super::allocated::DeviceMemory;
use super::context::Context;
use super::descriptors::{Crossovers, PLAIN_FROM_BYTES};
use super::driver::Driver;
use super::engine::{DeviceCopyEngine, SourceOrder};
use super::error::DeviceError;
use super::memory::PlanMemory;
use super::pinned::{PINNED_PIECE_BYTES, PinnedMemory};
use super::stream::Stream;

/// Bytes of device memory, and of registered host memory, that a measurement takes while it runs.
pub const MEASURE_BYTES: u64 = 16 << 20;

/// The sizes that are tried, the smallest one first.
const SIZES: [u64; 6] = [8 << 10, 32 << 10, 128 << 10, 512 << 10, 1 << 20, 2 << 20];

/// Most pieces of one plan.
const PIECES: u64 = 128;

/// Each way is tried so often, and its best time counts.
const TRIES: usize = 3;

/// A way that takes so long has no time that counts.
const LIMIT: Duration = Duration::from_secs(5);

/// Copies up to [`MEASURE_BYTES`] in either direction with a call for many and with a call for each, and gives the sizes
/// from which on the second is not the slower one. It takes some milliseconds on a card, on a stream of its own, and is
/// not for an engine's thread. Without batched copies there is nothing to measure, and the answer is 0.
///
/// # Errors
/// What the driver says, for example that there is no memory left.
pub fn measure(driver: &Driver, context: &Context) -> Result<Crossovers, DeviceError> {
    if !driver.has_batched_copies() {
        return Ok(Crossovers::both(0));
    }
    let device = DeviceMemory::allocate(context, MEASURE_BYTES)?;
    let host = HostMemory::zeroed(MEASURE_BYTES as usize);
    let host = PinnedMemory::register(context, host, PINNED_PIECE_BYTES)?;
    let stream = Stream::new(context)?;
    let batched = DeviceCopyEngine::with_crossovers(driver, context, Crossovers::both(u64::MAX));
    let plain = DeviceCopyEngine::with_crossovers(driver, context, Crossovers::both(0));
    let crossover = |src: &dyn PlanMemory, dst: &dyn PlanMemory| -> Result<u64, DeviceError> {
        for size in SIZES {
            let plan = scattered(size);
            let together = best(&batched, &plan, src, dst, &stream)?;
            let each = best(&plain, &plan, src, dst, &stream)?;
            match verdict(together, each) {
                Verdict::Together => {}
                Verdict::Each => return Ok(size),
                Verdict::Unknown => return Ok(PLAIN_FROM_BYTES),
            }
        }
        Ok(SIZES[SIZES.len() - 1])
    };
    Ok(Crossovers {
        to_device: crossover(&host, &device)?,
        to_host: crossover(&device, &host)?,
    })
}

/// Which way is not the slower one.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Together,
    Each,
    Unknown,
}

/// Of times where nothing is one that took too long.
fn verdict(together: Option<Duration>, each: Option<Duration>) -> Verdict {
    match (together, each) {
        (Some(together), Some(each)) if each > together => Verdict::Together,
        (Some(_), None) => Verdict::Together,
        (_, Some(_)) => Verdict::Each,
        (None, None) => Verdict::Unknown,
    }
}

/// Pieces of one size that do not follow each other.
fn scattered(size: u64) -> CopyPlan {
    let mut plan = CopyPlan::new();
    for index in 0..PIECES.min(MEASURE_BYTES / (2 * size)) {
        let span = Span::new(0, 2 * size * index);
        plan.push(span, span, size);
    }
    plan
}

/// The best time of some tries; `None` if one of them took too long.
fn best(
    engine: &DeviceCopyEngine,
    plan: &CopyPlan,
    src: &dyn PlanMemory,
    dst: &dyn PlanMemory,
    stream: &Stream,
) -> Result<Option<Duration>, DeviceError> {
    let mut best = None;
    for _ in 0..TRIES {
        let started = Instant::now();
        let copying = engine.submit(plan, &[src], &[dst], stream, SourceOrder::Stream)?;
        // A sleep would be as long as what is measured.
        if !copying.wait_awake(LIMIT)? {
            return Ok(None);
        }
        let took = started.elapsed();
        best = Some(best.map_or(took, |best: Duration| best.min(took)));
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_too_long_is_never_chosen() {
        let time = |ms| Some(Duration::from_millis(ms));
        assert_eq!(verdict(time(1), time(2)), Verdict::Together);
        assert_eq!(verdict(time(2), time(1)), Verdict::Each);
        assert_eq!(verdict(time(2), time(2)), Verdict::Each);
        assert_eq!(verdict(time(1), None), Verdict::Together);
        assert_eq!(verdict(None, time(1)), Verdict::Each);
        assert_eq!(verdict(None, None), Verdict::Unknown);
    }
}
