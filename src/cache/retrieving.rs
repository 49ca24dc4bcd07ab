//! A retrieve that may take several turns.
//!
//! May import everything of this module.
//!
//! Objects are pinned as they are found, so that none is evicted meanwhile; whether one was discarded is looked at in the end.

use super::api::ClientId;
use super::core::Core;
use super::error::CoreError;
use super::keeping::Keeping;
use super::work::{Progress, Work};
use crate::index::meter::Meter;
use crate::index::plan::MAX_ROUNDS;
use crate::index::read::part_location;
use crate::index::turn::Turn;
use crate::object::{RetrieveAnswer, RetrieveRequest};

/// Parts of a step: to look at one name, to find an object and what it keeps, to read eight words of where its parts lie,
/// to make it the most recent.
const NAME: u32 = 1;
const FIND: u32 = 16;
const WORDS: u32 = 1;
const TOUCH: u32 = 2;

/// What comes next, and from which object on.
#[derive(Debug)]
enum Stage {
    Start,
    /// Whether all names can be.
    Check(usize),
    /// Where they are.
    Find(usize),
    /// Whether they still are.
    FindAgain(usize),
    /// The pin is given back.
    Undo(Option<CoreError>),
    Touch(usize),
    Done,
}

/// A retrieve: see [`Core::retrieve`].
#[derive(Debug)]
pub struct Retrieving<'a> {
    client: ClientId,
    request: &'a RetrieveRequest,
    stage: Stage,
    domain: u32,
    keeping: Keeping,
    records: Vec<u32>,
    words: Vec<u64>,
    shortened: bool,
    torn: u64,
    rounds: u32,
    answer: RetrieveAnswer,
}

impl<'a> Retrieving<'a> {
    /// Of one part of these objects.
    pub fn new(client: ClientId, request: &'a RetrieveRequest) -> Self {
        Self {
            client,
            request,
            stage: Stage::Start,
            domain: 0,
            keeping: Keeping::new(client, request.label, 0),
            records: Vec::new(),
            words: Vec::new(),
            shortened: false,
            torn: 0,
            rounds: MAX_ROUNDS,
            answer: RetrieveAnswer::default(),
        }
    }
}

impl Work for Retrieving<'_> {
    type Answer = RetrieveAnswer;

    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Progress<RetrieveAnswer>, CoreError> {
        core.client(self.client)?;
        let mut meter = Meter::new(turn);
        while !meter.is_over() {
            match std::mem::replace(&mut self.stage, Stage::Done) {
                Stage::Start => self.start(core)?,
                Stage::Check(at) => self.check(core, at, &mut meter)?,
                Stage::Find(at) => {
                    if let Err(error) = self.find(core, at, &mut meter) {
                        self.stage = Stage::Undo(Some(error));
                    }
                }
                Stage::FindAgain(at) => self.find_again(core, at, &mut meter),
                Stage::Undo(error) => self.undo(core, error, &mut meter)?,
                Stage::Touch(at) => self.touch(core, at, &mut meter),
                // With nothing between this and the answer.
                Stage::Done if core.records.torn() != self.torn && self.answer.pin != 0 => {
                    self.stage = Stage::FindAgain(0);
                }
                Stage::Done => {
                    core.counters.shortened += u64::from(self.shortened);
                    return Ok(Progress::Done(std::mem::take(&mut self.answer)));
                }
            }
        }
        Ok(Progress::More)
    }
}

