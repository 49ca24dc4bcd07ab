//! One call for an engine that is like most.

#![allow(unsafe_code)] // pointers go on to `input` and `output`, on the promise that the header's rules ask for
#![allow(clippy::missing_safety_doc)] // the rules stand once, at the header's top

use kvasir::client::{ObjectGroupPages, ObjectKind, Rank};
use kvasir::wire::MAX_MESSAGE_GROUPS;

use crate::client::{domain_of, kind_of};
use crate::failure::{Failure, Outcome, kvasir_code};
use crate::guard::call;
use crate::memory::{Given, memory_of};
use crate::options::*;
use crate::output::Place;
use crate::values::*;
use crate::{input, table};

/// Negotiates, says where the pages lie and registers, with what follows from a rank: kvasir_negotiate, kvasir_set_memory and
/// kvasir_register in one call, for a rank that stores a part of its own. The same call again is the same again. A server
/// that is away is KVASIR_CODE_UNAVAILABLE: the engine computes without a cache, and calls again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_join(
    client: kvasir_client,
    rank: *const kvasir_rank,
    chunk_size: *mut u64,
    seed: *mut kvasir_key,
) -> kvasir_code {
    call(|| {
        // SAFETY: the header's rules, as in every function of this file.
        let places = unsafe { (Place::new(chunk_size, "chunk_size")?, Place::new(seed, "seed")?) };
        let client = table::clients().find(client.id)?;
        // SAFETY: as above.
        let joined = client.join(unsafe { rank_of(rank) }?)?;
        places.0.write(joined.chunk_tokens);
        places.1.write(kvasir_key {
            bytes: joined.seed.into(),
        });
        Ok(())
    })
}

unsafe fn rank_of(rank: *const kvasir_rank) -> Outcome<Rank> {
    // SAFETY: the caller's promise, here and below.
    let given = unsafe { input::read_struct(rank, "rank") }?;
    input::check_flags(given.flags, 0, "rank")?;
    let small = |number: u32, what: &str| {
        u16::try_from(number).map_err(|_| {
            let limit = u16::MAX;
            Failure::argument_of(
                &[number.into(), limit.into()],
                format!("rank.{what} is {number}, at most {limit} is allowed"),
            )
        })
    };
    // SAFETY: as above.
    let (memory, kinds) = unsafe {
        (
            memory_of(given.memory, "rank.memory")?,
            input::read_structs(given.groups, given.group_count, MAX_MESSAGE_GROUPS, "rank.groups")?,
        )
    };
    let Given {
        regions,
        groups,
        blocks,
    } = memory;
    Ok(Rank {
        // SAFETY: as above.
        domain: unsafe { domain_of(given.domain, "rank.domain") }?,
        rank: small(given.rank, "rank")?,
        world_size: small(given.world_size, "world_size")?,
        preferred_chunk: given.preferred_base,
        memory: regions,
        groups: with_kinds(groups, &kinds)?,
        blocks,
    })
}

/// The object groups of the memory, each with its kind.
fn with_kinds(
    groups: Vec<ObjectGroupPages>,
    kinds: &[kvasir_group],
) -> Outcome<Vec<(ObjectKind, ObjectGroupPages)>> {
    if kinds.len() != groups.len() {
        return Err(Failure::argument_of(
            &[kinds.len() as u64, groups.len() as u64],
            format!(
                "rank.groups has {} object groups and rank.memory has {}",
                kinds.len(),
                groups.len()
            ),
        ));
    }
    for kind in kinds {
        let follows = [kind.unit_bytes, kind.parts.into(), kind.part.into()];
        if follows != [0; 3] {
            let group = kind.group;
            let [unit_bytes, parts, part] = follows;
            return Err(Failure::argument_of(
                &[group.into(), unit_bytes, parts, part],
                format!(
                    "rank.groups: object group {group} has {unit_bytes} unit_bytes, {parts} parts and part {part}; they follow \
                     from the rank and the memory: leave them 0, or use kvasir_register"
                ),
            ));
        }
    }
    let with_kind = |pages: ObjectGroupPages| {
        let group = pages.group;
        let mut named = kinds.iter().filter(|kind| kind.group == group);
        match (named.next(), named.next()) {
            (Some(kind), None) => Ok((kind_of(kind, "rank.groups")?, pages)),
            (found, _) => Err(Failure::argument_of(
                &[group.into()],
                format!(
                    "rank.groups has object group {group} of rank.memory {}; name each once",
                    found.map_or("nowhere", |_| "twice")
                ),
            )),
        }
    };
    groups.into_iter().map(with_kind).collect()
}
