//! Loading: pinned extents straight into KV pages, then the final check of the read protocol.

use std::ops::Range;
use std::sync::Arc;

#[cfg(feature = "cuda")]
use super::by_device;
use super::by_ring::{self, Incoming, in_rounds};
use super::request::{LoadRequest, check_path, part_of};
#[cfg(feature = "cuda")]
use crate::client::device::{pages::DevicePages, stage::Way};
use crate::client::extents::ExtentCursor;
use crate::client::link::core::Core;
#[cfg(feature = "cuda")]
use crate::client::link::held::{Claim, Mark};
use crate::client::link::ring::RingSide;
use crate::client::link::session::{PoolSide, Session};
use crate::client::link::stats::Stat;
use crate::client::link::wanted::Registered;
use crate::client::memory::{Holding, KvMemory, ObjectGroupPages};
use crate::client::{ClientError, Maps};
use crate::copy::{CopyEngine, SummedPlan};
use crate::keys::ChunkKey;
use crate::object::{ObjectId, PartLocation, RetrieveAnswer};
use crate::wire::{MAX_ITEMS, Request};

impl Core {
    /// See [`crate::client::Client::load`].
    pub(crate) fn load(
        self: &Arc<Self>,
        label: u64,
        part: u16,
        requests: &[LoadRequest],
    ) -> Result<Vec<bool>, ClientError> {
        self.check_process()?;
        let loaded = self.try_load(label, part, requests);
        if loaded.is_err() {
            self.count(Stat::FailedLoads, requests.len() as u64);
        }
        loaded
    }

    fn try_load(
        self: &Arc<Self>,
        label: u64,
        part: u16,
        requests: &[LoadRequest],
    ) -> Result<Vec<bool>, ClientError> {
        let memory = self.memory()?;
        let registered = self.registered_or_wanted()?;
        if requests.len() > MAX_ITEMS {
            return Err(ClientError::TooManyItems {
                given: requests.len(),
                limit: MAX_ITEMS,
            });
        }
        check_path(&memory, &registered)?;
        let mut holdings = Vec::with_capacity(requests.len());
        for (item, request) in requests.iter().enumerate() {
            let object = memory.group(request.id.group)?;
            let (holding, bytes) = part_of(&registered, request.id.group, u64::from(request.tokens))?;
            memory.check_blocks(item, object, holding, &request.blocks, true)?;
            if bytes.is_none() || object.part_bytes(holding) != bytes {
                return Err(ClientError::layout(format!(
                    "the pages of {} tokens of object group {} have {:?} bytes, registered are {bytes:?}",
                    request.tokens,
                    request.id.group,
                    object.part_bytes(holding)
                )));
            }
            holdings.push((holding, bytes.unwrap_or(0)));
        }
        let load = |at: Range<usize>| {
            let (requests, holdings) = (&requests[at.clone()], &holdings[at]);
            self.load_checked(label, part, requests, holdings, &memory, &registered)
        };
        let loaded = match self.config.maps {
            // In rounds, so that the server keeps few locations for it.
            Maps::Ring => in_rounds(requests.len(), load),
            _ => load(0..requests.len()).map(|loaded| (loaded, requests.len())),
        };
        let loaded = loaded.map(|(mut loaded, _)| {
            // What the server keeps no locations for now is not loaded.
            loaded.resize(requests.len(), false);
            loaded
        });
        let loaded = match loaded {
            Err(ClientError::Unavailable { .. }) => vec![false; requests.len()],
            loaded => loaded?,
        };
        let failed = loaded.iter().filter(|&&ok| !ok).count() as u64;
        let bytes = loaded
            .iter()
            .zip(&holdings)
            .filter(|(ok, _)| **ok)
            .map(|(_, part)| part.1)
            .sum();
        for (stat, count) in [
            (Stat::Loads, loaded.len() as u64 - failed),
            (Stat::LoadedBytes, bytes),
            (Stat::FailedLoads, failed),
        ] {
            if count > 0 {
                self.count(stat, count);
            }
        }
        Ok(loaded)
    }

