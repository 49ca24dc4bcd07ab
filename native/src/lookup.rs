//! Lookups and pins.

#![allow(unsafe_code)] // pointers go on to `input` and `output`, on the promise that the header's rules ask for
#![allow(clippy::missing_safety_doc)] // the rules stand once, at the header's top

use std::sync::RwLockReadGuard;

use kvasir::client::{
    Client, LookupAnswer, LookupRequest, ObjectId, Pin, Prompt, PromptTails, Tail, TailList, Tails, Ticket,
};
use kvasir::keys::ChunkKey;
use kvasir::wire::{MAX_ITEMS, MAX_KEYS};

use crate::failure::{Failure, Outcome, kvasir_code};
use crate::guard::call;
use crate::options::*;
use crate::output::{Place, Room, StructPlace};
use crate::table::{self, InUse};
use crate::values::*;
use crate::{chain, input};

/// Asks for the longest prefix that every object group can serve, and pins what it promises. Without a server the
/// answer comes from the memory that the last one shared, while the client is readable, and otherwise it is a miss that
/// has KVASIR_ANSWER_DEGRADED.
/// Where the answer does not fit nothing is pinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_lookup(
    client: kvasir_client,
    request: *const kvasir_lookup_request,
    answer: *mut kvasir_answer,
) -> kvasir_code {
    call(|| {
        // SAFETY: the header's rules, as in every function of this file.
        let place = unsafe { AnswerPlace::new(answer) }?;
        let client = table::clients().find(client.id)?;
        // SAFETY: as above.
        unsafe { asked(request, |request| place.fill(&client, client.lookup(request)?)) }
    })
}

/// Starts a lookup and never waits for the server. The ticket is for kvasir_lookup_poll or kvasir_lookup_cancel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_lookup_start(
    client: kvasir_client,
    request: *const kvasir_lookup_request,
    ticket: *mut u64,
) -> kvasir_code {
    call(|| {
        // SAFETY: the header's rules.
        let place = unsafe { Place::new(ticket, "ticket") }?;
        let client = table::clients().find(client.id)?;
        // SAFETY: as above.
        unsafe {
            asked(request, |request| {
                place.write(client.lookup_start(request)?.0);
                Ok(())
            })
        }
    })
}

/// The answer to a lookup that was started, waited for at most so long. ready is 1 when it is there, which ends the ticket, also
/// where the answer does not fit; then nothing is pinned. Otherwise ready is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_lookup_poll(
    client: kvasir_client,
    ticket: u64,
    wait_ms: u64,
    ready: *mut u32,
    answer: *mut kvasir_answer,
) -> kvasir_code {
    call(|| {
        // SAFETY: the header's rules.
        let ready = unsafe { Place::new(ready, "ready") }?;
        // SAFETY: as above.
        let place = unsafe { AnswerPlace::new(answer) }?;
        let client = table::clients().find(client.id)?;
        let wait = input::time(wait_ms, "wait_ms")?;
        let Some(found) = client.lookup_poll(Ticket(ticket), wait)? else {
            ready.write(0);
            return Ok(());
        };
        ready.write(1);
        place.fill(&client, found)
    })
}

/// Gives a lookup up. What it pinned, or will pin, is released. A ticket that has ended is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn kvasir_lookup_cancel(client: kvasir_client, ticket: u64) -> kvasir_code {
    call(|| {
        table::clients().find(client.id)?.lookup_cancel(Ticket(ticket));
        Ok(())
    })
}

/// Gives pins back. Those of earlier connections have ended with them and are ignored, as are pins whose id is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_release(
    client: kvasir_client,
    pins: *const kvasir_pin,
    pin_count: usize,
) -> kvasir_code {
    call(|| {
        let client = table::clients().find(client.id)?;
        // SAFETY: the header's rules; any bytes are a pin.
        let pins = unsafe { input::slice(pins, pin_count, MAX_ITEMS, "pins") }?;
        let pins: Vec<Pin> = pins
            .iter()
            .filter(|pin| pin.id != 0)
            .map(|pin| Pin {
                connection: pin.connection,
                id: pin.id,
            })
            .collect();
        Ok(client.release(&pins)?)
    })
}

/// Drops every pin that this client made under a label.
#[unsafe(no_mangle)]
pub extern "C" fn kvasir_release_label(client: kvasir_client, label: u64) -> kvasir_code {
    call(|| Ok(table::clients().find(client.id)?.release_label(label)?))
}

