//! A lookup that may take several turns.
//!
//! May import everything of this module.
//!
//! It looks for what is there, from that it makes a plan, and pins the plan's objects one by one. What was found in an
//! earlier turn is looked at again before it is pinned, and what is pinned is not evicted; that it was not discarded
//! either is looked at in the end. Where something has gone it plans anew with what is left, a few times, and then it
//! is a miss.

use super::api::ClientId;
use super::core::Core;
use super::error::CoreError;
use super::keeping::Keeping;
use super::touching::{Touching, UpperLoads};
use super::work::{Progress, Work};
use crate::geometry::ObjectKind;
use crate::index::meter::Meter;
use crate::index::plan::MAX_ROUNDS;
use crate::index::presence::{Limits, Load, Source};
use crate::index::probe::{Found, Probed, Prober, is_tail};
use crate::index::sweep::{Naming, Sweep, View};
use crate::index::turn::Turn;
use crate::object::{DomainShape, LoadItem, LookupAnswer, LookupRequest, Tail};

/// Parts of a step: to look at the numbers of some tails, to name an object, to find one whose record is not at hand, to note what keeps it, to note something
/// that stands beside the chains, to pin it.
const CHECK: u32 = 1;
const NAME: u32 = 1;
const FIND: u32 = 10;
const KEEP: u32 = 2;
const KEEP_BESIDE: u32 = 8;
const PIN: u32 = 3;

/// So many tails.
const CHECKED: usize = 16;

/// What comes next.
#[derive(Debug)]
enum Stage {
    Start,
    Check(usize),
    /// What is there.
    Probe,
    /// The longest boundary.
    Sweep,
    /// The objects of the plan.
    Take,
    /// All of the plan was there and fits.
    Taken,
    /// The pin is given back before something else.
    Undo(Next),
    /// Uses are noted.
    Touch,
    Done,
}

/// What follows when a plan was given up.
#[derive(Debug)]
enum Next {
    Plan,
    Fail(CoreError),
}

/// The longest prefix that fits, by halving.
#[derive(Clone, Copy, Debug)]
struct Halving {
    /// So many chunks fit.
    fit: u64,
    /// So many do not.
    too_long: u64,
}

/// A lookup: see [`Core::lookup`].
pub struct Looking<'a> {
    client: ClientId,
    request: &'a LookupRequest<'a>,
    stage: Stage,
    domain: u32,
    shape: DomainShape,
    is_complete: bool,
    limits: Limits,
    probed: Probed,
    rounds: u32,
    halving: Option<Halving>,
    /// At most so many tokens by this plan.
    max_tokens: u64,
    sweep: Sweep,
    naming: Naming,
    keeping: Keeping,
    /// Something of the plan is not there any more.
    lost: bool,
    /// Objects that had gone from the index, and records that had gone under a pin, when the plan was begun.
    gone: u64,
    torn: u64,
    /// The records of the plan's loads.
    records: Vec<u32>,
    /// Where the loads of each full-attention group begin and end.
    full: Vec<(usize, usize)>,
    /// Place of the group of the last load.
    last_group: usize,
    /// Records that are pinned and not yet noted as the pin's; none between turns.
    unnamed: Vec<u32>,
    touching: Touching,
    answer: LookupAnswer,
}

impl std::fmt::Debug for Looking<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "lookup of {} keys: {:?}", self.request.keys.len(), self.stage)
    }
}

impl<'a> Looking<'a> {
    /// Of a client.
    pub fn new(client: ClientId, request: &'a LookupRequest<'a>) -> Self {
        Self {
            client,
            request,
            stage: Stage::Start,
            domain: 0,
            shape: DomainShape {
                domain: 0,
                chunk_size: 1,
                alignment: 1,
                anchor: None,
                groups: Vec::new(),
                kept_frames_max: 0,
            },
            is_complete: false,
            limits: Limits {
                chunk_size: 1,
                max_tokens: 0,
                local_tokens: 0,
            },
            probed: Probed::default(),
            rounds: MAX_ROUNDS,
            halving: None,
            max_tokens: request.max_tokens,
            sweep: Sweep::default(),
            naming: Naming::default(),
            keeping: Keeping::new(client, request.label, 0),
            lost: false,
            gone: 0,
            torn: 0,
            records: Vec::new(),
            full: Vec::new(),
            last_group: 0,
            unnamed: Vec::new(),
            touching: Touching::default(),
            answer: LookupAnswer::default(),
        }
    }
}

