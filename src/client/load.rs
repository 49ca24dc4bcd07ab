//! Loading: pinned extents straight into KV pages, then the final check of the read protocol.

use super::extents::ExtentCursor;
use super::layout::{Holding, KvMemory};
use super::session::{PoolSide, Session};
use super::stats::Stat;
use super::store::part_of;
use super::wanted::Registered;
use super::{Client, ClientError};
use crate::copy::{CopyEngine, CopyPlan};
use crate::wire::{MAX_ITEMS, ObjectId, PartPlace, Reply, Request, Retrieve, RetrieveReply};

/// One object to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadRequest {
    /// The object.
    pub id: ObjectId,
    /// Tokens of the whole object, as the lookup said.
    pub tokens: u32,
    /// Block ids in token order, one list per KV cache group of the object group. A list may end early, and null blocks
    /// are left alone.
    pub blocks: Vec<Vec<i64>>,
}

impl Client {
    /// Pins the objects under `session`, copies one part of each into KV memory, checks that the bytes were the object's
    /// to the end, and releases. Per item: whether all of it was. After a false the item's blocks hold anything.
    ///
    /// # Errors
    /// For a mistake in any item, and then nothing was copied. A missing server or object is a false.
    pub fn load(
        &self,
        session_label: u64,
        part: u16,
        requests: &[LoadRequest],
    ) -> Result<Vec<bool>, ClientError> {
        self.core.check_process()?;
        let loaded = self.load_what_is_right(session_label, part, requests);
        if loaded.is_err() {
            self.core.count(Stat::FailedLoads, requests.len() as u64);
        }
        loaded
    }

    fn load_what_is_right(
        &self,
        session_label: u64,
        part: u16,
        requests: &[LoadRequest],
    ) -> Result<Vec<bool>, ClientError> {
        let memory = self.core.memory()?;
        let registered = self.registered_or_wanted()?;
        if requests.len() > MAX_ITEMS {
            return Err(ClientError::TooManyItems {
                given: requests.len(),
                limit: MAX_ITEMS,
            });
        }
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
        let loaded = self.load_checked(session_label, part, requests, &holdings, &memory, &registered);
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
                self.core.count(stat, count);
            }
        }
        Ok(loaded)
    }

    fn load_checked(
        &self,
        session_label: u64,
        part: u16,
        requests: &[LoadRequest],
        holdings: &[(Holding, u64)],
        memory: &KvMemory,
        registered: &Registered,
    ) -> Result<Vec<bool>, ClientError> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let retrieve = Request::Retrieve(Retrieve {
            domain_seed: registered.seed,
            session: session_label,
            part,
            ids: requests.iter().map(|request| request.id).collect(),
        });
        let (reply, session) = self.core.call(None, &retrieve)?;
        let found = match reply {
            Reply::Retrieve(found) if found.places.len() == requests.len() => found,
            reply => return Err(self.core.distrust(&session, &reply)),
        };
        let copied = scatter(&session, &found, requests, holdings, memory);
        let loaded = copied.map(|planned| self.verify(&session, &found, &planned));
        // Whatever became of the copy, the pin goes back. Nobody needs to wait until it has.
        if found.pin != 0 {
            let deadline = self.core.deadline();
            if let Ok(mut link) = self.core.acquire(Some(&session), deadline) {
                let pins = vec![found.pin];
                link.post(&Request::Release { pins }, deadline);
            }
        }
        loaded
    }

    /// The final check: what was copied counts only if nobody was given the frames meanwhile.
    fn verify(&self, session: &Session, found: &RetrieveReply, planned: &[bool]) -> Vec<bool> {
        let Ok(pool) = session.pool() else {
            return vec![false; planned.len()];
        };
        pool.fence_after_copy();
        let mut stale = 0;
        let whole = planned.iter().zip(&found.places).map(|(&planned, place)| {
            let first = place.extents(&found.extents).first();
            let whole = first.is_some_and(|first| pool.copy_was_whole(first.frame, place.incarnation));
            stale += u64::from(planned && !whole);
            planned && whole
        });
        let whole = whole.collect();
        if stale > 0 {
            self.core.count(Stat::StaleLoads, stale);
        }
        whole
    }
}

/// Copies what is there with one plan and says which items that were.
fn scatter(
    session: &Session,
    found: &RetrieveReply,
    requests: &[LoadRequest],
    holdings: &[(Holding, u64)],
    memory: &KvMemory,
) -> Result<Vec<bool>, ClientError> {
    let pool = session.pool()?;
    let mut plan = CopyPlan::new();
    let mut planned = Vec::with_capacity(requests.len());
    for ((request, &(holding, bytes)), place) in requests.iter().zip(holdings).zip(&found.places) {
        let usable = is_usable(pool, found, place, request, bytes);
        if usable {
            let object = memory.group(request.id.group)?;
            let mut cursor = ExtentCursor::new(place.extents(&found.extents), pool.frame_bytes());
            memory.scatter(&mut plan, object, holding, &request.blocks, &mut cursor);
        }
        planned.push(usable);
    }
    CopyEngine::detect().execute(&plan, pool.memory(), memory.regions())?;
    Ok(planned)
}

/// Whether a place is there, inside the pool, and as long as this rank's part of that many tokens is.
fn is_usable(
    pool: &PoolSide,
    found: &RetrieveReply,
    place: &PartPlace,
    request: &LoadRequest,
    bytes: u64,
) -> bool {
    let extents = place.extents(&found.extents);
    let room: u64 = extents
        .iter()
        .map(|extent| u64::from(extent.count) * pool.frame_bytes())
        .sum();
    place.incarnation != 0
        && place.tokens == request.tokens
        && place.bytes == bytes
        && room >= bytes
        && extents.iter().all(|extent| pool.holds(extent))
}