/// Reads a request and asks it.
unsafe fn asked(
    request: *const kvasir_lookup_request,
    ask: impl FnOnce(&LookupRequest<'_>) -> Outcome<()>,
) -> Outcome<()> {
    // SAFETY: the caller's promise, here and below.
    let given = unsafe { input::read_struct(request, "request") }?;
    input::check_flags(given.flags, KVASIR_LOOKUP_NO_PIN, "request")?;
    input::check_reserved(given.reserved, "request")?;
    let chain: InUse<_>;
    let prompt: RwLockReadGuard<'_, Prompt>;
    let listed: Vec<ChunkKey>;
    let tail_list: TailList;
    let prompt_tails: Option<PromptTails<'_>>;
    let (seed, keys, tails): (ChunkKey, &[ChunkKey], &dyn Tails) = if given.chain.id == 0 {
        if given.tail_step != 0 {
            return Err(Failure::argument_of(
                &[given.tail_step.into()],
                "request.tail_step is for a chain; without one the tails are listed",
            ));
        }
        // SAFETY: as above; any bytes are a key, and a tail.
        let (keys, tails) = unsafe {
            (
                input::slice(given.keys, given.key_count, MAX_KEYS, "request.keys")?,
                input::slice(given.tails, given.tail_count, MAX_KEYS, "request.tails")?,
            )
        };
        listed = keys.iter().map(input::key).collect();
        let tail = |tail: &kvasir_tail| Tail {
            key: input::key(&tail.key),
            chunk: tail.chunk,
            tokens: tail.tokens,
        };
        tail_list = TailList::new(tails.iter().map(tail).collect());
        (input::key(&given.seed), &listed, &tail_list)
    } else {
        if given.key_count != 0 || given.tail_count != 0 || given.seed != kvasir_key::default() {
            return Err(Failure::argument(
                "request has a chain and also a seed, keys or tails; leave those zero",
            ));
        }
        chain = table::chains().find(given.chain.id)?;
        prompt = chain::read(&chain)?;
        prompt_tails = prompt.tails(given.tail_step);
        tail_list = TailList::default();
        let tails: &dyn Tails = match &prompt_tails {
            Some(tails) => tails,
            None => &tail_list,
        };
        let seed = prompt.chain().parent_of(0);
        (
            seed.expect("chunk 0 has a key before it"),
            prompt.chain().keys(),
            tails,
        )
    };
    ask(&LookupRequest {
        domain_seed: seed,
        label: given.label,
        keys,
        tails,
        max_tokens: if given.max_tokens == 0 {
            u64::MAX
        } else {
            given.max_tokens
        },
        local_tokens: given.local_tokens,
        pin: given.flags & KVASIR_LOOKUP_NO_PIN == 0,
        describe: false,
    })
}

/// Where an answer goes.
struct AnswerPlace {
    place: StructPlace<kvasir_answer>,
    given: kvasir_answer,
    found: Room<kvasir_found>,
    present: Room<u64>,
}

impl AnswerPlace {
    /// Checks all of it before anything is asked.
    unsafe fn new(answer: *mut kvasir_answer) -> Outcome<Self> {
        // SAFETY: the caller's promise, here and below.
        unsafe {
            let place = StructPlace::new(answer, "answer")?;
            let given = input::read_struct(answer.cast_const(), "answer")?;
            Ok(Self {
                place,
                given,
                found: Room::new(given.found, given.found_capacity, "answer.found")?,
                present: Room::new(
                    given.present_tokens,
                    given.present_capacity,
                    "answer.present_tokens",
                )?,
            })
        }
    }

    /// Writes an answer. Where it does not fit its counts are written, and what it pinned is released.
    fn fill(&self, client: &Client, found: LookupAnswer) -> Outcome<()> {
        let fits = self
            .found
            .check(found.loads.len())
            .and_then(|()| self.present.check(found.present_tokens.len()));
        let mut answer = kvasir_answer {
            flags: 0,
            hit_tokens: 0,
            pin: kvasir_pin::default(),
            found_count: found.loads.len(),
            present_count: found.present_tokens.len(),
            ..self.given
        };
        if let Err(failure) = fits {
            self.place.write(&answer);
            // A pin that is unknown by now needs no release.
            let _ = client.release(found.pin.as_slice());
            return Err(failure);
        }
        if found.degraded {
            answer.flags |= KVASIR_ANSWER_DEGRADED;
        }
        if found.shortened {
            answer.flags |= KVASIR_ANSWER_SHORTENED;
        }
        answer.hit_tokens = found.hit_tokens;
        if let Some(pin) = found.pin {
            answer.pin = kvasir_pin {
                connection: pin.connection,
                id: pin.id,
            };
        }
        self.found.write(found.loads.iter().map(|load| kvasir_found {
            key: kvasir_key {
                bytes: *load.id.key.as_bytes(),
            },
            chunk: load.chunk,
            tokens: load.tokens,
            group: load.id.group,
            reserved: 0,
        }));
        self.present.write(found.present_tokens.iter().copied());
        self.place.write(&answer);
        Ok(())
    }
}

/// Per object whether the server has this part of it now: 1 or 0. For stores of what may be there already. Where the
/// server cannot be asked and the client is not readable, it has nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_present(
    client: kvasir_client,
    part: u16,
    objects: *const kvasir_object,
    object_count: usize,
    present: *mut u8,
) -> kvasir_code {
    call(|| {
        let client = table::clients().find(client.id)?;
        // SAFETY: the header's rules.
        let room = unsafe { Room::new(present, object_count, "present") }?;
        // SAFETY: as above.
        let ids = unsafe { object_ids(objects, object_count, "objects") }?;
        let found = client.present(part, ids)?;
        room.check_all(found.len())?;
        room.write(found.into_iter().map(u8::from));
        Ok(())
    })
}

/// # Safety
/// As [`input::slice`].
pub(crate) unsafe fn object_ids(
    first: *const kvasir_object,
    count: usize,
    what: &str,
) -> Outcome<Vec<ObjectId>> {
    // SAFETY: the caller's promise; any bytes are an object.
    let objects = unsafe { input::slice(first, count, MAX_ITEMS, what) }?;
    let id = |object: &kvasir_object| {
        input::check_reserved(object.reserved, what)?;
        Ok(ObjectId {
            key: input::key(&object.key),
            group: object.group,
        })
    };
    objects.iter().map(id).collect()
}
