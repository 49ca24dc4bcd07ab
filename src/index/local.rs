//! Lookups and retrieves that a client makes by itself, without a message: the reader's side of the read protocol.
//!
//! Protocol: docs/shm-layout.md, "read".
//!
//! A reader finds what it wants, writes pin words, fences, and looks at every pinned record again. What is still there
//! then stays: whoever evicts either sees the pin or had taken the record out before. Of a full-attention group only
//! the deepest object is pinned, since what it hangs under goes after it.

use std::collections::HashSet;
use std::convert::Infallible;

use super::budget::{Budget, Unlimited};
use super::lookup::{self, Looking, requested_units};
use super::pin_words::{Kept, PinWords, Use};
use super::pins::{Pins, Role};
use super::probe::Found;
use super::reader::IndexReader;
use super::retrieve::{self, Retrieving};
use super::slab::TOUCHED_WORDS;
use crate::object::{DomainShape, LookupAnswer, LookupRequest, ObjectId, RetrieveAnswer, RetrieveRequest};
use crate::shm::mapping::Access;

/// An answer, and what it adds to the client's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalAnswer {
    /// The answer.
    pub answer: LookupAnswer,
    /// Alignment units asked for.
    pub requested: u64,
    /// Of them, those that were hit.
    pub hit: u64,
    /// Less was promised than is there, since the client's pins keep as much as they may.
    pub shortened: bool,
}

/// An object that a lookup names belongs to another domain than the shape says: the domain was given up meanwhile and
/// has come back under another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherDomain;

/// The longest prefix that every object group can serve, as the server would answer it. `is_current` says whether the
/// server that the index belongs to still runs the pool; it is asked after the pins are written.
///
/// # Errors
/// [`OtherDomain`]: the shape has to be asked for again.
pub fn lookup<A: Access>(
    reader: &IndexReader<'_, A>,
    shape: &DomainShape,
    request: &LookupRequest<'_>,
    words: &mut PinWords,
    is_current: impl Fn() -> bool,
) -> Result<LocalAnswer, OtherDomain> {
    let mut pins = SlabPins::new(
        words,
        request.label,
        Use::Promise,
        shape.kept_frames_max,
        is_current,
    );
    let question = lookup::Question {
        reader,
        shape,
        request,
    };
    let mut looking = Looking::new(shape, request);
    while !looking
        .step(&question, &mut pins, &mut Unlimited)
        .unwrap_or_else(never)
    {}
    if looking.met_other_domain() {
        pins.give_back(&mut Unlimited);
        return Err(OtherDomain);
    }
    pins.log_touched();
    let shortened = looking.is_shortened();
    let answer = looking.into_answer();
    Ok(LocalAnswer {
        requested: requested_units(request, shape),
        hit: answer.hit_tokens / shape.alignment,
        shortened,
        answer,
    })
}

/// Pins objects for reading and says where one part of each lies, as the server would; what is not there has
/// incarnation 0. `domain` is the number that the domain's records carry, `kept_frames_max` how many frames all pins
/// of the client may keep. The second value tells that something was left out for what the client's pins keep already.
/// Nothing where pin words have run out.
pub fn retrieve<A: Access>(
    reader: &IndexReader<'_, A>,
    domain: u32,
    kept_frames_max: u64,
    request: &RetrieveRequest,
    words: &mut PinWords,
    is_current: impl Fn() -> bool,
) -> Option<(RetrieveAnswer, bool)> {
    let mut pins = SlabPins::new(words, request.label, Use::Copy, kept_frames_max, is_current);
    let question = retrieve::Question {
        reader,
        domain,
        request,
    };
    let mut retrieving = Retrieving::new();
    while !retrieving
        .step(&question, &mut pins, &mut Unlimited)
        .unwrap_or_else(never)
    {}
    pins.log_touched();
    (!retrieving.no_room).then_some((retrieving.answer, retrieving.is_shortened))
}

fn never(error: Infallible) -> bool {
    match error {}
}

/// An object that a word is to pin.
struct Held {
    id: ObjectId,
    record: u32,
    incarnation: u64,
}

