//! Making space: which objects and partials go, and how their frames become free.
//!
//! May import everything of this module. Protocol: docs/shm-layout.md, "evict".
//!
//! A batch takes leaves, and those that become leaves by it. A reader's pin that is seen before costs
//! nothing; one that is seen only after the object was taken out of the index keeps the object's frames, and
//! those of everything it hangs under, in limbo until the pin is gone. Between two turns nothing is halfway: what was taken out
//! waits in the core for the next scan of the pins, whoever makes it.

use super::SLABS;
use super::api::{ClientId, ObjectId};
use super::core::Core;
use super::ends::EndPartial;
use super::error::CoreError;
use super::partials::PartialKey;
use super::policy::Place;
use super::record::{COUNTER_BITS, WORD_KEY, WORD_META, WORD_SHAPE, key_of_words};
use super::turn::{Progress, Turn, Work, finish};
use crate::pool::{Extent, RecordState, count_frames};

/// Objects that a batch takes when it can: the fence and the scan of all slabs are paid once for them.
const BATCH: u64 = 64;
/// A batch that has freed this fraction of the pool is large enough with fewer objects.
const BATCH_FRACTION: u64 = 32;
/// Objects that a batch takes at most, so that the first of many become free before the last are taken out.
const BATCH_MAX: u64 = 4096;
/// Who has evicted twice what it needs and this fraction of the pool, and still does not have it, takes what there is.
const GIVE_UP_FRACTION: u64 = 8;
/// Entries of touched logs that are read before space is made. What is left is read the next time.
const TOUCHED: usize = 4096;
/// Of one client's log at a time, so that all of them come up.
const TOUCHED_EACH: usize = 64;
/// A partial is stale when the client that began it has committed this often since: its engine works in
/// step, so the missing ranks have passed it by.
pub(super) const STALE_COMMITS: u64 = 8;

/// Steps that it takes to take an object out of the index and out of the tree.
pub(super) const CONDEMN_STEPS: u32 = 6;
/// Steps that it takes to free an object, besides those for its frames and runs.
const FREE_STEPS: u32 = 6;
/// Frames whose words count as one step: two cache lines of owners, two of epochs.
const FRAMES_PER_STEP: u64 = 16;

/// Steps of changing the owner of so many frames in so many runs.
pub(super) fn frame_steps(runs: usize, frames: u64) -> u32 {
    runs as u32 + (frames / FRAMES_PER_STEP) as u32
}

/// Whether parts of an ended partial that have yet to come are turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Later {
    /// They begin the object anew.
    Welcome,
    /// They are turned away: the object would never be complete.
    TurnedAway,
    /// As before, and this part, which will not come, counts as having come.
    SkippedBy(u16),
}

/// What space is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Something that is to be stored.
    Now,
    /// Stores to come. They take nothing that may be what comes next hangs under: no object that was published after so
    /// many publications, and no partial that may yet be completed.
    Ahead {
        /// Publications before the commit that asks.
        published: u64,
    },
}

/// What is being done to make space.
#[derive(Debug)]
enum Stage {
    /// Looks whether there is enough.
    Check,
    /// Looks for a partial that is stale, client by client: behind this client's of that age.
    Stale { after: Option<(ClientId, u64)> },
    /// Ends a partial; then goes on with the next client's, or looks again.
    End { ending: EndPartial, stale: bool },
    /// Reads what clients have touched: at this slab, after so many in a row that had nothing.
    Touched { slab: usize, quiet: usize, left: usize },
    /// Waits for a scan that says what is pinned.
    Scan { scan: u64 },
    /// Takes objects out of the index.
    Victims,
    /// Waits for the scan after that.
    Retire { scan: u64 },
    /// Looks for the oldest partial of all, which may yet be completed.
    Fresh {
        after: Option<ClientId>,
        oldest: Option<(u64, PartialKey)>,
    },
    /// Nothing more can be had.
    Over,
}

/// Makes space, as far as it can be made: stale partials go first, then objects, then the other partials, the oldest
/// first. What the client stores under stays, and so do fresh partials of its own engine: its other ranks are at them.
#[derive(Debug)]
pub(super) struct Space {
    /// Who needs it, if anybody does.
    client: Option<ClientId>,
    own_engine: Option<[u8; 16]>,
    /// Frames that are to be free.
    frames: u64,
    need: Need,
    /// Whether nothing goes while the prefault will yet bring free frames.
    patient: bool,
    stage: Stage,
    /// The scan that says what is pinned.
    seen: Option<u64>,
    /// Where the next victim is looked for.
    place: Place,
    /// Nothing was taken since the look began at the first place.
    in_vain: bool,
    /// Of the batch: objects and frames taken, and frames wanted.
    batch: (u64, u64),
    wanted: u64,
    /// Objects and frames taken in all.
    pub(super) objects: u64,
    taken: u64,
}

