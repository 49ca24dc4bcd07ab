//! A lookup, whoever makes it: the server, in turns, or a client from its own memory, at once.
//!
//! It looks for what is there, from that it makes a plan, and pins the plan's objects. What was found in an earlier
//! turn is looked at again before it is pinned, or after; what is pinned is not evicted. That all is still there is
//! asked in the end. Where something has gone it plans anew with what is left, a few times, and then it is a miss.

use super::budget::Budget;
use super::pins::{Pins, Role};
use super::presence::{Limits, Load, Source};
use super::probe::{Found, Probed, Prober};
use super::reader::IndexReader;
use super::sweep::{Naming, Sweep, View};
use super::touching::{Touching, UpperLoads};
use crate::geometry::ObjectKind;
use crate::object::{DomainShape, LoadItem, LookupAnswer, LookupRequest};
use crate::shm::mapping::Access;

/// Rounds of planning before a lookup or retrieve whose objects keep vanishing is a miss.
pub(crate) const MAX_ROUNDS: u32 = 3;

/// Parts of a step: to name an object, to find one whose record is not at hand.
const NAME: u32 = 1;
const FIND: u32 = 10;

/// What comes next.
#[derive(Debug)]
enum Stage<E> {
    /// What is there.
    Probe,
    /// The longest boundary.
    Sweep,
    /// The objects of the plan.
    Take,
    /// All of the plan was there and fits.
    Taken,
    /// What is pinned is given back before something else.
    Undo(Next<E>),
    /// Uses are noted.
    Touch,
    Done,
}

/// What follows when a plan was given up.
#[derive(Debug)]
enum Next<E> {
    Plan,
    Fail(E),
}

/// The longest prefix that fits, by halving.
#[derive(Clone, Copy, Debug)]
struct Halving {
    /// So many chunks fit.
    fit: u64,
    /// So many do not.
    too_long: u64,
}

impl Halving {
    fn is_over(self) -> bool {
        self.fit + 1 >= self.too_long
    }
}

/// What is asked, and where the answer is looked for.
pub(crate) struct Question<'a, A: Access> {
    pub(crate) reader: &'a IndexReader<'a, A>,
    pub(crate) shape: &'a DomainShape,
    pub(crate) request: &'a LookupRequest<'a>,
}

/// How far a lookup is. `E` is what ends it.
pub(crate) struct Looking<E> {
    stage: Stage<E>,
    /// Those of this plan.
    limits: Limits,
    probed: Probed,
    rounds: u32,
    halving: Option<Halving>,
    sweep: Sweep,
    naming: Naming,
    /// Something of the plan is not there any more.
    lost: bool,
    /// Nothing could be held.
    no_room: bool,
    /// The records of the plan's loads.
    records: Vec<u32>,
    /// Where the loads of each full-attention group begin and end.
    full: Vec<(usize, usize)>,
    /// Place of the group of the last load.
    last_group: usize,
    touching: Touching,
    answer: LookupAnswer,
}

