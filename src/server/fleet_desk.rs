//! The fleet's record on behalf of the thread that serves, which never waits for a file system.
//!
//! The state machine of a chunk size asks its record for an answer and gets what is known already. Where nothing is,
//! the question is noted, another thread asks the file, the client that negotiates waits without holding up others, and
//! the state machine is asked again with the answer at hand.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};
use tracing::info;

use super::fleet::{FleetError, FleetFile};
use crate::control::{AgreedSize, BindingListener};

/// How long a client waits for the file: less than its own patience, so that it hears why.
const PATIENCE: Duration = Duration::from_millis(800);
/// How long a start does.
const START_PATIENCE: Duration = Duration::from_secs(5);
/// Questions that wait for a file system at one time. A file system that hangs holds so many threads and no more.
const MAX_QUESTIONS: usize = 4;
/// More than a negotiation has questions: what is recorded, and the agreement on a size.
const MAX_ROUNDS: usize = 4;

/// What a negotiation wants to know of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Read,
    Agree(u32),
}

/// The answers that a negotiation has.
#[derive(Clone, Debug, Default)]
struct Known {
    read: Option<Result<Option<u32>, String>>,
    agreed: Option<(u32, Result<(), String>)>,
}

#[derive(Debug, Default)]
struct State {
    known: Known,
    wanted: Option<(Arc<FleetFile>, Question)>,
}

/// Where questions and answers are exchanged. One negotiation is at it at a time, and never across an await.
#[derive(Debug)]
pub(super) struct FleetDesk {
    state: Mutex<State>,
    questions: Arc<Semaphore>,
}