/// Pins of a client: words of its slab, and what they keep by its own account.
struct SlabPins<'a, C> {
    words: &'a mut PinWords,
    label: u64,
    purpose: Use,
    /// Frames that the client may keep.
    limit: u64,
    is_current: C,
    kept: Kept,
    /// Frames of `kept` that no other pin keeps.
    new_frames: u64,
    held: Vec<Held>,
    /// The group of the last one that is held, if what is added to it next hangs under that one.
    chain: Option<u16>,
    named: HashSet<u32>,
    pin: u64,
    /// Something has gone between the look and the pin.
    has_failed: bool,
    /// The least recent first.
    touched: Vec<u32>,
}

impl<'a, C: Fn() -> bool> SlabPins<'a, C> {
    fn new(words: &'a mut PinWords, label: u64, purpose: Use, limit: u64, is_current: C) -> Self {
        Self {
            words,
            label,
            purpose,
            limit,
            is_current,
            kept: Kept::new(),
            new_frames: 0,
            held: Vec::new(),
            chain: None,
            named: HashSet::new(),
            pin: 0,
            has_failed: false,
            touched: Vec::new(),
        }
    }

    /// What keeping a record adds to what the client keeps.
    fn adds(&self, (record, frames): (u32, u64)) -> u64 {
        if self.words.is_kept(record) { 0 } else { frames }
    }

    fn log_touched(&mut self) {
        self.words.touch(&self.touched);
    }
}

impl<C: Fn() -> bool> Pins for SlabPins<'_, C> {
    type Error = Infallible;

    fn begin(&mut self, chunks: &[Found], _is_trial: bool) {
        self.kept.clear();
        self.kept
            .extend(chunks.iter().map(|chunk| (chunk.record, chunk.frames)));
        self.new_frames = self.kept.iter().map(|kept| self.adds(*kept)).sum();
        self.held.clear();
        self.chain = None;
    }

    fn is_unchanged(&self) -> bool {
        !self.has_failed
    }

    fn add(
        &mut self,
        found: &Found,
        id: &ObjectId,
        role: Role,
        _: &mut impl Budget,
    ) -> Result<bool, Infallible> {
        let new = (found.record, found.frames);
        match role {
            Role::Chunk(at) => {
                // Where it was found again it may be another record.
                let old = std::mem::replace(&mut self.kept[at as usize], new);
                if old != new {
                    self.new_frames = self.new_frames - self.adds(old) + self.adds(new);
                }
                if self.new_frames > 0 && self.words.kept_frames() + self.new_frames > self.limit {
                    return Ok(false);
                }
            }
            Role::Named if self.named.contains(&found.record) => return Ok(true),
            Role::Chained | Role::Companion | Role::Named => {
                let more = self.new_frames + self.adds(new);
                if more > 0 && self.words.kept_frames() + more > self.limit {
                    return Ok(false);
                }
                self.new_frames = more;
                self.kept.push(new);
            }
        }
        let chain = match role {
            Role::Chunk(_) | Role::Chained => Some(id.group),
            Role::Companion | Role::Named => None,
        };
        if chain.is_some() && chain == self.chain {
            self.held.pop();
        }
        self.chain = chain;
        if role == Role::Named {
            self.named.insert(found.record);
        }
        self.held.push(Held {
            id: *id,
            record: found.record,
            incarnation: found.incarnation,
        });
        Ok(true)
    }

    fn settle(&mut self) -> Result<(), Infallible> {
        Ok(())
    }

    fn hold(&mut self) -> Option<u64> {
        if self.held.is_empty() {
            return Some(0);
        }
        let records: Vec<u32> = self.held.iter().map(|held| held.record).collect();
        let kept = std::mem::take(&mut self.kept);
        self.pin = self.words.hold(self.label, &records, kept, self.purpose)?;
        Some(self.pin)
    }

    /// What has gone is held no longer.
    fn is_intact<A: Access>(&mut self, reader: &IndexReader<'_, A>) -> bool {
        let held = self.held.len();
        self.held.retain(|held| {
            let now = reader.view(held.record, &held.id);
            now.is_some_and(|view| view.incarnation == held.incarnation)
        });
        let is_intact = (self.is_current)() && self.held.len() == held;
        self.has_failed |= !is_intact;
        is_intact
    }

    fn touch(&mut self, record: u32) {
        // The log holds no more; those that are left out go last in any case.
        if self.touched.len() < TOUCHED_WORDS {
            self.touched.push(record);
        }
    }

    fn give_back(&mut self, _: &mut impl Budget) -> bool {
        self.words.release(std::mem::take(&mut self.pin));
        self.touched.clear();
        true
    }
}
