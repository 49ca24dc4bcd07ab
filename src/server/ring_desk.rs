//! Who gets a ring, and of which memory.

use std::cell::Cell;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::answer::Answer;
use super::export::{self, Export, ExportError};
use super::offload::Offload;
use super::ring::{Ring, RingShare};
use crate::shm::ring::{MAX_LANE_BYTES, RingLayout, RingMemory};
use crate::shm::{Memfd, OwnerAccess, ShmError};
use crate::wire::{ErrorCode, Hello, HelloReply, NamedRegion, Region, RegionKind, WireError};

/// All rings together have at most this part of the pool's size, or so many bytes where that is more.
const POOL_SHARE: u64 = 4;
const LEAST_LIMIT: u64 = 256 << 20;

/// Makes rings.
pub(super) struct RingDesk {
    export: Option<Export>,
    /// Bytes of all rings, until their memory is back.
    bytes: Arc<AtomicU64>,
    limit: u64,
    /// Clients that broke theirs.
    broken: Cell<u64>,
}

impl RingDesk {
    /// No ring yet. What servers that died have exported is removed.
    pub(super) fn new(export: Option<&str>, pool_bytes: u64) -> Result<Self, ExportError> {
        export::clean_up();
        Ok(Self {
            export: export.map(Export::open).transpose()?,
            bytes: Arc::default(),
            limit: (pool_bytes / POOL_SHARE).max(LEAST_LIMIT),
            broken: Cell::new(0),
        })
    }

    /// Bytes of all rings, and the most.
    pub(super) fn totals(&self) -> (u64, u64) {
        (self.bytes.load(Ordering::Relaxed), self.limit)
    }

    /// Clients that were dropped since they broke their ring.
    pub(super) fn broken(&self) -> u64 {
        self.broken.get()
    }

    /// One more of these.
    pub(super) fn count_broken(&self) {
        self.broken.set(self.broken.get() + 1);
    }

    /// Makes a ring and announces it: as a descriptor, or by its name.
    pub(super) async fn open(
        &self,
        threads: &Offload,
        hello: &Hello,
        reply: &mut HelloReply,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<Ring, WireError> {
        let asked = hello.ring_bytes;
        let refused =
            |text: String, numbers: &[u64]| Err(WireError::new(ErrorCode::InvalidArgument, text, numbers));
        if hello.wants_pool {
            return refused(
                "a client has the pool or a ring; ask for one of them".into(),
                &[asked],
            );
        }
        let Some(layout) = RingLayout::with_lanes(asked).filter(|_| asked > 0) else {
            let text = format!("a ring with lanes of {asked} bytes; ask for 1 to {MAX_LANE_BYTES}");
            return refused(text, &[asked, MAX_LANE_BYTES]);
        };
        let bytes = layout.region_bytes();
        let limit = self.limit;
        let share = RingShare::take(&self.bytes, bytes, limit).map_err(|held| {
            WireError::new(
                ErrorCode::LimitExceeded,
                format_args!(
                    "a ring of {bytes} bytes beside {held} of others is more than the {limit} that rings may have; ask for \
                     shorter lanes, or give the server a larger pool"
                ),
                [bytes, held, limit],
            )
        })?;
        match (hello.named, &self.export) {
            (false, _) => passed(layout, share, reply, fds).map_err(|error| error.to_wire()),
            (true, Some(export)) => {
                let named = named(layout, export, share, reply, threads).await;
                named.map_err(|error| error.to_wire())
            }
            (true, None) => {
                let text =
                    "this server exports no rings by name; start it with --export NAME, or take descriptors";
                refused(text.into(), &[])
            }
        }
    }

    /// A ring that nobody uses any more. To give memory back takes long, so that another thread does it.
    pub(super) fn end(ring: Ring) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(ring));
        }
    }
}

/// A ring in memory without a name.
fn passed(
    layout: RingLayout,
    share: RingShare,
    reply: &mut HelloReply,
    fds: &mut Vec<OwnedFd>,
) -> Result<Ring, ShmError> {
    let memfd = Memfd::create("ring", layout.region_bytes(), OwnerAccess::Read)?;
    let mapping = memfd.map()?;
    mapping.write_bytes(0, &layout.head())?;
    memfd.seal_seals()?;
    reply.regions.push(Region {
        kind: RegionKind::Ring,
        offset: 0,
        bytes: layout.region_bytes(),
    });
    // Nothing of it stays here but the mapping.
    fds.push(memfd.into());
    let memory = RingMemory::Mapped(Arc::new(mapping));
    Ok(Ring::new(layout, memory, None, share))
}

/// A ring in a file with a name.
async fn named(
    layout: RingLayout,
    export: &Export,
    share: RingShare,
    reply: &mut HelloReply,
    threads: &Offload,
) -> Result<Ring, ShmError> {
    let (file, name) = export.create()?;
    let (reserved, bytes) = (Arc::clone(&file), layout.region_bytes());
    threads.run(move || reserve(&reserved, bytes)).await?;
    std::os::unix::fs::FileExt::write_all_at(&*file, &layout.head(), 0)
        .map_err(|error| ShmError::os("pwrite", "a named ring", error))?;
    reply.named.push(NamedRegion {
        kind: RegionKind::Ring,
        path: name.path().display().to_string(),
        bytes: layout.region_bytes(),
    });
    Ok(Ring::new(layout, RingMemory::File(file), Some(name), share))
}

/// Gives a file its size and its memory. The client would get a signal where there is none when it writes.
fn reserve(file: &File, bytes: u64) -> Result<(), ShmError> {
    let length = libc::off_t::try_from(bytes).unwrap_or(libc::off_t::MAX);
    nix::fcntl::posix_fallocate(file, 0, length)
        .map_err(|error| ShmError::os("posix_fallocate", format!("a named ring of {bytes} bytes"), error))
}
