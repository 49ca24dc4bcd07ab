//! A retrieve, whoever makes it: the server, in turns, or a client from its own memory, at once.
//!
//! Objects are pinned as they are found, so that none is evicted meanwhile; whether one has gone all the same is
//! looked at in the end.

use super::body;
use super::budget::Budget;
use super::lookup::MAX_ROUNDS;
use super::pins::{Pins, Role};
use super::probe::Found;
use super::reader::IndexReader;
use super::record::RecordView;
use crate::object::{Extent, PartLocation, RetrieveAnswer, RetrieveRequest};
use crate::shm::mapping::Access;

/// Parts of a step: to find an object and what it keeps, to read eight words of where its parts lie, to make it the
/// most recent.
const FIND: u32 = 16;
const WORDS: u32 = 1;
const TOUCH: u32 = 2;

/// What comes next, and from which object on.
#[derive(Debug)]
enum Stage<E> {
    /// Where they are.
    Find(usize),
    /// All of them are held.
    Hold,
    Touch(usize),
    /// Whether they still are there.
    FindAgain(usize),
    /// The pin is given back.
    Undo(Option<E>),
    Done,
}

/// What is asked, and where the answer is looked for.
pub(crate) struct Question<'a, A: Access> {
    pub(crate) reader: &'a IndexReader<'a, A>,
    /// Number of the domain.
    pub(crate) domain: u32,
    pub(crate) request: &'a RetrieveRequest,
}

/// How far a retrieve is. `E` is what ends it.
#[derive(Debug)]
pub(crate) struct Retrieving<E> {
    stage: Stage<E>,
    records: Vec<u32>,
    words: Vec<u64>,
    rounds: u32,
    /// Something was left out for what the client's pins keep already.
    pub(crate) is_shortened: bool,
    /// Nothing could be held.
    pub(crate) no_room: bool,
    pub(crate) answer: RetrieveAnswer,
}

impl<E> Retrieving<E> {
    /// Nothing is found yet.
    pub(crate) fn new() -> Self {
        Self {
            stage: Stage::Find(0),
            records: Vec::new(),
            words: Vec::new(),
            rounds: MAX_ROUNDS,
            is_shortened: false,
            no_room: false,
            answer: RetrieveAnswer::default(),
        }
    }

    /// Goes on until the answer is known or the turn is over. Whether it is known.
    ///
    /// # Errors
    /// Those of the pins. Nothing is held then.
    pub(crate) fn step<A: Access>(
        &mut self,
        question: &Question<'_, A>,
        pins: &mut impl Pins<Error = E>,
        meter: &mut impl Budget,
    ) -> Result<bool, E> {
        while !meter.is_over() {
            match std::mem::replace(&mut self.stage, Stage::Done) {
                Stage::Find(at) => {
                    let found = self.find(question, at, pins, meter);
                    if let Err(error) = pins.settle().and(found) {
                        self.stage = Stage::Undo(Some(error));
                    }
                }
                Stage::Hold => match pins.hold() {
                    Some(pin) => {
                        self.answer.pin = pin;
                        self.stage = Stage::Touch(0);
                    }
                    None => self.no_room = true,
                },
                Stage::Touch(at) => self.touch(at, pins, meter),
                Stage::FindAgain(at) => self.find_again(question, at, meter),
                Stage::Undo(error) => self.undo(question, error, pins, meter)?,
                // With nothing between this and the answer.
                Stage::Done if self.answer.pin != 0 && !pins.is_intact(question.reader) => {
                    self.stage = Stage::FindAgain(0);
                }
                Stage::Done => return Ok(true),
            }
        }
        Ok(false)
    }

    fn find<A: Access>(
        &mut self,
        question: &Question<'_, A>,
        from: usize,
        pins: &mut impl Pins<Error = E>,
        meter: &mut impl Budget,
    ) -> Result<(), E> {
        if from == 0 {
            pins.begin(&[], false);
        }
        for (at, id) in question.request.ids.iter().enumerate().skip(from) {
            if meter.is_over() {
                self.stage = Stage::Find(at);
                return Ok(());
            }
            meter.spend(FIND);
            let found = question.reader.lookup(id);
            let mut location = None;
            if let Some(view) = found.filter(|view| view.domain == question.domain) {
                if pins.add(&Found::from(view), id, Role::Named, meter)? {
                    let (words, extents) = (&mut self.words, &mut self.answer.extents);
                    location = part_location(question.reader, &view, question.request.part, words, extents);
                    meter.spend((self.words.len() / 8) as u32 * WORDS);
                    self.records.push(view.record);
                } else {
                    self.is_shortened = true;
                }
            }
            self.answer.locations.push(location.unwrap_or_default());
        }
        self.stage = Stage::Hold;
        Ok(())
    }

    /// The deepest first, so that what it hangs under is the more recent.
    fn touch(&mut self, from: usize, pins: &mut impl Pins<Error = E>, meter: &mut impl Budget) {
        for at in from..self.records.len() {
            if meter.is_over() {
                self.stage = Stage::Touch(at);
                return;
            }
            meter.spend(TOUCH);
            pins.touch(self.records[self.records.len() - 1 - at]);
        }
    }

    /// Something that was found has gone, maybe of these.
    fn find_again<A: Access>(&mut self, question: &Question<'_, A>, from: usize, meter: &mut impl Budget) {
        for (at, id) in question.request.ids.iter().enumerate().skip(from) {
            if meter.is_over() {
                self.stage = Stage::FindAgain(at);
                return;
            }
            let location = &mut self.answer.locations[at];
            if location.incarnation != 0 {
                meter.spend(FIND);
                let now = question.reader.lookup(id).map(|view| view.incarnation);
                if now != Some(location.incarnation) {
                    *location = PartLocation::default();
                }
            }
        }
        self.rounds -= 1;
        if self.rounds == 0 {
            self.stage = Stage::Undo(None);
        }
    }

    /// Of what kept vanishing nothing is there.
    fn undo<A: Access>(
        &mut self,
        question: &Question<'_, A>,
        error: Option<E>,
        pins: &mut impl Pins<Error = E>,
        meter: &mut impl Budget,
    ) -> Result<(), E> {
        if !pins.give_back(meter) {
            self.stage = Stage::Undo(error);
            return Ok(());
        }
        if let Some(error) = error {
            return Err(error);
        }
        self.answer = RetrieveAnswer {
            locations: vec![PartLocation::default(); question.request.ids.len()],
            ..RetrieveAnswer::default()
        };
        Ok(())
    }
}

/// Where a part of a live object lies; its runs are appended to `extents`. `words` is scratch.
fn part_location<A: Access>(
    reader: &IndexReader<'_, A>,
    view: &RecordView,
    part: u16,
    words: &mut Vec<u64>,
    extents: &mut Vec<Extent>,
) -> Option<PartLocation> {
    let first_extent = extents.len() as u32;
    reader.body(view, words)?;
    let (bytes, checksum) = body::part(words, part, extents)?;
    Some(PartLocation {
        incarnation: view.incarnation,
        bytes,
        checksum,
        first_extent,
        extent_count: extents.len() as u32 - first_extent,
        tokens: view.tokens,
        held_from: view.held_from,
    })
}
