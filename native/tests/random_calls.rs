//! Random calls: garbage handles, sizes, flags and numbers, NULL, misaligned pointers, and pointers to owned memory that is
//! filled with garbage. Whatever comes, a call answers a code, and afterwards the library works as before.
//!
//! The seed is fixed and printed. KVASIR_RANDOM_CALLS=SEED:SECONDS tries another one, for longer.
//!
//! What no library can see is left out, since C has to promise it: an address at which there is no memory, and a count that
//! is allowed and larger than what is there.

#![allow(unsafe_code)] // the pointers are those that the comment above says

mod support;

use std::ffi::c_char;
use std::time::{Duration, Instant};

use kvasir_c::kvasir_code as Code;
use kvasir_c::*;
use support::random::{ELEMENTS, Random};
use support::*;

/// Bytes of each buffer that pointers lead to.
const BUFFER: usize = 1 << 14;
/// How many of them any call may write.
const PLAIN: usize = 8;

/// What calls are made with.
struct World {
    random: Random,
    /// Handles of all kinds, and some that are none.
    handles: Vec<u64>,
    /// Memory that pointers lead to.
    buffers: Vec<Vec<u64>>,
    /// The region that loads may write to; it outlives every client.
    region: Vec<u8>,
    calls: [u64; 24],
}

impl World {
    /// Mostly one of the kind that is asked for, open or closed.
    fn handle(&mut self, kind: u64) -> u64 {
        let of_kind = |id: &&u64| **id >> 56 == kind;
        let known: Vec<u64> = match self.random.below(8) {
            0 => return self.random.number(),
            1 => self.handles.clone(),
            _ => self.handles.iter().filter(of_kind).copied().collect(),
        };
        let newest = self.random.below(2) == 0;
        let at = self.random.below(known.len() as u64) as usize;
        if newest { known[0] } else { known[at] }
    }

    fn client(&mut self) -> kvasir_client {
        kvasir_client { id: self.handle(1) }
    }

    fn chain(&mut self) -> kvasir_chain {
        kvasir_chain { id: self.handle(2) }
    }

    /// NULL, misaligned, or a buffer, filled anew with numbers.
    fn pointer<T>(&mut self) -> *mut T {
        let at = self.random.below(PLAIN as u64) as usize;
        for word in 0..64 {
            let number = self.random.number();
            self.buffers[at][word] = number;
        }
        self.address(at)
    }

    fn address<T>(&mut self, at: usize) -> *mut T {
        let first = self.buffers[at].as_mut_ptr();
        match self.random.below(16) {
            0 => std::ptr::null_mut(),
            1 if align_of::<T>() > 1 => first.wrapping_byte_add(1).cast(),
            _ => first.cast(),
        }
    }

    /// Text that ends, in a buffer, or NULL.
    fn text(&mut self) -> *const c_char {
        let at = self.random.below(PLAIN as u64) as usize;
        let word = self.random.next();
        self.buffers[at][0] = if self.random.below(3) == 0 {
            word
        } else {
            u64::from_le_bytes(*b"/tmp/abc")
        };
        self.buffers[at][1] = 0;
        if self.random.below(10) == 0 {
            std::ptr::null()
        } else {
            self.buffers[at].as_ptr().cast()
        }
    }

    fn bytes(&mut self) -> kvasir_bytes {
        kvasir_bytes {
            data: self.pointer(),
            size: self.random.count(),
        }
    }

    fn key(&mut self) -> kvasir_key {
        kvasir_key {
            bytes: [self.random.below(4) as u8; 32],
        }
    }

    fn size<T>(&mut self) -> u32 {
        match self.random.below(12) {
            0 => self.random.number() as u32,
            1 => size_of::<T>() as u32 + 8 * self.random.below(8) as u32,
            _ => size_of::<T>() as u32,
        }
    }

