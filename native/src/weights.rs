//! What a set of weights is.

#![allow(unsafe_code)] // pointers go on to `input` and `output`, on the promise that the header's rules ask for
#![allow(clippy::missing_safety_doc)] // the rules stand once, at the header's top

use std::ffi::c_char;
use std::sync::atomic::AtomicBool;

use kvasir::keys::{WeightsOptions, default_cache_dir, identify_weights};

use crate::failure::{Failure, kvasir_code};
use crate::guard::call;
use crate::input;
use crate::output::Place;
use crate::values::*;

/// The identity of a model's or an adapter's files, by every byte of them: for kvasir_domain.weights_id, and for
/// kvasir_chain_options.lora. Takes as long as reading them, so call it on a thread of its own.
///
/// overrides says what the engine's flags change about the model, in any stable form; NULL is nothing. What was read is
/// remembered for each file in cache_dir; NULL is the user's cache directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_identify_weights(
    path: *const c_char,
    overrides: *const c_char,
    cache_dir: *const c_char,
    identity: *mut kvasir_key,
) -> kvasir_code {
    call(|| {
        // SAFETY: the header's rules, here and below.
        let place = unsafe { Place::new(identity, "identity") }?;
        // SAFETY: as above.
        let path = unsafe { input::path(path, "path") }?;
        let overrides = match overrides.is_null() {
            true => String::new(),
            // SAFETY: as above.
            false => unsafe { input::text(overrides, "overrides") }?,
        };
        let cache_dir = match cache_dir.is_null() {
            true => default_cache_dir(),
            // SAFETY: as above.
            false => Some(unsafe { input::path(cache_dir, "cache_dir") }?),
        };
        let options = WeightsOptions {
            overrides,
            cache_dir,
            threads: 0,
        };
        let found = identify_weights(&path, &options, &AtomicBool::new(false))
            .map_err(|error| Failure::new(kvasir_code::WeightsUnreadable, &[], error))?;
        place.write(kvasir_key { bytes: found.digest });
        Ok(())
    })
}
