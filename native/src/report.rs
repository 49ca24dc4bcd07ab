//! What the library, a client and its server say of themselves, and what engines count for the server's status.

#![allow(unsafe_code)] // pointers go on to `output`, on the promise that the header's rules ask for
#![allow(clippy::missing_safety_doc)] // the rules stand once, at the header's top

use std::ffi::{CStr, CString, c_char};

use kvasir::client::{Counter, Health, MAX_WAIT, ReuseCounters};
use kvasir::control::ABI_VERSION;
use kvasir::copy::CopyEngine;
use kvasir::index::conditions::{Condition, Conditions};
use kvasir::shm::first::FirstMade;
use kvasir::wire::{MAX_DOMAIN_FIELD_BYTES, MAX_ITEMS, MAX_KEYS, MAX_MESSAGE_GROUPS, PROTOCOL_VERSION};

use crate::failure::{self, Failure, Outcome, kvasir_code};
use crate::guard::call;
use crate::options::*;
use crate::output::{self, StructPlace};
use crate::values::*;
use crate::{input, table};

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version has no zero byte"),
};

/// The version of this interface that the library has: KVASIR_ABI_VERSION of its header.
#[unsafe(no_mangle)]
pub extern "C" fn kvasir_abi_version() -> u32 {
    KVASIR_ABI_VERSION
}

/// What this library is and can do. Needs no server. KVASIR_CODE_INVALID_ARGUMENT where the environment's KVASIR_COPY_PATH names a
/// copy that this machine does not have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_get_capabilities(capabilities: *mut kvasir_capabilities) -> kvasir_code {
    call(|| {
        // SAFETY: the header's rules, as in every function of this file.
        let place = unsafe { StructPlace::new(capabilities, "capabilities") }?;
        CopyEngine::check_named().map_err(|error| Failure::argument_of(&[], error.to_string()))?;
        static COPY_PATH: FirstMade<CString> = FirstMade::new();
        let copy_path = COPY_PATH.get_or_make(|| {
            let name = CopyEngine::detect().path().to_string();
            CString::new(name).unwrap_or_default()
        });
        place.write(&kvasir_capabilities {
            struct_size: 0,
            abi_version: KVASIR_ABI_VERSION,
            protocol_version: PROTOCOL_VERSION,
            memory_version: ABI_VERSION,
            items_max: MAX_ITEMS as u64,
            keys_max: MAX_KEYS as u64,
            groups_max: MAX_MESSAGE_GROUPS as u64,
            domain_field_bytes_max: MAX_DOMAIN_FIELD_BYTES as u64,
            wait_ms_max: MAX_WAIT.as_millis() as u64,
            copy_path: copy_path.as_ptr(),
            version: VERSION.as_ptr(),
        });
        Ok(())
    })
}

/// Why the last failing call of this thread failed. Itself it changes nothing of that, unless its argument is wrong.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_last_error(error: *mut kvasir_error) -> kvasir_code {
    call(|| {
        // SAFETY: the header's rules.
        let place = unsafe { StructPlace::new(error, "error") }?;
        let mut answer = kvasir_error {
            struct_size: 0,
            code: kvasir_code::Ok as i32,
            server_code: -1,
            number_count: 0,
            numbers: [0; 8],
            kind: c"".as_ptr(),
            message: c"".as_ptr(),
        };
        failure::with_last(|last| {
            let Some(last) = last else { return };
            answer.code = last.code as i32;
            answer.server_code = last.server_code;
            for (place, number) in answer.numbers.iter_mut().zip(&last.numbers) {
                *place = *number;
                answer.number_count += 1;
            }
            answer.kind = last.kind.as_ptr();
            answer.message = last.message.as_ptr();
        });
        place.write(&answer);
        Ok(())
    })
}

/// The message of kvasir_last_error. Never NULL; empty where no call of this thread has failed.
#[unsafe(no_mangle)]
pub extern "C" fn kvasir_last_error_message() -> *const c_char {
    let mut message = c"".as_ptr();
    call(|| {
        failure::with_last(|last| {
            if let Some(last) = last {
                message = last.message.as_ptr();
            }
        });
        Ok(())
    });
    message
}

