//! `--chunk-scope`: one chunk size for everybody, or one per binding domain.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tracing::info;

use super::ServerError;
use super::answer::Answer;
use super::config::{ChunkScope, Config};
use super::fleet::{FleetFile, hex};
use super::fleet_desk::{self, FleetDesk, FleetRecord};
use crate::cache::{Core, CoreError};
use crate::control::{
    BindError, BindState, Binding, BindingListener, ChunkSizeCell, ChunkSizeConfig, ChunkWord, ControlRegion,
    DomainBindings, DomainId, NegotiateRequest, Negotiated,
};
use crate::object::GroupSpan;
use crate::wire::{ErrorCode, WireError};

/// Every method of the core leaves it consistent or says that it is not, so a panic elsewhere while the lock was held
/// is no reason to stop.
pub(super) fn lock(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All chunk-size words of the server, and where they ask for the fleet's record.
pub(super) struct Bindings {
    words: Words,
    desk: Arc<FleetDesk>,
}

enum Words {
    Server(Binding<ChunkSizeCell>),
    Model(RefCell<DomainBindings>),
}

/// Takes a chunk size over into the core.
struct CoreListener {
    core: Arc<Mutex<Core>>,
    take: fn(&mut Core, u32) -> Result<(), CoreError>,
}

impl BindingListener for CoreListener {
    fn name(&self) -> &str {
        "cache"
    }

    fn on_bound(&self, chunk_size: u32) -> Result<(), String> {
        (self.take)(&mut lock(&self.core), chunk_size).map_err(|error| error.to_string())
    }
}

/// Says in the log that a size is in force. The last of all listeners.
struct LogListener {
    domain: Option<DomainId>,
}

impl BindingListener for LogListener {
    fn name(&self) -> &str {
        "log"
    }

    fn on_bound(&self, chunk_size: u32) -> Result<(), String> {
        match &self.domain {
            Some(domain) => info!(chunk_size, domain = hex(domain), "chunk size bound"),
            None => info!(chunk_size, "chunk size bound"),
        }
        Ok(())
    }
}

impl Bindings {
    /// All words unbound. Checks the fleet's record, as far as it can be known by now.
    pub(super) fn new(
        config: &Config,
        control: &Arc<ControlRegion>,
        core: &Arc<Mutex<Core>>,
    ) -> Result<Self, ServerError> {
        let chunk_size = config.chunk_size_config().map_err(super::SettingsError::from)?;
        let fleet = config.fleet_file.clone();
        if let Some(path) = &fleet {
            // Under `model` every record has a longer name, and whose it is comes with a negotiation.
            fleet_desk::check_at_start(
                FleetFile::new(path, None)?,
                config.chunk_scope == ChunkScope::Server,
            )?;
        }
        let desk = FleetDesk::new();
        let core = Arc::clone(core);
        if config.chunk_scope == ChunkScope::Server {
            let cell = control.chunk_size_cell();
            let core = CoreListener {
                core,
                take: Core::set_chunk_size,
            };
            let binding = with_listeners(cell, chunk_size, core, fleet.as_ref(), &desk, None)?;
            let words = Words::Server(binding);
            return Ok(Self { words, desk });
        }
        let records = Arc::clone(&desk);
        let domains = DomainBindings::new(Arc::clone(control), move |id, cell| {
            let core = CoreListener {
                core: Arc::clone(&core),
                take: Core::add_chunk_size,
            };
            with_listeners(cell, chunk_size, core, fleet.as_ref(), &records, Some(id))
        });
        let words = Words::Model(RefCell::new(domains));
        Ok(Self { words, desk })
    }

    /// Agrees on a size with a client, in its binding domain.
    pub(super) async fn negotiate(
        &self,
        domain: Option<&DomainId>,
        request: NegotiateRequest,
    ) -> Result<Negotiated, WireError> {
        let once = || {
            let answer = match &self.words {
                Words::Server(binding) => binding.negotiate(request.clone()),
                Words::Model(domains) => {
                    let id = domain.ok_or_else(needs_domain)?;
                    domains.borrow_mut().negotiate(id, request.clone())
                }
            };
            answer.map_err(|error| error.to_wire())
        };
        self.desk.negotiate(once).await
    }

    /// The size in force for a session that has negotiated in this domain.
    pub(super) fn require_bound(&self, domain: Option<&DomainId>) -> Result<u32, WireError> {
        self.of(domain, Binding::require_bound)
    }

    /// Checks the spans of a registration against the session's size.
    pub(super) fn recheck(&self, domain: Option<&DomainId>, spans: &[GroupSpan]) -> Result<u32, WireError> {
        self.of(domain, |binding| binding.recheck(spans))
    }

    /// Answers a client without a geometry. One size for everybody is frozen by the question; a domain's is not,
    /// because such a client has none.
    pub(super) async fn get_chunk_size(&self, domain: Option<&DomainId>) -> Result<u32, WireError> {
        match &self.words {
            Words::Server(binding) => {
                let once = || binding.get_chunk_size().map_err(|error| error.to_wire());
                self.desk.negotiate(once).await
            }
            Words::Model(_) => self.require_bound(domain).map_err(|_| {
                WireError::new(
                    ErrorCode::NotNegotiated,
                    "this server keeps a chunk size per binding domain, so there is none to tell a connection that \
                     has not negotiated; negotiate first",
                    [],
                )
            }),
        }
    }

    fn of<T>(
        &self,
        domain: Option<&DomainId>,
        ask: impl FnOnce(&Binding<ChunkSizeCell>) -> Result<T, BindError>,
    ) -> Result<T, WireError> {
        let answer = match &self.words {
            Words::Server(binding) => ask(binding),
            Words::Model(domains) => {
                let domains = domains.borrow();
                let binding = domain.and_then(|id| domains.get(id));
                binding.map_or(Err(NOT_NEGOTIATED), ask)
            }
        };
        answer.map_err(|error| error.to_wire())
    }

    /// `binding` of the status document, without the settings.
    pub(super) fn status(&self) -> Value {
        let show = |binding: &Binding<ChunkSizeCell>| {
            let word = binding.word().unwrap_or(ChunkWord::Unbound);
            json!({ "state": word.state().name(), "chunk_size": word.size() })
        };
        match &self.words {
            Words::Server(binding) => {
                let mut status = show(binding);
                status["domains"] = json!([]);
                status
            }
            Words::Model(domains) => {
                let domain = |(id, binding): (&DomainId, _)| {
                    let mut row = show(binding);
                    row["id"] = json!(hex(id));
                    row
                };
                let rows: Vec<Value> = domains.borrow().iter().map(domain).collect();
                json!({ "state": BindState::Unbound.name(), "chunk_size": null, "domains": rows })
            }
        }
    }
}

const NOT_NEGOTIATED: BindError = BindError::NotNegotiated(BindState::Unbound);

/// A word with everything that has to hear of its size, in order.
fn with_listeners(
    cell: ChunkSizeCell,
    config: ChunkSizeConfig,
    core: CoreListener,
    fleet: Option<&PathBuf>,
    desk: &Arc<FleetDesk>,
    domain: Option<&DomainId>,
) -> Result<Binding<ChunkSizeCell>, BindError> {
    let mut binding = Binding::new(cell, config);
    binding.register(Arc::new(core))?;
    if let Some(path) = fleet {
        let file = FleetFile::new(path, domain).map_err(|error| BindError::AgreedUnreadable {
            place: format!("fleet file {}", path.display()),
            reason: error.to_string(),
        })?;
        let record = Arc::new(FleetRecord::new(file, desk));
        binding = binding.with_agreed(record.clone());
        binding.register(record)?;
    }
    binding.register(Arc::new(LogListener {
        domain: domain.copied(),
    }))?;
    Ok(binding)
}

/// A client that does not say whose size it wants would have to share one with all others that do not.
fn needs_domain() -> WireError {
    WireError::new(
        ErrorCode::InvalidArgument,
        "this server keeps a chunk size per binding domain (--chunk-scope model) and this negotiation names none; \
         upgrade the client to one that sends binding_domain, or start the server with --chunk-scope server",
        [0],
    )
}
