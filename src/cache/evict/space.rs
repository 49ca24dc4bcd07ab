//! Making space in turns: what goes first, and for how long.

use super::ends::{EndIncomplete, LaterParts};
use crate::cache::books::incomplete::{IncompleteKey, STALE_COMMITS};
use crate::cache::books::policy::Position;
use crate::cache::books::share::Need;
use crate::cache::steps::CONDEMN_STEPS;
use crate::cache::turn::Turn;
use crate::cache::{ClientId, Core, CoreError, SLABS};

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
/// Steps of setting a victim aside that a word pins.
const PARK_STEPS: u32 = 4;
/// Of one client's log at a time, so that all of them come up.
const TOUCHED_EACH: usize = 64;
/// What is being done to make space.
#[derive(Debug)]
enum Stage {
    /// Looks whether there is enough.
    Check,
    /// Looks for an incomplete object that is stale, client by client: behind this client's of that age.
    Stale { after: Option<(ClientId, u64)> },
    /// Ends an incomplete object; then goes on with the next client's, or looks again.
    End { ending: EndIncomplete, stale: bool },
    /// Reads what clients have touched: at this slab, after so many in a row that had nothing.
    Touched { slab: usize, quiet: usize, left: usize },
    /// Waits for a scan that says what is pinned.
    Scan { scan: u64 },
    /// Takes objects out of the index.
    Victims,
    /// Waits for the scan after that.
    Retire { scan: u64 },
    /// Looks for the oldest incomplete object of all, which may yet be completed.
    Fresh {
        after: Option<ClientId>,
        oldest: Option<(u64, IncompleteKey)>,
    },
    /// Nothing more can be had.
    Over,
}

/// Makes space, as far as it can be made: stale incomplete objects go first, then objects, then the other incomplete
/// objects, the oldest first. What the client stores under stays, and so do fresh incomplete objects of its own
/// engine: its other ranks are at them.
#[derive(Debug)]
pub(crate) struct Space {
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
    position: Position,
    /// Nothing was taken since the look began at the first place.
    in_vain: bool,
    /// Of the batch: objects and frames taken, and frames wanted.
    batch: (u64, u64),
    wanted: u64,
    /// Objects and frames taken in all.
    pub(crate) objects: u64,
    taken: u64,
}

impl Space {
    /// For so many frames that can be granted to a client.
    pub(crate) fn new(client: Option<ClientId>, frames: u64, need: Need) -> Self {
        Self {
            client,
            own_engine: None,
            frames,
            need,
            patient: true,
            stage: Stage::Check,
            seen: None,
            position: (0, 0),
            in_vain: true,
            batch: (0, 0),
            wanted: 0,
            objects: 0,
            taken: 0,
        }
    }

    /// For all the space there is: every object goes that was published until now and may go.
    pub(crate) fn all(core: &Core) -> Self {
        let need = Need::Ahead {
            published: core.publications,
        };
        Self {
            patient: false,
            ..Self::new(None, u64::MAX, need)
        }
    }

    /// Goes on until there is enough or nothing more can be had. False: the turn is over.
    pub(crate) fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<bool, CoreError> {
        loop {
            if turn.is_over() {
                return Ok(false);
            }
            match &mut self.stage {
                Stage::Check => {
                    turn.spend(1);
                    if !core.free_waste(turn)? {
                        return Ok(false);
                    }
                    if self.patient && core.is_growing() || core.pool.grantable() >= self.frames {
                        return Ok(true);
                    }
                    // Somebody else may take what becomes free, and readers may come to hold it. That does not go on
                    // for ever.
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
                    let (after, stale) = (ending.opened(), *stale);
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
                    match core.incomplete.next_of_clients(behind) {
                        Some((key, incomplete)) => {
                            let found = (incomplete.seq, *key);
                            *after = Some(incomplete.opened.0);
                            if self.own_engine != Some(key.instance) {
                                *oldest = Some(oldest.map_or(found, |oldest| oldest.min(found)));
                            }
                        }
                        None => {
                            let ending = oldest
                                .and_then(|(_, key)| EndIncomplete::new(core, &key, LaterParts::Refused));
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
        let Some((key, incomplete)) = core.incomplete.next_of_clients(after) else {
            self.stage = Stage::Touched {
                slab: core.touched_next,
                quiet: 0,
                left: TOUCHED,
            };
            return;
        };
        let (opener, stale) = (incomplete.opened.0, core.has_waited(incomplete, STALE_COMMITS));
        let guarded = self
            .client
            .is_some_and(|client| core.is_guarded(client, incomplete.record));
        let ending = match stale && !guarded {
            true => EndIncomplete::new(core, key, LaterParts::BeginAnew),
            false => None,
        };
        self.stage = match ending {
            Some(ending) => Stage::End { ending, stale: true },
            // Those behind one that is not stale are not either.
            None => Stage::Stale {
                after: Some((opener, if stale { incomplete.seq } else { u64::MAX })),
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
        let Some((rank, record)) = core.tree.victim_from(self.position) else {
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
            (self.position, self.in_vain) = ((0, 0), true);
            return Ok(());
        };
        // Met again only when something before it has come to be a leaf.
        self.position = (rank, record + 1);
        if self.seen.is_some_and(|scan| core.sweep.found(record, scan)) {
            core.tree.park(record);
            turn.spend(PARK_STEPS);
        } else if !core.stays(record, self.client, self.need)? {
            self.take(core, turn, record)?;
        }
        Ok(())
    }

    fn take(&mut self, core: &mut Core, turn: &mut Turn, record: u32) -> Result<(), CoreError> {
        let entry = core.tree.get(record);
        let (frames, parent) = (u64::from(entry.frames), entry.parent);
        turn.spend(CONDEMN_STEPS);
        core.condemn(record)?;
        self.batch = (self.batch.0 + 1, self.batch.1 + frames);
        self.objects += 1;
        self.taken += frames;
        self.in_vain = false;
        if let Some(position) = parent.and_then(|parent| core.tree.position_of(parent)) {
            self.position = self.position.min(position);
        }
        Ok(())
    }
}
