//! The state machine of the chunk size: unbound, selected, bound, and never back.
//!
//! Exactly one compare-and-exchange leaves `Unbound`; whoever wins it has decided the size for everybody.
//! Then the binding listeners run one after the other, and only when the last has succeeded is the word
//! `Bound`. A listener that fails leaves the size selected; the next negotiation resumes with it.

use std::sync::{Arc, PoisonError};

use super::config::{ChunkSizeConfig, DEFAULT_CHUNK_TOKENS, Minimum};
use super::error::BindError;
use super::request::{MAX_KV_CACHE_GROUPS, NegotiateRequest, Negotiated, check_request, select_size};
use super::word::{BindState, ChunkWord};
use crate::geometry::chunk::resolve_chunk;
use crate::object::{GroupSpan, GroupSpans};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// Where the chunk-size word lives: in the control region, or in a model checker's memory.
pub trait WordCell: Send + Sync {
    /// Loads the word, with acquire ordering.
    fn load(&self) -> u64;
    /// Stores `new` if the word is `current`, with acquire and release ordering; else says what it is.
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64>;
    /// Stores the word, with release ordering.
    fn store(&self, word: u64);
}

impl WordCell for AtomicU64 {
    fn load(&self) -> u64 {
        AtomicU64::load(self, Ordering::Acquire)
    }

    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        AtomicU64::compare_exchange(self, current, new, Ordering::AcqRel, Ordering::Acquire)
    }

    fn store(&self, word: u64) {
        AtomicU64::store(self, word, Ordering::Release);
    }
}

impl<W: WordCell> WordCell for Arc<W> {
    fn load(&self) -> u64 {
        W::load(self)
    }

    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        W::compare_exchange(self, current, new)
    }

    fn store(&self, word: u64) {
        W::store(self, word);
    }
}

/// A part of the server that has to take up the chunk size before it is in force.
///
/// It must not call back into the [`Binding`] except to read the word.
pub trait BindingListener: Send + Sync {
    /// The name used in errors and logs.
    fn name(&self) -> &str;
    /// Takes up the size. Called until it succeeds once, and never again after that.
    ///
    /// # Errors
    /// Why it cannot, for the client that is negotiating.
    fn on_bound(&self, chunk_size: u32) -> Result<(), String>;
}

/// A record outside of this server of the size that others have agreed on.
///
/// A first selection takes the recorded size or nothing: with another one this server could never join the rest.
/// (Whether they really agree is for a [`BindingListener`] to see; the record may appear at any time.)
pub trait AgreedSize: Send + Sync {
    /// Where the record is, for errors.
    fn place(&self) -> String;
    /// The recorded size, if there is one.
    ///
    /// # Errors
    /// Why the record cannot be read or trusted.
    fn recorded(&self) -> Result<Option<u32>, String>;
}

/// Listeners in registration order, and how many of them have succeeded.
#[derive(Default)]
struct Listeners {
    all: Vec<Arc<dyn BindingListener>>,
    done: usize,
}

/// The chunk-size word and everything that may move it.
pub struct Binding<W> {
    word: W,
    config: ChunkSizeConfig,
    agreed: Option<Arc<dyn AgreedSize>>,
    listeners: Mutex<Listeners>,
}

impl<W: WordCell> Binding<W> {
    /// Takes over a word. Nobody else may write it from here on.
    pub fn new(word: W, config: ChunkSizeConfig) -> Self {
        Self {
            word,
            config,
            agreed: None,
            listeners: Mutex::new(Listeners::default()),
        }
    }

    /// The same, with a record to ask before a size is selected.
    #[must_use]
    pub fn with_agreed(self, agreed: Arc<dyn AgreedSize>) -> Self {
        Self {
            agreed: Some(agreed),
            ..self
        }
    }

    /// Adds a listener behind those that are there.
    ///
    /// # Errors
    /// [`BindError::ListenerTooLate`] once a size is bound.
    pub fn register(&self, listener: Arc<dyn BindingListener>) -> Result<(), BindError> {
        // Bound is only published under this lock, so the listener is either run or refused.
        let mut listeners = self.lock();
        match self.word()?.bound() {
            Some(chunk_size) => Err(BindError::ListenerTooLate {
                name: listener.name().to_owned(),
                chunk_size,
            }),
            None => {
                listeners.all.push(listener);
                Ok(())
            }
        }
    }

