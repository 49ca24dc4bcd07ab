//! Start, devices and contexts.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::abi::{Code, Out, Outcome, Uuid, texts};
use crate::state::{self, Context, Tables, current, live_current, state, tables, with_stack};
use crate::stream::Stream;

/// The call that all others need first.
///
/// # Safety
/// None is asked of the caller.
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(flags: c_uint) -> u32 {
    if flags != 0 {
        return Code::INVALID_VALUE.0;
    }
    state::initialise();
    if state().config.uuids.is_empty() {
        return Code::NO_DEVICE.0;
    }
    Code::SUCCESS.0
}

/// Which API the driver speaks. It needs no `cuInit`.
///
/// # Safety
/// That of the call of this name in the CUDA driver API.
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: Out<c_int>) -> u32 {
    version
        .put(state().config.version)
        .err()
        .unwrap_or(Code::SUCCESS)
        .0
}

/// The name of a result.
///
/// # Safety
/// That of the call of this name in the CUDA driver API.
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: u32, name: Out<*const c_char>) -> u32 {
    match texts(error) {
        Some((text, _)) => name.put(text.as_ptr().cast()).err().unwrap_or(Code::SUCCESS).0,
        None => Code::INVALID_VALUE.0,
    }
}

/// The sentence of a result.
///
/// # Safety
/// That of the call of this name in the CUDA driver API.
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: u32, sentence: Out<*const c_char>) -> u32 {
    match texts(error) {
        Some((_, text)) => {
            sentence
                .put(text.as_ptr().cast())
                .err()
                .unwrap_or(Code::SUCCESS)
                .0
        }
        None => Code::INVALID_VALUE.0,
    }
}

/// The index of a device.
pub(crate) fn ordinal(device: c_int) -> Result<usize, Code> {
    usize::try_from(device)
        .ok()
        .filter(|&index| index < state().config.uuids.len())
        .ok_or(Code::INVALID_DEVICE)
}

/// The context that a device has now; made if there is none.
fn retain(tables: &mut Tables, device: usize) -> u64 {
    let (count, found) = tables.primaries[device];
    let handle = found.unwrap_or_else(|| {
        let handle = tables.handle();
        let error = Arc::new(AtomicU32::new(0));
        let context = Context {
            device,
            default_stream: Stream::start(handle, true, Arc::clone(&error)),
            error,
        };
        tables.contexts.insert(handle, context);
        state().counts.contexts.fetch_add(1, Ordering::Relaxed);
        handle
    });
    tables.primaries[device] = (count + 1, Some(handle));
    handle
}

/// Ends a device's context, and all that is of it.
fn destroy(tables: &mut Tables, device: usize) {
    let Some(handle) = tables.primaries[device].1.take() else {
        return;
    };
    if let Some(context) = tables.contexts.remove(&handle) {
        context.default_stream.close();
    }
    tables.streams.retain(|_, stream| {
        if stream.context == handle {
            stream.close();
        }
        stream.context != handle
    });
    tables.events.retain(|_, event| event.context != handle);
    for base in tables.arena.of_context(handle) {
        tables.arena.retire(base, "the end of its context");
    }
}

/// Waits for everything that a context has submitted.
pub(crate) fn settle(context: u64) -> Outcome {
    let pending: Vec<(Arc<Stream>, u64)> = {
        let tables = tables();
        let default = &tables.context(context)?.default_stream;
        let of_context = tables.streams.values().filter(|stream| stream.context == context);
        of_context
            .chain([default])
            .map(|stream| (Arc::clone(stream), stream.submitted()))
            .collect()
    };
    for (stream, number) in pending {
        stream.wait_for(number);
    }
    tables().context(context).map(drop)
}

