//! A client that goes through the script of `kvasir conform` by hand, rightly or with one thing wrong.

#![allow(unreachable_pub)]

pub mod product;

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use kvasir::copy::Checksum;
use kvasir::geometry::ObjectKind;
use kvasir::keys::{ChunkKey, Extras, KeyChain};
use kvasir::object::*;
use kvasir::shm::fdpass::{recv_with_fds, send_with_fds};
use kvasir::shm::lock::try_lock_byte;
use kvasir::shm::{Mapping, ReadWrite};
use kvasir::wire::*;

const WATCHDOG: Duration = Duration::from_secs(60);
const ALIGNMENT: u32 = 16;
const UNIT: u64 = 1000;
const CHUNKS: usize = 3;

/// What a client does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    Nothing,
    Version,
    RootMissing,
    NoEngineInstance,
    ByteNotLocked,
    Alignment,
    IdZero,
    DescriptorsSent,
    GrantNotAskedAgain,
    KeyWithoutParent,
    KeyOfWideTokens,
    ParentMissing,
    FramesOfOthers,
    BytesTooMany,
    Checksum,
    WritesAfterCommit,
    WritesIntoLoaded,
    CopyMixedUp,
    PinKept,
    ConnectionKept,
    AnswersByOrder,
    SizeForgotten,
    CutOff,
}

/// Token `i` of prompt `number` (docs/conformance.md).
fn token(number: u64, i: u64) -> u32 {
    ((i * 7919 + 104_729 * number) % 50_000) as u32
}

/// The client has stopped: refused, or at the end of what its mistake leaves possible.
pub struct Stopped;

type Done<T> = Result<T, Stopped>;

struct Wire {
    stream: UnixStream,
    reader: FrameReader,
    fds: Vec<OwnedFd>,
    next_id: u64,
}

impl Wire {
    /// Connects as soon as somebody listens.
    fn connect(path: &Path) -> Done<Self> {
        let begin = Instant::now();
        loop {
            match UnixStream::connect(path) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
                    return Ok(Self {
                        stream,
                        reader: FrameReader::new(),
                        fds: vec![],
                        next_id: 1,
                    });
                }
                Err(_) if begin.elapsed() < Duration::from_secs(20) => sleep(Duration::from_millis(5)),
                Err(_) => return Err(Stopped),
            }
        }
    }

    fn send(&mut self, id: u64, request: &Request) -> Done<()> {
        let frame = Encoder::new().request(id, request).unwrap().to_vec();
        self.stream.write_all(&frame).map_err(|_| Stopped)
    }

    /// The next reply; nothing when the connection has ended.
    fn receive(&mut self) -> Done<(u64, Reply)> {
        loop {
            if let Some(frame) = self.reader.next_frame().unwrap() {
                return Ok(decode_reply(frame).unwrap());
            }
            let space = self.reader.space().unwrap();
            match recv_with_fds(&self.stream, space, MAX_FDS_PER_FRAME) {
                Ok(received) if received.bytes > 0 => {
                    self.fds.extend(received.fds);
                    self.reader.received(received.bytes);
                }
                _ => return Err(Stopped),
            }
        }
    }

    fn call(&mut self, request: &Request) -> Done<Reply> {
        let id = self.next_id;
        self.next_id += 1;
        self.send(id, request)?;
        let (found, reply) = self.receive()?;
        assert!(
            found == id || matches!(reply, Reply::Error(_)),
            "{found} for {id}"
        );
        Ok(reply)
    }
}

/// A registered connection.
struct Client {
    wire: Wire,
    pool: Mapping<ReadWrite>,
    seed: ChunkKey,
    chunk: u64,
    free: Vec<Extent>,
    wrong: Wrong,
}

