//! Lookups and retrieves without a message: the reader's side of the read protocol, up to its pins.
//!
//! Protocol: docs/shm-layout.md, "read".
//!
//! A reader finds what it wants, writes pin words, fences, and looks at every pinned record again. What is still there
//! then stays: whoever evicts either sees the pin or had taken the record out before. Of a full-attention group only the
//! deepest object is pinned, since what it hangs under goes after it.

use std::collections::HashSet;

use super::pins::{Kept, PinWords, Use};
use super::plan::{MAX_ROUNDS, Plan, settle_within};
use super::presence::{Limits, Load, Source};
use super::probe::{Found, Probed, probe};
use super::reader::IndexReader;
use super::record::RecordView;
use crate::geometry::ObjectKind;
use crate::object::{
    DomainShape, Extent, LoadItem, LookupAnswer, LookupRequest, PartLocation, RetrieveAnswer, RetrieveRequest,
};
use crate::pool::body;
use crate::shm::mapping::Access;

/// An answer, and what it adds to the client's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Direct {
    /// The answer.
    pub answer: LookupAnswer,
    /// Alignment units asked for.
    pub requested: u64,
    /// Of them, those that were hit.
    pub hit: u64,
    /// Less was promised than is there, since the client's pins keep as much as they may.
    pub shortened: bool,
}

/// An object that a lookup names belongs to another domain than the shape says: the domain was given up meanwhile and has
/// come back under another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherDomain;

/// The longest prefix that every object group can serve, as the server would answer it. `is_current` says whether the
/// server that the index belongs to still runs the pool; it is asked after the pins are written.
///
/// # Errors
/// [`OtherDomain`]: the shape has to be asked for again.
pub fn look_up<A: Access>(
    reader: &IndexReader<'_, A>,
    shape: &DomainShape,
    request: &LookupRequest<'_>,
    pins: &mut PinWords,
    is_current: impl Fn() -> bool,
) -> Result<Direct, OtherDomain> {
    let limits = Limits::of(request, shape);
    let mut found = Direct {
        requested: requested_units(request, shape),
        ..Direct::default()
    };
    let mut rounds = MAX_ROUNDS;
    while rounds > 0 {
        let probed = probe(reader, shape, request, &limits);
        if probed.other_domain {
            return Err(OtherDomain);
        }
        let (mut presence, anchors) = (probed.presence.clone(), &probed.anchors);
        found.answer.present_tokens.clone_from(&probed.covers);
        let find = |load: &Load| match load.source {
            Source::Chunk(at) if is_anchor(load, shape) => anchors.get(at as usize).copied(),
            _ => {
                let view = reader.lookup(&probed.id_of(load, shape, request))?;
                // Stored anew meanwhile it may have other holes than those that were planned with.
                let hole = (load.source, shape.groups[load.group].bit);
                let held_from = probed.presence.holes.get(&hole).copied().unwrap_or(0);
                let same = view.domain == shape.domain && view.held_from == held_from;
                same.then(|| Found::from(view))
            }
        };
        let fits = |plan: &Plan, loads: &[Found]| {
            let kept = match request.pin {
                true => kept_by(plan, loads, anchors, shape),
                false => Kept::new(),
            };
            pins.fits(&kept, shape.kept_frames_max).then_some(kept)
        };
        let (plan, loads, kept, shortened) =
            settle_within(&shape.groups, &mut presence, &limits, &mut rounds, find, fits);
        found.shortened |= shortened;
        if request.pin && !plan.loads.is_empty() {
            let held: Vec<usize> = held_by(&plan, shape).collect();
            let records: Vec<u32> = held.iter().map(|at| loads[*at].record).collect();
            let Some(pin) = pins.hold(request.label, &records, kept, Use::Promise) else {
                found.shortened = true;
                return Ok(found);
            };
            let still = |at: &usize| {
                let view = reader.view(loads[*at].record, &probed.id_of(&plan.loads[*at], shape, request));
                view.is_some_and(|view| view.incarnation == loads[*at].incarnation)
            };
            if !(is_current() && held.iter().all(still)) {
                pins.release(pin);
                continue;
            }
            found.answer.pin = pin;
            found.answer.loads = named(&plan, &probed, shape, request);
        }
        if request.pin {
            let records: Vec<u32> = loads.iter().map(|load| load.record).collect();
            pins.touch(&touched_by(&plan, &records, anchors, shape));
        }
        found.answer.hit_tokens = plan.hit_tokens;
        found.hit = plan.hit_tokens / shape.alignment;
        return Ok(found);
    }
    // What it found kept vanishing.
    Ok(found)
}

