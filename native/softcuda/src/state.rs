//! All that a process has of the driver, and what holds for every call.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use crate::abi::{Code, Outcome};
use crate::arena::Arena;
use crate::backing::Backing;
use crate::config::{Config, Fault, Faults};
use crate::event::Event;
use crate::stream::Stream;

/// The process's state.
pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) faults: Faults,
    pub(crate) tables: Mutex<Tables>,
    pub(crate) counts: Counts,
    lost: AtomicBool,
}

/// Calls that were made, for tests that count them.
#[derive(Default)]
pub(crate) struct Counts {
    /// Calls that submitted copies.
    pub(crate) submissions: AtomicU64,
    /// Copies in them.
    pub(crate) pieces: AtomicU64,
    /// Contexts that were ever made.
    pub(crate) contexts: AtomicU64,
    /// Registrations of host memory that were ever made.
    pub(crate) registrations: AtomicU64,
    /// Those that were taken back while a later one stood.
    pub(crate) out_of_order: AtomicU64,
}

/// A primary context.
pub(crate) struct Context {
    pub(crate) device: usize,
    pub(crate) default_stream: Arc<Stream>,
    /// The error that every later call in the context gives; 0 is none.
    pub(crate) error: Arc<AtomicU32>,
}

/// Memory of `cuMemCreate`.
pub(crate) struct Created {
    pub(crate) backing: Arc<Backing>,
    pub(crate) device: usize,
    /// Ways of export that its maker asked for.
    pub(crate) handle_types: u32,
    /// Holders of the handle in this process.
    pub(crate) references: u32,
    /// Whether this process made it.
    pub(crate) own: bool,
}

/// Registered host memory.
#[derive(Clone, Copy)]
pub(crate) struct Registered {
    pub(crate) bytes: u64,
    pub(crate) read_only: bool,
    /// Which registration of the process it is.
    pub(crate) number: u64,
}

/// The tables of live things.
pub(crate) struct Tables {
    pub(crate) arena: Arena,
    /// For each device: how often its primary context is retained, and its handle while there is one.
    pub(crate) primaries: Vec<(u32, Option<u64>)>,
    pub(crate) contexts: HashMap<u64, Context>,
    pub(crate) streams: HashMap<u64, Arc<Stream>>,
    pub(crate) events: HashMap<u64, Arc<Event>>,
    pub(crate) created: HashMap<u64, Created>,
    pub(crate) registered: BTreeMap<u64, Registered>,
    next_handle: u64,
}

impl Tables {
    /// A handle that no other thing has had.
    pub(crate) fn handle(&mut self) -> u64 {
        self.next_handle += 16;
        self.next_handle
    }

    /// Whether a handle was given out once; what it named is gone.
    fn was_given(&self, handle: u64) -> bool {
        handle.is_multiple_of(16) && handle > FIRST_HANDLE && handle <= self.next_handle
    }

    /// The live context `handle`.
    pub(crate) fn context(&self, handle: u64) -> Result<&Context, Code> {
        match self.contexts.get(&handle) {
            Some(context) => match context.error.load(Ordering::Acquire) {
                0 => Ok(context),
                error => Err(Code(error)),
            },
            None if self.was_given(handle) => Err(Code::CONTEXT_IS_DESTROYED),
            None => Err(Code::INVALID_CONTEXT),
        }
    }

    /// The stream that a handle names in the current context: 0 and 1 are its legacy default stream.
    pub(crate) fn stream(&self, handle: u64, current: u64) -> Result<Arc<Stream>, Code> {
        let context = self.context(current)?;
        match handle {
            0 | 1 => Ok(Arc::clone(&context.default_stream)),
            2 => Err(Code::NOT_SUPPORTED),
            _ => match self.streams.get(&handle) {
                Some(stream) if stream.context != current => fatal!(
                    "stream {handle:#x} is of context {:#x}, and context {current:#x} is current",
                    stream.context
                ),
                Some(stream) => Ok(Arc::clone(stream)),
                None if self.was_given(handle) => fatal!("stream {handle:#x} was destroyed"),
                None => Err(Code::INVALID_HANDLE),
            },
        }
    }

    /// The event that a handle names.
    pub(crate) fn event(&self, handle: u64) -> Result<Arc<Event>, Code> {
        match self.events.get(&handle) {
            Some(event) => Ok(Arc::clone(event)),
            None if self.was_given(handle) => fatal!("event {handle:#x} was destroyed"),
            None => Err(Code::INVALID_HANDLE),
        }
    }
}

const FIRST_HANDLE: u64 = 0x5000_0000;

static STATE: OnceLock<State> = OnceLock::new();
static INITIALISED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The contexts that this thread has pushed; the last one is current.
    static CURRENT: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The state, made at the first call.
pub(crate) fn state() -> &'static State {
    STATE.get_or_init(|| {
        let config = Config::from_environment();
        let tables = Tables {
            arena: Arena::reserve(),
            primaries: vec![(0, None); config.uuids.len()],
            contexts: HashMap::new(),
            streams: HashMap::new(),
            events: HashMap::new(),
            created: HashMap::new(),
            registered: BTreeMap::new(),
            next_handle: FIRST_HANDLE,
        };
        State {
            config,
            faults: Faults::from_environment(),
            tables: Mutex::new(tables),
            counts: Counts::default(),
            lost: AtomicBool::new(false),
        }
    })
}

/// The tables, locked.
pub(crate) fn tables() -> MutexGuard<'static, Tables> {
    crate::lock(&state().tables)
}

/// The current context of this thread; 0 is none.
pub(crate) fn current() -> u64 {
    CURRENT.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

/// The current context, which has to be alive and without an error.
pub(crate) fn live_current() -> Result<u64, Code> {
    let current = current();
    tables().context(current)?;
    Ok(current)
}

/// Changes the stack of current contexts.
pub(crate) fn with_stack<T>(change: impl FnOnce(&mut Vec<u64>) -> T) -> T {
    CURRENT.with_borrow_mut(change)
}

/// `cuInit`.
pub(crate) fn initialise() {
    INITIALISED.store(true, Ordering::Release);
    state();
}

/// Runs the body of a call: after `cuInit`, and while the device is there.
pub(crate) fn call(body: impl FnOnce() -> Outcome) -> u32 {
    if !INITIALISED.load(Ordering::Acquire) {
        return Code::NOT_INITIALIZED.0;
    }
    let state = state();
    if state.lost.load(Ordering::Acquire) || state.faults.strikes(Fault::Lost) {
        state.lost.store(true, Ordering::Release);
        return Code::UNKNOWN.0;
    }
    body().err().unwrap_or(Code::SUCCESS).0
}
