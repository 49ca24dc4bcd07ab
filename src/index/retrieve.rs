//! A retrieve, whoever makes it: the server, in turns, or a client from its own memory, at once.
//!
//! Objects are pinned as they are found, so that none is evicted meanwhile; whether one has gone all the same is
//! looked at in the end.

use super::body::{BodyCursor, BodyPiece};
use super::budget::Budget;
use super::lookup::MAX_ROUNDS;
use super::pins::{Pins, Role};
use super::probe::Found;
use super::reader::IndexReader;
use super::record::RecordView;
use crate::object::{Extent, PartLocation, RetrieveAnswer, RetrieveRequest};
use crate::shm::mapping::Access;
use crate::wire::MAX_EXTENTS;

/// Parts of a step: to find an object and what it keeps, to read seven words of where its parts lie, to make it the
/// most recent.
const FIND: u32 = 16;
const LINE: u32 = 2;
const TOUCH: u32 = 2;

/// Room for so many runs is taken as they come, and then once for all that an answer can have: a long list that moves when it grows
/// takes long.
const GROWING: usize = 4096;

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
    /// The body of the object that is being found.
    reading: Option<Reading>,
    rounds: u32,
    /// Something was left out: for what the client's pins keep already, or for more runs than an answer can name.
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
            reading: None,
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
        if from == 0 && self.reading.is_none() {
            pins.begin(&[], false);
        }
        let mut at = from;
        while let Some(id) = question.request.ids.get(at) {
            if meter.is_over() {
                self.stage = Stage::Find(at);
                return Ok(());
            }
            if let Some(reading) = &mut self.reading {
                let extents = &mut self.answer.extents;
                let Some(read) = reading.step(question.reader, question.request.part, extents, meter) else {
                    self.stage = Stage::Find(at);
                    return Ok(());
                };
                self.is_shortened |= matches!(read, Read::TooLong);
                let location = match read {
                    Read::Part(location) => location,
                    Read::TooLong | Read::Gone => PartLocation::default(),
                };
                self.answer.locations.push(location);
                (self.reading, at) = (None, at + 1);
                continue;
            }
            meter.spend(FIND);
            let found = question.reader.lookup(id);
            if let Some(view) = found.filter(|view| view.domain == question.domain) {
                if pins.add(&Found::from(view), id, Role::Named, meter)? {
                    self.records.push(view.record);
                    let first_extent = self.answer.extents.len();
                    self.reading = Reading::new(question.reader, view, first_extent);
                } else {
                    self.is_shortened = true;
                }
            }
            if self.reading.is_none() {
                self.answer.locations.push(PartLocation::default());
                at += 1;
            }
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

/// How far the body of an object that is pinned has been read: it may have more runs than fit in a turn.
#[derive(Debug)]
struct Reading {
    view: RecordView,
    cursor: BodyCursor,
    /// Parts that have begun.
    parts: usize,
    /// Of the part that is asked for: its bytes, its checksum, its runs, and where they begin in the answer.
    bytes: u64,
    checksum: u64,
    runs: usize,
    first_extent: usize,
}

/// What was read.
enum Read {
    /// Where the part lies.
    Part(PartLocation),
    /// It is not there any more.
    Gone,
    /// It has more runs than the answer can name.
    TooLong,
}

impl Reading {
    /// Nothing has been read yet. The part's runs are appended to those that the answer has.
    fn new<A: Access>(reader: &IndexReader<'_, A>, view: RecordView, first_extent: usize) -> Option<Self> {
        Some(Self {
            cursor: reader.walk(&view)?,
            view,
            parts: 0,
            bytes: 0,
            checksum: 0,
            runs: 0,
            first_extent,
        })
    }

    /// Goes on until it is known where the part lies. Nothing: the turn is over.
    fn step<A: Access>(
        &mut self,
        reader: &IndexReader<'_, A>,
        part: u16,
        extents: &mut Vec<Extent>,
        meter: &mut impl Budget,
    ) -> Option<Read> {
        let mine = usize::from(part) + 1;
        let read = loop {
            if meter.is_over() {
                return None;
            }
            match reader.next_piece(&mut self.cursor).flatten() {
                // The one after it, or the end: all of it has been read.
                Some(BodyPiece::Part { .. }) | None if self.parts == mine => break true,
                None => break false,
                Some(BodyPiece::Part { bytes, runs }) => {
                    self.parts += 1;
                    (self.bytes, self.runs) = (bytes, runs);
                    if self.parts == mine && !make_room(extents, runs) {
                        return Some(Read::TooLong);
                    }
                }
                Some(BodyPiece::Checksum(checksum)) => self.checksum = checksum,
                Some(BodyPiece::Run(run)) if self.parts == mine => {
                    extents.push(run);
                    if extents.len() - self.first_extent == self.runs {
                        break true;
                    }
                }
                Some(BodyPiece::Run(_)) => {}
                Some(BodyPiece::Block(_)) => meter.spend(LINE),
            }
        };
        let count = extents.len() - self.first_extent;
        if !read || count != self.runs || !reader.is_same(&self.view) {
            extents.truncate(self.first_extent);
            return Some(Read::Gone);
        }
        Some(Read::Part(PartLocation {
            incarnation: self.view.incarnation,
            bytes: self.bytes,
            checksum: self.checksum,
            first_extent: self.first_extent as u32,
            extent_count: count as u32,
            tokens: self.view.tokens,
            held_from: self.view.held_from,
        }))
    }
}

/// Room for so many runs more. False: an answer cannot name as many.
fn make_room(extents: &mut Vec<Extent>, runs: usize) -> bool {
    let all = extents.len() + runs;
    if all > extents.capacity() && all > GROWING {
        extents.reserve_exact(MAX_EXTENTS.saturating_sub(extents.len()));
    }
    all <= MAX_EXTENTS
}