impl Space {
    /// For so many frames that can be granted to a client.
    pub(super) fn new(client: Option<ClientId>, frames: u64, need: Need) -> Self {
        Self {
            client,
            own_engine: None,
            frames,
            need,
            patient: true,
            stage: Stage::Check,
            seen: None,
            place: (0, 0),
            in_vain: true,
            batch: (0, 0),
            wanted: 0,
            objects: 0,
            taken: 0,
        }
    }

    /// For all the space there is: every object goes that was published until now and may go.
    fn all(core: &Core) -> Self {
        let need = Need::Ahead {
            published: core.publications,
        };
        Self {
            patient: false,
            ..Self::new(None, u64::MAX, need)
        }
    }

    /// Goes on until there is enough or nothing more can be had. False: the turn is over.
    pub(super) fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<bool, CoreError> {
        loop {
            if turn.is_over() {
                return Ok(false);
            }
            match &mut self.stage {
                Stage::Check => {
                    turn.spend(1);
                    if self.patient && core.is_growing() || core.pool.grantable() >= self.frames {
                        return Ok(true);
                    }
                    // Somebody else may take what becomes free, and readers may come to hold it. That does not go on for ever.
                    let some = u64::from(core.pool.frames()) / GIVE_UP_FRACTION;
                    let most = self.frames.saturating_mul(2).saturating_add(some);
                    if self.patient && self.taken >= most {
                        return Ok(true);
                    }
                    let own = self.client.and_then(|client| core.client(client).ok());
                    self.own_engine = own.map(|own| own.info.engine_instance);
                    self.stage = match self.seen {
                        None => Stage::Stale { after: None },
                        Some(_) => self.begin_batch(core),
                    };
                }
                Stage::Stale { after } => {
                    let after = *after;
                    self.stale(core, turn, after);
                }
                Stage::End { ending, stale } => {
                    let (after, stale) = (ending.place(), *stale);
                    if !ending.step(core, turn)? {
                        return Ok(false);
                    }
                    self.stage = match stale && core.pool.grantable() < self.frames {
                        // There may be more of the same client's.
                        true => Stage::Stale { after: Some(after) },
                        false => Stage::Check,
                    };
                }
                Stage::Touched { slab, quiet, left } => {
                    let read = core.read_touched(turn, *slab, (*left).min(TOUCHED_EACH));
                    *slab = (*slab + 1) % SLABS;
                    *left -= read;
                    *quiet = if read == 0 { *quiet + 1 } else { 0 };
                    if *left == 0 || *quiet >= SLABS {
                        core.touched_next = *slab;
                        self.stage = Stage::Scan {
                            scan: core.sweep.next(),
                        };
                    }
                }
                Stage::Scan { scan } | Stage::Retire { scan } => {
                    let scan = *scan;
                    if !core.sweep(turn, scan)? {
                        return Ok(false);
                    }
                    self.seen = Some(scan);
                    self.stage = Stage::Check;
                }
                Stage::Victims => self.victim(core, turn)?,
                Stage::Over => return Ok(true),
                Stage::Fresh { after, oldest } => {
                    turn.spend(1);
                    let behind = after.map(|client| (client, u64::MAX));
                    match core.partials.next_of_clients(behind) {
                        Some((key, partial)) => {
                            let found = (partial.seq, *key);
                            *after = Some(partial.opened.0);
                            if self.own_engine != Some(key.instance) {
                                *oldest = Some(oldest.map_or(found, |oldest| oldest.min(found)));
                            }
                        }
                        None => {
                            let ending =
                                oldest.and_then(|(_, key)| EndPartial::new(core, &key, Later::TurnedAway));
                            let Some(ending) = ending else {
                                return Ok(true);
                            };
                            self.stage = Stage::End { ending, stale: false };
                        }
                    }
                }
            }
        }
    }