    /// The configuration.
    pub fn config(&self) -> ChunkSizeConfig {
        self.config
    }

    /// The word as it is now. Binds nothing.
    ///
    /// # Errors
    /// [`BindError::Word`] when something has damaged it.
    pub fn word(&self) -> Result<ChunkWord, BindError> {
        Ok(ChunkWord::decode(self.word.load())?)
    }

    /// The size, if it is in force. Binds nothing.
    pub fn bound(&self) -> Option<u32> {
        self.word().ok().and_then(ChunkWord::bound)
    }

    /// The size, for operations that need one in force.
    ///
    /// # Errors
    /// [`BindError::NotNegotiated`] in every other state.
    pub fn require_bound(&self) -> Result<u32, BindError> {
        let word = self.word()?;
        word.bound().ok_or(BindError::NotNegotiated(word.state()))
    }

    /// Agrees on a size with a client: the first decides it, later ones have to suit it.
    ///
    /// # Errors
    /// Every [`BindError`] but those of registration and recovery; the state is as before, except that a
    /// failed listener leaves the size selected.
    pub fn negotiate(&self, request: NegotiateRequest) -> Result<Negotiated, BindError> {
        let alignment = request.required_alignment;
        let warnings = check_request(&request)?;
        let spans = GroupSpans(request.spans);
        let (state, chunk_size) = self.select(|| match self.agreed_size(alignment, &spans)? {
            Some(agreed) => Ok(agreed),
            None => select_size(
                self.config,
                alignment,
                request.preferred_base,
                request.previous_size,
                &spans,
            ),
        })?;
        if !u64::from(chunk_size).is_multiple_of(alignment) {
            return Err(BindError::Incompatible {
                state,
                chunk_size,
                alignment,
                spans,
            });
        }
        let state = self.complete(chunk_size)?;
        Ok(Negotiated {
            chunk_size,
            state,
            warnings,
        })
    }

    /// Answers an explicit question for the size from a client that has no geometry. In `Unbound` this
    /// freezes the size agreed on elsewhere, or the configured minimum ([`DEFAULT_CHUNK_TOKENS`] under `auto`).
    ///
    /// # Errors
    /// [`BindError::ListenerFailed`], with the size left selected, or [`BindError::Word`]; and with a record
    /// [`BindError::AgreedUnreadable`] or [`BindError::AgreedConfig`].
    pub fn get_chunk_size(&self) -> Result<u32, BindError> {
        let (_, chunk_size) = self.select(|| {
            Ok(
                match (
                    self.agreed_size(1, &GroupSpans::default())?,
                    self.config.minimum(),
                ) {
                    (Some(agreed), _) => agreed,
                    (None, Minimum::Auto) => DEFAULT_CHUNK_TOKENS,
                    (None, Minimum::Tokens(tokens)) => tokens as u32, // `ChunkSizeConfig` keeps it within 2^24
                },
            )
        })?;
        self.complete(chunk_size)?;
        Ok(chunk_size)
    }

    /// Binds the size that a recovered pool was written with, before any client can negotiate.
    ///
    /// # Errors
    /// [`BindError::RecoveredConflict`] when the configuration excludes it: another fixed size, or a minimum
    /// above it. [`BindError::RecoveredTooLate`] when a client was faster.
    pub fn adopt_recovered(&self, recovered: u64) -> Result<u32, BindError> {
        if !self.config.admits(recovered) {
            return Err(BindError::RecoveredConflict {
                recovered,
                configured: self.config.to_string(),
            });
        }
        // A pool of size 0 or beyond the limit is damaged, whatever the configuration.
        let size = resolve_chunk(recovered, 1).map_err(|source| BindError::Arithmetic {
            source,
            spans: GroupSpans::default(),
        })?;
        let size = size as u32; // at most MAX_CHUNK_TOKENS
        let (_, chunk_size) = self.select(|| Ok(size))?;
        if chunk_size != size {
            return Err(BindError::RecoveredTooLate {
                recovered: size,
                chunk_size,
            });
        }
        self.complete(chunk_size)?;
        Ok(chunk_size)
    }

