//! Whether a commit says what the prompts ask for.

use std::collections::BTreeSet;

use super::inner::Engine;
use super::script::{CHUNKS, PROMPTS, Place, Prompt, Script, hex};
use super::steps::{Sheet, Step};
use crate::copy::Checksum;
use crate::keys::ChunkKey;
use crate::object::{CommitRequest, Extent, StoreItem, frames_for};

/// The extents of an item.
pub(super) fn extents_of<'a>(commit: &'a CommitRequest, item: &StoreItem) -> &'a [Extent] {
    let first = item.first_extent as usize;
    commit
        .extents
        .get(first..first + item.extent_count as usize)
        .unwrap_or_default()
}

/// The places of a commit's items, as far as their keys are the script's.
pub(super) fn places(script: &Script, commit: &CommitRequest) -> Vec<Option<Place>> {
    commit
        .items
        .iter()
        .map(|item| script.find(&item.id.key))
        .collect()
}

/// Looks at a commit before the server does.
pub(super) fn check(
    sheet: &mut Sheet,
    engine: &Engine,
    script: &Script,
    granted: &BTreeSet<u32>,
    commit: &CommitRequest,
) {
    if commit.domain_seed != script.seed {
        sheet.find(
            Step::Commit,
            "Commit.domain_seed",
            format_args!("{}, the seed of the registered domain", hex(&script.seed)),
            hex(&commit.domain_seed),
        );
    }
    for (number, item) in commit.items.iter().enumerate() {
        let field = |name: &str| format!("Commit.items[{number}].{name}");
        if item.id.group != script.group {
            sheet.find(Step::Commit, field("id.group"), script.group, item.id.group);
        }
        let Some(place) = script.find(&item.id.key) else {
            wrong_key(sheet, script, &field("id.key"), item);
            continue;
        };
        check_item(sheet, script, &place, item, &field);
        if !item.skipped {
            check_frames(sheet, engine, granted, commit, number, item);
            check_sum(sheet, engine, commit, item, &field("checksum"));
        }
    }
}

/// Says which key was due.
fn wrong_key(sheet: &mut Sheet, script: &Script, field: &str, item: &StoreItem) {
    let parent = item.parent.and_then(|parent| script.find(&parent));
    let due = match parent {
        Some(parent) if parent.tokens == script.chunk_size => {
            let next = (parent.prompt, parent.chunk + 1);
            let key = script.keys(next.0).get(next.1).copied();
            let key = if next.1 == CHUNKS {
                script.last_tail(next.0)
            } else {
                key
            };
            key.map(|key| format!("{}, that of chunk {} of {}", hex(&key), next.1, next.0.name()))
        }
        _ => None,
    };
    let due = due.unwrap_or_else(|| {
        let first = |prompt: Prompt| script.keys(prompt).first().map(hex).unwrap_or_default();
        format!(
            "the key of a chunk of the prompts, such as {} (chunk 0 of the first) or {} (of the third)",
            first(Prompt::First),
            first(Prompt::Third)
        )
    });
    let why = script
        .mistake(&item.id.key)
        .map(|why| format!(", {why}"))
        .unwrap_or_default();
    sheet.find(
        Step::Commit,
        field,
        due,
        format_args!("{}{why}", hex(&item.id.key)),
    );
}

fn check_item(
    sheet: &mut Sheet,
    script: &Script,
    place: &Place,
    item: &StoreItem,
    field: &dyn Fn(&str) -> String,
) {
    let text = place.text(script.chunk_size);
    let key = |key: Option<ChunkKey>| key.map_or("none (has_parent 0)".to_owned(), |key| hex(&key));
    let parent = script.parent_of(place);
    if item.parent != parent {
        let expected = format!("{}, the key of the chunk before {text}", key(parent));
        sheet.find(Step::Commit, field("parent"), expected, key(item.parent));
    }
    if item.tokens != place.tokens {
        let expected = format!("{}, those of {text}", place.tokens);
        sheet.find(Step::Commit, field("tokens"), expected, item.tokens);
    }
    let bytes = script.bytes_of(place.tokens);
    if !item.skipped && item.bytes != bytes {
        let (unit, alignment) = (script.unit_bytes, script.alignment);
        let expected = format!("{bytes} ({unit} for each {alignment} of {} tokens)", place.tokens);
        sheet.find(Step::Commit, field("bytes"), expected, item.bytes);
    }
    if item.part != 0 {
        sheet.find(Step::Commit, field("part"), "0, the only one", item.part);
    }
    if item.held_from != 0 {
        sheet.find(
            Step::Commit,
            field("held_from"),
            "0: full attention has no holes",
            item.held_from,
        );
    }
}