impl Client {
    fn open(path: &Path, wrong: Wrong, previous: u64) -> Done<Self> {
        let hello = Request::Hello(Hello {
            protocol_version: PROTOCOL_VERSION + u32::from(wrong == Wrong::Version),
            features: 0,
            kind: ClientKind::Worker,
            name: "raw".into(),
            engine_instance: if wrong == Wrong::NoEngineInstance {
                [0; 16]
            } else {
                [9; 16]
            },
            wants_pool: true,
            ring_bytes: 0,
            named: false,
        });
        let (mut wire, hello) = loop {
            let mut wire = Wire::connect(path)?;
            if wrong == Wrong::RootMissing {
                wire.stream.write_all(&bare_hello()).map_err(|_| Stopped)?;
                wire.receive()?;
                return Err(Stopped);
            }
            match wire.call(&hello)? {
                Reply::Hello(hello) => break (wire, hello),
                Reply::Error(error) if error.code.is_passing() => {
                    assert!(wire.receive().is_err(), "closed after the refusal");
                }
                _ => return Err(Stopped),
            }
        };
        let fds = std::mem::take(&mut wire.fds);
        let region = |kind| {
            hello
                .regions
                .iter()
                .zip(&fds)
                .find(|(region, _)| region.kind == kind)
                .unwrap()
        };
        let (pool, fd) = region(RegionKind::Pool);
        let pool = Mapping::map_foreign(fd.as_fd(), pool.bytes as usize).unwrap();
        let (byte, fd) = region(RegionKind::Liveness);
        if wrong != Wrong::ByteNotLocked {
            assert!(try_lock_byte(fd.as_fd(), byte.offset).unwrap());
        }
        if wrong == Wrong::DescriptorsSent {
            let frame = Encoder::new().request(90, &Request::Attach).unwrap().to_vec();
            send_with_fds(&wire.stream, &frame, &[fd.as_fd()]).unwrap();
            wire.receive()?;
        }
        // Its lock lives as long as the connection.
        std::mem::forget(fd.try_clone().map_err(|_| Stopped)?);
        if wrong == Wrong::IdZero {
            wire.next_id = 0;
        }
        let Reply::Ack = wire.call(&Request::Attach)? else {
            return Err(Stopped);
        };
        let spans = vec![GroupSpan {
            group: 0,
            tokens: u64::from(ALIGNMENT),
        }];
        let aligned = u64::from(ALIGNMENT) * if wrong == Wrong::Alignment { 2 } else { 1 };
        let negotiate = Request::Negotiate(Negotiate {
            required_alignment: aligned,
            spans: spans.clone(),
            preferred_base: 0,
            previous_size: previous,
            binding_domain: None,
        });
        let Reply::Negotiate(agreed) = wire.call(&negotiate)? else {
            return Err(Stopped);
        };
        let Reply::Register(registered) = wire.call(&Request::RegisterKvCache(registration(spans)))? else {
            return Err(Stopped);
        };
        Ok(Self {
            wire,
            pool,
            seed: registered.domain_seed,
            chunk: agreed.chunk_size,
            free: vec![],
            wrong,
        })
    }

    /// The objects of a prompt: (tokens, key), the tail last.
    fn objects(&self, number: u64) -> Vec<(u32, ChunkKey)> {
        let count = CHUNKS as u64 * self.chunk + u64::from(ALIGNMENT);
        let tokens: Vec<u32> = (0..count).map(|i| token(number, i)).collect();
        let mut chain = KeyChain::new(self.seed, self.chunk as u32, Extras::default()).unwrap();
        chain.extend(&tokens);
        let tail = chain.tail_key_at(CHUNKS, ALIGNMENT).unwrap();
        let chunks = chain.keys().iter().map(|key| (self.chunk as u32, *key));
        chunks.chain([(ALIGNMENT, tail)]).collect()
    }

    fn bytes_of(tokens: u32) -> usize {
        (UNIT * u64::from(tokens) / u64::from(ALIGNMENT)) as usize
    }