impl<E> Looking<E> {
    /// Nothing is known yet.
    pub(crate) fn new(shape: &DomainShape, request: &LookupRequest<'_>) -> Self {
        Self {
            stage: Stage::Probe,
            limits: Limits::of(request, shape),
            probed: Probed::new(shape, request),
            rounds: MAX_ROUNDS,
            halving: None,
            sweep: Sweep::default(),
            naming: Naming::default(),
            lost: false,
            no_room: false,
            records: Vec::new(),
            full: Vec::new(),
            last_group: 0,
            touching: Touching::default(),
            answer: LookupAnswer::default(),
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
                Stage::Probe => self.probe(question, meter),
                Stage::Sweep => self.find_boundary(question, pins, meter),
                Stage::Take => {
                    let taken = self.take(question, pins, meter);
                    if let Err(error) = pins.settle().and(taken) {
                        self.stage = Stage::Undo(Next::Fail(error));
                    }
                }
                Stage::Taken => self.taken(question, pins),
                Stage::Undo(next) => self.undo(question, next, pins, meter)?,
                Stage::Touch => {
                    let (records, anchors) = (&self.records, &self.probed.anchors);
                    if !self.touching.step(pins, records, anchors, meter) {
                        self.stage = Stage::Touch;
                    }
                }
                // With nothing between this and the answer.
                Stage::Done if self.answer.pin != 0 && !pins.is_intact(question.reader) => {
                    self.lost = true;
                    self.stage = Stage::Undo(Next::Plan);
                }
                Stage::Done => return Ok(true),
            }
        }
        Ok(false)
    }

    /// The answer.
    pub(crate) fn into_answer(mut self) -> LookupAnswer {
        self.answer.present_tokens = self.probed.covers;
        self.answer
    }

    /// Less was promised than is there, since the client's pins keep as much as they may.
    pub(crate) fn is_shortened(&self) -> bool {
        self.halving.is_some() || self.no_room
    }

    /// Something that was named belongs to another domain.
    pub(crate) fn met_other_domain(&self) -> bool {
        self.probed.other_domain
    }

    fn probe<A: Access>(&mut self, question: &Question<'_, A>, meter: &mut impl Budget) {
        let prober = Prober {
            reader: question.reader,
            shape: question.shape,
            request: question.request,
            limits: &self.limits,
        };
        self.stage = match prober.step(&mut self.probed, meter) {
            true => {
                self.sweep = std::mem::take(&mut self.probed.sweep);
                Stage::Sweep
            }
            false => Stage::Probe,
        };
    }

    fn view<'v>(&'v self, shape: &'v DomainShape) -> View<'v> {
        View {
            groups: &shape.groups,
            presence: &self.probed.presence,
            limits: &self.limits,
            order: &self.probed.order,
        }
    }

    fn find_boundary<A: Access>(
        &mut self,
        question: &Question<'_, A>,
        pins: &mut impl Pins<Error = E>,
        meter: &mut impl Budget,
    ) {
        let mut sweep = std::mem::take(&mut self.sweep);
        let groups = question.shape.groups.len() as u32;
        while let Some(chunk) = sweep.chunk() {
            if meter.is_over() {
                self.sweep = sweep;
                self.stage = Stage::Sweep;
                return;
            }
            meter.spend(1 + groups / 2);
            let view = self.view(question.shape);
            if sweep.at_end(&view).is_none() && sweep.at_tails(&view).is_none() {
                sweep.leave(chunk);
            }
        }
        (self.answer.hit_tokens, self.answer.pin) = (sweep.found(), 0);
        self.naming = Naming::new(sweep.found());
        self.records.clear();
        self.answer.loads.clear();
        self.full.clear();
        self.lost = false;
        let chunks = sweep.found().div_ceil(self.limits.chunk_size) as usize;
        let chunks = chunks.min(self.probed.anchors.len());
        if question.request.pin {
            self.records.reserve(chunks);
            self.answer.loads.reserve(chunks);
        }
        let is_trial = self.halving.is_some_and(|halving| !halving.is_over());
        pins.begin(&self.probed.anchors[..chunks], is_trial);
        self.stage = Stage::Take;
    }

    /// Finds the objects of the plan and adds them to the pin.
    fn take<A: Access>(
        &mut self,
        question: &Question<'_, A>,
        pins: &mut impl Pins<Error = E>,
        meter: &mut impl Budget,
    ) -> Result<(), E> {
        let mut naming = std::mem::take(&mut self.naming);
        while !meter.is_over() {
            let Some(load) = naming.next(&self.view(question.shape)) else {
                self.stage = match self.lost {
                    true => Stage::Undo(Next::Plan),
                    false => Stage::Taken,
                };
                return Ok(());
            };
            meter.spend(NAME);
            let item = self.probed.item(&load, question.shape, question.request);
            let Some(found) = self.find(question, &load, &item, pins, meter) else {
                self.probed.presence.lose(&load, &question.shape.groups);
                self.lost = true;
                continue;
            };
            if self.lost || !question.request.pin {
                continue; // the rest is only looked for, so that all that has gone is known
            }
            if !self.add(question.shape, &load, item, &found, pins, meter)? {
                self.stage = Stage::Undo(Next::Plan);
                self.halve(question.request, false);
                return Ok(());
            }
        }
        self.naming = naming;
        self.stage = Stage::Take;
        Ok(())
    }

    /// An object that was seen to be there.
    fn find<A: Access>(
        &mut self,
        question: &Question<'_, A>,
        load: &Load,
        item: &LoadItem,
        pins: &mut impl Pins<Error = E>,
        meter: &mut impl Budget,
    ) -> Option<Found> {
        let mut anchor = match load.source {
            Source::Chunk(at) if question.shape.anchor == Some(item.id.group) => {
                self.probed.anchors.get_mut(at as usize)
            }
            _ => None,
        };
        if let Some(found) = &anchor
            && pins.is_unchanged()
        {
            return Some(**found); // its key was compared then
        }
        meter.spend(FIND);
        let view = question.reader.lookup(&item.id)?;
        if let Some(anchor) = &mut anchor {
            **anchor = Found::from(view);
        }
        // Stored anew meanwhile it may have other holes than those that were planned with.
        let hole = (load.source, question.shape.groups[load.group].bit);
        let held_from = self.probed.presence.holes.get(&hole).copied().unwrap_or(0);
        let is_same =
            view.domain == question.shape.domain && view.held_from == held_from && view.tokens == item.tokens;
        is_same.then(|| Found::from(view))
    }

    /// Adds a found object to the pin and names it. False when that is more than the client's pins may keep.
    fn add(
        &mut self,
        shape: &DomainShape,
        load: &Load,
        item: LoadItem,
        found: &Found,
        pins: &mut impl Pins<Error = E>,
        meter: &mut impl Budget,
    ) -> Result<bool, E> {
        let is_full = shape.groups[load.group].kind == ObjectKind::Full;
        let is_anchor = shape.anchor == Some(item.id.group);
        let role = match load.source {
            _ if !is_full => Role::Companion,
            Source::Chunk(chunk) if is_anchor => Role::Chunk(chunk),
            _ => Role::Chained,
        };
        if !pins.add(found, &item.id, role, meter)? {
            return Ok(false);
        }
        let at = self.records.len();
        if is_full {
            match self.full.last_mut() {
                Some((_, end)) if *end == at && self.last_group == load.group => *end = at + 1,
                _ => self.full.push((at, at + 1)),
            }
        }
        self.last_group = load.group;
        self.records.push(found.record);
        self.answer.loads.push(item);
        Ok(true)
    }

    /// Goes on looking for the longest prefix in whole chunks that fits: a shorter one needs less.
    fn halve(&mut self, request: &LookupRequest<'_>, fits: bool) {
        let size = self.limits.chunk_size;
        let chunks = self.answer.hit_tokens.min(self.limits.max_tokens).div_ceil(size);
        let halving = match self.halving {
            None => Halving {
                fit: 0,
                too_long: chunks,
            },
            // Of what fitted a moment ago something is longer now.
            Some(halving) if halving.is_over() => Halving { fit: 0, too_long: 0 },
            Some(halving) if fits => Halving {
                fit: self.limits.max_tokens / size,
                ..halving
            },
            Some(halving) => Halving {
                too_long: self.limits.max_tokens / size,
                ..halving
            },
        };
        self.halving = Some(halving);
        let next = match halving.is_over() {
            true => halving.fit,
            false => halving.fit + (halving.too_long - halving.fit) / 2,
        };
        self.limits.max_tokens = request.max_tokens.min(next * size);
    }

    /// What was taken is all there and fits. Is it the longest?
    fn taken<A: Access>(&mut self, question: &Question<'_, A>, pins: &mut impl Pins<Error = E>) {
        if self.halving.is_some_and(|halving| !halving.is_over()) {
            self.halve(question.request, true);
            self.stage = Stage::Undo(Next::Plan);
            return;
        }
        if !question.request.pin {
            return;
        }
        match pins.hold() {
            Some(pin) => {
                self.answer.pin = pin;
                self.begin_touching(question.shape);
            }
            None => {
                self.no_room = true;
                self.answer = LookupAnswer::default();
            }
        }
    }

    fn undo<A: Access>(
        &mut self,
        question: &Question<'_, A>,
        next: Next<E>,
        pins: &mut impl Pins<Error = E>,
        meter: &mut impl Budget,
    ) -> Result<(), E> {
        if !pins.give_back(meter) {
            self.stage = Stage::Undo(next);
            return Ok(());
        }
        if let Next::Fail(error) = next {
            return Err(error);
        }
        self.rounds -= u32::from(self.lost);
        if self.rounds == 0 {
            // What it found kept vanishing: nothing is left to look for.
            self.limits.max_tokens = 0;
            self.halving = self.halving.map(|_| Halving { fit: 0, too_long: 0 });
        }
        // Of full attention the first chunk that is missing ends the prefix, and some may be since.
        let covers = self.lost.then(|| self.view(question.shape).covers());
        if let Some(covers) = covers {
            self.probed.covers = covers;
        }
        self.sweep = Sweep::new(&self.view(question.shape), &self.probed.covers);
        self.stage = Stage::Sweep;
        Ok(())
    }

    /// Notes uses, the anchor's chunks that need not be loaded among them.
    fn begin_touching(&mut self, shape: &DomainShape) {
        let chunks = (self.answer.hit_tokens / self.limits.chunk_size) as usize;
        let anchors = chunks.min(self.probed.anchors.len());
        let loads = &self.answer.loads;
        let among = |load: &LoadItem| {
            shape.anchor == Some(load.id.group)
                && load.tokens == shape.chunk_size
                && (load.chunk as usize) < anchors
        };
        // Of the anchor's loads all but a tail at the end.
        let full = std::mem::take(&mut self.full);
        let full = full.into_iter().map(|(first, end)| UpperLoads {
            first,
            end,
            known: match among(&loads[first]) {
                true => end - usize::from(!among(&loads[end - 1])),
                false => first,
            },
        });
        self.touching = Touching::new(self.records.len(), full.collect(), anchors);
        self.stage = Stage::Touch;
    }
}

/// Alignment units that a request asks about.
pub(crate) fn requested_units(request: &LookupRequest<'_>, shape: &DomainShape) -> u64 {
    let chunks = request.keys.len() as u64 * u64::from(shape.chunk_size);
    let named = chunks.max(request.tails.end(shape.chunk_size));
    named.min(request.max_tokens) / shape.alignment
}
