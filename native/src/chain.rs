//! The keys of a prompt.

#![allow(unsafe_code)] // pointers go on to `input` and `output`, on the promise that the header's rules ask for
#![allow(clippy::missing_safety_doc)] // the rules stand once, at the header's top

use std::sync::{RwLock, RwLockReadGuard, TryLockError};

use kvasir::client::{ClientError, Prompt};
use kvasir::keys::{Extras, KeyChain, MAX_FIELD_BYTES, MmItem};

use crate::failure::{Failure, Outcome, kvasir_code};
use crate::guard::call;
use crate::options::*;
use crate::output::{Place, Room};
use crate::values::*;
use crate::{input, table};

/// Most tokens of one prompt.
const TOKENS_MAX: usize = 1 << 28;
/// Most images and other inputs of one prompt.
const MM_ITEMS_MAX: usize = 1 << 16;

/// Makes the key chain of a prompt without tokens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_chain_new(
    options: *const kvasir_chain_options,
    chain: *mut kvasir_chain,
) -> kvasir_code {
    call(|| {
        // SAFETY: the header's rules, as in every function of this file.
        let place = unsafe { Place::new(chain, "chain") }?;
        // SAFETY: as above.
        let given = unsafe { input::read_struct(options, "options") }?;
        // SAFETY: as above.
        let extras = unsafe { extras(&given) }?;
        let chain =
            KeyChain::new(input::key(&given.seed), given.chunk_size, extras).map_err(ClientError::from)?;
        table::count_forks()?;
        let id = table::chains().add(RwLock::new(Prompt::new(chain)));
        place.write(kvasir_chain { id });
        Ok(())
    })
}

unsafe fn extras(given: &kvasir_chain_options) -> Outcome<Extras> {
    let (first, count) = (given.mm_items, given.mm_item_count);
    // SAFETY: the caller's promise, here and below; any bytes are an item.
    let items = unsafe { input::slice(first, count, MM_ITEMS_MAX, "options.mm_items") }?;
    let what = "options.mm_items.identifier";
    let item = |item: &kvasir_mm_item| {
        // SAFETY: as above.
        let identifier = unsafe { input::bytes(item.identifier, MAX_FIELD_BYTES, what) }?;
        Ok(MmItem {
            identifier: identifier.unwrap_or_default(),
            start: item.start,
            length: item.length,
        })
    };
    let mm_items = items.iter().map(item).collect::<Outcome<_>>()?;
    // SAFETY: as above.
    unsafe {
        Ok(Extras {
            mm_items,
            lora: input::bytes(given.lora, MAX_FIELD_BYTES, "options.lora")?,
            salt: input::bytes(given.salt, MAX_FIELD_BYTES, "options.salt")?,
        })
    }
}

/// Forgets a chain.
#[unsafe(no_mangle)]
pub extern "C" fn kvasir_chain_free(chain: kvasir_chain) -> kvasir_code {
    call(|| {
        // A call of another thread that still reads it ends before the last of it is dropped.
        table::chains().remove(chain.id)?.wait();
        Ok(())
    })
}

/// Appends tokens and computes the keys of the chunks that they complete. One thread at a time: while another one uses the
/// chain in any way the answer is KVASIR_CODE_BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_chain_extend(
    chain: kvasir_chain,
    tokens: *const u32,
    token_count: usize,
) -> kvasir_code {
    call(|| {
        let chain = table::chains().find(chain.id)?;
        let mut prompt = chain.try_write().map_err(|error| busy(&error))?;
        let held = prompt.chain().len_tokens();
        // SAFETY: the header's rules; any bytes are a token.
        let tokens =
            unsafe { input::slice(tokens, token_count, TOKENS_MAX - held.min(TOKENS_MAX), "tokens") }?;
        prompt.extend(tokens);
        Ok(())
    })
}

/// How many tokens and full chunks a chain has. Either pointer may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_chain_size(
    chain: kvasir_chain,
    tokens: *mut usize,
    chunks: *mut usize,
) -> kvasir_code {
    call(|| {
        let chain = table::chains().find(chain.id)?;
        let prompt = read(&chain)?;
        let counts = [
            (tokens, prompt.chain().len_tokens()),
            (chunks, prompt.chain().keys().len()),
        ];
        for (pointer, count) in counts {
            if !pointer.is_null() {
                // SAFETY: the header's rules.
                unsafe { Place::new(pointer, "a count") }?.write(count);
            }
        }
        Ok(())
    })
}

/// The keys of full chunks, from the first on as many as there is room for. Chunks that are not there are an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_chain_keys(
    chain: kvasir_chain,
    first: usize,
    count: usize,
    keys: *mut kvasir_key,
) -> kvasir_code {
    call(|| {
        let chain = table::chains().find(chain.id)?;
        // SAFETY: the header's rules.
        let room = unsafe { Room::new(keys, count, "keys") }?;
        let prompt = read(&chain)?;
        let all = prompt.chain().keys();
        let end = first.checked_add(count);
        let Some(found) = end.and_then(|end| all.get(first..end)) else {
            return Err(Failure::argument_of(
                &[first as u64, count as u64, all.len() as u64],
                format!("{count} chunks from {first} on, of {} full chunks", all.len()),
            ));
        };
        room.write(found.iter().map(|key| kvasir_key {
            bytes: *key.as_bytes(),
        }));
        Ok(())
    })
}

/// The key of the first tokens of a chunk, whether or not the chunk is full.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_chain_tail_key(
    chain: kvasir_chain,
    chunk: usize,
    tokens: u32,
    key: *mut kvasir_key,
) -> kvasir_code {
    call(|| {
        // SAFETY: the header's rules.
        let place = unsafe { Place::new(key, "key") }?;
        let chain = table::chains().find(chain.id)?;
        let prompt = read(&chain)?;
        let Some(key) = prompt.chain().tail_key_at(chunk, tokens) else {
            let held = prompt.chain().len_tokens();
            return Err(Failure::argument_of(
                &[tokens.into(), chunk as u64, held as u64],
                format!("{tokens} tokens of chunk {chunk}, of a chain with {held} tokens"),
            ));
        };
        place.write(kvasir_key {
            bytes: *key.as_bytes(),
        });
        Ok(())
    })
}

/// Reads a chain, unless another thread extends it.
pub(crate) fn read(chain: &RwLock<Prompt>) -> Outcome<RwLockReadGuard<'_, Prompt>> {
    chain.try_read().map_err(|error| busy(&error))
}

fn busy<T>(error: &TryLockError<T>) -> Failure {
    match error {
        TryLockError::WouldBlock => Failure::new(
            kvasir_code::Busy,
            &[],
            "another thread is using this chain; a chain is extended by one thread while no other one uses it",
        ),
        TryLockError::Poisoned(_) => Failure::new(
            kvasir_code::Internal,
            &[],
            "an earlier call failed in the middle of this chain; free it and make a new one",
        ),
    }
}