    /// Asks until there is space for so many frames.
    fn grant(&mut self, frames: usize) -> Done<()> {
        let begin = Instant::now();
        while self
            .free
            .iter()
            .map(|extent| extent.count as usize)
            .sum::<usize>()
            < frames
        {
            let bytes = frames as u64 * FRAME_BYTES;
            let Reply::Grant { extents } = self.wire.call(&Request::Grant(GrantRequest::of(bytes)))? else {
                return Err(Stopped);
            };
            if extents.is_empty() && self.wrong == Wrong::GrantNotAskedAgain {
                return Err(Stopped);
            }
            self.free.extend(extents);
            assert!(begin.elapsed() < WATCHDOG, "no space");
        }
        Ok(())
    }

    fn take_frame(&mut self) -> Extent {
        let last = self.free.last_mut().unwrap();
        last.count -= 1;
        let frame = last.frame + last.count;
        self.free.retain(|extent| extent.count > 0);
        Extent { frame, count: 1 }
    }

    fn write(&self, extent: Extent, bytes: &[u8]) {
        let offset = extent.frame as usize * FRAME_BYTES as usize;
        self.pool.write_bytes(offset, bytes).unwrap();
    }

    fn read(&self, extent: Extent, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        let offset = extent.frame as usize * FRAME_BYTES as usize;
        self.pool.read_bytes(offset, &mut out).unwrap();
        out
    }

    /// Stores a prompt, each object one frame.
    fn store(&mut self, number: u64, contents: &[Vec<u8>]) -> Done<Vec<Extent>> {
        let objects = self.objects(number);
        self.grant(objects.len())?;
        let (mut items, mut extents): (Vec<StoreItem>, Vec<Extent>) = (vec![], vec![]);
        for (chunk, ((tokens, key), content)) in objects.iter().zip(contents).enumerate() {
            let extent = self.take_frame();
            self.write(extent, content);
            let mut sum = Checksum::new();
            sum.update(content);
            items.push(StoreItem {
                id: ObjectId { key: *key, group: 0 },
                parent: chunk.checked_sub(1).map(|before| objects[before].1),
                skipped: false,
                part: 0,
                tokens: *tokens,
                held_from: 0,
                bytes: content.len() as u64,
                checksum: sum.value(),
                first_extent: chunk as u32,
                extent_count: 1,
            });
            extents.push(extent);
        }
        self.spoil(number, &mut items, &mut extents);
        let commit = Request::Commit(CommitRequest {
            domain_seed: self.seed,
            items,
            extents: extents.clone(),
            supersedes: vec![],
            grant_bytes: 0,
        });
        if self.wrong == Wrong::AnswersByOrder && number == 1 {
            return self.commit_by_order(&commit);
        }
        match self.wire.call(&commit)? {
            Reply::Commit(_) => Ok(extents),
            _ => Err(Stopped),
        }
    }

    /// Sends two requests and takes the first reply for the first one's.
    fn commit_by_order(&mut self, commit: &Request) -> Done<Vec<Extent>> {
        let lookup = self.lookup_of(&self.objects(2));
        self.wire.send(50, commit)?;
        self.wire.send(51, &lookup)?;
        let (_, first) = self.wire.receive()?;
        let (_, second) = self.wire.receive()?;
        // What it takes for the reply to the lookup is that to the commit, and has no pin: this one it makes up.
        assert!(matches!(
            (first, second),
            (Reply::Error(_) | Reply::Lookup(_), Reply::Commit(_))
        ));
        self.wire.call(&Request::Release { pins: vec![4711] })?;
        Err(Stopped)
    }

    fn spoil(&mut self, number: u64, items: &mut [StoreItem], extents: &mut [Extent]) {
        let hash = |bytes: Vec<u8>| ChunkKey::from_bytes(*blake3::hash(&bytes).as_bytes());
        let chunk = self.chunk;
        let second = || (chunk..2 * chunk).map(|i| token(number, i));
        match self.wrong {
            Wrong::KeyWithoutParent => items[1].id.key = hash(second().flat_map(u32::to_le_bytes).collect()),
            Wrong::KeyOfWideTokens => {
                let leaf = hash(
                    second()
                        .flat_map(|token| u64::from(token).to_le_bytes())
                        .collect(),
                );
                let parent = *items[0].id.key.as_bytes();
                items[1].id.key = hash([parent, *leaf.as_bytes()].concat());
            }
            Wrong::ParentMissing => items[1].parent = None,
            Wrong::FramesOfOthers => extents[1] = Extent { frame: 900, count: 1 },
            Wrong::BytesTooMany => items[1].bytes += 1,
            Wrong::Checksum => items[1].checksum ^= 1,
            _ => {}
        }
    }