/// How the client stands with its server. No message is sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_get_health(client: kvasir_client, health: *mut kvasir_health) -> kvasir_code {
    call(|| {
        // SAFETY: the header's rules.
        let place = unsafe { StructPlace::new(health, "health") }?;
        let client = table::clients().find(client.id)?;
        let server = match client.server_health() {
            None => kvasir_server_health::None,
            Some(Health::Starting) => kvasir_server_health::Starting,
            Some(Health::Serving) => kvasir_server_health::Serving,
            Some(Health::Draining) => kvasir_server_health::Draining,
            Some(Health::Stopped) => kvasir_server_health::Stopped,
        };
        let seed = client.domain_seed().map_or([0; 32], Into::into);
        place.write(&kvasir_health {
            struct_size: 0,
            healthy: client.is_healthy().into(),
            readable: client.is_readable().into(),
            server: server as u32,
            chunk_size: client.chunk_size().unwrap_or(0),
            boot_id: client.boot_id().unwrap_or_default(),
            seed: kvasir_key { bytes: seed },
        });
        Ok(())
    })
}

/// "healthy", or why not and what happens next.
///
/// length gets the length of the text, without the zero byte at its end. Where that does not fit the capacity the answer is
/// KVASIR_CODE_BUFFER_TOO_SMALL. A buffer of NULL with a capacity of 0 asks for the length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_state_text(
    client: kvasir_client,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> kvasir_code {
    call(|| {
        let client = table::clients().find(client.id)?;
        // SAFETY: the header's rules.
        unsafe { output::text(buffer, capacity, length, || Ok(client.state_text())) }
    })
}

/// The server's status document, as `kvasir status --json` prints it. For the buffer see kvasir_state_text. Each call asks the
/// server, and the text may have grown when it is asked again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_status_json(
    client: kvasir_client,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> kvasir_code {
    call(|| {
        let client = table::clients().find(client.id)?;
        // SAFETY: the header's rules.
        unsafe { output::text(buffer, capacity, length, || Ok(client.status()?)) }
    })
}

/// What this client did so far, over all its connections.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_get_stats(client: kvasir_client, stats: *mut kvasir_stats) -> kvasir_code {
    call(|| {
        // SAFETY: the header's rules.
        let place = unsafe { StructPlace::new(stats, "stats") }?;
        let stats = table::clients().find(client.id)?.stats();
        place.write(&kvasir_stats {
            struct_size: 0,
            reserved: 0,
            lookups: stats.lookups,
            direct_lookups: stats.direct_lookups,
            degraded_lookups: stats.degraded_lookups,
            loads: stats.loads,
            loaded_bytes: stats.loaded_bytes,
            failed_loads: stats.failed_loads,
            stale_loads: stats.stale_loads,
            corrupt_loads: stats.corrupt_loads,
            stores: stats.stores,
            stored_bytes: stats.stored_bytes,
            dropped_stores: stats.dropped_stores,
            reconnects: stats.reconnects,
            degraded_ms: stats.degraded_ms,
            evicted_pins: stats.evicted_pins,
            granted_bytes: stats.granted_bytes,
            populated_bytes: stats.populated_bytes,
            unpopulated_bytes: stats.unpopulated_bytes,
            new_bytes: stats.new_bytes,
        });
        Ok(())
    })
}