impl Work for Looking<'_> {
    type Answer = LookupAnswer;

    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Progress<LookupAnswer>, CoreError> {
        core.client(self.client)?;
        let mut meter = Meter::new(turn);
        while !meter.is_over() {
            match std::mem::replace(&mut self.stage, Stage::Done) {
                Stage::Start => self.start(core)?,
                Stage::Check(at) => self.check(at, &mut meter)?,
                Stage::Probe => self.probe(core, &mut meter),
                Stage::Sweep => self.find_boundary(core, &mut meter),
                Stage::Take => {
                    let taken = self.take(core, &mut meter);
                    if let Err(error) = self.name_pinned(core).and(taken) {
                        self.stage = Stage::Undo(Next::Fail(error));
                    }
                }
                Stage::Taken => self.taken(core),
                Stage::Undo(next) => self.undo(core, next, &mut meter)?,
                Stage::Touch => {
                    let (records, anchors) = (&self.records, &self.probed.anchors);
                    if !self
                        .touching
                        .step(&mut core.records, records, anchors, &mut meter)
                    {
                        self.stage = Stage::Touch;
                    }
                }
                // With nothing between this and the answer.
                Stage::Done if self.answer.pin != 0 && core.records.torn() != self.torn => {
                    self.lost = true;
                    self.stage = Stage::Undo(Next::Plan);
                }
                Stage::Done => return Ok(Progress::Done(self.finish(core))),
            }
        }
        Ok(Progress::More)
    }
}