    fn lookup_of(&self, objects: &[(u32, ChunkKey)]) -> Request {
        Request::Lookup(Lookup {
            domain_seed: self.seed,
            label: 7,
            keys: objects[..CHUNKS].iter().map(|(_, key)| *key).collect(),
            tails: TailList::new(vec![Tail {
                key: objects[CHUNKS].1,
                chunk: CHUNKS as u32,
                tokens: ALIGNMENT,
            }]),
            max_tokens: u64::MAX,
            local_tokens: 0,
            pin: true,
            describe: false,
        })
    }

    /// Looks a prompt up until it hits, and gives the pin back.
    fn find(&mut self, number: u64) -> Done<()> {
        let objects = self.objects(number);
        loop {
            match self.wire.call(&self.lookup_of(&objects))? {
                Reply::Lookup(found)
                    if found.hit_tokens == CHUNKS as u64 * self.chunk + u64::from(ALIGNMENT) =>
                {
                    self.wire.call(&Request::Release {
                        pins: vec![found.pin],
                    })?;
                    return Ok(());
                }
                // Less than was stored: a mistake has kept the rest away.
                Reply::Lookup(_) => return Err(Stopped),
                Reply::Error(error) if error.code.is_passing() => {}
                _ => return Err(Stopped),
            }
        }
    }

    /// Loads a prompt: the bytes of each object.
    fn load(&mut self, number: u64) -> Done<Vec<Vec<u8>>> {
        self.find(number)?;
        let objects = self.objects(number);
        let retrieve = Request::Retrieve(RetrieveRequest {
            domain_seed: self.seed,
            label: 8,
            part: 0,
            ids: objects
                .iter()
                .map(|(_, key)| ObjectId { key: *key, group: 0 })
                .collect(),
        });
        let Reply::Retrieve(found) = self.wire.call(&retrieve)? else {
            return Err(Stopped);
        };
        let mut contents = vec![];
        for location in &found.locations {
            assert!(location.incarnation != 0, "the second prompt is there");
            let extent = found.extents[location.first_extent as usize];
            contents.push(self.read(extent, location.bytes as usize));
            if self.wrong == Wrong::WritesIntoLoaded {
                self.write(extent, &[0xee; 3]);
            }
        }
        if self.wrong != Wrong::PinKept {
            self.wire.call(&Request::Release {
                pins: vec![found.pin],
            })?;
        }
        Ok(contents)
    }
}

fn registration(spans: Vec<GroupSpan>) -> RegisterKvCache {
    RegisterKvCache {
        domain: Domain {
            model: "raw".into(),
            weights_id: vec![3; 32],
            kv_dtype: "uint8".into(),
            fingerprint: vec![4; 32],
            parallel_shape: "tp=1".into(),
        },
        rank: 0,
        world_size: 1,
        required_alignment: u64::from(ALIGNMENT),
        spans,
        groups: vec![GroupRegistration {
            group: 0,
            kind: ObjectKind::Full,
            parts: 1,
            part: 0,
            unit_bytes: UNIT,
        }],
        layers: 1,
        blocks: 100,
        payload_path: PayloadPath::ShmDirect,
        stores: true,
        copy_path: String::new(),
    }
}

/// The hello of a client that comes through pipes.
pub fn hello(wants_pool: bool) -> Request {
    Request::Hello(Hello {
        protocol_version: PROTOCOL_VERSION,
        features: 0,
        kind: ClientKind::Worker,
        name: "pipes".into(),
        engine_instance: [9; 16],
        wants_pool,
        ring_bytes: 0,
        named: false,
    })
}