fn check_frames(
    sheet: &mut Sheet,
    engine: &Engine,
    granted: &BTreeSet<u32>,
    commit: &CommitRequest,
    number: usize,
    item: &StoreItem,
) {
    let extents = extents_of(commit, item);
    let field = format!("Commit.items[{number}], its extents");
    let frames: u64 = extents.iter().map(|extent| u64::from(extent.count)).sum();
    let needed = frames_for(item.bytes);
    if frames != needed {
        let expected = format!("the {needed} frames that {} bytes need", item.bytes);
        sheet.find(Step::Commit, &field, expected, format_args!("{frames} frames"));
    }
    let foreign = extents
        .iter()
        .flat_map(|extent| extent.frames())
        .find(|frame| !granted.contains(frame));
    if let Some(frame) = foreign {
        let range = match (granted.first(), granted.last()) {
            (Some(first), Some(last)) => format!(
                "one of the {} granted frames from {first} to {last}",
                granted.len()
            ),
            _ => "a granted frame, of which this connection has none".to_owned(),
        };
        let outside = if frame >= engine.frames() {
            ", which is outside of the pool"
        } else {
            ""
        };
        sheet.find(
            Step::Commit,
            &field,
            range,
            format_args!("frame {frame}{outside}"),
        );
    }
}

/// Whether the sum is that of the bytes in the pool. 0 says that the client computes none.
fn check_sum(sheet: &mut Sheet, engine: &Engine, commit: &CommitRequest, item: &StoreItem, field: &str) {
    let Some(bytes) = engine.read(extents_of(commit, item), item.bytes) else {
        return;
    };
    let mut sum = Checksum::new();
    sum.update(&bytes);
    if item.checksum != 0 && item.checksum != sum.value() {
        let expected = format!("{:#018x}, that of the bytes in these frames", sum.value());
        sheet.find(
            Step::Commit,
            field,
            expected,
            format_args!("{:#018x}", item.checksum),
        );
    }
}

/// Compares an object of the third prompt with that of the second: whether the client has really read it.
pub(super) fn check_copy(
    sheet: &mut Sheet,
    engine: &Engine,
    script: &Script,
    commit: &CommitRequest,
    item: &StoreItem,
    place: &Place,
) -> bool {
    let Some(found) = engine.read(extents_of(commit, item), item.bytes) else {
        return false;
    };
    let content = |chunk: usize| {
        let key = script.keys(Prompt::Second).get(chunk).copied();
        let key = if chunk == CHUNKS {
            script.last_tail(Prompt::Second)
        } else {
            key
        };
        key.map(|key| engine.content(key.as_bytes(), item.bytes))
    };
    let Some(expected) = content(place.chunk) else {
        return true;
    };
    let Some(at) = found
        .iter()
        .zip(&expected)
        .position(|(found, expected)| found != expected)
    else {
        return true;
    };
    let mut other = (0..=CHUNKS).filter(|&chunk| chunk != place.chunk);
    let why = match other.find(|&chunk| content(chunk).as_ref() == Some(&found)) {
        Some(chunk) => format!(": these are the bytes of chunk {chunk}"),
        None if found.iter().all(|byte| *byte == 0) => ": all of them are zero".to_owned(),
        None => String::new(),
    };
    sheet.find(
        Step::Retrieve,
        format_args!("byte {at} of {}", place.text(script.chunk_size)),
        format_args!(
            "{:#04x}, as in chunk {} of the second prompt",
            expected[at], place.chunk
        ),
        format_args!("{:#04x}{why}", found[at]),
    );
    false
}

/// The keys of a lookup against the prompts: the first that is wrong.
pub(super) fn check_keys(sheet: &mut Sheet, script: &Script, keys: &[ChunkKey]) -> Option<Prompt> {
    let [first, ..] = keys else { return None };
    let prompt = PROMPTS
        .into_iter()
        .find(|prompt| script.keys(*prompt).first() == Some(first));
    let Some(prompt) = prompt else {
        let expected = script.keys(Prompt::First).first().map(hex).unwrap_or_default();
        let why = script
            .mistake(first)
            .map(|why| format!(", {why}"))
            .unwrap_or_default();
        sheet.find(
            Step::Lookup,
            "Lookup.keys[0]",
            format_args!("{expected} (chunk 0 of the first prompt), or that of the second or third"),
            format_args!("{}{why}", hex(first)),
        );
        return None;
    };
    let due = script.keys(prompt);
    for (number, key) in keys.iter().enumerate() {
        let expected = due.get(number);
        if expected != Some(key) {
            let expected = expected.map_or("no such key: a tail has a place of its own".to_owned(), |key| {
                format!("{}, that of chunk {number} of {}", hex(key), prompt.name())
            });
            let why = script
                .mistake(key)
                .map(|why| format!(", {why}"))
                .unwrap_or_default();
            sheet.find(
                Step::Lookup,
                format_args!("Lookup.keys[{number}]"),
                expected,
                format_args!("{}{why}", hex(key)),
            );
            return None;
        }
    }
    Some(prompt)
}