impl Looking<'_> {
    fn start(&mut self, core: &Core) -> Result<(), CoreError> {
        core.require_chunk_size()?;
        let (number, domain) = core.registry.find(&self.request.domain_seed)?;
        self.domain = number;
        self.shape = domain.shape(number, core.kept_frames_max(domain));
        self.is_complete = domain.is_complete();
        self.limits = Limits::of(self.request, &self.shape);
        self.keeping = Keeping::new(self.client, self.request.label, self.shape.kept_frames_max);
        self.probed = Probed::new(&self.shape, self.request);
        (self.gone, self.torn) = (core.records.gone(), core.records.torn());
        self.stage = Stage::Check(0);
        Ok(())
    }

    /// Whether the numbers of the tails can be, from this one on.
    fn check(&mut self, from: usize, meter: &mut Meter<'_>) -> Result<(), CoreError> {
        let tails = self.request.tails.all();
        for (at, some) in tails.chunks(CHECKED).enumerate().skip(from) {
            if meter.is_over() {
                self.stage = Stage::Check(at);
                return Ok(());
            }
            meter.spend(CHECK);
            for tail in some {
                check_tail(tail, self.request, &self.shape)?;
            }
        }
        self.stage = match self.is_complete {
            true => Stage::Probe,
            false => Stage::Taken,
        };
        Ok(())
    }

    fn probe(&mut self, core: &Core, meter: &mut Meter<'_>) {
        let reader = core.index.reader();
        let prober = Prober {
            reader: &reader,
            shape: &self.shape,
            request: self.request,
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

    /// The limits of this plan.
    fn plan_limits(&self) -> Limits {
        Limits {
            max_tokens: self.max_tokens,
            ..self.limits
        }
    }

    fn view<'v>(&'v self, limits: &'v Limits) -> View<'v> {
        View {
            groups: &self.shape.groups,
            presence: &self.probed.presence,
            limits,
            order: &self.probed.order,
        }
    }

    fn find_boundary(&mut self, core: &Core, meter: &mut Meter<'_>) {
        let mut sweep = std::mem::take(&mut self.sweep);
        let (limits, groups) = (self.plan_limits(), self.shape.groups.len() as u32);
        while let Some(chunk) = sweep.chunk() {
            if meter.is_over() {
                self.sweep = sweep;
                self.stage = Stage::Sweep;
                return;
            }
            meter.spend(1 + groups / 2);
            let view = self.view(&limits);
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
        self.torn = core.records.torn();
        self.stage = Stage::Take;
    }

    /// Finds, keeps and pins the objects of the plan.
    fn take(&mut self, core: &mut Core, meter: &mut Meter<'_>) -> Result<(), CoreError> {
        let limits = self.plan_limits();
        while !meter.is_over() {
            let mut naming = std::mem::take(&mut self.naming);
            let load = naming.next(&self.view(&limits));
            self.naming = naming;
            let Some(load) = load else {
                self.stage = match self.lost {
                    true => Stage::Undo(Next::Plan),
                    false => Stage::Taken,
                };
                return Ok(());
            };
            meter.spend(NAME);
            let Some(record) = self.find(core, &load, meter) else {
                self.probed.presence.lose(&load, &self.shape.groups);
                self.lost = true;
                continue;
            };
            if self.lost {
                continue; // the rest is only looked for, so that all that has gone is known
            }
            if self.request.pin && !self.pin(core, &load, record, meter)? {
                self.stage = Stage::Undo(Next::Plan);
                self.halve(false);
                return Ok(());
            }
        }
        self.stage = Stage::Take;
        Ok(())
    }

    /// Notes what has been pinned as the pin's.
    fn name_pinned(&mut self, core: &mut Core) -> Result<(), CoreError> {
        if self.unnamed.is_empty() {
            return Ok(());
        }
        let named = core.pins.name(self.client, self.keeping.pin(), &self.unnamed);
        for record in self.unnamed.drain(..) {
            if named.is_err() {
                core.records.unpin(record);
            }
        }
        named
    }

    /// The record of an object that was seen to be there.
    fn find(&mut self, core: &Core, load: &Load, meter: &mut Meter<'_>) -> Option<u32> {
        let group = &self.shape.groups[load.group];
        let is_anchor = self.shape.anchor == Some(group.group);
        let reader = core.index.reader();
        let id = self.probed.id_of(load, &self.shape, self.request);
        if let (true, Source::Chunk(at)) = (is_anchor, load.source) {
            let found = *self.probed.anchors.get(at as usize)?;
            // Found a moment ago, with its key compared; nothing has gone since.
            if core.records.gone() == self.gone {
                return Some(found.record);
            }
            meter.spend(FIND);
            let view = reader.lookup(&id).filter(|view| view.domain == self.domain)?;
            self.probed.anchors[at as usize] = Found::from(view);
            return (view.tokens == self.shape.chunk_size).then_some(view.record);
        }
        meter.spend(FIND);
        let view = reader.lookup(&id).filter(|view| view.domain == self.domain)?;
        // Stored anew meanwhile it may have other holes than those that were planned with.
        let hole = (load.source, group.bit);
        let held_from = self.probed.presence.holes.get(&hole).copied().unwrap_or(0);
        let tokens = self.probed.tokens_of(load, &self.shape);
        (view.held_from == held_from && view.tokens == tokens).then_some(view.record)
    }

    /// Pins and names a found object. False when its client's pins may not keep as much.
    fn pin(
        &mut self,
        core: &mut Core,
        load: &Load,
        record: u32,
        meter: &mut Meter<'_>,
    ) -> Result<bool, CoreError> {
        let is_full = self.shape.groups[load.group].kind == ObjectKind::Full;
        meter.spend(if is_full { KEEP } else { KEEP_BESIDE });
        if !self.keeping.add(core, record)? {
            return Ok(false);
        }
        if self
            .halving
            .is_none_or(|halving| halving.fit + 1 >= halving.too_long)
        {
            meter.spend(PIN);
            core.records.pin(record);
            self.unnamed.push(record);
        }
        let at = self.records.len();
        if is_full {
            match self.full.last_mut() {
                Some((_, end)) if *end == at && self.last_group == load.group => *end = at + 1,
                _ => self.full.push((at, at + 1)),
            }
        }
        self.last_group = load.group;
        self.records.push(record);
        self.answer.loads.push(LoadItem {
            id: self.probed.id_of(load, &self.shape, self.request),
            chunk: self.probed.chunk_of(load),
            tokens: self.probed.tokens_of(load, &self.shape),
        });
        Ok(true)
    }

    /// Goes on looking for the longest prefix in whole chunks that fits: a shorter one needs less.
    fn halve(&mut self, fits: bool) {
        let size = self.limits.chunk_size;
        let chunks = self.answer.hit_tokens.min(self.max_tokens).div_ceil(size);
        let halving = match self.halving {
            None => Halving {
                fit: 0,
                too_long: chunks,
            },
            // Of what fitted a moment ago something is longer now.
            Some(halving) if halving.fit + 1 >= halving.too_long => Halving { fit: 0, too_long: 0 },
            Some(halving) if fits => Halving {
                fit: self.max_tokens / size,
                ..halving
            },
            Some(halving) => Halving {
                too_long: self.max_tokens / size,
                ..halving
            },
        };
        self.halving = Some(halving);
        let next = match halving.fit + 1 < halving.too_long {
            true => halving.fit + (halving.too_long - halving.fit) / 2,
            false => halving.fit,
        };
        self.max_tokens = self.limits.max_tokens.min(next * size);
    }

    /// What was taken is all there and fits. Is it the longest?
    fn taken(&mut self, core: &mut Core) {
        self.keeping.note(core);
        if let Some(halving) = self.halving
            && halving.fit + 1 < halving.too_long
        {
            self.halve(true);
            self.stage = Stage::Undo(Next::Plan);
            return;
        }
        let pin = self.keeping.pin();
        if pin != 0 {
            core.pins.close(self.client, pin);
        }
        self.answer.pin = pin;
        match self.request.pin {
            true => self.begin_touching(),
            false => self.stage = Stage::Done,
        }
    }

    fn undo(&mut self, core: &mut Core, next: Next, meter: &mut Meter<'_>) -> Result<(), CoreError> {
        let pin = self.keeping.pin();
        if pin != 0 && !core.take_pin(self.client, pin, meter) {
            self.stage = Stage::Undo(next);
            return Ok(());
        }
        self.keeping = Keeping::new(self.client, self.request.label, self.shape.kept_frames_max);
        if let Next::Fail(error) = next {
            return Err(error);
        }
        self.rounds -= u32::from(self.lost);
        if self.rounds == 0 {
            self.max_tokens = 0; // what it found kept vanishing
        }
        let limits = self.plan_limits();
        let view = self.view(&limits);
        // Of full attention the first chunk that is missing ends the prefix, and some may be since.
        let covers = match self.lost {
            true => view.covers(),
            false => self.probed.covers.clone(),
        };
        self.sweep = Sweep::new(&view, &covers);
        if self.lost {
            self.probed.covers = covers;
        }
        self.stage = Stage::Sweep;
        Ok(())
    }

    /// Notes uses, the anchor's chunks that need not be loaded among them.
    fn begin_touching(&mut self) {
        let chunks = (self.answer.hit_tokens / self.limits.chunk_size) as usize;
        let anchors = chunks.min(self.probed.anchors.len());
        let loads = &self.answer.loads;
        let among = |load: &LoadItem| {
            self.shape.anchor == Some(load.id.group)
                && load.tokens == self.shape.chunk_size
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

    fn finish(&mut self, core: &mut Core) -> LookupAnswer {
        let mut answer = std::mem::take(&mut self.answer);
        answer.present_tokens = std::mem::take(&mut self.probed.covers);
        if self.request.describe && self.is_complete {
            answer.shape = Some(self.shape.clone());
        }
        let shortened = self.halving.is_some();
        core.count_lookup(self.request, &self.shape, answer.hit_tokens, shortened);
        answer
    }
}

/// A tail is a proper part of a chunk whose chunks before it are named, in whole alignments.
fn check_tail(tail: &Tail, request: &LookupRequest<'_>, shape: &DomainShape) -> Result<(), CoreError> {
    if is_tail(tail, shape) && tail.chunk as usize <= request.keys.len() {
        return Ok(());
    }
    Err(CoreError::InvalidKey {
        chunk: tail.chunk.into(),
        tokens: tail.tokens.into(),
        alignment: shape.alignment,
        chunk_size: shape.chunk_size.into(),
        keys: request.keys.len() as u64,
    })
}
