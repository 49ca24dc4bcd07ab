//! What came of the settings of the pool's memory, for the log and for status; and how nodes are written in files.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};
use tracing::{info, warn};

use super::state::Server;
use crate::geometry::Bytes;
use crate::pool::{Backing, HugePages, Seen};
use crate::shm::numa::Numa;

impl Serialize for Numa {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Numa {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "\"auto\", \"off\", a node or a list of nodes in quotes"
        )]
        enum Form {
            Node(u32),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Node(node) => node.to_string().parse().map_err(serde::de::Error::custom),
            Form::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// Says what the pool is made of, once.
pub(super) fn announce(server: &Server) {
    let core = server.core();
    let (backing, (placement, not_placed)) = (core.backing(), core.placement());
    let pages = match (server.config.huge_pages, backing) {
        (HugePages::Off, _) => "small pages",
        (_, Backing::Small) => "small pages: there are no huge ones of a size that the pool fills",
        (_, Backing::Transparent { required: false }) => "transparent huge pages as far as there are any",
        (_, Backing::Transparent { required: true }) => "transparent huge pages only",
        (_, Backing::Reserved { .. }) => "reserved huge pages",
    };
    info!(pages, numa = %placement, "pool memory");
    if let Some(reason) = core.not_reserved() {
        info!(reason, "the pool has no reserved huge pages");
    }
    if let Some(error) = not_placed {
        warn!(
            error,
            "the pool could not be placed on its NUMA node, and goes where the kernel puts it"
        );
    }
}

/// Notes what the present pages are, and says so when many of those that should be huge are not.
pub(super) fn seen(server: &Server, seen: Seen) {
    let present = server.core().counters().1.prefaulted;
    let page_bytes = server.core().backing().page_bytes();
    // Not after the first step: the whole is what matters.
    let is_first = server.seen.borrow().is_none() && server.core().is_growing();
    if let (Some(huge), Some(page)) = (seen.huge_bytes, page_bytes)
        && !is_first
        && huge + page <= present
    {
        info!(
            huge_bytes = huge,
            present_bytes = present,
            not_huge = seen.asked.reasons(),
            "of the pool {} of {} are huge pages",
            Bytes(huge),
            Bytes(present)
        );
    }
    server.seen.replace(Some((seen, present)));
}

/// `pool.memory` of the status document.
pub(super) fn status(server: &Server) -> Value {
    let core = server.core();
    let (placement, not_placed) = core.placement();
    let seen = server.seen.borrow();
    let (seen, present) = seen
        .as_ref()
        .map_or((None, None), |(seen, at)| (Some(seen), Some(*at)));
    let nodes: Map<String, Value> = seen
        .into_iter()
        .flat_map(|seen| &seen.nodes)
        .map(|(node, bytes)| (node.to_string(), json!(bytes)))
        .collect();
    json!({
        "huge_pages": server.config.huge_pages.name(),
        "pages": core.backing().name(),
        "huge_page_bytes": core.backing().page_bytes(),
        "huge_bytes": seen.and_then(|seen| seen.huge_bytes),
        "not_huge": seen.and_then(|seen| seen.asked.reasons()),
        "not_reserved": core.not_reserved(),
        "seen_at": present,
        "numa": server.config.numa.to_string(),
        "policy": if not_placed.is_some() { "none" } else { placement.name() },
        "nodes": placement.nodes(),
        "placement": not_placed.map_or_else(|| placement.to_string(), str::to_owned),
        "bytes_by_node": nodes,
    })
}
