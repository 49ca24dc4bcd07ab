//! Random orders of everything, with every invariant checked after each step.

use super::*;
use crate::cache::turn::Turn;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Grant {
        peer: usize,
        frames: u64,
    },
    Abort {
        peer: usize,
        pick: usize,
    },
    Store {
        peer: usize,
        prompt: u32,
        chunk: u32,
        group: u16,
        tail: bool,
    },
    Skip {
        peer: usize,
        prompt: u32,
        chunk: u32,
    },
    Lookup {
        peer: usize,
        prompt: u32,
        keep: bool,
    },
    Retrieve {
        peer: usize,
        prompt: u32,
        chunk: u32,
    },
    Release {
        peer: usize,
        pick: usize,
    },
    EndSession {
        peer: usize,
        prompt: u32,
    },
    ReleaseDirect {
        peer: usize,
        pick: usize,
    },
    SlabPin {
        word: usize,
        record: Option<u32>,
    },
    Supersede {
        peer: usize,
        prompt: u32,
        chunk: u32,
    },
    Discard {
        peer: usize,
        prompt: u32,
        chunk: u32,
        group: u16,
    },
    Die {
        peer: usize,
    },
    Register {
        peer: usize,
    },
    Clear,
    /// Begins a request that others come between.
    Begin {
        peer: usize,
        what: u8,
        prompt: u32,
        chunk: u32,
    },
    /// Goes on with it for so many steps.
    GoOn {
        peer: usize,
        steps: u32,
    },
}