    /// Puts structs into a buffer of their own, with zeroes behind them, and returns a pointer to the first.
    fn structs<T: Copy>(&mut self, make: impl Fn(&mut Self) -> T) -> (*mut T, usize) {
        let count = self.random.below(3) as usize + 1;
        let size = self.size::<T>();
        // A size that is accepted is at most 4096, so that many bytes are there for each.
        let stride = if (size as usize) < 4096 {
            (size as usize).max(size_of::<T>())
        } else {
            4096
        };
        let mut space = vec![0_u64; (count + 1) * 512];
        for index in 0..count {
            let mut value = make(self);
            // SAFETY: every struct begins with its size, and the space is larger than all of them.
            unsafe {
                (&raw mut value).cast::<u32>().write(size);
                space
                    .as_mut_ptr()
                    .byte_add(index * stride.next_multiple_of(8))
                    .cast::<T>()
                    .write(value);
            }
        }
        self.buffers.push(space);
        let at = self.buffers.len() - 1;
        let given = if self.random.below(16) == 0 {
            self.random.count().max(1 << 40)
        } else {
            count
        };
        (self.address(at), given)
    }

    fn lists(&mut self) -> (*const kvasir_block_list, usize) {
        let lists: Vec<kvasir_block_list> = (0..2)
            .map(|_| kvasir_block_list {
                ids: self.pointer(),
                count: self.random.count(),
            })
            .collect();
        let mut space = vec![0_u64; 512];
        // SAFETY: two lists are 32 bytes.
        unsafe {
            space
                .as_mut_ptr()
                .cast::<[kvasir_block_list; 2]>()
                .write([lists[0], lists[1]])
        };
        self.buffers.push(space);
        (
            self.buffers[self.buffers.len() - 1].as_ptr().cast(),
            self.random.below(3) as usize,
        )
    }

    /// Four good ids, for calls that get further.
    fn good_lists(&mut self) -> (*const kvasir_block_list, usize) {
        let (lists, _) = self.lists();
        let first = 1 + self.random.below(50) as i64;
        let ids: Vec<u64> = (first..first + 4).map(|id| id as u64).collect();
        self.buffers.push(ids);
        let list = kvasir_block_list {
            ids: self.buffers[self.buffers.len() - 1].as_ptr().cast(),
            count: 4,
        };
        // SAFETY: there is room for two lists, from `lists`.
        unsafe { lists.cast_mut().write(list) };
        (lists, 1)
    }

    fn call(&mut self) -> Code {
        self.buffers.truncate(PLAIN);
        let which = self.random.below(self.calls.len() as u64) as usize;
        self.calls[which] += 1;
        // SAFETY: pointers are NULL, misaligned, or lead to buffers that live across the call and are as large as any count
        // that is allowed here.
        unsafe { self.make(which) }
    }

