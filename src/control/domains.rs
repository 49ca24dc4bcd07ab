//! A chunk size per binding domain: as many words and state machines as there are models of a kind.
//!
//! A binding domain is what shares a chunk size; the client names it by 32 bytes (docs/protocol.md). Its word is
//! in a table of the control region. An entry is taken when its domain's first negotiation selects a size and is
//! kept as long as the server lives, since nothing may unbind a size that somebody may be using.

use std::sync::Arc;

use super::binding::Binding;
use super::error::BindError;
use super::region::{ChunkSizeCell, ControlRegion};
use super::request::{NegotiateRequest, Negotiated};
use super::view::{DomainId, MAX_BINDING_DOMAINS};
use super::word::ChunkWord;

/// Makes the state machine of a new domain around its word, with its listeners.
type MakeBinding = dyn Fn(&DomainId, ChunkSizeCell) -> Result<Binding<ChunkSizeCell>, BindError>;

/// All domains with a size, in the order of the control region's table.
pub struct DomainBindings {
    region: Arc<ControlRegion>,
    make: Box<MakeBinding>,
    all: Vec<(DomainId, Binding<ChunkSizeCell>)>,
}

impl DomainBindings {
    /// No domains yet. `make` is called once for each, when it first negotiates.
    pub fn new(
        region: Arc<ControlRegion>,
        make: impl Fn(&DomainId, ChunkSizeCell) -> Result<Binding<ChunkSizeCell>, BindError> + 'static,
    ) -> Self {
        Self {
            region,
            make: Box::new(make),
            all: Vec::new(),
        }
    }

    /// The state machine of a domain that has selected a size.
    pub fn get(&self, id: &DomainId) -> Option<&Binding<ChunkSizeCell>> {
        self.all
            .iter()
            .find(|(known, _)| known == id)
            .map(|(_, binding)| binding)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&DomainId, &Binding<ChunkSizeCell>)> {
        self.all.iter().map(|(id, binding)| (id, binding))
    }

    /// As [`Binding::negotiate`], with the word of a domain. A refusal that selected nothing takes no entry.
    ///
    /// # Errors
    /// [`BindError::TooManyDomains`] for one domain more than there are entries, and those of
    /// [`Binding::negotiate`].
    pub fn negotiate(&mut self, id: &DomainId, request: NegotiateRequest) -> Result<Negotiated, BindError> {
        if let Some(binding) = self.get(id) {
            return binding.negotiate(request);
        }
        let entry = self.all.len();
        if entry >= MAX_BINDING_DOMAINS {
            return Err(BindError::TooManyDomains {
                known: entry,
                limit: MAX_BINDING_DOMAINS,
            });
        }
        let binding = (self.make)(id, self.region.domain_cell(entry))?;
        // Before the word leaves `Unbound`: a reader that sees a size sees whose it is.
        self.region.name_domain(entry, Some(id));
        let answer = binding.negotiate(request);
        if binding.word()? == ChunkWord::Unbound {
            self.region.name_domain(entry, None);
        } else {
            self.all.push((*id, binding));
        }
        answer
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/domains.rs"]
mod tests;
