//! Where a test's pages lie: in memory of the host or, where `KVASIR_TEST_PAGES=device` asks for it, of a device. The
//! tests are the same for both.

use std::sync::Arc;

use kvasir::client::{ClientError, KvMemory, ObjectGroupPages};
use kvasir::copy::HostMemory;
use kvasir::shm::{Mapping, Memfd, OwnerAccess, ReadWrite};

/// Whether pages lie in device memory. Tests then run on the software driver (`native/softcuda`), which the loader finds.
pub fn on_device() -> bool {
    std::env::var_os("KVASIR_TEST_PAGES").is_some_and(|pages| pages == "device")
}

/// One region of an engine.
pub enum EngineRegion {
    Host(Arc<Mapping<ReadWrite>>),
    #[cfg(feature = "cuda")]
    Device(super::device::Region),
}

impl EngineRegion {
    /// As memory of the host, where it is that.
    pub fn host(&self) -> HostMemory {
        match self {
            Self::Host(mapping) => HostMemory::mapped(Arc::clone(mapping)),
            #[cfg(feature = "cuda")]
            Self::Device(_) => panic!("this region is in device memory"),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Host(mapping) => mapping.len(),
            #[cfg(feature = "cuda")]
            Self::Device(region) => region.len(),
        }
    }

    pub fn write_bytes(&self, at: usize, bytes: &[u8]) {
        match self {
            Self::Host(mapping) => mapping.write_bytes(at, bytes).unwrap(),
            #[cfg(feature = "cuda")]
            Self::Device(region) => region.write(at, bytes),
        }
    }

    pub fn read_bytes(&self, at: usize, into: &mut [u8]) {
        match self {
            Self::Host(mapping) => mapping.read_bytes(at, into).unwrap(),
            #[cfg(feature = "cuda")]
            Self::Device(region) => region.read(at, into),
        }
    }
}

/// Regions of so many bytes, where the tests are to have them.
pub fn regions(bytes: &[u64]) -> Vec<EngineRegion> {
    if on_device() {
        #[cfg(feature = "cuda")]
        return super::device::regions(bytes)
            .into_iter()
            .map(EngineRegion::Device)
            .collect();
        #[cfg(not(feature = "cuda"))]
        panic!("pages in device memory need the feature `cuda`");
    }
    bytes
        .iter()
        .map(|&bytes| EngineRegion::Host(mapping(bytes)))
        .collect()
}

/// What a client is told of them.
pub fn kv_memory(
    regions: &[EngineRegion],
    groups: Vec<ObjectGroupPages>,
    blocks: u64,
) -> Result<KvMemory, ClientError> {
    #[cfg(feature = "cuda")]
    if matches!(regions.first(), Some(EngineRegion::Device(_))) {
        let device = regions.iter().map(|region| match region {
            EngineRegion::Device(region) => region,
            EngineRegion::Host(_) => unreachable!("all of a test's regions lie in one place"),
        });
        return KvMemory::on_device(super::device::engine_memory(device)?, groups, blocks);
    }
    KvMemory::new(regions.iter().map(EngineRegion::host).collect(), groups, blocks)
}

fn mapping(bytes: u64) -> Arc<Mapping<ReadWrite>> {
    let memfd = Memfd::create("engine", bytes.max(1), OwnerAccess::ReadWrite).unwrap();
    Arc::new(memfd.map().unwrap())
}

/// The payload path that status shows.
pub fn payload_path() -> &'static str {
    if on_device() { "pinned" } else { "shm-direct" }
}

/// How status calls the copies of an engine with checksums that are made in this way.
pub fn copy_path(path: &str) -> String {
    match on_device() {
        true => format!("device, checksums on the host ({path})"),
        false => path.to_owned(),
    }
}