/// A request that is being worked on. What it names lives as long as the test.
#[derive(Debug)]
enum Running {
    Grant(Grant<'static>),
    Abort(Abort<'static>),
    Commit(Box<Committing<'static>>),
    Discard(Discard<'static>),
    Clear(Clear),
    Register(Register<'static>),
    Status(Reporting),
}

fn op() -> impl Strategy<Value = Op> {
    let (peer, prompt, chunk) = (0..4_usize, 0..3_u32, 0..4_u32);
    prop_oneof![
        2 => (peer.clone(), 1..9_u64).prop_map(|(peer, frames)| Op::Grant { peer, frames }),
        1 => (peer.clone(), any::<usize>()).prop_map(|(peer, pick)| Op::Abort { peer, pick }),
        12 => (peer.clone(), prompt.clone(), chunk.clone(), 0..3_u16, any::<bool>())
            .prop_map(|(peer, prompt, chunk, group, tail)| Op::Store { peer, prompt, chunk, group, tail }),
        1 => (peer.clone(), prompt.clone(), chunk.clone()).prop_map(|(peer, prompt, chunk)| Op::Skip { peer, prompt, chunk }),
        4 => (peer.clone(), prompt.clone(), any::<bool>()).prop_map(|(peer, prompt, keep)| Op::Lookup { peer, prompt, keep }),
        2 => (peer.clone(), prompt.clone(), chunk.clone()).prop_map(|(peer, prompt, chunk)| Op::Retrieve { peer, prompt, chunk }),
        3 => (peer.clone(), any::<usize>()).prop_map(|(peer, pick)| Op::Release { peer, pick }),
        1 => (peer.clone(), prompt.clone()).prop_map(|(peer, prompt)| Op::EndSession { peer, prompt }),
        3 => (0..3_usize, any::<usize>()).prop_map(|(peer, pick)| Op::ReleaseDirect { peer, pick }),
        2 => (0..4_usize, prop::option::of(0..48_u32)).prop_map(|(word, record)| Op::SlabPin { word, record }),
        1 => (peer.clone(), prompt.clone(), chunk.clone()).prop_map(|(peer, prompt, chunk)| Op::Supersede { peer, prompt, chunk }),
        1 => (peer.clone(), prompt, chunk, 0..3_u16)
            .prop_map(|(peer, prompt, chunk, group)| Op::Discard { peer, prompt, chunk, group }),
        1 => peer.clone().prop_map(|peer| Op::Die { peer }),
        1 => peer.prop_map(|peer| Op::Register { peer }),
        1 => Just(Op::Clear),
        6 => (0..4_usize, 0..7_u8, 0..3_u32, 0..4_u32)
            .prop_map(|(peer, what, prompt, chunk)| Op::Begin { peer, what, prompt, chunk }),
        12 => (0..4_usize, 1..40_u32).prop_map(|(peer, steps)| Op::GoOn { peer, steps }),
    ]
}

/// Two engines of two ranks. Attention and windows have a part per rank, states one that rank 0 stores.
struct World {
    rig: Rig,
    peers: Vec<Peer>,
    held: Vec<Vec<Extent>>,
    pins: Vec<Vec<u64>>,
    /// Pins that peers made without the server.
    direct: Vec<Vec<DirectPin>>,
    /// What each peer's connection is busy with: it asks for nothing else meanwhile.
    running: [Option<Running>; 4],
}

/// A pin, and the frames of what it holds with their incarnations.
type DirectPin = (u64, Vec<(u32, u64)>);

fn groups_of(rank: u16) -> Vec<GroupRegistration> {
    let mut groups = vec![
        group(0, ObjectKind::Full, 2, rank),
        group(1, ObjectKind::Window { tokens: 65 }, 2, rank),
    ];
    if rank == 0 {
        groups.push(group(2, ObjectKind::Recurrent, 1, 0));
    }
    groups
}

impl World {
    fn new() -> Self {
        let mut rig = Rig::new(48);
        let peers = (0..4).map(|i| Self::join(&mut rig, i)).collect();
        Self {
            rig,
            peers,
            held: vec![Vec::new(); 4],
            pins: vec![Vec::new(); 4],
            direct: vec![Vec::new(); 4],
            running: [const { None }; 4],
        }
    }

    fn join(rig: &mut Rig, peer: usize) -> Peer {
        let joined = rig.peer(peer as u8 / 2);
        let rank = peer as u32 % 2;
        rig.register(&joined, rank, 2, &groups_of(rank as u16)).unwrap();
        joined
    }

    fn run(&mut self, op: Op) {
        if let Some(peer) = op.asks() {
            while self.running[peer].is_some() {
                self.go_on(peer, 30);
            }
        }
        match op {
            Op::Grant { peer, frames } => {
                let got = self.rig.core.grant(self.peers[peer].id, frames * FRAME_BYTES);
                self.held[peer].extend(got.unwrap());
            }
            Op::Abort { peer, pick } => {
                if !self.held[peer].is_empty() {
                    let at = pick % self.held[peer].len();
                    let extent = self.held[peer].swap_remove(at);
                    let other = self.peers[(peer + 1) % 4].id;
                    assert!(self.rig.core.abort(other, &[extent]).is_err());
                    self.rig.core.abort(self.peers[peer].id, &[extent]).unwrap();
                }
            }
            Op::Store {
                peer,
                prompt,
                chunk,
                group,
                tail,
            } => self.store(peer, prompt, chunk, group, tail),
            Op::Skip { peer, prompt, chunk } => {
                let (key, parent) = chain(prompt, chunk);
                let item = StoreItem {
                    id: ObjectId { key, group: 0 },
                    parent,
                    skipped: true,
                    part: peer as u16 % 2,
                    tokens: CHUNK,
                    held_from: 0,
                    bytes: 0,
                    checksum: 0,
                    first_extent: 0,
                    extent_count: 0,
                };
                self.rig.commit(&self.peers[peer], &[item], &[]).unwrap();
            }
            Op::Lookup { peer, prompt, keep } => self.lookup(peer, prompt, keep),
            Op::Retrieve { peer, prompt, chunk } => {
                let ids: Vec<_> = (0..2)
                    .map(|group| ObjectId {
                        key: key(prompt, chunk, CHUNK),
                        group,
                    })
                    .collect();
                let direct = self.rig.retrieve_direct(&mut self.peers[peer % 3], 1, &ids);
                let id = self.peers[peer].id;
                let seed = self.rig.seed;
                let got = self
                    .rig
                    .core
                    .retrieve(id, &parts(seed, u64::from(prompt), 1, &ids))
                    .unwrap();
                assert_eq!((direct.locations, direct.extents), (got.locations, got.extents));
                if got.pin != 0 {
                    self.pins[peer].push(got.pin);
                }
            }
            Op::Release { peer, pick } => {
                if !self.pins[peer].is_empty() {
                    let at = pick % self.pins[peer].len();
                    let pin = self.pins[peer].swap_remove(at);
                    // May be gone with its session.
                    let first = self.rig.core.release(self.peers[peer].id, &[pin]);
                    let second = self.rig.core.release(self.peers[peer].id, &[pin]);
                    assert!(second.is_err() && first.map_or_else(|e| e.code() == 20, |()| true));
                }
            }
            Op::EndSession { peer, prompt } => {
                let session = u64::from(prompt);
                self.rig.core.release_label(self.peers[peer].id, session).unwrap();
            }
            Op::SlabPin { word, record } => self.peers[3].slab_pin(word, record),
            Op::ReleaseDirect { peer, pick } => {
                let held = &mut self.direct[peer];
                if !held.is_empty() {
                    let (pin, _) = held.swap_remove(pick % held.len());
                    self.peers[peer].words.release(pin);
                }
            }
            Op::Supersede { peer, prompt, chunk } => {
                let id = ObjectId {
                    key: key(prompt, chunk, 32),
                    group: 0,
                };
                let request = CommitRequest {
                    domain_seed: self.rig.seed,
                    items: vec![],
                    extents: vec![],
                    supersedes: vec![id],
                    grant_bytes: 0,
                };
                self.rig.core.commit(self.peers[peer].id, &request).unwrap();
            }
            Op::Discard {
                peer,
                prompt,
                chunk,
                group,
            } => {
                let (key, _) = chain(prompt, chunk);
                let object = ObjectId { key, group };
                let (id, seed) = (self.peers[peer].id, self.rig.seed);
                let view = self.rig.core.index.reader().lookup(&object);
                let read = view.map_or(77, |view| view.incarnation);
                // What was stored anew since it was read stays.
                self.rig.core.discard(id, seed, &[(object, read + 1)]).unwrap();
                assert_eq!(self.rig.record(key, group).is_some(), view.is_some());
                self.rig.core.discard(id, seed, &[(object, read)]).unwrap();
                assert!(self.rig.record(key, group).is_none());
            }
            Op::Die { peer } => {
                // Whatever it was at is dropped where it was.
                self.running[peer] = None;
                let gone = &mut self.peers[peer];
                self.rig.core.disconnected(gone.id).unwrap();
                assert!(!self.rig.core.client_gone(gone.id).unwrap());
                gone.die();
                assert!(self.rig.core.client_gone(gone.id).unwrap());
                self.held[peer].clear();
                self.pins[peer].clear();
                self.direct[peer].clear();
                self.peers[peer] = Self::join(&mut self.rig, peer);
            }
            Op::Register { peer } => {
                let rank = peer as u32 % 2;
                let groups = groups_of(rank as u16);
                self.rig.register(&self.peers[peer], rank, 2, &groups).unwrap();
            }
            Op::Clear => {
                self.rig.core.clear().unwrap();
            }
            Op::Begin {
                peer,
                what,
                prompt,
                chunk,
            } => self.begin(peer, what, prompt, chunk),
            Op::GoOn { peer, steps } => self.go_on(peer, steps),
        }
    }

    fn begin(&mut self, peer: usize, what: u8, prompt: u32, chunk: u32) {
        let (id, seed) = (self.peers[peer].id, self.rig.seed);
        let running = match what {
            0 => Running::Grant(Grant::new(id, 12 * FRAME_BYTES)),
            1 => {
                let extents = std::mem::take(&mut self.held[peer]);
                Running::Abort(Abort::new(id, extents.leak()))
            }
            2 | 3 => {
                let Some(request) = self.chain_to_commit(peer, prompt, chunk) else {
                    return;
                };
                Running::Commit(Box::new(Committing::new(id, Box::leak(Box::new(request)))))
            }
            4 => {
                let (key, _) = chain(prompt, chunk);
                let object = ObjectId { key, group: 0 };
                let view = self.rig.core.index.reader().lookup(&object);
                let named = vec![(object, view.map_or(77, |view| view.incarnation))];
                Running::Discard(Discard::new(id, seed, named.leak()))
            }
            5 => Running::Clear(Clear::new(&self.rig.core)),
            6 if chunk == 0 => {
                let rank = peer as u32 % 2;
                let registration = Registration {
                    domain_seed: seed,
                    rank,
                    world_size: 2,
                    required_alignment: ALIGN,
                    chunk_size: CHUNK,
                    groups: groups_of(rank as u16),
                    payload_path: PayloadPath::ShmDirect,
                    stores: true,
                };
                Running::Register(Register::new(id, Box::leak(Box::new(registration))))
            }
            _ => Running::Status(Reporting::new(&self.rig.core)),
        };
        self.running[peer] = Some(running);
    }

    /// Parts of some chunks in a row, in space that was granted for them.
    fn chain_to_commit(&mut self, peer: usize, prompt: u32, first: u32) -> Option<CommitRequest> {
        let each = 4 * FRAME_BYTES;
        let granted = self.rig.core.grant(self.peers[peer].id, 3 * each).unwrap();
        let frames: Vec<Extent> = granted
            .iter()
            .flat_map(|extent| extent.frames())
            .map(|frame| Extent::new(frame, 1))
            .collect();
        let (whole, rest) = frames.split_at(frames.len() / 4 * 4);
        self.held[peer].extend(rest);
        let item = |at: u32| {
            let (key, parent) = chain(prompt, first + at);
            StoreItem {
                id: ObjectId { key, group: 0 },
                parent,
                skipped: false,
                part: peer as u16 % 2,
                tokens: CHUNK,
                held_from: 0,
                bytes: each,
                checksum: 0,
                first_extent: 4 * at,
                extent_count: 4,
            }
        };
        let items: Vec<StoreItem> = (0..whole.len() as u32 / 4).map(item).collect();
        (!items.is_empty()).then(|| CommitRequest {
            domain_seed: self.rig.seed,
            items,
            extents: whole.to_vec(),
            supersedes: vec![],
            grant_bytes: 2 * FRAME_BYTES,
        })
    }

    fn go_on(&mut self, peer: usize, steps: u32) {
        let (core, turn) = (&mut self.rig.core, &mut Turn::of(steps));
        let Some(running) = &mut self.running[peer] else {
            return;
        };
        let granted = match running {
            Running::Grant(work) => work.step(core, turn).unwrap(),
            Running::Abort(work) => done(work.step(core, turn)),
            // A rank whose place another has taken since is refused, as a whole.
            Running::Commit(work) => match work.step(core, turn) {
                Ok(Progress::Done(answer)) => Progress::Done(answer.granted),
                Ok(Progress::More) => Progress::More,
                Err(error) => {
                    assert_eq!(error.code(), 14, "{error}");
                    Progress::Done(Vec::new())
                }
            },
            Running::Discard(work) => done(work.step(core, turn)),
            Running::Clear(work) => done(work.step(core, turn)),
            Running::Register(work) => done(work.step(core, turn)),
            Running::Status(work) => done(work.step(core, turn)),
        };
        if let Progress::Done(granted) = granted {
            self.held[peer].extend(granted);
            self.running[peer] = None;
        }
    }

    fn store(&mut self, peer: usize, prompt: u32, chunk: u32, group: u16, tail: bool) {
        if group == 2 && peer % 2 == 1 {
            return;
        }
        let tokens = if tail { 32 } else { CHUNK };
        let (_, parent) = chain(prompt, chunk);
        let id = ObjectId {
            key: key(prompt, chunk, tokens),
            group,
        };
        let part = if group == 2 { 0 } else { peer as u16 % 2 };
        self.rig.held_from = if prompt == 2 { 32 } else { 0 };
        let bytes = if group == 2 {
            UNIT
        } else {
            UNIT * u64::from(tokens) / ALIGN
        };
        self.rig
            .try_put(&self.peers[peer], id, parent, tokens, part, bytes);
    }

    /// Looks a prompt up and checks that the answer is true: every named object is there, all groups have
    /// what they need at the boundary.
    fn lookup(&mut self, peer: usize, prompt: u32, keep: bool) {
        let tails: Vec<_> = (0..4).map(|c| tail(prompt, c, 32)).collect();
        let direct = self.look_up_direct(peer, prompt, &tails, keep);
        let answer = self.rig.lookup(&self.peers[peer], prompt, 4, &tails);
        assert_eq!(direct.present_tokens, answer.present_tokens);
        assert_eq!(
            direct.hit_tokens,
            self.rig.longest(prompt, 4, &tails, u64::MAX),
            "looking at fewer tails costs no hit"
        );
        assert!(
            direct.hit_tokens >= answer.hit_tokens,
            "only the server knows what this peer's pins keep"
        );
        if direct.hit_tokens == answer.hit_tokens {
            assert_eq!(direct.loads, answer.loads);
        }
        let hit = answer.hit_tokens;
        let chunks = hit.div_ceil(CHUNK.into()) as usize;
        let of = |g| answer.loads.iter().filter(move |l| l.id.group == g);
        assert_eq!(of(0).count(), chunks, "full attention from token 0");
        for (at, load) in of(0).enumerate() {
            assert_eq!(load.chunk as usize, at);
        }
        if hit > 0 {
            let state = of(2).next().expect("a state at the boundary");
            assert_eq!(u64::from(state.chunk * CHUNK + state.tokens), hit);
            let last = of(1).next_back().expect("a window before the boundary");
            assert!(u64::from(last.chunk * CHUNK + last.tokens) >= hit);
        }
        for load in &answer.loads {
            assert!(self.rig.record(load.id.key, load.id.group).is_some());
        }
        if keep && answer.pin != 0 {
            self.pins[peer].push(answer.pin);
        } else {
            self.rig.release(&self.peers[peer], answer.pin);
        }
    }

    /// Looks a prompt up without the server, and keeps the pin or takes it back.
    fn look_up_direct(&mut self, peer: usize, prompt: u32, tails: &[Tail], keep: bool) -> LookupAnswer {
        // The last peer writes words as it likes.
        let peer = peer % 3;
        let answer = self
            .rig
            .look_up_direct(&mut self.peers[peer], prompt, 4, tails, u64::MAX);
        assert_eq!(answer.pin == 0, answer.loads.is_empty());
        if !keep {
            self.peers[peer].words.release(answer.pin);
            return answer;
        }
        let mut frames = Vec::new();
        for load in &answer.loads {
            let record = self.rig.record(load.id.key, load.id.group).unwrap();
            let incarnation = self.rig.core.pool.directory.shared_words(record).unwrap()[0];
            let (parts, _) = self.rig.core.pool.directory.body(record).unwrap();
            let extents = parts.iter().flat_map(|part| &part.extents);
            frames.extend(
                extents
                    .flat_map(|extent| extent.frames())
                    .map(|frame| (frame, incarnation)),
            );
        }
        self.direct[peer].push((answer.pin, frames));
        answer
    }

    /// Frames that clients hold are theirs, and what a client pins itself keeps its bytes, whatever else has happened.
    fn check(&self) {
        self.rig.audit();
        for (frame, incarnation) in self.direct.iter().flatten().flat_map(|(_, frames)| frames) {
            assert_eq!(self.rig.core.pool.epochs.of(*frame), *incarnation);
        }
        for (peer, extents) in self.peers.iter().zip(&self.held) {
            for extent in extents {
                self.rig.core.check_granted(peer.id, *extent).unwrap();
            }
        }
    }
}

impl Op {
    /// The peer that asks for something.
    fn asks(&self) -> Option<usize> {
        match *self {
            Self::Grant { peer, .. }
            | Self::Abort { peer, .. }
            | Self::Store { peer, .. }
            | Self::Skip { peer, .. }
            | Self::Lookup { peer, .. }
            | Self::Retrieve { peer, .. }
            | Self::Release { peer, .. }
            | Self::EndSession { peer, .. }
            | Self::Supersede { peer, .. }
            | Self::Discard { peer, .. }
            | Self::Register { peer }
            | Self::Begin { peer, .. } => Some(peer),
            Self::ReleaseDirect { .. }
            | Self::SlabPin { .. }
            | Self::Die { .. }
            | Self::Clear
            | Self::GoOn { .. } => None,
        }
    }
}

fn done<T>(progress: Result<Progress<T>, CoreError>) -> Progress<Vec<Extent>> {
    match progress.unwrap() {
        Progress::Done(_) => Progress::Done(Vec::new()),
        Progress::More => Progress::More,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_invariant_holds_after_every_step(ops in prop::collection::vec(op(), 1..100)) {
        let mut world = World::new();
        for op in ops {
            world.run(op);
            world.check();
        }
        // When all are gone, nothing is left but objects, and they can all go.
        world.running = [const { None }; 4];
        for peer in &mut world.peers {
            peer.die();
            assert!(world.rig.core.client_gone(peer.id).unwrap());
        }
        world.rig.audit();
        let pool = world.rig.core.status().pool;
        assert_eq!((pool.granted, pool.pinned, pool.quarantined), (0, 0, 0));
        world.rig.core.clear().unwrap();
        world.rig.audit();
        let status = world.rig.core.status();
        assert_eq!((status.pool.used, status.objects, status.limbo, status.domains), (0, 0, 0, 0));
        assert_eq!(status.pool.free, status.pool.total);
    }
}