fn spans() -> Vec<GroupSpan> {
    vec![GroupSpan {
        group: 0,
        tokens: u64::from(ALIGNMENT),
    }]
}

/// Its negotiation.
pub fn negotiation() -> Request {
    Request::Negotiate(Negotiate {
        required_alignment: u64::from(ALIGNMENT),
        spans: spans(),
        ..Negotiate::default()
    })
}

/// The registration of one that only reads.
pub fn reading() -> Request {
    Request::RegisterKvCache(RegisterKvCache {
        payload_path: PayloadPath::None,
        stores: false,
        ..registration(spans())
    })
}

/// The keys of a prompt's full chunks.
pub fn keys(seed: ChunkKey, chunk: u64, number: u64) -> Vec<ChunkKey> {
    let tokens: Vec<u32> = (0..CHUNKS as u64 * chunk).map(|i| token(number, i)).collect();
    let mut chain = KeyChain::new(seed, chunk as u32, Extras::default()).unwrap();
    chain.extend(&tokens);
    chain.keys().to_vec()
}

/// A lookup of some keys.
pub fn question(seed: ChunkKey, keys: &[ChunkKey]) -> Request {
    Request::Lookup(Lookup {
        domain_seed: seed,
        label: 1,
        keys: keys.to_vec(),
        tails: TailList::default(),
        max_tokens: u64::MAX,
        local_tokens: 0,
        pin: true,
        describe: false,
    })
}

/// A `Hello` as the root of a size-prefixed buffer, which is a client that has no `Request` around it.
fn bare_hello() -> Vec<u8> {
    let vtable: [u16; 6] = [12, 12, 4, 0, 0, 8]; // version at 4, name at 8
    let name = b"bare";
    let mut body = vec![];
    body.extend_from_slice(&16_u32.to_le_bytes()); // the table, from here
    body.extend(vtable.iter().flat_map(|slot| slot.to_le_bytes()));
    body.extend_from_slice(&12_i32.to_le_bytes()); // back to the vtable
    body.extend_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    body.extend_from_slice(&4_u32.to_le_bytes()); // on to the name
    body.extend_from_slice(&(name.len() as u32).to_le_bytes());
    body.extend_from_slice(name);
    body.push(0);
    [&(body.len() as u32).to_le_bytes()[..], &body].concat()
}

/// The whole script.
pub fn go(path: &Path, wrong: Wrong) -> Done<()> {
    let mut client = Client::open(path, wrong, 0)?;
    let chunk = client.chunk;
    let lengths: Vec<usize> = client
        .objects(1)
        .iter()
        .map(|(tokens, _)| Client::bytes_of(*tokens))
        .collect();
    let own: Vec<Vec<u8>> = lengths
        .iter()
        .zip(1..)
        .map(|(length, byte)| vec![byte; *length])
        .collect();
    let extents = client.store(1, &own)?;
    if wrong == Wrong::WritesAfterCommit {
        client.write(extents[2], &[0xee]);
    }
    client.find(1)?;
    let mut contents = client.load(2)?;
    if wrong == Wrong::CopyMixedUp {
        contents.swap(0, 1);
    }
    // The first attempt fails midway.
    assert!(client.store(3, &contents).is_err(), "the kit fails it");
    if wrong == Wrong::ConnectionKept {
        client.store(3, &contents)?;
    } else {
        drop(client);
        client = Client::open(path, wrong, chunk)?;
        client.store(3, &contents)?;
    }
    if wrong == Wrong::PinKept {
        client.load(2)?;
    }
    // Until the server has gone.
    while client.wire.receive().is_ok() {}
    drop(client);
    let previous = if wrong == Wrong::SizeForgotten { 0 } else { chunk };
    let mut client = Client::open(path, wrong, previous)?;
    client.store(1, &own)?;
    client.find(1)?;
    if wrong == Wrong::CutOff {
        client
            .wire
            .stream
            .write_all(&[9, 0, 0, 0, 1])
            .map_err(|_| Stopped)?;
    }
    Ok(())
}