    unsafe fn make(&mut self, which: usize) -> Code {
        let mut number = 0_usize;
        // SAFETY: as `call` says.
        unsafe {
            match which {
                0 => self.open(),
                1 => {
                    if self.handles.len() > 40 {
                        for handle in self.handles.drain(2..22) {
                            let _ = kvasir_client_close(kvasir_client { id: handle });
                        }
                    }
                    kvasir_client_close(self.client())
                }
                2 => {
                    let options = self.structs(|world| kvasir_chain_options {
                        struct_size: 0,
                        chunk_size: world.random.number() as u32,
                        seed: world.key(),
                        mm_items: world.pointer(),
                        mm_item_count: 0,
                        lora: world.bytes(),
                        salt: world.bytes(),
                    });
                    let mut chain = kvasir_chain::default();
                    let code = kvasir_chain_new(options.0, &mut chain);
                    if code == Code::Ok {
                        self.handles.push(chain.id);
                    }
                    code
                }
                3 => kvasir_chain_free(self.chain()),
                4 => {
                    let (tokens, count) = (self.pointer(), self.random.count());
                    kvasir_chain_extend(self.chain(), tokens, count)
                }
                5 => {
                    let (keys, first) = (self.pointer(), self.random.number() as usize);
                    let count = self.random.below(ELEMENTS as u64) as usize;
                    kvasir_chain_keys(self.chain(), first, count, keys)
                }
                6 => {
                    let (key, chunk, tokens) = (self.pointer(), self.random.number(), self.random.number());
                    kvasir_chain_tail_key(self.chain(), chunk as usize, tokens as u32, key)
                }
                7 | 8 => {
                    let request = self.structs(Self::lookup_request).0;
                    let answer = self.structs(Self::answer).0;
                    if which == 7 {
                        kvasir_lookup(self.client(), request, answer)
                    } else {
                        let ticket = self.pointer();
                        kvasir_lookup_start(self.client(), request, ticket)
                    }
                }
                9 => {
                    let (answer, ready) = (self.structs(Self::answer).0, self.pointer());
                    let (ticket, wait) = (self.random.below(4), self.random.below(3) * (u64::MAX / 2));
                    kvasir_lookup_poll(self.client(), ticket, wait, ready, answer)
                }
                10 => {
                    let (pins, count) = (self.pointer(), self.random.count());
                    kvasir_release(self.client(), pins, count)
                }
                11 => {
                    let (items, count) = self.structs(Self::store_item);
                    let (gone, gone_count) = (self.pointer(), self.random.below(4) as usize);
                    let outcomes = self.pointer();
                    kvasir_store(self.client(), items, count, gone, gone_count, outcomes)
                }
                12 => {
                    let (items, count) = self.structs(Self::load_item);
                    let (label, loaded) = (self.random.number(), self.pointer());
                    kvasir_load(
                        self.client(),
                        label,
                        self.random.below(2) as u16,
                        items,
                        count,
                        loaded,
                    )
                }
                13 => {
                    let (objects, present) = (self.pointer(), self.pointer());
                    let (part, count) = (self.random.below(3) as u16, self.random.count());
                    kvasir_present(self.client(), part, objects, count, present)
                }
                14 => self.negotiate(),
                15 => self.register(),
                16 => self.set_memory(),
                17 => {
                    let (bytes, held) = (self.random.number(), self.pointer());
                    kvasir_reserve(self.client(), bytes, held)
                }
                18 => {
                    let (text, length) = (self.pointer(), self.pointer());
                    // The last word stays zero, so that whatever is in a buffer ends as text does.
                    let capacity = self.random.below(BUFFER as u64 - 8) as usize;
                    kvasir_status_json(self.client(), text, capacity, length)
                }
                19 => {
                    let (text, capacity) = (self.pointer(), self.random.below(60) as usize);
                    kvasir_state_text(self.client(), text, capacity, &mut number)
                }
                20 => {
                    let health = self.structs(|_| made::<kvasir_health>()).0;
                    kvasir_get_health(self.client(), health)
                }
                21 => {
                    let reuse = self.structs(|world| kvasir_reuse {
                        requests: world.random.number(),
                        ..made()
                    });
                    kvasir_count_reuse(self.client(), reuse.0)
                }
                22 => self.join(),
                _ => {
                    let conditions = self.random.number();
                    kvasir_set_conditions(self.client(), conditions)
                }
            }
        }
    }

    unsafe fn open(&mut self) -> Code {
        let options = self.structs(|world| kvasir_client_options {
            struct_size: 0,
            kind: world.random.below(5) as u32,
            socket: world.text(),
            name: world.text(),
            engine_instance: [1; 16],
            deadline_ms: 50,
            heartbeat_ms: world.random.below(2) * u64::MAX,
            grant_bytes: world.random.number(),
            maps: world.random.below(6) as u32,
            flags: world.random.below(3) as u32,
            ring_bytes: world.random.number() >> 30,
            copy_threads: world.random.below(20) as u32,
            ..made()
        });
        let mut client = kvasir_client::default();
        // SAFETY: as `call` says.
        let code = unsafe { kvasir_client_open(options.0, &mut client) };
        if code == Code::Ok {
            self.handles.push(client.id);
        }
        code
    }

    fn lookup_request(&mut self) -> kvasir_lookup_request {
        let with_chain = self.random.below(2) == 0;
        kvasir_lookup_request {
            struct_size: 0,
            flags: self.random.below(3) as u32,
            label: self.random.number(),
            chain: if with_chain {
                self.chain()
            } else {
                kvasir_chain::default()
            },
            tail_step: if with_chain {
                self.random.number() as u32
            } else {
                0
            },
            reserved: 0,
            seed: if with_chain {
                kvasir_key::default()
            } else {
                self.key()
            },
            keys: self.pointer(),
            key_count: if with_chain { 0 } else { self.random.count() },
            tails: self.pointer(),
            tail_count: if with_chain { 0 } else { self.random.count() },
            max_tokens: self.random.number(),
            local_tokens: self.random.number(),
        }
    }

