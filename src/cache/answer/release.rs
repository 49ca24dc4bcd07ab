//! Lookups, retrieves and their pins. A lookup goes on in `looking`, a retrieve in `retrieving`.

use crate::object::{LookupAnswer, LookupRequest, RetrieveAnswer, RetrieveRequest};
use std::collections::BTreeSet;

use super::lookup::Looking;
use super::retrieve::Retrieving;
use crate::cache::meter::Meter;
use crate::cache::turn::Turn;
use crate::cache::{ClientId, Core, CoreError, Progress, Work, finish};
use crate::index::budget::Budget;

/// Parts of a step: to look a pin up.
const LOOK_UP: u32 = 4;

impl Core {
    /// The longest prefix, at most `max_tokens`, that every object group can serve; names and pins the
    /// objects to load. Nothing is named when the engine has all of the prefix already. Until all ranks of
    /// the domain have registered the answer is 0: a mandatory group may yet be unknown.
    ///
    /// # Errors
    /// [`CoreError::NotNegotiated`], [`CoreError::NotRegistered`], [`CoreError::InvalidKey`],
    /// [`CoreError::LimitExceeded`], [`CoreError::UnknownClient`].
    pub fn lookup(
        &mut self,
        client: ClientId,
        request: &LookupRequest<'_>,
    ) -> Result<LookupAnswer, CoreError> {
        finish(self, Looking::new(client, request))
    }

    /// Pins objects for reading and says where one part of each lies. What is not there has incarnation 0.
    ///
    /// # Errors
    /// [`CoreError::NotNegotiated`], [`CoreError::NotRegistered`], [`CoreError::InvalidGroup`],
    /// [`CoreError::LimitExceeded`], [`CoreError::UnknownClient`].
    pub fn retrieve(
        &mut self,
        client: ClientId,
        request: &RetrieveRequest,
    ) -> Result<RetrieveAnswer, CoreError> {
        finish(self, Retrieving::new(client, request))
    }

    /// Drops pins: all or, when one is not this client's or is named twice, none.
    ///
    /// # Errors
    /// [`CoreError::UnknownPin`], [`CoreError::UnknownClient`].
    pub fn release(&mut self, client: ClientId, pins: &[u64]) -> Result<(), CoreError> {
        finish(self, Releasing::new(client, pins))
    }

    /// Drops all pins of the client with this label. Fine when there is none.
    ///
    /// # Errors
    /// [`CoreError::UnknownClient`].
    pub fn release_label(&mut self, client: ClientId, label: u64) -> Result<(), CoreError> {
        finish(self, ReleasingLabel::new(client, label))
    }

    /// Drops pins of a client, until there are none or the turn is over. Whether there are none.
    pub(crate) fn end_pins(&mut self, client: ClientId, turn: &mut Turn) -> bool {
        let mut meter = Meter::new(turn);
        while let Some(pin) = self.pins.any(client) {
            if !self.take_pin(client, pin, &mut meter) {
                return false;
            }
        }
        true
    }

    /// Drops a pin, or what the turn is long enough for. Whether it is gone.
    pub(crate) fn take_pin(&mut self, client: ClientId, pin: u64, meter: &mut Meter<'_>) -> bool {
        let records = &mut self.tree;
        self.pins.take(client, pin, meter, |record| records.unpin(record))
    }
}

/// Drops pins: see [`Core::release`].
#[derive(Debug)]
pub struct Releasing<'a> {
    client: ClientId,
    pins: &'a [u64],
    /// Those that were looked at.
    seen: BTreeSet<u64>,
    checked: usize,
    released: usize,
}

impl<'a> Releasing<'a> {
    /// Of these pins of a client.
    pub fn new(client: ClientId, pins: &'a [u64]) -> Self {
        Self {
            client,
            pins,
            seen: BTreeSet::new(),
            checked: 0,
            released: 0,
        }
    }
}

impl Work for Releasing<'_> {
    type Answer = ();

    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Progress<()>, CoreError> {
        core.client(self.client)?;
        let mut meter = Meter::new(turn);
        for &pin in &self.pins[self.checked..] {
            if meter.is_over() {
                return Ok(Progress::More);
            }
            meter.spend(LOOK_UP);
            if !core.pins.is_held(self.client, pin) || !self.seen.insert(pin) {
                return Err(CoreError::UnknownPin { pin });
            }
            self.checked += 1;
        }
        while let Some(&pin) = self.pins.get(self.released) {
            if !core.take_pin(self.client, pin, &mut meter) {
                return Ok(Progress::More);
            }
            self.released += 1;
        }
        Ok(Progress::Done(()))
    }
}

/// Drops the pins of a session: see [`Core::release_label`].
#[derive(Debug)]
pub struct ReleasingLabel {
    client: ClientId,
    label: u64,
}

impl ReleasingLabel {
    /// Of all pins of a client that have this label.
    pub fn new(client: ClientId, label: u64) -> Self {
        Self { client, label }
    }
}

impl Work for ReleasingLabel {
    type Answer = ();

    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Progress<()>, CoreError> {
        core.client(self.client)?;
        let mut meter = Meter::new(turn);
        while let Some(pin) = core.pins.of_label(self.client, self.label) {
            if !core.take_pin(self.client, pin, &mut meter) {
                return Ok(Progress::More);
            }
        }
        Ok(Progress::Done(()))
    }
}
