//! Where the words of a client's pin slab are. Layout: docs/shm-layout.md, "Pin arena".

use super::counters::{DEVICE_WORDS, REUSE_WORDS};

/// Bytes of a slab.
pub const SLAB_BYTES: usize = 65536;
/// Offset of the pin high-water mark.
pub const SLAB_HIGH_WATER: usize = 64;
/// Offset of the touched-log cursor.
pub const SLAB_CURSOR: usize = 128;
/// Offset of the client's conditions.
pub const SLAB_CONDITIONS: usize = 160;
/// Offset of the client's statistics.
pub const SLAB_STATS: usize = 192;
/// Words of the client's statistics.
pub const STAT_WORDS: usize = 14 + REUSE_WORDS + DEVICE_WORDS;
/// Offset of the pin words.
pub const SLAB_PINS: usize = 4096;
/// Number of pin words.
pub const PIN_WORDS: usize = 4096;
/// Offset of the touched log.
pub const SLAB_TOUCHED: usize = 36864;
/// Entries of the touched log.
pub const TOUCHED_WORDS: usize = 3584;

const _: () = assert!(SLAB_STATS + STAT_WORDS * 8 <= SLAB_PINS);
const _: () = assert!(SLAB_PINS + PIN_WORDS * 8 == SLAB_TOUCHED);
const _: () = assert!(SLAB_TOUCHED + TOUCHED_WORDS * 8 == SLAB_BYTES);