    fn answer(&mut self) -> kvasir_answer {
        kvasir_answer {
            found: self.pointer(),
            found_capacity: self.random.below(ELEMENTS as u64) as usize,
            present_tokens: self.pointer(),
            present_capacity: self.random.below(ELEMENTS as u64) as usize,
            ..made()
        }
    }

    fn store_item(&mut self) -> kvasir_store_item {
        let good = self.random.below(2) == 0;
        let (lists, list_count) = if good { self.good_lists() } else { self.lists() };
        kvasir_store_item {
            struct_size: 0,
            flags: u32::from(self.random.below(8) == 0),
            key: self.key(),
            parent: if good { std::ptr::null() } else { self.pointer() },
            group: if good { 0 } else { self.random.below(3) as u16 },
            part: self.random.below(2) as u16,
            tokens: if good { CHUNK } else { self.random.number() as u32 },
            lists,
            list_count,
        }
    }

    fn load_item(&mut self) -> kvasir_load_item {
        let item = self.store_item();
        kvasir_load_item {
            key: item.key,
            group: item.group,
            tokens: item.tokens,
            lists: item.lists,
            list_count: item.list_count,
            ..made()
        }
    }

    unsafe fn negotiate(&mut self) -> Code {
        let request = self.structs(|world| kvasir_negotiation {
            required_alignment: world.random.number(),
            spans: world.pointer(),
            span_count: world.random.count(),
            preferred_base: world.random.number(),
            previous_size: world.random.number(),
            binding_domain: world.pointer(),
            ..made()
        });
        let chunk_size = self.pointer();
        // SAFETY: as `call` says.
        unsafe { kvasir_negotiate(self.client(), request.0, chunk_size) }
    }

    fn domain(&mut self) -> *const kvasir_domain {
        let domain = |world: &mut Self| kvasir_domain {
            model: world.text(),
            weights_id: world.bytes(),
            kv_dtype: world.text(),
            fingerprint: world.bytes(),
            parallel_shape: world.text(),
            ..made()
        };
        self.structs(domain).0
    }

    fn groups(&mut self) -> (*mut kvasir_group, usize) {
        // A rank of kvasir_join has no more than a kind.
        let bare = self.random.below(2) == 0;
        let small = |world: &mut Self| if bare { 0 } else { world.random.number() };
        self.structs(|world| kvasir_group {
            struct_size: 0,
            kind: world.random.below(6) as u32,
            window_tokens: world.random.number(),
            unit_bytes: small(world),
            group: world.random.below(3) as u16,
            parts: small(world) as u16,
            part: small(world) as u16,
            reserved: 0,
        })
    }

    unsafe fn register(&mut self) -> Code {
        let registration = self.structs(|world| {
            let (domain, groups) = (world.domain(), world.groups());
            kvasir_registration {
                struct_size: 0,
                flags: world.random.below(3) as u32,
                domain,
                rank: world.random.number() as u32,
                world_size: world.random.number() as u32,
                required_alignment: world.random.number(),
                spans: world.pointer(),
                span_count: world.random.count(),
                groups: groups.0,
                group_count: groups.1,
                blocks: world.random.number(),
                layers: world.random.number() as u32,
                ..made()
            }
        });
        let seed = self.pointer();
        // SAFETY: as `call` says.
        unsafe { kvasir_register(self.client(), registration.0, seed) }
    }

