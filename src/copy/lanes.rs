//! Eight lanes of 64 bits in a processor's vectors: what XXH3 needs of them, and how a stripe is read and written.
//!
//! Unsafe is opened here. The invariant: an implementation is used only where its processor features were found, inside a function
//! that enables them; every address is one that the caller vouches for. All of it is inlined into such functions, so vectors stay in
//! registers.

#![allow(unsafe_code)]

use super::xxh3::SCRAMBLE_PRIME;

/// A stripe, or the eight accumulators. The functions ask for the features of their processor, and that the 64 bytes at an address are
/// valid for what they do with them.
pub(super) trait Lanes: Copy {
    /// What a destination of [`stream`](Self::stream) is aligned to.
    const ALIGN: usize;
    /// # Safety
    /// As above; any alignment.
    unsafe fn load(from: *const u8) -> Self;
    /// # Safety
    /// As above; any alignment.
    unsafe fn store(self, to: *mut u8);
    /// Writes past the caches, where there is a way to.
    ///
    /// # Safety
    /// As above; aligned to [`Self::ALIGN`]. [`fence`](Self::fence) follows before others are told.
    unsafe fn stream(self, to: *mut u8);
    /// The accumulators with a stripe added: the data to its neighbour's lane, the product of the keyed halves to its own.
    ///
    /// # Safety
    /// As above.
    unsafe fn accumulate(self, data: Self, secret: *const u8) -> Self;
    /// The accumulators at the end of a block.
    ///
    /// # Safety
    /// As above.
    unsafe fn scramble(self, secret: *const u8) -> Self;
    /// A hint that never faults: the line is read soon.
    fn fetch(line: *const u8);
    /// Orders what was streamed before what follows.
    fn fence();
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Lanes, SCRAMBLE_PRIME};

    #[inline(always)]
    fn fetch(line: *const u8) {
        // SAFETY: a hint without effect on what the program reads or writes.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }

    #[inline(always)]
    fn fence() {
        // SAFETY: SSE is part of x86-64.
        unsafe { _mm_sfence() };
    }

    /// Needs AVX2.
    #[derive(Clone, Copy)]
    pub(in crate::copy) struct Avx2(__m256i, __m256i);

    impl Lanes for Avx2 {
        const ALIGN: usize = 32;

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            let from = from.cast::<__m256i>();
            // SAFETY: the caller's contract: 64 bytes are two vectors.
            unsafe { Self(_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut u8) {
            let to = to.cast::<__m256i>();
            // SAFETY: the caller's contract: 64 bytes are two vectors.
            unsafe {
                _mm256_storeu_si256(to, self.0);
                _mm256_storeu_si256(to.add(1), self.1);
            }
        }

        #[inline(always)]
        unsafe fn stream(self, to: *mut u8) {
            let to = to.cast::<__m256i>();
            // SAFETY: the caller's contract: 64 bytes are two vectors, and both are aligned if the first is.
            unsafe {
                _mm256_stream_si256(to, self.0);
                _mm256_stream_si256(to.add(1), self.1);
            }
        }

        #[inline(always)]
        unsafe fn accumulate(self, data: Self, secret: *const u8) -> Self {
            // SAFETY: the caller's contract.
            unsafe {
                let secret = Self::load(secret);
                Self(add(self.0, data.0, secret.0), add(self.1, data.1, secret.1))
            }
        }

        #[inline(always)]
        unsafe fn scramble(self, secret: *const u8) -> Self {
            // SAFETY: the caller's contract.
            unsafe {
                let secret = Self::load(secret);
                Self(mix(self.0, secret.0), mix(self.1, secret.1))
            }
        }

        #[inline(always)]
        fn fetch(line: *const u8) {
            fetch(line);
        }

        #[inline(always)]
        fn fence() {
            fence();
        }
    }

    // Functions and not closures: what is not inlined by force would not have the features of its caller.

    /// Half of [`Avx2::accumulate`].
    #[inline(always)]
    unsafe fn add(sums: __m256i, data: __m256i, secret: __m256i) -> __m256i {
        // SAFETY: the caller's contract.
        unsafe {
            let keyed = _mm256_xor_si256(data, secret);
            let product = _mm256_mul_epu32(keyed, _mm256_srli_epi64::<32>(keyed));
            let swapped = _mm256_shuffle_epi32::<0b01_00_11_10>(data);
            _mm256_add_epi64(sums, _mm256_add_epi64(product, swapped))
        }
    }

    /// Half of [`Avx2::scramble`]. There is no 64-bit product of these vectors, so it is put together of halves.
    #[inline(always)]
    unsafe fn mix(sums: __m256i, secret: __m256i) -> __m256i {
        // SAFETY: the caller's contract.
        unsafe {
            let prime = _mm256_set1_epi64x(SCRAMBLE_PRIME as i64);
            let mixed = _mm256_xor_si256(sums, _mm256_srli_epi64::<47>(sums));
            let mixed = _mm256_xor_si256(mixed, secret);
            let low = _mm256_mul_epu32(mixed, prime);
            let high = _mm256_mul_epu32(_mm256_srli_epi64::<32>(mixed), prime);
            _mm256_add_epi64(low, _mm256_slli_epi64::<32>(high))
        }
    }

    /// Needs AVX-512 F and DQ.
    #[derive(Clone, Copy)]
    pub(in crate::copy) struct Avx512(__m512i);

    impl Lanes for Avx512 {
        const ALIGN: usize = 64;

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: the caller's contract: 64 bytes are one vector.
            unsafe { Self(_mm512_loadu_si512(from.cast())) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut u8) {
            // SAFETY: the caller's contract: 64 bytes are one vector.
            unsafe { _mm512_storeu_si512(to.cast(), self.0) };
        }

        #[inline(always)]
        unsafe fn stream(self, to: *mut u8) {
            // SAFETY: the caller's contract: 64 bytes are one vector, and it is aligned.
            unsafe { _mm512_stream_si512(to.cast(), self.0) };
        }

        #[inline(always)]
        unsafe fn accumulate(self, data: Self, secret: *const u8) -> Self {
            // SAFETY: the caller's contract.
            unsafe {
                let keyed = _mm512_xor_si512(data.0, Self::load(secret).0);
                let product = _mm512_mul_epu32(keyed, _mm512_srli_epi64::<32>(keyed));
                let swapped = _mm512_shuffle_epi32::<0b01_00_11_10>(data.0);
                Self(_mm512_add_epi64(self.0, _mm512_add_epi64(product, swapped)))
            }
        }

        #[inline(always)]
        unsafe fn scramble(self, secret: *const u8) -> Self {
            // SAFETY: the caller's contract.
            unsafe {
                let mixed = _mm512_xor_si512(self.0, _mm512_srli_epi64::<47>(self.0));
                let mixed = _mm512_xor_si512(mixed, Self::load(secret).0);
                Self(_mm512_mullo_epi64(
                    mixed,
                    _mm512_set1_epi64(SCRAMBLE_PRIME as i64),
                ))
            }
        }

        #[inline(always)]
        fn fetch(line: *const u8) {
            fetch(line);
        }

        #[inline(always)]
        fn fence() {
            fence();
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(super) use arm::Neon;

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::*;
    use std::arch::asm;

    use super::{Lanes, SCRAMBLE_PRIME};

    /// Needs NEON, which every 64-bit Arm processor under Linux has.
    #[derive(Clone, Copy)]
    pub(in crate::copy) struct Neon([uint64x2_t; 4]);

    impl Lanes for Neon {
        const ALIGN: usize = 16;

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: the caller's contract: 64 bytes are four vectors.
            let part = |at: usize| unsafe { vreinterpretq_u64_u8(vld1q_u8(from.add(16 * at))) };
            Self([part(0), part(1), part(2), part(3)])
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut u8) {
            for (at, part) in self.0.into_iter().enumerate() {
                // SAFETY: the caller's contract: 64 bytes are four vectors.
                unsafe { vst1q_u8(to.add(16 * at), vreinterpretq_u8_u64(part)) };
            }
        }

        /// `stnp` is a hint that the line is not read again soon. It is ordered as any store, so a release store publishes it.
        #[inline(always)]
        unsafe fn stream(self, to: *mut u8) {
            let [a, b, c, d] = self.0;
            // SAFETY: the caller's contract: the 64 bytes at `to` are writable; nothing else is touched.
            unsafe {
                asm!(
                    "stnp {a:q}, {b:q}, [{to}]",
                    "stnp {c:q}, {d:q}, [{to}, #32]",
                    a = in(vreg) a, b = in(vreg) b, c = in(vreg) c, d = in(vreg) d, to = in(reg) to,
                    options(nostack, preserves_flags),
                );
            }
        }

        #[inline(always)]
        unsafe fn accumulate(self, data: Self, secret: *const u8) -> Self {
            // SAFETY: the caller's contract.
            unsafe {
                let secret = Self::load(secret);
                let part = |at: usize| {
                    let keyed = veorq_u64(data.0[at], secret.0[at]);
                    let swapped = vextq_u64::<1>(data.0[at], data.0[at]);
                    let sums = vaddq_u64(self.0[at], swapped);
                    vmlal_u32(sums, vmovn_u64(keyed), vshrn_n_u64::<32>(keyed))
                };
                Self([part(0), part(1), part(2), part(3)])
            }
        }

        #[inline(always)]
        unsafe fn scramble(self, secret: *const u8) -> Self {
            // SAFETY: the caller's contract.
            unsafe {
                let secret = Self::load(secret);
                let prime = vdup_n_u32(SCRAMBLE_PRIME as u32);
                let part = |at: usize| {
                    let mixed = veorq_u64(self.0[at], vshrq_n_u64::<47>(self.0[at]));
                    let mixed = veorq_u64(mixed, secret.0[at]);
                    let high = vmull_u32(vshrn_n_u64::<32>(mixed), prime);
                    vmlal_u32(vshlq_n_u64::<32>(high), vmovn_u64(mixed), prime)
                };
                Self([part(0), part(1), part(2), part(3)])
            }
        }

        #[inline(always)]
        fn fetch(line: *const u8) {
            // SAFETY: a hint that never faults, without effect on what the program reads or writes.
            unsafe {
                asm!("prfm pldl1keep, [{line}]", line = in(reg) line,
                     options(nostack, readonly, preserves_flags));
            }
        }

        /// Stores of Arm need a release, as ordinary ones do; the caller's hand-over is one.
        #[inline(always)]
        fn fence() {
            std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        }
    }
}
