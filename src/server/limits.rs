//! What this process may have of descriptors and memory, against what its settings need.

use std::fmt;
use std::path::Path;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use tracing::{info, warn};

use super::config::Config;
use crate::geometry::ByteSize;
use crate::pool::memory::{MemoryBound, SYSTEM_ROOT, memory_bounds};
use crate::pool::{MemoryConfig, prefault_reserve};
use crate::shm::numa::{self, NoSuchNode, Numa, Placement};

/// Connections beyond the clients that may have a slab, for status and other commands. They are not set aside:
/// whoever connects first has them, and a peer that never says hello keeps one for as long as it is waited for.
pub(super) const SPARE_CONNECTIONS: usize = 64;
/// Descriptors of the server itself, and those that are on their way to a client with the answer to its hello.
const OWN_DESCRIPTORS: u64 = 64;
/// Of each connection: its socket and its peer's process.
const CONNECTION_DESCRIPTORS: u64 = 2;

/// A pool that this process can never have.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// More memory than there is.
    #[error(
        "--pool-size is {}, but {} is {}; reduce --pool-size below it, or raise the limit",
        Size(*pool_bytes), bound.what, Size(bound.limit)
    )]
    Memory {
        /// Bytes of the pool.
        pool_bytes: u64,
        /// What has less.
        bound: MemoryBound,
    },
    /// A limit of this process.
    #[error(
        "--pool-size is {}, but {what} is {} for this process; reduce --pool-size below it, or raise the limit",
        Size(*pool_bytes), Size(*limit)
    )]
    Process {
        /// Bytes of the pool.
        pool_bytes: u64,
        /// The limit's name.
        what: &'static str,
        /// Its value.
        limit: u64,
    },
}

/// Bytes as a setting would be written, and as they are.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = ByteSize(self.0 >> 20 << 20);
        if self.0 < 1 << 20 {
            write!(f, "{} bytes", self.0)
        } else {
            write!(f, "{whole} ({} bytes)", self.0)
        }
    }
}

/// Allows this process as many open files as its clients need, or says that there are too few.
pub(super) fn open_files(config: &Config) {
    let clients = u64::from(config.max_clients);
    // A client that lost its connection keeps one too: its process.
    let needed = OWN_DESCRIPTORS + clients + CONNECTION_DESCRIPTORS * (clients + SPARE_CONNECTIONS as u64);
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return;
    };
    if soft >= needed {
        return;
    }
    let raised = if hard > soft && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() {
        info!(from = soft, to = hard, "the limit of open files was raised");
        hard
    } else {
        soft
    };
    if raised < needed {
        warn!(
            limit = raised,
            needed,
            max_clients = config.max_clients,
            "too few open files for all clients: some will be told to come again; raise the limit (ulimit -n, \
             LimitNOFILE=) or lower --max-clients"
        );
    }
}

/// The memory that the settings ask for.
pub(super) fn memory(config: &Config) -> Result<MemoryConfig, NoSuchNode> {
    Ok(MemoryConfig {
        huge_pages: config.huge_pages,
        placement: numa::choose(&config.numa, Path::new(SYSTEM_ROOT))?,
        placement_required: matches!(config.numa, Numa::Nodes(_)),
    })
}

/// Refuses a pool that can never be had, and warns of one that cannot be had now.
pub(super) fn pool(pool_bytes: u64, memory: &MemoryConfig) -> Result<(), LimitError> {
    process_limits(pool_bytes)?;
    if memory.huge_pages.is_reserved(pool_bytes) {
        return Ok(());
    }
    let node = match memory.placement {
        Placement::Bind(node) => Some(node),
        _ => None,
    };
    let bounds = memory_bounds(Path::new(SYSTEM_ROOT), node);
    let short = judge(pool_bytes, &bounds)?;
    for bound in short {
        warn!(
            pool_bytes,
            available_bytes = bound.available,
            limit_bytes = bound.limit,
            "--pool-size is {}, but of {} only {} are available; the pool will be made as large as that allows",
            Size(pool_bytes),
            bound.what,
            Size(bound.available)
        );
    }
    Ok(())
}

/// The bounds that the pool, with what the server needs beside it, is beyond now.
fn judge(pool_bytes: u64, bounds: &[MemoryBound]) -> Result<Vec<&MemoryBound>, LimitError> {
    if let Some(bound) = bounds
        .iter()
        .filter(|bound| bound.hard && pool_bytes > bound.limit)
        .min_by_key(|bound| bound.limit)
    {
        return Err(LimitError::Memory {
            pool_bytes,
            bound: bound.clone(),
        });
    }
    let needed = pool_bytes.saturating_add(prefault_reserve(pool_bytes));
    Ok(bounds.iter().filter(|bound| needed > bound.available).collect())
}

/// The pool is a file in memory, and mapped whole: two limits of the process are about that.
fn process_limits(pool_bytes: u64) -> Result<(), LimitError> {
    for (which, what, used) in [
        (
            Resource::RLIMIT_FSIZE,
            "the largest file (RLIMIT_FSIZE, ulimit -f)",
            0,
        ),
        (
            Resource::RLIMIT_AS,
            "the address space (RLIMIT_AS, ulimit -v)",
            address_space(),
        ),
    ] {
        let Ok((soft, hard)) = getrlimit(which) else {
            continue;
        };
        let needed = pool_bytes.saturating_add(used);
        if soft == RLIM_INFINITY || needed <= soft {
            continue;
        }
        if needed <= hard && setrlimit(which, hard, hard).is_ok() {
            info!(from = soft, to = hard, "{what} was raised");
            continue;
        }
        return Err(LimitError::Process {
            pool_bytes,
            what,
            limit: hard.min(soft),
        });
    }
    Ok(())
}

/// Bytes of address space in use.
fn address_space() -> u64 {
    let pages = || -> Option<u64> {
        let text = std::fs::read_to_string("/proc/self/statm").ok()?;
        text.split(' ').next()?.parse().ok()
    };
    pages().unwrap_or(0) * crate::shm::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(limit: u64, available: u64, hard: bool) -> MemoryBound {
        MemoryBound {
            what: format!("bound of {limit}"),
            limit,
            available,
            hard,
        }
    }

    #[test]
    fn a_pool_beyond_a_hard_limit_is_refused_and_one_beyond_what_is_free_is_warned_about() {
        const MIB: u64 = 1 << 20;
        let bounds = [
            bound(4096 * MIB, 2048 * MIB, true),
            bound(96 * MIB, 90 * MIB, true),
            bound(512 * MIB, 500 * MIB, false),
        ];
        match judge(128 * MIB, &bounds).unwrap_err() {
            LimitError::Memory { bound, pool_bytes } => {
                assert_eq!((bound.limit, pool_bytes), (96 * MIB, 128 * MIB));
            }
            other => panic!("{other}"),
        }
        let text = judge(128 * MIB, &bounds).unwrap_err().to_string();
        assert!(
            text.contains("128MiB (134217728 bytes)") && text.contains("96MiB"),
            "{text}"
        );
        // It fits the limit, but not beside what is in use.
        let short = judge(90 * MIB, &bounds[..2]).unwrap();
        assert_eq!(short, [&bounds[1]]);
        // A limit that only slows down refuses nothing.
        let wide = [bounds[0].clone(), bounds[2].clone()];
        let short = judge(1024 * MIB, &wide).unwrap();
        assert_eq!(short.len(), 1);
        assert!(!short[0].hard);
        assert!(judge(16 * MIB, &bounds).unwrap().is_empty());
        assert!(judge(u64::MAX, &[]).unwrap().is_empty(), "nothing is known");
    }
}