    /// Checks every span once more when a KV cache is registered.
    ///
    /// # Errors
    /// [`BindError::NotNegotiated`], or [`BindError::SpanIncompatible`] with all the groups that do not fit.
    pub fn recheck(&self, spans: &[GroupSpan]) -> Result<u32, BindError> {
        let chunk_size = self.require_bound()?;
        if spans.len() > MAX_KV_CACHE_GROUPS {
            return Err(BindError::TooManyGroups {
                given: spans.len(),
                limit: MAX_KV_CACHE_GROUPS,
            });
        }
        if spans.iter().all(|span| span.tokens == 0) {
            return Err(BindError::NoCacheableGroup { groups: spans.len() });
        }
        let fits = |span: &GroupSpan| span.tokens == 0 || u64::from(chunk_size).is_multiple_of(span.tokens);
        let wrong: Vec<GroupSpan> = spans.iter().filter(|span| !fits(span)).copied().collect();
        if wrong.is_empty() {
            return Ok(chunk_size);
        }
        Err(BindError::SpanIncompatible {
            chunk_size,
            spans: GroupSpans(wrong),
        })
    }

    /// The size that others have recorded, if it suits this server and a model of this alignment.
    fn agreed_size(&self, alignment: u64, spans: &GroupSpans) -> Result<Option<u32>, BindError> {
        let Some(record) = &self.agreed else {
            return Ok(None);
        };
        let place = record.place();
        let recorded = record.recorded().map_err(|reason| BindError::AgreedUnreadable {
            place: place.clone(),
            reason,
        })?;
        let Some(agreed) = recorded else {
            return Ok(None);
        };
        if !self.config.admits(agreed.into()) {
            return Err(BindError::AgreedConfig {
                place,
                agreed,
                alignment,
                configured: self.config.to_string(),
            });
        }
        if !u64::from(agreed).is_multiple_of(alignment) {
            return Err(BindError::AgreedAlignment {
                place,
                agreed,
                alignment,
                spans: spans.clone(),
            });
        }
        Ok(Some(agreed))
    }

    /// Leaves `Unbound` with the size that `choose` gives, or reports the size that somebody else chose.
    fn select(&self, choose: impl Fn() -> Result<u32, BindError>) -> Result<(BindState, u32), BindError> {
        let mut word = self.word()?;
        if word == ChunkWord::Unbound {
            let selected = ChunkWord::Selected(choose()?);
            // The only exchange that leaves `Unbound`. Nothing ever goes back there, so one try is enough.
            word = match self
                .word
                .compare_exchange(ChunkWord::Unbound.encode(), selected.encode())
            {
                Ok(_) => selected,
                Err(current) => ChunkWord::decode(current)?,
            };
        }
        match word {
            ChunkWord::Selected(size) | ChunkWord::Bound(size) => Ok((word.state(), size)),
            ChunkWord::Unbound => Err(BindError::NotNegotiated(BindState::Unbound)),
        }
    }

    /// Runs the listeners that have not succeeded yet and publishes `Bound` after the last.
    fn complete(&self, chunk_size: u32) -> Result<BindState, BindError> {
        let bound = ChunkWord::Bound(chunk_size);
        if self.word()? == bound {
            return Ok(BindState::Bound);
        }
        let mut listeners = self.lock();
        // Whoever held the lock before may have bound it, in which case nothing is left to run.
        while let Some(listener) = listeners.all.get(listeners.done) {
            if let Err(reason) = listener.on_bound(chunk_size) {
                let (index, name) = (listeners.done, listener.name().to_owned());
                return Err(BindError::ListenerFailed {
                    chunk_size,
                    index,
                    name,
                    reason,
                });
            }
            listeners.done += 1;
        }
        self.word.store(bound.encode());
        Ok(BindState::Bound)
    }

    /// A listener that panicked counts as one that has not succeeded, and the next negotiation tries it
    /// again, so the lock is as good as new.
    fn lock(&self) -> MutexGuard<'_, Listeners> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/binding.rs"]
mod tests;
