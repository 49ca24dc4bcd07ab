//! Copies.

use std::ffi::{c_uchar, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::abi::{Code, CopyAttributes, In, ORDER_ANY, ORDER_STREAM, Out, Outcome};
use crate::access::Transfer;
use crate::config::Fault;
use crate::state::{live_current, state, tables};
use crate::stream::{Stream, Work, submit};

/// The API version that has batched copies.
const BATCHED_SINCE: i32 = 12_080;

/// Submits copies as one piece of work and counts them; gives the stream and the work's number.
fn enqueue(stream: u64, transfers: Vec<Transfer>, now: bool) -> Result<(Arc<Stream>, u64), Code> {
    let (current, state) = (live_current()?, state());
    if state.faults.strikes(Fault::SubmitError) {
        return Err(Code::INVALID_VALUE);
    }
    state.counts.submissions.fetch_add(1, Ordering::Relaxed);
    state
        .counts
        .pieces
        .fetch_add(transfers.len() as u64, Ordering::Relaxed);
    let work = Work::Copy {
        transfers,
        fails: state.faults.strikes(Fault::CopyError),
        // A call that waits by itself would never come back.
        never: !now && state.faults.strikes(Fault::Never),
    };
    let tables = tables();
    let stream = tables.stream(stream, current)?;
    let number = submit(&tables, &stream, work)?;
    drop(tables);
    Ok((stream, number))
}

/// One copy. With pageable memory it is done when the call returns, as a real driver may have it.
fn one(to: u64, from: u64, bytes: u64, stream: u64, wait: bool) -> Outcome {
    let current = live_current()?;
    if bytes == 0 {
        return Ok(());
    }
    let (transfer, wait) = {
        let tables = tables();
        let transfer = Transfer::new(&tables, to, from, bytes)?;
        let pageable = transfer.is_pageable(&tables);
        (transfer, wait || pageable)
    };
    let (stream, number) = enqueue(stream, vec![transfer], wait)?;
    if wait {
        stream.wait_for(number);
        tables().context(current)?;
    }
    Ok(())
}

calls! {
    /// A copy between any two addresses.
    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: u64) {
        one(to, from, bytes as u64, stream, false)
    }

    /// A copy from the host.
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: u64) {
        one(to, from.addr() as u64, bytes as u64, stream, false)
    }

    /// A copy to the host.
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: u64) {
        one(to.addr() as u64, from, bytes as u64, stream, false)
    }

    /// A copy between devices.
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) {
        one(to, from, bytes as u64, stream, false)
    }

    /// A copy that is done when the call returns.
    fn cuMemcpy(to: u64, from: u64, bytes: usize) {
        one(to, from, bytes as u64, 0, true)
    }

    /// A copy from the host that is done when the call returns.
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) {
        one(to, from.addr() as u64, bytes as u64, 0, true)
    }

    /// A copy to the host that is done when the call returns.
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) {
        one(to.addr() as u64, from, bytes as u64, 0, true)
    }

    /// Many copies. Sources of another order than that of the stream are read at once, which they allow.
    fn cuMemcpyBatchAsync(
        to: In<u64>,
        from: In<u64>,
        bytes: In<usize>,
        count: usize,
        attributes: In<CopyAttributes>,
        attribute_starts: In<usize>,
        attribute_count: usize,
        failed: Out<usize>,
        stream: u64,
    ) {
        if state().config.version < BATCHED_SINCE {
            fatal!("cuMemcpyBatchAsync is not in a driver of version {}", state().config.version);
        }
        // The legacy default stream takes no batches.
        if stream <= 1 || count == 0 || attribute_count == 0 || attribute_starts.get(0)? != 0 {
            return Err(Code::INVALID_VALUE);
        }
        live_current()?;
        let mut transfers = Vec::with_capacity(count);
        let mut orders = Vec::with_capacity(count);
        {
            let tables = tables();
            let mut attribute = 0;
            for index in 0..count {
                while attribute + 1 < attribute_count && attribute_starts.get(attribute + 1)? <= index {
                    attribute += 1;
                }
                let order = attributes.get(attribute)?.order;
                let length = bytes.get(index)? as u64;
                let made = if (ORDER_STREAM..=ORDER_ANY).contains(&order) {
                    Transfer::new(&tables, to.get(index)?, from.get(index)?, length)
                } else {
                    Err(Code::INVALID_VALUE)
                };
                match made {
                    Ok(transfer) if length > 0 => transfers.push(transfer),
                    result => {
                        if !failed.is_null() {
                            failed.put(index)?;
                        }
                        return Err(result.err().unwrap_or(Code::INVALID_VALUE));
                    }
                }
                orders.push(order);
            }
        }
        for (transfer, order) in transfers.iter_mut().zip(orders) {
            if order != ORDER_STREAM {
                transfer.read_early()?;
            }
        }
        enqueue(stream, transfers, false).map(drop)
    }

    /// Fills device memory, in the default stream.
    fn cuMemsetD8_v2(to: u64, value: c_uchar, bytes: usize) {
        fill(to, value, bytes as u64, 0)
    }

    /// Fills device memory.
    fn cuMemsetD8Async(to: u64, value: c_uchar, bytes: usize, stream: u64) {
        fill(to, value, bytes as u64, stream)
    }
}

fn fill(to: u64, value: u8, bytes: u64, stream: u64) -> Outcome {
    let current = live_current()?;
    let tables = tables();
    if bytes == 0 || tables.arena.find(to).is_none() {
        return Err(Code::INVALID_VALUE);
    }
    let stream = tables.stream(stream, current)?;
    submit(&tables, &stream, Work::Set { to, value, bytes }).map(drop)
}
