//! Streams, events, and words that streams wait for.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use crate::abi::{Code, EVENT_DISABLE_TIMING, EVENT_INTERPROCESS, Out, Outcome, STREAM_NON_BLOCKING};
use crate::access::Write;
use crate::backing::{Backing, Kind};
use crate::event::Event;
use crate::state::{live_current, state, tables};
use crate::stream::{Stream, Work, submit};

fn create(handle: Out<u64>, flags: c_uint) -> Outcome {
    if flags & !STREAM_NON_BLOCKING != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let current = live_current()?;
    let mut tables = tables();
    let error = Arc::clone(&tables.context(current)?.error);
    let stream = Stream::start(current, flags & STREAM_NON_BLOCKING == 0, error);
    let number = tables.handle();
    tables.streams.insert(number, stream);
    handle.put(number)
}

fn value(stream: u64, at: u64, work: Work, bytes: u64) -> Outcome {
    let current = live_current()?;
    let tables = tables();
    if !at.is_multiple_of(bytes) {
        return Err(Code::INVALID_VALUE);
    }
    let stream = tables.stream(stream, current)?;
    submit(&tables, &stream, work).map(drop)
}

calls! {
    /// A stream of the current context.
    fn cuStreamCreate(stream: Out<u64>, flags: c_uint) {
        create(stream, flags)
    }

    /// A stream; the stand-in knows no priorities.
    fn cuStreamCreateWithPriority(stream: Out<u64>, flags: c_uint, _priority: c_int) {
        create(stream, flags)
    }

    /// Gives a stream back; what it was given is still done.
    fn cuStreamDestroy_v2(stream: u64) {
        let mut tables = tables();
        if stream <= 2 {
            return Err(Code::INVALID_HANDLE);
        }
        let found = tables.streams.get(&stream).map(|stream| stream.context);
        tables.stream(stream, found.unwrap_or_default()).map(drop).or_else(|code| match found {
            Some(_) => Ok(()),
            None => Err(code),
        })?;
        if let Some(stream) = tables.streams.remove(&stream) {
            stream.close();
        }
        Ok(())
    }

    /// Waits until all work of a stream is done.
    fn cuStreamSynchronize(stream: u64) {
        let current = live_current()?;
        let stream = tables().stream(stream, current)?;
        stream.wait_for(stream.submitted());
        tables().context(current).map(drop)
    }

    /// Whether it is.
    fn cuStreamQuery(stream: u64) {
        let current = live_current()?;
        let stream = tables().stream(stream, current)?;
        if stream.is_idle() { tables().context(current).map(drop) } else { Err(Code::NOT_READY) }
    }

    /// Lets a stream wait for what an event has recorded by now.
    fn cuStreamWaitEvent(stream: u64, event: u64, _flags: c_uint) {
        let current = live_current()?;
        let tables = tables();
        let (stream, event) = (tables.stream(stream, current)?, tables.event(event)?);
        let number = event.recorded();
        submit(&tables, &stream, Work::Wait(event, number)).map(drop)
    }

    /// The context of a stream.
    fn cuStreamGetCtx(stream: u64, context: Out<u64>) {
        let current = live_current()?;
        let tables = tables();
        match tables.streams.get(&stream) {
            Some(stream) => context.put(stream.context),
            None => context.put(tables.stream(stream, current)?.context),
        }
    }

    /// An event of the current context.
    fn cuEventCreate(event: Out<u64>, flags: c_uint) {
        if flags > 7 || flags & EVENT_INTERPROCESS != 0 && flags & EVENT_DISABLE_TIMING == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let current = live_current()?;
        let mut tables = tables();
        let uuid = state().config.uuids[tables.context(current)?.device];
        let backing = Backing::new(Kind::Event, Event::BYTES, uuid).map_err(|_| Code::OUT_OF_MEMORY)?;
        let number = tables.handle();
        tables.events.insert(number, Arc::new(Event::new(backing, current, flags)));
        event.put(number)
    }

    /// Gives an event back.
    fn cuEventDestroy_v2(event: u64) {
        let mut tables = tables();
        tables.event(event)?;
        tables.events.remove(&event);
        Ok(())
    }

    /// Marks where a stream is.
    fn cuEventRecord(event: u64, stream: u64) {
        let current = live_current()?;
        let tables = tables();
        let (stream, event) = (tables.stream(stream, current)?, tables.event(event)?);
        if event.context != stream.context {
            return Err(Code::INVALID_HANDLE);
        }
        let number = event.record();
        submit(&tables, &stream, Work::Record(event, number)).map(drop)
    }

    /// Whether the stream has come to the mark.
    fn cuEventQuery(event: u64) {
        let current = live_current()?;
        let event = tables().event(event)?;
        if event.is_complete(event.recorded()) { tables().context(current).map(drop) } else { Err(Code::NOT_READY) }
    }

    /// Waits until it has.
    fn cuEventSynchronize(event: u64) {
        let current = live_current()?;
        let event = tables().event(event)?;
        event.wait(event.recorded());
        tables().context(current).map(drop)
    }

    /// Lets a stream wait for a word of 32 bits.
    fn cuStreamWaitValue32_v2(stream: u64, at: u64, wanted: u32, flags: c_uint) {
        value(stream, at, Work::WaitValue { at, value: u64::from(wanted), bytes: 4, flags }, 4)
    }

    /// Lets a stream wait for a word of 64 bits.
    fn cuStreamWaitValue64_v2(stream: u64, at: u64, wanted: u64, flags: c_uint) {
        value(stream, at, Work::WaitValue { at, value: wanted, bytes: 8, flags }, 8)
    }

    /// Lets a stream write a word of 32 bits.
    fn cuStreamWriteValue32_v2(stream: u64, at: u64, written: u32, _flags: c_uint) {
        value(stream, at, Work::WriteValue(Write { at, value: u64::from(written), bytes: 4 }), 4)
    }

    /// Lets a stream write a word of 64 bits.
    fn cuStreamWriteValue64_v2(stream: u64, at: u64, written: u64, _flags: c_uint) {
        value(stream, at, Work::WriteValue(Write { at, value: written, bytes: 8 }), 8)
    }
}
