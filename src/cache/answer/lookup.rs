//! A lookup that the server is asked for: it may take several turns.

use super::quota::{CountedPins, Keeping};
use crate::cache::meter::Meter;
use crate::cache::turn::Turn;
use crate::cache::{ClientId, Core, CoreError, Progress, Work};
use crate::index::budget::Budget;
use crate::index::lookup::{self, Question, requested_units};
use crate::index::probe::is_tail;
use crate::object::{DomainShape, LookupAnswer, LookupRequest, Tail};

/// Parts of a step: to look at the numbers of so many tails.
const CHECK: u32 = 1;
const CHECKED: usize = 16;

/// A lookup: see [`Core::lookup`].
pub struct Looking<'a> {
    client: ClientId,
    request: &'a LookupRequest<'a>,
    begun: Option<Begun>,
}

/// What is known of a lookup from its first turn on.
struct Begun {
    shape: DomainShape,
    is_complete: bool,
    /// Lots of tails whose numbers were looked at.
    checked: usize,
    keeping: Keeping,
    looking: lookup::Looking<CoreError>,
}

impl std::fmt::Debug for Looking<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "lookup of {} keys", self.request.keys.len())
    }
}

impl<'a> Looking<'a> {
    /// Of a client.
    pub fn new(client: ClientId, request: &'a LookupRequest<'a>) -> Self {
        Self {
            client,
            request,
            begun: None,
        }
    }
}

impl Begun {
    fn new(core: &Core, client: ClientId, request: &LookupRequest<'_>) -> Result<Self, CoreError> {
        core.require_chunk_size()?;
        let (number, domain) = core.registry.find(&request.domain_seed)?;
        let shape = domain.shape(number, core.kept_frames_max(domain));
        Ok(Self {
            is_complete: domain.is_complete(),
            checked: 0,
            keeping: Keeping::new(client, request.label, shape.kept_frames_max, &core.tree),
            looking: lookup::Looking::new(&shape, request),
            shape,
        })
    }
}

impl Work for Looking<'_> {
    type Answer = LookupAnswer;

    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Progress<LookupAnswer>, CoreError> {
        core.client(self.client)?;
        let mut begun = match self.begun.take() {
            Some(begun) => begun,
            None => Begun::new(core, self.client, self.request)?,
        };
        let (request, mut meter) = (self.request, Meter::new(turn));
        for some in request.tails.all().chunks(CHECKED).skip(begun.checked) {
            if meter.is_over() {
                self.begun = Some(begun);
                return Ok(Progress::More);
            }
            meter.spend(CHECK);
            for tail in some {
                check_tail(tail, request, &begun.shape)?;
            }
            begun.checked += 1;
        }
        if begun.is_complete {
            let question = Question {
                reader: &core.index.reader(),
                shape: &begun.shape,
                request,
            };
            let mut pins = CountedPins {
                keeping: &mut begun.keeping,
                pins: &mut core.pins,
                tree: &mut core.tree,
            };
            if !begun.looking.step(&question, &mut pins, &mut meter)? {
                self.begun = Some(begun);
                return Ok(Progress::More);
            }
        }
        let shortened = begun.looking.is_shortened();
        let mut answer = begun.looking.into_answer();
        core.count_lookup(request, &begun.shape, answer.hit_tokens, shortened);
        if request.describe && begun.is_complete {
            answer.shape = Some(begun.shape);
        }
        Ok(Progress::Done(answer))
    }
}

impl Core {
    /// Counts a lookup that was answered with a prefix of so many tokens.
    fn count_lookup(
        &mut self,
        request: &LookupRequest<'_>,
        shape: &DomainShape,
        hit_tokens: u64,
        shortened: bool,
    ) {
        let requested = requested_units(request, shape);
        let hit = hit_tokens / shape.alignment;
        self.counters.shortened += u64::from(shortened);
        self.counters.lookups += 1;
        self.counters.requested += requested;
        self.counters.hit += hit;
        self.counters.miss += requested - hit;
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