/// Pins objects for reading and says where one part of each lies, as the server would; what is not there has
/// incarnation 0. `domain` is the number that the domain's records carry, `kept_frames_max` how many frames all pins of the
/// client may keep. The second value tells that something was left out for what the client's pins keep already. Nothing
/// where pin words have run out.
pub fn retrieve<A: Access>(
    reader: &IndexReader<'_, A>,
    domain: u32,
    kept_frames_max: u64,
    request: &RetrieveRequest,
    pins: &mut PinWords,
    is_current: impl Fn() -> bool,
) -> Option<(RetrieveAnswer, bool)> {
    let (mut kept, mut seen, mut shortened) = (Kept::new(), HashSet::new(), false);
    let mut found: Vec<Option<Found>> = Vec::with_capacity(request.ids.len());
    let mut room = kept_frames_max.saturating_sub(pins.kept_frames());
    for id in &request.ids {
        let view = reader.lookup(id).filter(|view| view.domain == domain);
        found.push(view.map(Found::from).filter(|found| {
            if !seen.insert(found.record) {
                return true;
            }
            let more = if pins.is_kept(found.record) {
                0
            } else {
                found.frames
            };
            if more > room {
                seen.remove(&found.record);
                shortened = true;
                return false;
            }
            room -= more;
            kept.push((found.record, found.frames));
            true
        }));
    }
    let records: Vec<u32> = kept.iter().map(|(record, _)| *record).collect();
    let mut answer = RetrieveAnswer::default();
    if !records.is_empty() {
        answer.pin = pins.hold(request.label, &records, kept, Use::Copy)?;
    }
    let (mut words, is_current) = (Vec::new(), is_current());
    for (id, found) in request.ids.iter().zip(found) {
        let place = found.filter(|_| is_current).and_then(|found| {
            let view = reader.view(found.record, id)?;
            if view.incarnation != found.incarnation {
                return None;
            }
            part_location(reader, &view, request.part, &mut words, &mut answer.extents)
        });
        answer.locations.push(place.unwrap_or_default());
    }
    // The deepest first, so that what it hangs under is the more recent.
    pins.touch(&records.into_iter().rev().collect::<Vec<_>>());
    Some((answer, shortened))
}

/// Where a part of a live object lies; its runs are appended to `extents`. `words` is scratch.
pub(crate) fn part_location<A: Access>(
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

fn is_anchor(load: &Load, shape: &DomainShape) -> bool {
    shape.anchor == Some(shape.groups[load.group].group)
}

fn is_full(load: &Load, shape: &DomainShape) -> bool {
    shape.groups[load.group].kind == ObjectKind::Full
}

/// The loads that have to be pinned: of each full-attention group the deepest, of all others each.
fn held_by(plan: &Plan, shape: &DomainShape) -> impl Iterator<Item = usize> {
    let last = |at: usize| plan.loads.get(at + 1).map(|next| next.group) != Some(plan.loads[at].group);
    (0..plan.loads.len()).filter(move |&at| !is_full(&plan.loads[at], shape) || last(at))
}

/// What a pin of a plan keeps: its objects, and the chunks before that the anchor's objects hang under.
fn kept_by(plan: &Plan, loads: &[Found], anchors: &[Found], shape: &DomainShape) -> Kept {
    if plan.loads.is_empty() {
        return Kept::new();
    }
    let chunks = plan.hit_tokens.div_ceil(shape.chunk_size.into()) as usize;
    let chunks = &anchors[..chunks.min(anchors.len())];
    let in_chunks = |load: &Load| is_anchor(load, shape) && matches!(load.source, Source::Chunk(_));
    let others = plan.loads.iter().zip(loads);
    let others = others
        .filter(|(load, _)| !in_chunks(load))
        .map(|(_, found)| found);
    let all = chunks.iter().chain(others);
    all.map(|found| (found.record, found.frames)).collect()
}

/// The objects of a plan, as an answer names them.
fn named(plan: &Plan, probed: &Probed, shape: &DomainShape, request: &LookupRequest<'_>) -> Vec<LoadItem> {
    let item = |load: &Load| LoadItem {
        id: probed.id_of(load, shape, request),
        chunk: probed.chunk_of(load),
        tokens: probed.tokens_of(load, shape),
    };
    plan.loads.iter().map(item).collect()
}

/// The records that a hit uses, the least recent first: states and windows, then full attention from the end, so that
/// what hangs under something is never the more recent. The anchor's chunks too that need not be loaded.
fn touched_by(plan: &Plan, records: &[u32], anchors: &[Found], shape: &DomainShape) -> Vec<u32> {
    let chunks = (plan.hit_tokens / u64::from(shape.chunk_size)) as usize;
    let anchors = anchors.get(..chunks).unwrap_or(anchors);
    let among_anchors = |load: &Load| {
        is_anchor(load, shape) && matches!(load.source, Source::Chunk(at) if (at as usize) < anchors.len())
    };
    let loads = plan.loads.iter().zip(records);
    let loads = loads.filter(|(load, _)| !among_anchors(load));
    let (upper, lower): (Vec<_>, Vec<_>) = loads.partition(|(load, _)| is_full(load, shape));
    let loads = lower.into_iter().chain(upper.into_iter().rev());
    let anchors = anchors.iter().rev().map(|found| found.record);
    loads.map(|(_, record)| *record).chain(anchors).collect()
}

/// Alignment units that a request asks about.
pub(crate) fn requested_units(request: &LookupRequest<'_>, shape: &DomainShape) -> u64 {
    let chunks = request.keys.len() as u64 * u64::from(shape.chunk_size);
    let named = chunks.max(request.tails.end(shape.chunk_size));
    named.min(request.max_tokens) / shape.alignment
}