    fn stale(&mut self, core: &Core, turn: &mut Turn, after: Option<(ClientId, u64)>) {
        turn.spend(1);
        let Some((key, partial)) = core.partials.next_of_clients(after) else {
            self.stage = Stage::Touched {
                slab: core.touched_next,
                quiet: 0,
                left: TOUCHED,
            };
            return;
        };
        let (opener, stale) = (partial.opened.0, core.has_waited(partial, STALE_COMMITS));
        let guarded = self
            .client
            .is_some_and(|client| core.is_guarded(client, partial.record));
        let ending = match stale && !guarded {
            true => EndPartial::new(core, key, Later::Welcome),
            false => None,
        };
        self.stage = match ending {
            Some(ending) => Stage::End { ending, stale: true },
            // Those behind one that is not stale are not either.
            None => Stage::Stale {
                after: Some((opener, if stale { partial.seq } else { u64::MAX })),
            },
        };
    }

    fn begin_batch(&mut self, core: &Core) -> Stage {
        self.batch = (0, 0);
        self.wanted = self.frames.saturating_sub(core.pool.grantable());
        Stage::Victims
    }

    fn victim(&mut self, core: &mut Core, turn: &mut Turn) -> Result<(), CoreError> {
        turn.spend(1);
        let enough = (u64::from(core.pool.frames()) / BATCH_FRACTION).max(1);
        let (objects, frames) = self.batch;
        let more = frames < self.wanted || objects < BATCH && frames < enough;
        let retire = Stage::Retire {
            scan: core.sweep.next(),
        };
        if !more || objects >= BATCH_MAX {
            self.stage = retire;
            return Ok(());
        }
        let Some((rank, record)) = core.records.victim_from(self.place) else {
            self.stage = match objects {
                0 if self.in_vain => match self.need {
                    Need::Now => Stage::Fresh {
                        after: None,
                        oldest: None,
                    },
                    Need::Ahead { .. } => Stage::Over,
                },
                // What has become free meanwhile may be all that others hung under.
                0 => Stage::Victims,
                _ => retire,
            };
            (self.place, self.in_vain) = ((0, 0), true);
            return Ok(());
        };
        // Met again only when something before it has come to be a leaf.
        self.place = (rank, record + 1);
        if self.seen.is_some_and(|scan| core.sweep.found(record, scan)) {
            core.records.park(record);
            turn.spend(1);
        } else if !core.stays(record, self.client, self.need)? {
            self.take(core, turn, record)?;
        }
        Ok(())
    }

    fn take(&mut self, core: &mut Core, turn: &mut Turn, record: u32) -> Result<(), CoreError> {
        let entry = core.records.get(record);
        let (frames, parent) = (u64::from(entry.frames), entry.parent);
        turn.spend(CONDEMN_STEPS);
        core.condemn(record)?;
        self.batch = (self.batch.0 + 1, self.batch.1 + frames);
        self.objects += 1;
        self.taken += frames;
        self.in_vain = false;
        if let Some(place) = parent.and_then(|parent| core.records.place_of(parent)) {
            self.place = self.place.min(place);
        }
        Ok(())
    }
}

/// [`Core::clear`] in turns.
#[derive(Debug)]
pub struct Clear {
    /// The youngest partial that goes.
    youngest: u64,
    ending: Option<EndPartial>,
    space: Option<Space>,
}

impl Clear {
    /// What is there now goes.
    pub fn new(core: &Core) -> Self {
        Self {
            youngest: core.partials.last_seq(),
            ending: None,
            space: None,
        }
    }
}

impl Work for Clear {
    type Answer = u64;

    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Progress<u64>, CoreError> {
        loop {
            if let Some(ending) = &mut self.ending {
                if !ending.step(core, turn)? {
                    return Ok(Progress::More);
                }
                self.ending = None;
            }
            if let Some(space) = &mut self.space {
                let done = space.step(core, turn)?;
                return Ok(match done {
                    true => Progress::Done(space.objects),
                    false => Progress::More,
                });
            }
            // The youngest first, so that most have nothing under them.
            let next = core.partials.youngest(self.youngest);
            match next.and_then(|(key, _)| EndPartial::new(core, key, Later::TurnedAway)) {
                Some(ending) => self.ending = Some(ending),
                None => self.space = Some(Space::all(core)),
            }
        }
    }
}

impl Core {
    /// Whether a record that may go does not go for this need of a client.
    fn stays(&self, record: u32, client: Option<ClientId>, need: Need) -> Result<bool, CoreError> {
        if client.is_some_and(|client| self.is_guarded(client, record)) {
            return Ok(true);
        }
        let Need::Ahead { published } = need else {
            return Ok(false);
        };
        let incarnation = self.pool.directory.shared_words(record)?[WORD_META];
        Ok(incarnation > self.boot_seq << COUNTER_BITS | published)
    }

