//! An index region as a server leaves it, byte for byte, and what a reader has to find in it.
//!
//! `tests/data/index/` has both, for readers in other languages; tests/conformance/golden.py is one. After a change of the
//! layout, `KVASIR_WRITE_GOLDEN=1 cargo test --test index_golden` writes them anew.

mod common;

use std::path::PathBuf;

use common::*;
use kvasir::copy::Checksum;
use kvasir::geometry::ObjectKind;
use kvasir::object::*;
use kvasir::shm::{Mapping, ReadOnly, ReadWrite};
use kvasir::wire::*;
use serde_json::{Value, json};

const FULL: u16 = 0;
const WINDOW: u16 = 3;
const STATE: u16 = 7;
const SPAN: u64 = 16;
const CHUNK_TOKENS: u32 = 64;

/// One object of the image.
struct Object {
    number: u64,
    group: u16,
    parent: Option<u64>,
    tokens: u32,
    held_from: u32,
    bytes: u64,
    /// Runs of frames that its part has, by length: the shapes of records that there are.
    runs: &'static [u32],
}

/// Two chunks and a tail; the second chunk with a window that begins with holes, and a state in so many pieces that its
/// record goes on in two chain blocks.
const OBJECTS: [Object; 5] = [
    Object {
        number: 1,
        group: FULL,
        parent: None,
        tokens: 64,
        held_from: 0,
        bytes: 80_000,
        runs: &[2],
    },
    Object {
        number: 2,
        group: FULL,
        parent: Some(1),
        tokens: 64,
        held_from: 0,
        bytes: 80_000,
        runs: &[1, 1],
    },
    Object {
        number: 3,
        group: FULL,
        parent: Some(2),
        tokens: 16,
        held_from: 0,
        bytes: 20_000,
        runs: &[1],
    },
    Object {
        number: 2,
        group: WINDOW,
        parent: Some(1),
        tokens: 64,
        held_from: 16,
        bytes: 4000,
        runs: &[1],
    },
    Object {
        number: 2,
        group: STATE,
        parent: Some(1),
        tokens: 64,
        held_from: 0,
        bytes: 750_000,
        runs: &[1; 12],
    },
];

fn register() -> RegisterKvCache {
    let group = |group, kind, unit_bytes| GroupRegistration {
        group,
        kind,
        parts: 1,
        part: 0,
        unit_bytes,
    };
    RegisterKvCache {
        required_alignment: SPAN,
        spans: vec![GroupSpan {
            group: 0,
            tokens: SPAN,
        }],
        groups: vec![
            group(FULL, ObjectKind::Full, 20_000),
            group(WINDOW, ObjectKind::Window { tokens: 40 }, 1000),
            group(STATE, ObjectKind::Recurrent, 750_000),
        ],
        ..registration()
    }
}