/// The server's counters. No message is sent; several of them may not add up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_get_counters(
    client: kvasir_client,
    counters: *mut kvasir_counters,
) -> kvasir_code {
    call(|| {
        // SAFETY: the header's rules.
        let place = unsafe { StructPlace::new(counters, "counters") }?;
        let client = table::clients().find(client.id)?;
        let read = client.read_control(|control| {
            [
                Counter::StoredObjects,
                Counter::EvictedObjects,
                Counter::DroppedStores,
                Counter::PoolBytesTotal,
                Counter::Prefaulted,
                Counter::Used,
                Counter::Granted,
                Counter::Pinned,
                Counter::Quarantined,
            ]
            .map(|counter| control.counter(counter))
        });
        let [
            stored,
            evicted,
            dropped,
            pool,
            prefaulted,
            used,
            granted,
            pinned,
            quarantined,
        ] = read.unwrap_or_default();
        place.write(&kvasir_counters {
            struct_size: 0,
            connected: read.is_some().into(),
            stored_objects: stored,
            evicted_objects: evicted,
            dropped_stores: dropped,
            pool_bytes: pool,
            prefaulted_bytes: prefaulted,
            used_bytes: used,
            granted_bytes: granted,
            pinned_bytes: pinned,
            quarantined_bytes: quarantined,
        });
        Ok(())
    })
}

/// Counts tokens of requests that the engine took up or whose loads ended, on top of what was counted before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_count_reuse(
    client: kvasir_client,
    tokens: *const kvasir_reuse,
) -> kvasir_code {
    call(|| {
        let client = table::clients().find(client.id)?;
        // SAFETY: the header's rules.
        let given = unsafe { input::read_struct(tokens, "tokens") }?;
        input::check_reserved(given.reserved, "tokens")?;
        client.count_reuse(ReuseCounters {
            requests: given.requests,
            asked: given.asked,
            held: given.held,
            hit: given.hit,
            preempted_asked: given.preempted_asked,
            preempted_hit: given.preempted_hit,
            loaded: given.loaded,
            failed: given.failed,
        });
        Ok(())
    })
}

/// Counts loads that were given up before any object was named.
#[unsafe(no_mangle)]
pub extern "C" fn kvasir_count_failed_loads(client: kvasir_client, loads: u64) -> kvasir_code {
    call(|| {
        table::clients().find(client.id)?.count_failed_loads(loads);
        Ok(())
    })
}

/// Counts bytes of KV that the engine has computed for the first time and that may be stored.
#[unsafe(no_mangle)]
pub extern "C" fn kvasir_count_new_kv(client: kvasir_client, bytes: u64) -> kvasir_code {
    call(|| {
        table::clients().find(client.id)?.count_new_kv(bytes);
        Ok(())
    })
}

/// Says what keeps the engine from caching, in place of what was said before: bits of kvasir_condition. Status shows it.
#[unsafe(no_mangle)]
pub extern "C" fn kvasir_set_conditions(client: kvasir_client, conditions: u64) -> kvasir_code {
    call(|| {
        let client = table::clients().find(client.id)?;
        client.set_conditions(conditions_of(conditions)?);
        Ok(())
    })
}

fn conditions_of(bits: u64) -> Outcome<Conditions> {
    let known = Condition::ALL.into_iter().collect::<Conditions>().to_word();
    if bits & !known != 0 {
        return Err(Failure::argument_of(
            &[bits, known],
            format!("conditions {bits:#x}, of which {known:#x} mean something"),
        ));
    }
    Ok(Conditions::from_word(bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_the_clients() {
        use kvasir_condition::*;
        let all = [
            WeightsPending,
            WeightsUnreadable,
            WeightsUnknown,
            WorkersRefused,
            ChunkRefused,
            LoadsForbidden,
            AdapterUnknown,
            MediaUnhashed,
            ServersDiffer,
            StatesUnreached,
            ErrorsSpared,
        ];
        let named: Vec<String> = all.iter().map(|one| format!("{one:?}")).collect();
        let own: Vec<String> = Condition::ALL.iter().map(|one| format!("{one:?}")).collect();
        assert_eq!(named, own);
        for (one, condition) in all.into_iter().zip(Condition::ALL) {
            let word = conditions_of(one as u64).unwrap();
            assert_eq!(word.iter().collect::<Vec<_>>(), [condition]);
        }
        assert!(conditions_of(1 << 40).is_err());
    }
}