impl FleetDesk {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            questions: Arc::new(Semaphore::new(MAX_QUESTIONS)),
        })
    }

    /// Asks the state machine until it needs nothing more of a file.
    pub(super) async fn negotiate<T>(&self, mut ask: impl FnMut() -> T) -> T {
        let mut known = Known::default();
        for _ in 0..MAX_ROUNDS {
            *self.state() = State {
                known: known.clone(),
                wanted: None,
            };
            let answer = ask();
            let Some((file, question)) = std::mem::take(&mut *self.state()).wanted else {
                return answer;
            };
            match question {
                Question::Read => known.read = Some(self.run(&file, move |file| file.read()).await),
                Question::Agree(size) => {
                    let answer = self.run(&file, move |file| file.agree(size)).await;
                    known.agreed = Some((size, answer));
                }
            }
        }
        ask()
    }

    /// Lets another thread ask, and gives up when that takes too long. It may still succeed then, and the next time
    /// that is found.
    async fn run<T: Send + 'static>(
        &self,
        file: &Arc<FleetFile>,
        ask: impl FnOnce(&FleetFile) -> Result<T, FleetError> + Send + 'static,
    ) -> Result<T, String> {
        let late = || file.no_answer(PATIENCE).to_string();
        let deadline = Instant::now() + PATIENCE;
        let permit = timeout_at(deadline, Arc::clone(&self.questions).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(late());
        };
        let asked = Arc::clone(file);
        let (tell, told) = oneshot::channel();
        // Detached: one that hangs is left behind when the server stops.
        let thread = thread(move || {
            let answer = ask(&asked);
            drop(permit);
            // Nobody waits any more when it took too long.
            let _ = tell.send(answer);
        });
        thread.map_err(|source| file.failed("clone")(source).to_string())?;
        match timeout_at(deadline, told).await {
            Ok(Ok(answer)) => answer.map_err(|error| error.to_string()),
            Ok(Err(_)) | Err(_) => Err(late()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a state machine has in the place of the file.
#[derive(Debug)]
pub(super) struct FleetRecord {
    file: Arc<FleetFile>,
    desk: Arc<FleetDesk>,
}

/// Stands for an answer that is still to be asked for; no client sees it.
const TO_BE_ASKED: &str = "the record has not been asked yet";

impl FleetRecord {
    pub(super) fn new(file: FleetFile, desk: &Arc<FleetDesk>) -> Self {
        Self {
            file: Arc::new(file),
            desk: Arc::clone(desk),
        }
    }

    fn want<T>(&self, state: &mut State, question: Question) -> Result<T, String> {
        state.wanted = Some((Arc::clone(&self.file), question));
        Err(TO_BE_ASKED.into())
    }
}

impl AgreedSize for FleetRecord {
    fn place(&self) -> String {
        self.file.place()
    }

    fn recorded(&self) -> Result<Option<u32>, String> {
        let mut state = self.desk.state();
        match state.known.read.clone() {
            Some(read) => read,
            None => self.want(&mut state, Question::Read),
        }
    }
}

impl BindingListener for FleetRecord {
    fn name(&self) -> &str {
        "fleet"
    }

    fn on_bound(&self, chunk_size: u32) -> Result<(), String> {
        let mut state = self.desk.state();
        match state.known.agreed.clone() {
            Some((size, agreed)) if size == chunk_size => agreed,
            _ => self.want(&mut state, Question::Agree(chunk_size)),
        }
    }
}

/// Looks at the record when a server starts, before there is an event loop. Under `model` its name is not known yet.
pub(super) fn check_at_start(file: FleetFile, read: bool) -> Result<(), FleetError> {
    let (late, path) = (file.no_answer(START_PATIENCE), file.path().to_owned());
    let failed = file.failed("clone");
    let (tell, told) = std::sync::mpsc::channel();
    let check = move || -> Result<Option<u32>, FleetError> {
        file.check_place()?;
        if read { file.read() } else { Ok(None) }
    };
    // Left behind if the file system hangs, and the server does not start then.
    thread(move || drop(tell.send(check()))).map_err(failed)?;
    let chunk_size = told.recv_timeout(START_PATIENCE).unwrap_or(Err(late))?;
    info!(path = %path.display(), chunk_size, "fleet");
    Ok(())
}

/// A thread that waits for a file system.
fn thread(work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("kvasir-fleet".into());
    thread.spawn(work).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    }

    #[test]
    fn a_negotiation_gets_its_answers_and_never_asks_by_itself() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fleet");
        let desk = FleetDesk::new();
        let record = FleetRecord::new(FleetFile::new(&path, None).unwrap(), &desk);
        let mut rounds = 0;
        let negotiated = runtime().block_on(desk.negotiate(|| {
            rounds += 1;
            let recorded = record.recorded()?;
            // No file is made on this thread: it is there only once another one was asked to.
            let existed = path.exists();
            record.on_bound(256)?;
            Ok::<_, String>((recorded, existed))
        }));
        assert_eq!(negotiated, Ok((None, true)));
        assert_eq!(rounds, 3);
        // Nothing is remembered for the next negotiation.
        assert_eq!(record.recorded(), Err(TO_BE_ASKED.into()));
        let next = runtime().block_on(desk.negotiate(|| record.recorded()));
        assert_eq!(next, Ok(Some(256)));
    }

    #[test]
    fn a_file_system_that_hangs_holds_few_threads_and_the_client_hears_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fleet");
        let desk = FleetDesk::new();
        let file = Arc::new(FleetFile::new(&path, None).unwrap());
        let running = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let runtime = runtime();
        for _ in 0..MAX_QUESTIONS + 2 {
            let (running, gate) = (Arc::clone(&running), Arc::clone(&gate));
            let answer = runtime.block_on(desk.run(&file, move |_| {
                running.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                // Comes back only when the test ends.
                let _ = gate.lock().unwrap().recv();
                Ok(())
            }));
            let error = answer.unwrap_err();
            assert!(
                error.contains(path.to_str().unwrap()) && error.contains("does not answer"),
                "{error}"
            );
        }
        assert_eq!(running.load(std::sync::atomic::Ordering::SeqCst), MAX_QUESTIONS);
        drop(open);
    }
}