    fn load_checked(
        self: &Arc<Self>,
        label: u64,
        part: u16,
        requests: &[LoadRequest],
        holdings: &[(Holding, u64)],
        memory: &KvMemory,
        registered: &Registered,
    ) -> Result<Vec<bool>, ClientError> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let ids = requests.iter().map(|request| request.id).collect();
        let (found, session) = self.retrieve(registered, label, part, ids)?;
        #[cfg(feature = "cuda")]
        if let Some(pages) = memory.device() {
            return self.load_by_device(pages, registered, &session, &found, requests, holdings, memory);
        }
        let sums = self.config.checksums;
        let engine = self.engine();
        let copied = match session.pool()?.ring() {
            Some(ring) => self.by_ring(&session, ring, &found, requests, holdings, memory),
            None => scatter(engine, &session, &found, requests, holdings, memory, sums),
        };
        let loaded = copied.map(|copied| self.verify(&session, &found, &copied));
        // Whatever became of the copy, the pin goes back.
        let loaded_now = loaded.as_deref().unwrap_or_default();
        let damage = discard(registered.seed, requests, &found, loaded_now);
        self.let_go(&session, found.pin, damage.as_ref());
        let loaded = loaded?;
        Ok(loaded.iter().map(|item| *item == Loaded::Whole).collect())
    }

    /// Brings what is there into device memory. The pin goes back after the copy has ended, which may be after this.
    #[cfg(feature = "cuda")]
    #[allow(clippy::too_many_arguments)]
    fn load_by_device(
        self: &Arc<Self>,
        pages: &Arc<DevicePages>,
        registered: &Registered,
        session: &Arc<Session>,
        found: &RetrieveAnswer,
        requests: &[LoadRequest],
        holdings: &[(Holding, u64)],
        memory: &KvMemory,
    ) -> Result<Vec<bool>, ClientError> {
        let brought = self.bring_by_device(pages, session, found, requests, holdings, memory);
        let (copied, mark) = match brought {
            Ok((copied, mark)) => (Ok(copied), mark),
            Err(error) => (Err(error), None),
        };
        let loaded = copied.map(|copied| self.verify(session, found, &copied));
        let loaded_now = loaded.as_deref().unwrap_or_default();
        let damage = discard(registered.seed, requests, found, loaded_now);
        let pin = match mark {
            Some(mark) => {
                self.hold(mark, Way::Load, pages, session, Claim::Pin(found.pin));
                0
            }
            None => found.pin,
        };
        self.let_go(session, pin, damage.as_ref());
        Ok(loaded?.iter().map(|item| *item == Loaded::Whole).collect())
    }

    #[cfg(feature = "cuda")]
    fn bring_by_device(
        self: &Arc<Self>,
        pages: &Arc<DevicePages>,
        session: &Arc<Session>,
        found: &RetrieveAnswer,
        requests: &[LoadRequest],
        holdings: &[(Holding, u64)],
        memory: &KvMemory,
    ) -> Result<(Vec<Copied>, Option<Mark>), ClientError> {
        let pool = session.pool()?;
        let mut parts = Vec::with_capacity(requests.len());
        let mut usable = vec![false; requests.len()];
        for (place, request) in requests.iter().enumerate() {
            let ((holding, bytes), location) = (holdings[place], &found.locations[place]);
            let object = memory.group(request.id.group)?;
            if is_usable(pool, found, location, request, object, bytes) {
                usable[place] = true;
                parts.push((object, holding, request, location));
            }
        }
        let stored: Vec<u64> = parts.iter().map(|(.., location)| location.checksum).collect();
        let brought = by_device::load(self, session, pages, &stored, |index, plan| {
            let (object, holding, request, location) = parts[index];
            let mut cursor = ExtentCursor::new(location.extents(&found.extents), pool.frame_bytes());
            memory.scatter(plan, object, holding, &request.blocks, &mut cursor);
        })?;
        let (mut checksums, mut stored) = (brought.checksums.into_iter(), stored.into_iter());
        let copied = usable.into_iter().map(|usable| {
            if !usable {
                return Copied::Nothing;
            }
            let checksum = checksums.next();
            let stored = stored.next().unwrap_or(0);
            // What has another sum was not copied, and is told for what it is.
            let differs = stored != 0 && checksum.is_some_and(|sum| sum != stored);
            match brought.copied || differs {
                true => Copied::All { checksum },
                false => Copied::Nothing,
            }
        });
        Ok((copied.collect(), brought.mark))
    }

    /// Brings what is there through the ring.
    fn by_ring(
        self: &Arc<Self>,
        session: &Arc<Session>,
        ring: &RingSide,
        found: &RetrieveAnswer,
        requests: &[LoadRequest],
        holdings: &[(Holding, u64)],
        memory: &KvMemory,
    ) -> Result<Vec<Copied>, ClientError> {
        let pool = session.pool()?;
        let mut parts = Vec::with_capacity(requests.len());
        let mut usable = vec![false; requests.len()];
        for (place, request) in requests.iter().enumerate() {
            let ((holding, bytes), location) = (holdings[place], &found.locations[place]);
            let object = memory.group(request.id.group)?;
            if is_usable(pool, found, location, request, object, bytes) {
                usable[place] = true;
                parts.push(Incoming {
                    object,
                    holding,
                    request,
                    bytes,
                    place: place as u32,
                });
            }
        }
        let mut checksums = by_ring::load(self, session, ring, memory, found.pin, &parts)?.into_iter();
        let copied = usable.into_iter().map(|usable| match usable {
            true => Copied::All {
                checksum: checksums.next(),
            },
            false => Copied::Nothing,
        });
        Ok(copied.collect())
    }

    /// The final check: what was copied counts only if nobody was given the frames meanwhile, and if it is what was stored.
    fn verify(&self, session: &Session, found: &RetrieveAnswer, copied: &[Copied]) -> Vec<Loaded> {
        let Ok(pool) = session.pool() else {
            return vec![Loaded::NotThere; copied.len()];
        };
        pool.fence_after_copy();
        let loaded = copied.iter().zip(&found.locations).map(|(copied, location)| {
            let Copied::All { checksum } = copied else {
                return Loaded::NotThere;
            };
            let first = location.extents(&found.extents).first();
            // First: bytes of another object are no sign of a fault.
            if !first.is_some_and(|first| pool.copy_was_whole(first.frame, location.incarnation)) {
                return Loaded::Stale;
            }
            match checksum {
                Some(checksum) if location.checksum != 0 && *checksum != location.checksum => Loaded::Corrupt,
                _ => Loaded::Whole,
            }
        });
        let loaded: Vec<Loaded> = loaded.collect();
        for (stat, kind) in [
            (Stat::StaleLoads, Loaded::Stale),
            (Stat::CorruptLoads, Loaded::Corrupt),
        ] {
            let count = loaded.iter().filter(|item| **item == kind).count() as u64;
            if count > 0 {
                self.count(stat, count);
            }
        }
        loaded
    }
}

