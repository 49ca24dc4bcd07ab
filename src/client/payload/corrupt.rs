//! A test hook: what an engine puts out when the bytes it gets back are not the ones it stored.

use std::sync::Arc;

use crate::client::link::connection::Connection;
use crate::client::link::session::Session;
use crate::client::{ClientConfig, ClientError, Maps};

/// What is done to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// All of it becomes noise that follows from the number. No 16 or 32 bit float in it has an exponent of all ones
    /// (bit 14 of every 16 is clear), so that an engine computes something else and not just NaN.
    Noise(u64),
    /// One bit of its first byte is flipped.
    OneBit,
}

/// Damages the frames of live objects of the server at `config.socket` whose bytes are `chosen`, and returns how many
/// bytes changed.
///
/// It is how a test shows that its equal outputs mean something, and that damage is noticed. Only a process that may map the pool can do it, and
/// such a process can rewrite the pool in any case.
///
/// # Errors
/// [`ClientError::Unavailable`] without a server, and its refusals.
pub fn corrupt_pool(
    mut config: ClientConfig,
    damage: Damage,
    chosen: impl Fn(&[u8]) -> bool,
) -> Result<u64, ClientError> {
    config.maps = Maps::Pool;
    let deadline = std::time::Instant::now() + config.deadline;
    let connection = Connection::connect(&config.socket).map_err(ClientError::from)?;
    let (_connection, session) =
        Session::open(&config, connection, 1, &Arc::default(), &mut false, deadline)?;
    let pool = session.pool()?;
    let frame_bytes = pool.frame_bytes() as usize;
    let mut before = vec![0_u8; frame_bytes];
    let mut after = vec![0_u8; frame_bytes];
    let mut changed = 0;
    for frame in 0..pool.frames() {
        if pool
            .attached()
            .is_none_or(|attached| attached.epoch(frame as u32) == 0)
        {
            continue;
        }
        let offset = frame * pool.frame_bytes();
        pool.memory()[0].read(offset, &mut before)?;
        if !chosen(&before) {
            continue;
        }
        match damage {
            Damage::Noise(seed) => fill(&mut after, seed ^ frame.rotate_left(32)),
            Damage::OneBit => {
                after.copy_from_slice(&before);
                after[0] ^= 1;
            }
        }
        changed += before.iter().zip(&after).filter(|(old, new)| old != new).count() as u64;
        pool.memory()[0].write(offset, &after)?;
    }
    Ok(changed)
}

/// Fills words by an add-and-mix generator, bits 14, 30, 46 and 62 of each cleared.
fn fill(words: &mut [u8], seed: u64) {
    let mut state = seed;
    for word in words.chunks_mut(8) {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed = (mixed ^ (mixed >> 31)) & !0x4000_4000_4000_4000;
        word.copy_from_slice(&mixed.to_le_bytes()[..word.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::fill;

    #[test]
    fn noise_follows_from_the_seed_and_keeps_exponents_finite() {
        let (mut a, mut b, mut c) = ([0_u8; 4096], [0_u8; 4096], [0_u8; 4096]);
        fill(&mut a, 1);
        fill(&mut b, 1);
        fill(&mut c, 2);
        assert_eq!(a, b);
        assert_ne!(a, c);
        for half in a.chunks(2) {
            let bits = u16::from_le_bytes([half[0], half[1]]);
            assert_ne!(bits & 0x7f80, 0x7f80, "a bf16 that is not finite");
            assert_ne!(bits & 0x7c00, 0x7c00, "an fp16 that is not finite");
        }
    }
}
