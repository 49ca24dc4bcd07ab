//! The server's log: lines wait in memory and a thread of their own writes them to standard error.
//!
//! Nobody else ever waits for standard error, whatever it is: a pipe whose reader has gone or does not read, a full
//! disk, a terminal that was stopped. What cannot be written is lost and counted, and the log says how much that was
//! as soon as it can be written again. Lines stay in their order.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::PanicHookInfo;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing_subscriber::fmt::MakeWriter;

/// Most bytes of lines that wait. More than a start and a stop ever say.
const QUEUE_BYTES: usize = 1 << 20;
/// How long the end of the program waits for the lines that are left.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

/// A log; clones are the same one.
#[derive(Clone, Debug)]
pub(super) struct Log(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Woken when there is a line to write.
    added: Condvar,
    /// Woken when everything has been written or lost.
    settled: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Lines lost since that was last said.
    lost: u64,
    /// Whether the thread has taken a line and not yet finished it.
    writing: bool,
}

impl State {
    fn push(&mut self, line: &[u8]) {
        if self.bytes + line.len() > QUEUE_BYTES {
            self.lost += 1;
            return;
        }
        self.say_lost();
        self.bytes += line.len();
        self.lines.push_back(line.to_vec());
    }

    /// Puts what was lost where it was lost, between the lines before and after.
    fn say_lost(&mut self) {
        if self.lost > 0 {
            let line = format!("{} lines of this log could not be written\n", self.lost).into_bytes();
            self.lost = 0;
            self.bytes += line.len();
            self.lines.push_back(line);
        }
    }
}

impl Log {
    /// Starts the thread, which writes to standard error.
    ///
    /// # Errors
    /// The system's, when there can be no thread.
    pub(super) fn start() -> io::Result<Self> {
        Self::start_with(|line| write_all(io::stderr().as_fd(), line))
    }

    fn start_with(write: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static) -> io::Result<Self> {
        let log = Self(Arc::new(Shared {
            state: Mutex::default(),
            added: Condvar::new(),
            settled: Condvar::new(),
        }));
        let writer = log.clone();
        thread::Builder::new()
            .name("kvasir-log".into())
            .spawn(move || writer.run(write))?;
        Ok(log)
    }

    /// Queues a line with its end; never waits for the writer.
    pub(super) fn push(&self, line: &[u8]) {
        self.state().push(line);
        self.0.added.notify_one();
    }

    /// Waits, not for long, until what was pushed has been written.
    pub(super) fn flush(&self) {
        let deadline = Instant::now() + FLUSH_PATIENCE;
        let mut state = self.state();
        state.say_lost();
        self.0.added.notify_one();
        while state.writing || !state.lines.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.0.settled.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sends panics to the log too. The default would wait for standard error, and the panic is somebody's request.
    pub(super) fn take_panics(&self) {
        let log = self.clone();
        std::panic::set_hook(Box::new(move |info| log.push(panic_line(info).as_bytes())));
    }

    fn run(&self, mut write: impl FnMut(&[u8]) -> io::Result<()>) {
        loop {
            let line = {
                let mut state = self.state();
                loop {
                    if let Some(line) = state.lines.pop_front() {
                        state.bytes -= line.len();
                        state.writing = true;
                        break line;
                    }
                    self.0.settled.notify_all();
                    state = self.0.added.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            let written = write(&line);
            let mut state = self.state();
            state.writing = false;
            state.lost += u64::from(written.is_err());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn panic_line(info: &PanicHookInfo<'_>) -> String {
    let thread = thread::current();
    let name = thread.name().unwrap_or("without a name");
    let backtrace = std::backtrace::Backtrace::capture();
    let trace = match backtrace.status() {
        std::backtrace::BacktraceStatus::Captured => format!("{backtrace}\n"),
        _ => String::new(),
    };
    format!("ERROR internal error in thread {name}, please report it: {info}\n{trace}")
}

/// Writes past the lock that the standard library has around the descriptor: nobody may come to wait for this thread.
fn write_all(fd: BorrowedFd<'_>, mut line: &[u8]) -> io::Result<()> {
    while !line.is_empty() {
        match nix::unistd::write(fd, line) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(bytes) => line = &line[bytes..],
            Err(Errno::EINTR) => {}
            // Somebody who shares it has made it so that it does not block.
            Err(Errno::EAGAIN) => {
                poll(&mut [PollFd::new(fd, PollFlags::POLLOUT)], PollTimeout::NONE)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self)
    }
}

/// Takes a line as a whole, which is how the formatter gives it.
pub(super) struct Line<'a>(&'a Log);

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A log whose lines arrive here, each only when the test lets it.
    fn gated() -> (Log, mpsc::Sender<io::Result<()>>, mpsc::Receiver<Vec<u8>>) {
        let (open, gate) = mpsc::channel::<io::Result<()>>();
        let (send, lines) = mpsc::channel();
        let log = Log::start_with(move |line| {
            let verdict = gate.recv().unwrap_or(Ok(()));
            if verdict.is_ok() {
                let _ = send.send(line.to_vec());
            }
            verdict
        });
        (log.unwrap(), open, lines)
    }

    #[test]
    fn lines_keep_their_order_and_are_there_after_a_flush() {
        let (log, open, lines) = gated();
        drop(open);
        for number in 0..1000 {
            log.push(format!("line {number}\n").as_bytes());
        }
        log.flush();
        let written: Vec<u8> = lines.try_iter().flatten().collect();
        let expected: String = (0..1000).map(|number| format!("line {number}\n")).collect();
        assert_eq!(String::from_utf8(written).unwrap(), expected);
    }

    #[test]
    fn a_writer_that_is_stuck_costs_lines_and_nobody_waits() {
        let (log, open, lines) = gated();
        let line = [b'x'; 1 << 10];
        // The thread takes one out of the queue, and all the rest happens while it waits.
        log.push(&line);
        while !log.state().writing {
            thread::yield_now();
        }
        let pushed = 4 * QUEUE_BYTES / line.len();
        (1..pushed).for_each(|_| log.push(&line));
        drop(open);
        log.flush();
        log.push(b"after\n");
        log.flush();
        let written: Vec<Vec<u8>> = lines.try_iter().collect();
        let whole = written.iter().filter(|found| **found == line).count();
        assert!((QUEUE_BYTES / line.len() - 1..pushed).contains(&whole), "{whole}");
        let said = format!("{} lines of this log could not be written\n", pushed - whole);
        let said = written.iter().position(|found| *found == said.as_bytes());
        assert_eq!(said, Some(whole), "where they are missing, and with their number");
        assert_eq!(written.last().unwrap(), b"after\n");
    }

    #[test]
    fn lines_that_the_system_refuses_are_counted_too() {
        let (log, open, lines) = gated();
        for number in 0..3 {
            log.push(format!("lost {number}\n").as_bytes());
            open.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
        }
        while log.state().lost < 3 {
            thread::yield_now();
        }
        drop(open);
        log.push(b"room again\n");
        log.flush();
        let written: Vec<Vec<u8>> = lines.try_iter().collect();
        assert_eq!(
            written,
            [
                &b"3 lines of this log could not be written\n"[..],
                b"room again\n"
            ]
        );
    }
}
