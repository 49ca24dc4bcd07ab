//! Lookups, retrieves and their pins.
//!
//! May import everything of this module.

use super::api::*;
use super::core::Core;
use super::direct::{check_tails, named, part_place, requested_units, touched_by};
use super::error::CoreError;
use super::lookup::{self, Limits, Load, MAX_ROUNDS, Plan, Source};
use super::pins::Kept;
use super::probe::{Probed, probe};
use crate::keys::ChunkKey;

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
        self.require_chunk_size()?;
        self.client(client)?;
        let (number, domain) = self.registry.find(&request.domain_seed)?;
        let shape = domain.shape(number, self.kept_frames_max(domain));
        check_tails(request, &shape)?;
        let limits = Limits::of(request, &shape);
        let reader = self.index.reader();
        let probed = match domain.is_complete() {
            true => probe(&reader, &shape, request, &limits),
            false => Probed::new(&shape, request),
        };
        let (mut presence, anchors) = (probed.presence.clone(), &probed.anchors);
        let present_tokens = probed.covers.clone();
        let find = |load: &Load| match load.source {
            // Found a moment ago, with its key compared.
            Source::Chunk(at) if shape.anchor == Some(shape.groups[load.group].group) => {
                anchors.get(at as usize).map(|found| found.record)
            }
            _ => {
                let found = self.live(number, &probed.id_of(load, &shape, request));
                found.map(|(record, _)| record)
            }
        };
        let fits = |_: &Plan, records: &[u32]| match request.pin {
            true => self.keep_all(client, domain, records),
            false => Some(Kept::new()),
        };
        let mut rounds = MAX_ROUNDS;
        let (plan, records, kept, shortened) =
            lookup::settle_within(&shape.groups, &mut presence, &limits, &mut rounds, find, fits);
        let mut answer = LookupAnswer {
            hit_tokens: plan.hit_tokens,
            present_tokens,
            ..LookupAnswer::default()
        };
        if request.describe && domain.is_complete() {
            answer.shape = Some(shape.clone());
        }
        if request.pin {
            answer.loads = named(&plan, &probed, &shape, request);
            for record in touched_by(&plan, &records, anchors, &shape) {
                self.records.touch(record);
            }
            answer.pin = self.pin(client, request.session, records, kept)?;
        }
        self.counters.shortened += u64::from(shortened);
        let requested = requested_units(request, &shape);
        let hit = answer.hit_tokens / shape.alignment;
        self.counters.lookups += 1;
        self.counters.requested += requested;
        self.counters.hit += hit;
        self.counters.miss += requested - hit;
        Ok(answer)
    }

    /// Pins objects for reading and says where one part of each lies. What is not there has incarnation 0.
    ///
    /// # Errors
    /// [`CoreError::NotNegotiated`], [`CoreError::NotRegistered`], [`CoreError::InvalidGroup`],
    /// [`CoreError::LimitExceeded`], [`CoreError::UnknownClient`].
    pub fn retrieve(
        &mut self,
        client: ClientId,
        domain_seed: ChunkKey,
        session: u64,
        part: u16,
        ids: &[ObjectId],
    ) -> Result<RetrieveAnswer, CoreError> {
        self.require_chunk_size()?;
        self.client(client)?;
        let (number, domain) = self.registry.find(&domain_seed)?;
        for id in ids {
            let invalid = |field, value, expected| CoreError::InvalidGroup {
                group: id.group,
                field,
                value,
                expected,
            };
            let group = domain.group(id.group);
            let group = group.ok_or(invalid("number", id.group.into(), "it must be one of the domain"))?;
            if part >= group.parts {
                return Err(invalid(
                    "part",
                    part.into(),
                    "it must be less than the number of parts",
                ));
            }
        }
        let (mut answer, mut records, mut words) = (RetrieveAnswer::default(), Vec::new(), Vec::new());
        let reader = self.index.reader();
        let (mut keeping, mut shortened) = (self.keeping(client, domain), false);
        for id in ids {
            let view = reader.lookup(id);
            let view = view.filter(|view| view.domain == number);
            let place = view.and_then(|view| {
                if !keeping.add(view.record) {
                    shortened = true;
                    return None;
                }
                let place = part_place(&reader, &view, part, &mut words, &mut answer.extents)?;
                records.push(view.record);
                Some(place)
            });
            answer.places.push(place.unwrap_or_default());
        }
        let kept = keeping.finish();
        self.counters.shortened += u64::from(shortened);
        // The deepest first, so that what it hangs under is the more recent.
        for record in records.iter().rev() {
            self.records.touch(*record);
        }
        answer.pin = self.pin(client, session, records, kept)?;
        Ok(answer)
    }

    /// Drops pins: all or, when one is not this client's or is named twice, none.
    ///
    /// # Errors
    /// [`CoreError::UnknownPin`], [`CoreError::UnknownClient`].
    pub fn release(&mut self, client: ClientId, pins: &[u64]) -> Result<(), CoreError> {
        self.client(client)?;
        for record in self.pins.remove(client, pins)? {
            self.records.unpin(record);
        }
        Ok(())
    }

    /// Drops all pins of the client with this label. Fine when there is none.
    ///
    /// # Errors
    /// [`CoreError::UnknownClient`].
    pub fn end_session(&mut self, client: ClientId, session: u64) -> Result<(), CoreError> {
        self.client(client)?;
        for record in self.pins.end_session(client, session) {
            self.records.unpin(record);
        }
        Ok(())
    }

    /// Pins records; 0 when there are none.
    fn pin(
        &mut self,
        client: ClientId,
        session: u64,
        records: Vec<u32>,
        kept: Kept,
    ) -> Result<u64, CoreError> {
        if records.is_empty() {
            return Ok(0);
        }
        self.pins.check_room(client, records.len())?;
        for record in &records {
            self.records.pin(*record);
        }
        Ok(self.pins.add(client, session, records, kept))
    }
}