    fn memory(&mut self) -> *const kvasir_memory {
        let memory = self.structs(|world| {
            let groups = world.structs(|world| {
                let kv_groups = world.structs(|world| {
                    let mut layers: Vec<u64> = (0..8).map(|_| world.random.number()).collect();
                    layers[0] = 0; // region 0
                    layers.resize(512, 0);
                    world.buffers.push(layers);
                    kvasir_kv_group {
                        tokens_per_block: world.random.number(),
                        layers: world.buffers[world.buffers.len() - 1].as_ptr().cast(),
                        layer_count: world.random.count(),
                        ..made()
                    }
                });
                kvasir_group_memory {
                    group: world.random.below(3) as u16,
                    kv_groups: kv_groups.0,
                    kv_group_count: kv_groups.1,
                    ..made()
                }
            });
            let region = kvasir_region {
                base: world.region.as_mut_ptr(),
                bytes: world.region.len() as u64,
            };
            let mut space = vec![0_u64; 512];
            // SAFETY: a region is 16 bytes; the others are NULL.
            unsafe { space.as_mut_ptr().cast::<kvasir_region>().write(region) };
            world.buffers.push(space);
            kvasir_memory {
                blocks: world.random.number(),
                regions: world.buffers[world.buffers.len() - 1].as_ptr().cast(),
                region_count: world.random.count(),
                groups: groups.0,
                group_count: groups.1,
                ..made()
            }
        });
        memory.0
    }

    unsafe fn set_memory(&mut self) -> Code {
        let memory = self.memory();
        // SAFETY: as `call` says; the region outlives every client.
        unsafe { kvasir_set_memory(self.client(), memory) }
    }

    unsafe fn join(&mut self) -> Code {
        let rank = self.structs(|world| {
            let groups = world.groups();
            kvasir_rank {
                flags: world.random.below(8) as u32 / 7,
                domain: world.domain(),
                rank: world.random.number() as u32,
                world_size: world.random.number() as u32,
                preferred_base: world.random.number(),
                memory: world.memory(),
                groups: groups.0,
                group_count: groups.1,
                ..made()
            }
        });
        let (chunk_size, seed) = (self.pointer(), self.pointer());
        // SAFETY: as `call` says; the region outlives every client.
        unsafe { kvasir_join(self.client(), rank.0, chunk_size, seed) }
    }
}

#[test]
fn whatever_is_called_answers_a_code_and_breaks_nothing() {
    let given = std::env::var("KVASIR_RANDOM_CALLS").unwrap_or_else(|_| "1:3".into());
    let (seed, seconds) = given.split_once(':').expect("SEED:SECONDS");
    let (seed, seconds): (u64, u64) = (seed.parse().unwrap(), seconds.parse().unwrap());
    println!("KVASIR_RANDOM_CALLS={seed}:{seconds}");
    let mut watched = Engine::start("watched");
    watched.store(1);
    let mut victim = Engine::start("victim");
    let chain = victim.chain(1, 300);
    let mut world = World {
        random: Random(seed.wrapping_mul(2).wrapping_add(1)),
        handles: vec![victim.client.id, chain.id],
        buffers: vec![vec![0; BUFFER / 8]; PLAIN],
        region: vec![0; BLOCKS * PAGE],
        calls: [0; 24],
    };
    let mut codes = std::collections::BTreeMap::new();
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut calls = 0_u64;
    while Instant::now() < end || calls < 2000 {
        calls += 1;
        let code = world.call();
        *codes.entry(code as i32).or_insert(0_u64) += 1;
        if code != Code::Ok {
            let (kept, _, message) = last();
            assert_eq!(kept, code as i32);
            assert!(!message.is_empty());
            assert!(code != Code::Internal, "{message}");
        }
        // The victim is made anew now and then: it may have been closed, or have no memory any more.
        if calls.is_multiple_of(25) {
            let _ = kvasir_client_close(victim.client);
            let _ = kvasir_chain_free(kvasir_chain { id: world.handles[1] });
            victim = Engine::start("victim");
            world.handles[0] = victim.client.id;
            world.handles[1] = victim.chain(1, 300).id;
        }
    }
    println!("{calls} calls, by code {codes:?}, by function {:?}", world.calls);
    assert!(world.calls.iter().all(|count| *count > 0));
    assert!(codes.len() >= 8, "{codes:?}");
    // Another engine on the same server, in the same process, has lost nothing.
    assert!(watched.load(1));
    assert_eq!(watched.store(2), kvasir_outcome::Published);
    assert!(watched.load(2));
    for handle in world.handles.iter().copied().chain([watched.client.id]) {
        let _ = kvasir_client_close(kvasir_client { id: handle });
    }
}