/// Frames for each object, taken from what was granted.
fn take(free: &mut Vec<u32>, runs: &[u32]) -> Vec<Extent> {
    let run = |count: &u32| {
        let frames: Vec<u32> = free.drain(..*count as usize).collect();
        assert!(frames.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{frames:?}");
        Extent {
            frame: frames[0],
            count: *count,
        }
    };
    runs.iter().map(run).collect()
}

fn content(object: &Object) -> Vec<u8> {
    let name = [&key(object.number).as_bytes()[..], &object.group.to_le_bytes()].concat();
    let mut bytes = vec![0; object.bytes as usize];
    blake3::Hasher::new()
        .update(&name)
        .finalize_xof()
        .fill(&mut bytes);
    let holes = 1000 * u64::from(object.held_from) / SPAN;
    bytes[..holes as usize].fill(0);
    bytes
}

/// Stores the objects with a real server: its index region, and what is in it.
fn made() -> (Vec<u8>, Value) {
    let server = ServerProcess::with_args(&["--pool-size", "4MiB", "--chunk-size", "64"]);
    server.wait_prefaulted();
    let mut client = server.connect();
    client.hello(true);
    client.attach();
    client.negotiate(SPAN);
    let Reply::Register(registered) = client.call(&Request::RegisterKvCache(register())) else {
        panic!("not registered");
    };
    let frames: u32 = OBJECTS.iter().flat_map(|object| object.runs).sum();
    let granted = client.grant(u64::from(frames) * FRAME_BYTES);
    let mut free: Vec<u32> = granted.iter().flat_map(|extent| extent.frames()).collect();
    let regions = client.hello.as_ref().unwrap().regions.clone();
    let region = |kind| regions.iter().find(|region| region.kind == kind).unwrap().bytes as usize;
    let pool =
        Mapping::<ReadWrite>::map_foreign(client.region(RegionKind::Pool), region(RegionKind::Pool)).unwrap();
    let (mut items, mut extents, mut sums) = (vec![], vec![], vec![]);
    for object in &OBJECTS {
        let own = take(&mut free, object.runs);
        let bytes = content(object);
        let mut left = &bytes[..];
        for extent in &own {
            let length = left.len().min(extent.bytes() as usize);
            pool.write_bytes(extent.frame as usize * FRAME_BYTES as usize, &left[..length])
                .unwrap();
            left = &left[length..];
        }
        let mut sum = Checksum::new();
        sum.update(&bytes);
        items.push(StoreItem {
            id: ObjectId {
                key: key(object.number),
                group: object.group,
            },
            parent: object.parent.map(key),
            skipped: false,
            part: 0,
            tokens: object.tokens,
            held_from: object.held_from,
            bytes: object.bytes,
            checksum: sum.value(),
            first_extent: extents.len() as u32,
            extent_count: own.len() as u32,
        });
        sums.push((sum.value(), own.clone()));
        extents.extend(own);
    }
    let ids: Vec<ObjectId> = items.iter().map(|item| item.id).collect();
    let commit = CommitRequest {
        domain_seed: registered.domain_seed,
        items,
        extents,
        supersedes: vec![],
        grant_bytes: 0,
    };
    match client.call(&Request::Commit(commit)) {
        Reply::Commit(answer) => assert_eq!(answer.outcomes, [CommitOutcome::Published; OBJECTS.len()]),
        other => panic!("{other:?}"),
    }
    // One by one: all together are more than one client may keep from eviction in so small a pool.
    let incarnations: Vec<u64> = ids
        .into_iter()
        .map(|id| {
            let retrieve = RetrieveRequest {
                domain_seed: registered.domain_seed,
                label: 1,
                part: 0,
                ids: vec![id],
            };
            let Reply::Retrieve(found) = client.call(&Request::Retrieve(retrieve)) else {
                panic!("not found");
            };
            let pins = vec![found.pin];
            assert_eq!(client.call(&Request::Release { pins }), Reply::Ack);
            found.locations[0].incarnation
        })
        .collect();
    let mut ask = lookup_of(registered.domain_seed);
    ask.describe = true;
    let Reply::Lookup(LookupAnswer {
        shape: Some(shape), ..
    }) = client.call(&Request::Lookup(ask))
    else {
        panic!("no shape");
    };
    let bit = |group| {
        shape
            .groups
            .iter()
            .find(|other| other.group == group)
            .unwrap()
            .bit
    };
    let objects = OBJECTS.iter().zip(incarnations).zip(sums).map(|((object, incarnation), (sum, extents))| {
        let second = (object.number, object.group) == (2, FULL);
        json!({
            "key": hex(key(object.number).as_bytes()),
            "group": object.group,
            "incarnation": incarnation,
            "domain": registered.domain,
            "tokens": object.tokens,
            "held_from": object.held_from,
            "frames": object.runs.iter().sum::<u32>(),
            "companions": if second { bit(WINDOW) | bit(STATE) } else { 0 },
            "companions_with_holes": if second { bit(WINDOW) } else { 0 },
            "tails_of_next_chunk": u32::from(second),
            "parts": [{
                "bytes": object.bytes,
                "checksum": sum,
                "extents": extents.iter().map(|extent| json!([extent.frame, extent.count])).collect::<Vec<_>>(),
            }],
        })
    });
    let index = Mapping::<ReadOnly>::map_foreign(client.region(RegionKind::Index), region(RegionKind::Index))
        .unwrap();
    let mut image = vec![0; index.len()];
    index.read_bytes(0, &mut image).unwrap();
    let text = json!({
        "abi_version": u32::from_le_bytes(image[8..12].try_into().unwrap()),
        "frames": u64::from_le_bytes(image[16..24].try_into().unwrap()),
        "alignment": SPAN,
        "chunk_size": CHUNK_TOKENS,
        "objects": objects.collect::<Vec<_>>(),
        "absent": [
            { "key": hex(key(1).as_bytes()), "group": WINDOW },
            { "key": hex(key(4).as_bytes()), "group": FULL },
        ],
    });
    (image, text)
}

fn lookup_of(domain_seed: kvasir::keys::ChunkKey) -> Lookup {
    Lookup {
        domain_seed,
        label: 2,
        keys: vec![key(1), key(2)],
        tails: TailList::default(),
        max_tokens: 1000,
        local_tokens: 0,
        pin: false,
        describe: false,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_image_is_what_a_server_makes() {
    let (image, text) = made();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/index");
    let text = format!("{text:#}\n");
    if std::env::var_os("KVASIR_WRITE_GOLDEN").is_some() {
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("index.bin"), &image).unwrap();
        std::fs::write(folder.join("index.json"), &text).unwrap();
    }
    let cure = "KVASIR_WRITE_GOLDEN=1 writes it anew; a change that an older reader would misread raises ABI_VERSION";
    let golden = std::fs::read_to_string(folder.join("index.json")).unwrap();
    assert_eq!(golden, text, "index.json: {cure}");
    let golden = std::fs::read(folder.join("index.bin")).unwrap();
    let differs = golden
        .iter()
        .zip(&image)
        .position(|(golden, made)| golden != made);
    assert_eq!((golden.len(), differs), (image.len(), None), "index.bin: {cure}");
}

#[test]
fn every_file_of_the_folder_is_explained() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let readme = std::fs::read_to_string(folder.join("README.md")).unwrap();
    for directory in std::fs::read_dir(&folder)
        .unwrap()
        .flatten()
        .filter(|entry| entry.path().is_dir())
    {
        for file in std::fs::read_dir(directory.path()).unwrap().flatten() {
            let name = file.file_name().into_string().unwrap();
            let directory = directory.file_name().into_string().unwrap();
            let kinds = name
                .rsplit_once('.')
                .map(|(_, kind)| format!("{directory}/*.{kind}"));
            let named = [Some(format!("{directory}/{name}")), kinds].into_iter().flatten();
            assert!(
                named.into_iter().any(|name| readme.contains(&name)),
                "{directory}/{name} is not in the README"
            );
        }
    }
}
