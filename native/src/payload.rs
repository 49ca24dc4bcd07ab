//! Stores and loads.

#![allow(unsafe_code)] // pointers go on to `input` and `output`, on the promise that the header's rules ask for
#![allow(clippy::missing_safety_doc)] // the rules stand once, at the header's top

use kvasir::client::{LoadRequest, ObjectId, StoreOutcome, StoreRequest};
use kvasir::wire::{MAX_ITEMS, MAX_MESSAGE_GROUPS};

use crate::failure::{Failure, Outcome, kvasir_code};
use crate::guard::call;
use crate::lookup::object_ids;
use crate::options::*;
use crate::output::{Place, Room};
use crate::values::*;
use crate::{input, table};

/// Most block ids of one list.
const BLOCKS_MAX: usize = 1 << 22;

/// Copies parts of objects out of KV memory into the pool and publishes them. outcomes gets a kvasir_outcome for each item. A
/// missing server or missing room is an outcome. After an error that names an argument nothing was stored; after
/// KVASIR_CODE_REFUSED what other messages of the call brought may be stored, and outcomes is not written. The blocks may be
/// used again when this returns. superseded names tails that are needless afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_store(
    client: kvasir_client,
    items: *const kvasir_store_item,
    item_count: usize,
    superseded: *const kvasir_object,
    superseded_count: usize,
    outcomes: *mut u32,
) -> kvasir_code {
    call(|| {
        let client = table::clients().find(client.id)?;
        // SAFETY: the header's rules, as in every function of this file.
        let room = unsafe { Room::new(outcomes, item_count, "outcomes") }?;
        // SAFETY: as above.
        let items = unsafe { input::read_structs(items, item_count, MAX_ITEMS, "items") }?;
        // SAFETY: as above.
        let requests = items
            .iter()
            .enumerate()
            .map(|item| unsafe { store_request(item) });
        let requests: Vec<StoreRequest> = requests.collect::<Outcome<_>>()?;
        // SAFETY: as above.
        let superseded = unsafe { object_ids(superseded, superseded_count, "superseded") }?;
        let stored = client.store(&requests, &superseded)?;
        room.check_all(stored.len())?;
        room.write(stored.into_iter().map(|outcome| outcome_of(outcome) as u32));
        Ok(())
    })
}

fn outcome_of(outcome: StoreOutcome) -> kvasir_outcome {
    match outcome {
        StoreOutcome::Published => kvasir_outcome::Published,
        StoreOutcome::PartAccepted => kvasir_outcome::PartAccepted,
        StoreOutcome::Exists => kvasir_outcome::Exists,
        StoreOutcome::NoParent => kvasir_outcome::NoParent,
        StoreOutcome::Skipped => kvasir_outcome::Skipped,
        StoreOutcome::Dropped => kvasir_outcome::Dropped,
        StoreOutcome::Unavailable => kvasir_outcome::Unavailable,
    }
}

unsafe fn store_request((index, given): (usize, &kvasir_store_item)) -> Outcome<StoreRequest> {
    input::check_flags(given.flags, KVASIR_STORE_SKIP, "items")?;
    let parent = match given.parent.is_null() {
        true => None,
        // SAFETY: the caller's promise, here and below.
        false => Some(input::key(&unsafe {
            input::value(given.parent, "items.parent")
        }?)),
    };
    let skipped = given.flags & KVASIR_STORE_SKIP != 0;
    if skipped && given.list_count != 0 {
        return Err(Failure::argument_of(
            &[index as u64, given.list_count as u64],
            format!("item {index} is skipped and has {} block lists", given.list_count),
        ));
    }
    Ok(StoreRequest {
        id: ObjectId {
            key: input::key(&given.key),
            group: given.group,
        },
        parent,
        part: given.part,
        tokens: given.tokens,
        blocks: match skipped {
            true => None,
            // SAFETY: as above.
            false => Some(unsafe { block_lists(given.lists, given.list_count) }?),
        },
    })
}

/// Copies one part of each object into KV memory. loaded gets 1 for each object whose bytes were its own to the end, and
/// otherwise 0: then its blocks hold anything. An object that is missing is a 0, as is
/// a missing server while the client is not readable; after an error the blocks may hold anything. What is loaded is pinned under the
/// label meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_load(
    client: kvasir_client,
    label: u64,
    part: u16,
    items: *const kvasir_load_item,
    item_count: usize,
    loaded: *mut u8,
) -> kvasir_code {
    call(|| {
        let client = table::clients().find(client.id)?;
        // SAFETY: the header's rules.
        let room = unsafe { Room::new(loaded, item_count, "loaded") }?;
        // SAFETY: as above.
        let items = unsafe { input::read_structs(items, item_count, MAX_ITEMS, "items") }?;
        // SAFETY: as above.
        let requests = items.iter().map(|item| unsafe { load_request(item) });
        let requests: Vec<LoadRequest> = requests.collect::<Outcome<_>>()?;
        let whole = client.load(label, part, &requests)?;
        room.check_all(whole.len())?;
        room.write(whole.into_iter().map(u8::from));
        Ok(())
    })
}

unsafe fn load_request(given: &kvasir_load_item) -> Outcome<LoadRequest> {
    input::check_flags(given.flags, 0, "items")?;
    input::check_reserved(given.reserved, "items")?;
    Ok(LoadRequest {
        id: ObjectId {
            key: input::key(&given.key),
            group: given.group,
        },
        tokens: given.tokens,
        // SAFETY: the caller's promise.
        blocks: unsafe { block_lists(given.lists, given.list_count) }?,
    })
}

unsafe fn block_lists(first: *const kvasir_block_list, count: usize) -> Outcome<Vec<Vec<i64>>> {
    // SAFETY: the caller's promise, here and below; any bytes are a list, and an id.
    let lists = unsafe { input::slice(first, count, MAX_MESSAGE_GROUPS, "items.lists") }?;
    let ids = |list: &kvasir_block_list| {
        // SAFETY: as above.
        let ids = unsafe { input::slice(list.ids, list.count, BLOCKS_MAX, "items.lists.ids") }?;
        Ok(ids.to_vec())
    };
    lists.iter().map(ids).collect()
}

/// Asks for pool space ahead of stores. held gets how many bytes are held now, which may be less.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_reserve(client: kvasir_client, bytes: u64, held: *mut u64) -> kvasir_code {
    call(|| {
        // SAFETY: the header's rules.
        let place = unsafe { Place::new(held, "held") }?;
        place.write(table::clients().find(client.id)?.reserve(bytes)?);
        Ok(())
    })
}

/// Gives the space that is held for stores back.
#[unsafe(no_mangle)]
pub extern "C" fn kvasir_give_back(client: kvasir_client) -> kvasir_code {
    call(|| Ok(table::clients().find(client.id)?.give_back()?))
}

/// Drops every object of the server that nobody reads. done is 0 where it could not be asked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_clear(client: kvasir_client, done: *mut u32) -> kvasir_code {
    call(|| {
        // SAFETY: the header's rules.
        let place = unsafe { Place::new(done, "done") }?;
        place.write(table::clients().find(client.id)?.clear()?.into());
        Ok(())
    })
}