impl Retrieving<'_> {
    fn start(&mut self, core: &Core) -> Result<(), CoreError> {
        core.require_chunk_size()?;
        let (number, domain) = core.registry.find(&self.request.domain_seed)?;
        self.domain = number;
        self.keeping = Keeping::new(self.client, self.request.label, core.kept_frames_max(domain));
        self.stage = Stage::Check(0);
        Ok(())
    }

    fn check(&mut self, core: &Core, from: usize, meter: &mut Meter<'_>) -> Result<(), CoreError> {
        let domain = core.domain(self.domain)?;
        for (at, id) in self.request.ids.iter().enumerate().skip(from) {
            if meter.is_over() {
                self.stage = Stage::Check(at);
                return Ok(());
            }
            meter.spend(NAME);
            let invalid = |field, value, expected| CoreError::InvalidGroup {
                group: id.group,
                field,
                value,
                expected,
            };
            let group = domain.group(id.group);
            let group = group.ok_or(invalid("number", id.group.into(), "it must be one of the domain"))?;
            if self.request.part >= group.parts {
                let expected = "it must be less than the number of parts";
                return Err(invalid("part", self.request.part.into(), expected));
            }
        }
        self.torn = core.records.torn();
        self.stage = Stage::Find(0);
        Ok(())
    }

    fn find(&mut self, core: &mut Core, from: usize, meter: &mut Meter<'_>) -> Result<(), CoreError> {
        for (at, id) in self.request.ids.iter().enumerate().skip(from) {
            if meter.is_over() {
                self.stage = Stage::Find(at);
                return Ok(());
            }
            meter.spend(FIND);
            let found = core.index.reader().lookup(id);
            let mut location = None;
            if let Some(view) = found.filter(|view| view.domain == self.domain) {
                if self.keeping.add(core, view.record)? {
                    let reader = core.index.reader();
                    let (words, extents) = (&mut self.words, &mut self.answer.extents);
                    location = part_location(&reader, &view, self.request.part, words, extents);
                    meter.spend((self.words.len() / 8) as u32 * WORDS);
                    core.pins.name(self.client, self.keeping.pin(), &[view.record])?;
                    core.records.pin(view.record);
                    self.records.push(view.record);
                } else {
                    self.shortened = true;
                }
            }
            self.answer.locations.push(location.unwrap_or_default());
        }
        self.keeping.note(core);
        self.stage = Stage::Touch(0);
        Ok(())
    }

    /// Something that was pinned has been discarded, maybe of these.
    fn find_again(&mut self, core: &Core, from: usize, meter: &mut Meter<'_>) {
        if from == 0 {
            self.torn = core.records.torn();
        }
        let reader = core.index.reader();
        for (at, id) in self.request.ids.iter().enumerate().skip(from) {
            if meter.is_over() {
                self.stage = Stage::FindAgain(at);
                return;
            }
            let location = &mut self.answer.locations[at];
            if location.incarnation != 0 {
                meter.spend(FIND);
                let now = reader.lookup(id).map(|view| view.incarnation);
                if now != Some(location.incarnation) {
                    *location = Default::default();
                }
            }
        }
        self.rounds -= 1;
        self.stage = match self.rounds {
            0 => Stage::Undo(None),
            _ => Stage::Done,
        };
    }

    /// Of what kept vanishing nothing is there.
    fn undo(
        &mut self,
        core: &mut Core,
        error: Option<CoreError>,
        meter: &mut Meter<'_>,
    ) -> Result<(), CoreError> {
        if self.keeping.pin() != 0 && !core.take_pin(self.client, self.keeping.pin(), meter) {
            self.stage = Stage::Undo(error);
            return Ok(());
        }
        if let Some(error) = error {
            return Err(error);
        }
        self.answer = RetrieveAnswer::default();
        self.answer
            .locations
            .resize(self.request.ids.len(), Default::default());
        self.stage = Stage::Done;
        Ok(())
    }

    /// The deepest first, so that what it hangs under is the more recent.
    fn touch(&mut self, core: &mut Core, from: usize, meter: &mut Meter<'_>) {
        for at in from..self.records.len() {
            if meter.is_over() {
                self.stage = Stage::Touch(at);
                return;
            }
            meter.spend(TOUCH);
            core.records.touch(self.records[self.records.len() - 1 - at]);
        }
        let pin = self.keeping.pin();
        if self.records.is_empty() {
            // Where all was too much the pin holds nothing.
            self.stage = if pin == 0 { Stage::Done } else { Stage::Undo(None) };
            return;
        }
        core.pins.close(self.client, pin);
        self.answer.pin = pin;
        self.stage = Stage::Done;
    }
}