    /// Reads a little of what a client has touched. How many entries.
    fn read_touched(&mut self, turn: &mut Turn, slab: usize, most: usize) -> usize {
        let records = &mut self.records;
        let total = self.pool.frames();
        let read = self
            .slabs
            .read_touched(slab, total, most, |record| records.touch(record));
        turn.spend(u32::from(self.slabs.is_open(slab)) + read as u32);
        read
    }

    /// Evicts one record at once.
    #[cfg(test)]
    pub(super) fn evict_one(&mut self, record: u32) -> Result<(), CoreError> {
        self.condemn(record)?;
        self.sweep_now()
    }

    /// Takes an object out of the index and out of the tree. Whether its frames become free is decided by the next scan.
    pub(super) fn condemn(&mut self, record: u32) -> Result<(), CoreError> {
        let id = self.id_of(record)?;
        self.move_children_up(record, &id)?;
        let parent = self.records.get(record).parent;
        let chunk_before = self.records.chunk_before(record);
        self.index.kill(record, &id);
        self.records.enter_limbo(record);
        self.pool.directory.set_state(record, RecordState::Limbo);
        self.show_children(parent);
        self.show_children(chunk_before);
        self.records.attach(record, None);
        self.sweep.condemn(record, parent);
        self.counters.evicted_objects += 1;
        Ok(())
    }

    /// Has the index say what hangs beside a record, and which tails of the next chunk are there.
    pub(super) fn show_children(&self, record: Option<u32>) {
        if let Some(record) = record {
            let entry = self.records.get(record);
            self.index
                .set_children(record, entry.frames, entry.groups, entry.tails);
        }
    }

    /// Of a superseded tail: hangs the states and windows of its key under its parent.
    fn move_children_up(&mut self, record: u32, id: &ObjectId) -> Result<(), CoreError> {
        let entry = *self.records.get(record);
        let mut below = entry.groups.below;
        while below != 0 {
            let bit = below & below.wrapping_neg();
            below &= !bit;
            let child = self.registry.get(entry.domain).and_then(|domain| {
                let group = domain.group_of_bit(bit)?.group;
                let id = ObjectId { group, ..*id };
                self.index.reader().probe(&id)
            });
            let child = child.ok_or(CoreError::Broken {
                what: "a record names a child that is not in the index",
                a: record.into(),
                b: bit.into(),
            })?;
            self.records.move_up(child, entry.parent);
            let parent = entry.parent.map(|p| self.parent_words(p)).transpose()?;
            self.pool.directory.set_parent(child, parent)?;
        }
        Ok(())
    }

    /// Frees the frames of an object that is out of the index and that nobody reads.
    pub(super) fn free_object(&mut self, turn: &mut Turn, record: u32) -> Result<(), CoreError> {
        let (parts, blocks) = self.pool.directory.body(record)?;
        let extents: Vec<Extent> = parts
            .iter()
            .flat_map(|part| part.extents.iter().copied())
            .collect();
        turn.spend(FREE_STEPS + frame_steps(2 * extents.len(), count_frames(&extents)) + blocks.len() as u32);
        self.pool.epochs.set(&extents, 0);
        self.pool.directory.set_state(record, RecordState::Free);
        let freed = self.pool.free_used(&extents);
        for block in blocks {
            self.chains.put(block);
        }
        self.close_record(record);
        Ok(freed?)
    }

    /// Drops every unpinned object and all partials. Returns how many objects went.
    ///
    /// # Errors
    /// [`CoreError::Pool`] when the books are wrong.
    pub fn clear(&mut self) -> Result<u64, CoreError> {
        let work = Clear::new(self);
        finish(self, work)
    }

    pub(super) fn close_record(&mut self, record: u32) {
        let domain = self.records.get(record).domain;
        self.records.close(record);
        self.registry.record_closed(domain);
    }

    /// The object that a record holds.
    pub(super) fn id_of(&self, record: u32) -> Result<ObjectId, CoreError> {
        let words = self.pool.directory.shared_words(record)?;
        let mut key = [0; 4];
        key.copy_from_slice(&words[WORD_KEY..WORD_SHAPE]);
        Ok(ObjectId {
            key: key_of_words(key),
            group: words[WORD_SHAPE] as u16,
        })
    }

    /// What a directory record says of its parent.
    pub(super) fn parent_words(&self, parent: u32) -> Result<(u32, [u64; 4]), CoreError> {
        let words = self.pool.directory.shared_words(parent)?;
        let mut key = [0; 4];
        key.copy_from_slice(&words[WORD_KEY..WORD_SHAPE]);
        Ok((parent, key))
    }
}
