//! Lookups, retrieves and their pins.
//!
//! May import everything of this module.

use std::collections::HashMap;

use super::api::*;
use super::core::Core;
use super::error::CoreError;
use super::lookup::{self, Limits, Load, Presence, Source, TailPresence};
use super::pins::Kept;
use super::registry::Domain;
use crate::geometry::ObjectKind;
use crate::keys::ChunkKey;
use crate::pool::body;

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
        let chunk = domain.chunk;
        check_tails(request, domain)?;
        let limits = Limits {
            chunk_size: chunk.into(),
            max_tokens: request.max_tokens,
            local_tokens: request.local_tokens,
        };
        let alignment = domain.alignment;
        let (mut presence, anchors) = if domain.is_complete() {
            self.presence(number, domain, request, chunk)
        } else {
            Default::default()
        };
        let present_tokens = lookup::present_tokens(&domain.groups, &presence, &limits);
        let id_of = |load: &Load| {
            let key = match load.source {
                Source::Chunk(at) => request.keys[at as usize],
                Source::Tail(at) => request.tails[at as usize].key,
            };
            let group = domain.groups[load.group].group;
            ObjectId { key, group }
        };
        let find = |load: &Load| match load.source {
            // Found a moment ago, with its key compared.
            Source::Chunk(at) if domain.anchor == Some(domain.groups[load.group].group) => {
                anchors.get(at as usize).copied()
            }
            _ => self.live(number, &id_of(load)).map(|(record, _)| record),
        };
        let fits = |records: &[u32]| match request.pin {
            true => self.keep_all(client, domain, records),
            false => Some(Kept::new()),
        };
        let (plan, records, kept, shortened) =
            lookup::settle_within(&domain.groups, &mut presence, &limits, find, fits);
        let mut answer = LookupAnswer {
            hit_tokens: plan.hit_tokens,
            present_tokens,
            ..LookupAnswer::default()
        };
        if request.pin {
            let full = domain
                .groups
                .iter()
                .map(|g| g.kind == ObjectKind::Full)
                .collect::<Vec<_>>();
            answer.loads = plan
                .loads
                .iter()
                .map(|load| load_item(load, id_of(load), request, chunk))
                .collect();
            let touched = (plan.hit_tokens / u64::from(chunk)) as usize;
            self.touch(
                &plan.loads,
                &records,
                &full,
                anchors.get(..touched).unwrap_or(&anchors),
            );
            answer.pin = self.pin(client, request.session, records, kept)?;
        }
        self.counters.shortened += u64::from(shortened);
        self.count(request, chunk, alignment, answer.hit_tokens);
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
            let view = view.filter(|v| self.records.get(v.record).domain == number);
            let first_extent = answer.extents.len() as u32;
            let place = view.and_then(|view| {
                if !keeping.add(view.record) {
                    shortened = true;
                    return None;
                }
                reader.body(&view, &mut words)?;
                let (bytes, checksum) = body::part(&words, part, &mut answer.extents)?;
                records.push(view.record);
                Some(PartPlace {
                    incarnation: view.incarnation,
                    bytes,
                    checksum,
                    first_extent,
                    extent_count: answer.extents.len() as u32 - first_extent,
                    tokens: view.tokens,
                    held_from: view.held_from,
                })
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

    /// What is there of a prompt, and the records of its chunks in the anchor group.
    ///
    /// The anchor's record knows which other groups have an object of its key, so that a chunk costs one
    /// probe whatever the number of groups. Behind the first chunk that the anchor lacks nothing can be hit.
    fn presence(
        &self,
        number: u32,
        domain: &Domain,
        request: &LookupRequest<'_>,
        chunk: u32,
    ) -> (Presence, Vec<u32>) {
        let has = |key: &ChunkKey, group: u16, tokens: u32| {
            let found = self.live(number, &ObjectId { key: *key, group })?;
            (found.1 == tokens).then_some(found.0)
        };
        let mut presence = Presence::default();
        let mut anchors = Vec::new();
        let anchor = domain.anchor();
        // Groups that no anchor's record speaks for.
        let alone: Vec<(u16, u64)> = domain
            .groups
            .iter()
            .filter(|g| anchor.is_none_or(|a| g.kind == ObjectKind::Full && g.group != a.group))
            .map(|g| (g.group, g.bit))
            .collect();
        let mut holes = HashMap::new();
        let mut note = |source: Source, bit: u64, record: u32| {
            let held_from = self.records.get(record).held_from;
            if held_from > 0 {
                holes.insert((source, bit), held_from);
            }
        };
        for (at, key) in request.keys.iter().enumerate() {
            let source = Source::Chunk(at as u32);
            let mut groups = 0;
            if let Some(anchor) = anchor {
                let Some(record) = has(key, anchor.group, chunk) else {
                    break;
                };
                anchors.push(record);
                let entry = self.records.get(record);
                groups = anchor.bit | entry.below;
                for group in domain.groups.iter().filter(|g| g.bit & entry.holed != 0) {
                    if let Some(record) = has(key, group.group, chunk) {
                        note(source, group.bit, record);
                    }
                }
            }
            for (group, bit) in &alone {
                if let Some(record) = has(key, *group, chunk) {
                    groups |= bit;
                    note(source, *bit, record);
                }
            }
            presence.chunks.push(groups);
        }
        for (at, tail) in request.tails.iter().enumerate() {
            let mut groups = 0;
            if anchor.is_none() || tail.chunk as usize <= anchors.len() {
                for group in &domain.groups {
                    if let Some(record) = has(&tail.key, group.group, tail.tokens) {
                        groups |= group.bit;
                        note(Source::Tail(at as u32), group.bit, record);
                    }
                }
            }
            presence.tails.push(TailPresence {
                chunk: tail.chunk,
                tokens: tail.tokens,
                groups,
            });
        }
        presence.holes = holes;
        (presence, anchors)
    }

    /// Notes a use: states and windows first, then full attention from the end, so that what hangs under
    /// something is never the more recent.
    fn touch(&mut self, loads: &[Load], records: &[u32], full: &[bool], anchors: &[u32]) {
        let loaded = loads.iter().zip(records);
        let (upper, lower): (Vec<_>, Vec<_>) = loaded.partition(|(load, _)| full[load.group]);
        for (_, record) in lower.into_iter().chain(upper.into_iter().rev()) {
            self.records.touch(*record);
        }
        for record in anchors.iter().rev() {
            self.records.touch(*record);
        }
    }

    fn count(&mut self, request: &LookupRequest<'_>, chunk: u32, alignment: u64, hit: u64) {
        let chunk = u64::from(chunk);
        let tails = request.tails.iter();
        let named = tails
            .map(|t| u64::from(t.chunk) * chunk + u64::from(t.tokens))
            .fold(request.keys.len() as u64 * chunk, u64::max);
        let requested = named.min(request.max_tokens) / alignment;
        let hit = hit / alignment;
        self.counters.lookups += 1;
        self.counters.requested += requested;
        self.counters.hit += hit;
        self.counters.miss += requested - hit;
    }
}

fn load_item(load: &Load, id: ObjectId, request: &LookupRequest<'_>, chunk: u32) -> LoadItem {
    let (at, tokens) = match load.source {
        Source::Chunk(at) => (at, chunk),
        Source::Tail(at) => {
            let tail = &request.tails[at as usize];
            (tail.chunk, tail.tokens)
        }
    };
    LoadItem {
        id,
        chunk: at,
        tokens,
    }
}

/// A tail is a proper part of a chunk whose chunks before it are named, in whole alignments.
fn check_tails(request: &LookupRequest<'_>, domain: &Domain) -> Result<(), CoreError> {
    let chunk = domain.chunk;
    for tail in request.tails {
        let aligned = u64::from(tail.tokens).is_multiple_of(domain.alignment);
        let known = tail.chunk as usize <= request.keys.len();
        if tail.tokens == 0 || tail.tokens >= chunk || !aligned || !known {
            return Err(CoreError::InvalidKey {
                chunk: tail.chunk.into(),
                tokens: tail.tokens.into(),
                alignment: domain.alignment,
                chunk_size: chunk.into(),
                keys: request.keys.len() as u64,
            });
        }
    }
    Ok(())
}
