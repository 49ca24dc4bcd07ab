//! A retrieve that the server is asked for: it may take several turns.

use super::quota::{CountedPins, Keeping};
use crate::cache::meter::Meter;
use crate::cache::turn::Turn;
use crate::cache::{ClientId, Core, CoreError, Progress, Work};
use crate::index::budget::Budget;
use crate::index::retrieve::{self, Question};
use crate::object::{RetrieveAnswer, RetrieveRequest};

/// Parts of a step: to look at one name.
const NAME: u32 = 1;

/// A retrieve: see [`Core::retrieve`].
#[derive(Debug)]
pub struct Retrieving<'a> {
    client: ClientId,
    request: &'a RetrieveRequest,
    /// Names that can be.
    checked: usize,
    /// The number of the domain, once the retrieve has begun, and how far it is.
    begun: Option<(u32, Keeping)>,
    retrieving: retrieve::Retrieving<CoreError>,
}

impl<'a> Retrieving<'a> {
    /// Of one part of these objects.
    pub fn new(client: ClientId, request: &'a RetrieveRequest) -> Self {
        Self {
            client,
            request,
            checked: 0,
            begun: None,
            retrieving: retrieve::Retrieving::new(),
        }
    }

    fn begin(&self, core: &Core) -> Result<(u32, Keeping), CoreError> {
        core.require_chunk_size()?;
        let (number, domain) = core.registry.find(&self.request.domain_seed)?;
        let limit = core.kept_frames_max(domain);
        let keeping = Keeping::new(self.client, self.request.label, limit, &core.tree);
        Ok((number, keeping))
    }

    /// Looks at names, until all are known to be ones of the domain or the turn is over. Whether they are.
    fn check(&mut self, core: &Core, domain: u32, meter: &mut impl Budget) -> Result<bool, CoreError> {
        let domain = core.domain(domain)?;
        for id in &self.request.ids[self.checked..] {
            if meter.is_over() {
                return Ok(false);
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
            self.checked += 1;
        }
        Ok(true)
    }
}

impl Work for Retrieving<'_> {
    type Answer = RetrieveAnswer;

    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Progress<RetrieveAnswer>, CoreError> {
        core.client(self.client)?;
        let (domain, mut keeping) = match self.begun.take() {
            Some(begun) => begun,
            None => self.begin(core)?,
        };
        let mut meter = Meter::new(turn);
        let mut is_done = self.check(core, domain, &mut meter)?;
        if is_done {
            let question = Question {
                reader: &core.index.reader(),
                domain,
                request: self.request,
            };
            let mut pins = CountedPins {
                keeping: &mut keeping,
                pins: &mut core.pins,
                tree: &mut core.tree,
            };
            is_done = self.retrieving.step(&question, &mut pins, &mut meter)?;
        }
        if !is_done {
            self.begun = Some((domain, keeping));
            return Ok(Progress::More);
        }
        core.counters.shortened += u64::from(self.retrieving.is_shortened);
        Ok(Progress::Done(std::mem::take(&mut self.retrieving.answer)))
    }
}