/// What the copy of an item brought.
enum Copied {
    /// Nothing: it is not there, or not what was asked for.
    Nothing,
    /// All of it.
    All { checksum: Option<u64> },
}

/// What an item turned out to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loaded {
    Whole,
    NotThere,
    /// Its space was given to another object meanwhile.
    Stale,
    /// Its bytes are not those that were stored.
    Corrupt,
}

/// The request that takes corrupt objects out of the cache, so that they disappoint nobody else.
fn discard(
    domain_seed: ChunkKey,
    requests: &[LoadRequest],
    found: &RetrieveAnswer,
    loaded: &[Loaded],
) -> Option<Request> {
    let items = requests.iter().zip(&found.locations).zip(loaded);
    let objects: Vec<(ObjectId, u64)> = items
        .filter(|(_, loaded)| **loaded == Loaded::Corrupt)
        .map(|((request, location), _)| (request.id, location.incarnation))
        .collect();
    (!objects.is_empty()).then_some(Request::Discard { domain_seed, objects })
}

/// Copies what is there with one plan.
fn scatter(
    engine: CopyEngine,
    session: &Session,
    found: &RetrieveAnswer,
    requests: &[LoadRequest],
    holdings: &[(Holding, u64)],
    memory: &KvMemory,
    sums: bool,
) -> Result<Vec<Copied>, ClientError> {
    let pool = session.pool()?;
    let mut plan = SummedPlan::new();
    let mut usable = Vec::with_capacity(requests.len());
    for ((request, &(holding, bytes)), location) in requests.iter().zip(holdings).zip(&found.locations) {
        let object = memory.group(request.id.group)?;
        usable.push(is_usable(pool, found, location, request, object, bytes));
        if usable.last() == Some(&true) {
            let mut cursor = ExtentCursor::new(location.extents(&found.extents), pool.frame_bytes());
            memory.scatter(&mut plan, object, holding, &request.blocks, &mut cursor);
        }
    }
    let mut checksums = Vec::new();
    if sums {
        checksums = engine.execute_summed(&plan, pool.memory(), memory.regions())?;
    } else {
        engine.execute(&plan.unsummed(), pool.memory(), memory.regions())?;
    }
    let mut checksums = checksums.into_iter();
    let copied = usable.into_iter().map(|usable| match usable {
        true => Copied::All {
            checksum: checksums.next(),
        },
        false => Copied::Nothing,
    });
    Ok(copied.collect())
}

/// Whether a location is there, inside the pool, as long as this rank's part of that many tokens is, and holds all blocks
/// that are wanted of it.
fn is_usable(
    pool: &PoolSide,
    found: &RetrieveAnswer,
    location: &PartLocation,
    request: &LoadRequest,
    object: &ObjectGroupPages,
    bytes: u64,
) -> bool {
    let extents = location.extents(&found.extents);
    let room: u64 = extents
        .iter()
        .map(|extent| u64::from(extent.count) * pool.frame_bytes())
        .sum();
    location.incarnation != 0
        && location.tokens == request.tokens
        && location.bytes == bytes
        && room >= bytes
        && extents.iter().all(|extent| pool.holds(extent))
        && object.avoids_holes(&request.blocks, location.held_from.into())
}