calls! {
    /// How many devices are visible.
    fn cuDeviceGetCount(count: Out<c_int>) {
        count.put(state().config.uuids.len() as c_int)
    }

    /// The device of an ordinal.
    fn cuDeviceGet(device: Out<c_int>, index: c_int) {
        ordinal(index)?;
        device.put(index)
    }

    /// A device's name.
    fn cuDeviceGetName(name: Out<u8>, length: c_int, device: c_int) {
        ordinal(device)?;
        let text = b"stand-in device\0";
        let fits = usize::try_from(length).ok().filter(|&length| length > 0).ok_or(Code::INVALID_VALUE)?;
        let mut text = text[..text.len().min(fits)].to_vec();
        if let Some(last) = text.last_mut() {
            *last = 0;
        }
        name.put_bytes(&text)
    }

    /// A device's UUID.
    fn cuDeviceGetUuid_v2(uuid: Out<Uuid>, device: c_int) {
        uuid.put(Uuid(state().config.uuids[ordinal(device)?]))
    }

    /// A device's UUID.
    fn cuDeviceGetUuid(uuid: Out<Uuid>, device: c_int) {
        uuid.put(Uuid(state().config.uuids[ordinal(device)?]))
    }

    /// A device's memory.
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) {
        ordinal(device)?;
        bytes.put(state().config.memory as usize)
    }

    /// What a device can do: virtual memory, its export as descriptors, one address space with the host, and words in
    /// streams. All else is 0.
    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_uint, device: c_int) {
        ordinal(device)?;
        value.put(match attribute {
            41 | 102 | 103 => 1,
            _ => 0,
        })
    }

    /// Takes part in a device's primary context.
    fn cuDevicePrimaryCtxRetain(context: Out<u64>, device: c_int) {
        let device = ordinal(device)?;
        context.put(retain(&mut tables(), device))
    }

    /// Gives a part in it back; the last one ends it.
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        let device = ordinal(device)?;
        let mut tables = tables();
        let count = &mut tables.primaries[device].0;
        *count = count.checked_sub(1).ok_or(Code::INVALID_CONTEXT)?;
        if *count == 0 {
            destroy(&mut tables, device);
        }
        Ok(())
    }

    /// Whether a device has a primary context.
    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, active: Out<c_int>) {
        let device = ordinal(device)?;
        flags.put(0)?;
        active.put(c_int::from(tables().primaries[device].1.is_some()))
    }

    /// Replaces the thread's current context; 0 only takes it away.
    fn cuCtxSetCurrent(context: u64) {
        if context != 0 {
            tables().context(context)?;
        }
        with_stack(|stack| {
            stack.pop();
            if context != 0 {
                stack.push(context);
            }
        });
        Ok(())
    }

    /// The thread's current context, 0 if there is none.
    fn cuCtxGetCurrent(context: Out<u64>) {
        context.put(current())
    }

    /// Makes a context current, until it is popped.
    fn cuCtxPushCurrent_v2(context: u64) {
        // A context with an error can be current: what is of it has to be taken down.
        if !tables().contexts.contains_key(&context) {
            return Err(Code::INVALID_CONTEXT);
        }
        with_stack(|stack| stack.push(context));
        Ok(())
    }

    /// Takes the current context away.
    fn cuCtxPopCurrent_v2(context: Out<u64>) {
        let popped = with_stack(Vec::pop).ok_or(Code::INVALID_CONTEXT)?;
        if context.is_null() { Ok(()) } else { context.put(popped) }
    }

    /// The device of the current context.
    fn cuCtxGetDevice(device: Out<c_int>) {
        let current = live_current()?;
        let found = tables().context(current)?.device;
        device.put(found as c_int)
    }

    /// Waits for all work of the current context.
    fn cuCtxSynchronize() {
        settle(live_current()?)
    }
}

/// What the stand-in counts, for tests. A real driver has no such call.
///
/// | `what` | counts |
/// |---|---|
/// | 0 | calls that submitted copies |
/// | 1 | copies in them |
/// | 2 | contexts that were made |
/// | 3 | contexts that live |
/// | 4 | live ranges of device memory |
/// | 5 | handles of `cuMemCreate` that are held |
/// | 6 | ranges of host memory that are registered |
/// | 7 | reservations of addresses |
/// | 8 | streams, without the default ones |
/// | 9 | events |
/// | 10 | registrations of host memory that ended before a later one |
#[unsafe(no_mangle)]
#[allow(unsafe_code)]
pub extern "C" fn softcuda_count(what: u32) -> u64 {
    let counts = &state().counts;
    let tables = tables();
    match what {
        0 => counts.submissions.load(Ordering::Relaxed),
        1 => counts.pieces.load(Ordering::Relaxed),
        2 => counts.contexts.load(Ordering::Relaxed),
        3 => tables.contexts.len() as u64,
        4 => tables.arena.regions().count() as u64,
        5 => tables
            .created
            .values()
            .map(|created| u64::from(created.references))
            .sum(),
        6 => tables.registered.len() as u64,
        7 => tables.arena.reservations() as u64,
        8 => tables.streams.len() as u64,
        9 => tables.events.len() as u64,
        10 => counts.out_of_order.load(Ordering::Relaxed),
        _ => fatal!("there is no count {what}"),
    }
}

/// Replaces the faults that are armed by a list like that of `SOFTCUDA_FAULTS`. A real driver has no such call.
///
/// # Safety
/// `list` points at `length` bytes of UTF-8.
#[unsafe(no_mangle)]
#[allow(unsafe_code)]
pub unsafe extern "C" fn softcuda_faults(list: *const u8, length: usize) {
    // SAFETY: the caller's promise.
    let list = unsafe { std::slice::from_raw_parts(list, length) };
    state().faults.arm(&String::from_utf8_lossy(list));
}
