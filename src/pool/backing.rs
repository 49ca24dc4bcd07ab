//! The memory that a pool is made of: small pages or huge ones, and from which nodes.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::error::{NoHugePages, PoolError};
use super::memory::SYSTEM_ROOT;
use crate::geometry::Bytes;
use crate::object::FRAME_BYTES;
use crate::shm::huge::{Reserved, huge_page_bytes, transparent_setting};
use crate::shm::numa::Placement;
use crate::shm::{Mapping, Memfd, OwnerAccess, ReadWrite, ShmError};

/// Which pages somebody wants the pool to be made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "server", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[cfg_attr(feature = "server", serde(rename_all = "lowercase"))]
pub enum HugePages {
    /// Small ones, unless the system makes huge ones of its own accord.
    #[default]
    Off,
    /// Transparent huge ones as far as there are any.
    Auto,
    /// Reserved ones if there are enough for all of it, else as `Auto`.
    Try,
    /// Huge ones only.
    Require,
}

impl HugePages {
    /// One word, as it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::Try => "try",
            Self::Require => "require",
        }
    }

    /// Whether a pool of this size is going to be made of pages that were set aside: they count for no limit of memory.
    pub fn is_reserved(self, bytes: u64) -> bool {
        let Reserved { page_bytes, free } = Reserved::read(Path::new(SYSTEM_ROOT));
        let whole = bytes.checked_div(page_bytes).unwrap_or(0);
        matches!(self, Self::Try | Self::Require) && (1..=free).contains(&whole)
    }
}

/// What kind of memory is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// Its pages.
    pub huge_pages: HugePages,
    /// The nodes that they come from.
    pub placement: Placement,
    /// Whether it is an error when the kernel does not place it.
    pub placement_required: bool,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            huge_pages: HugePages::Off,
            placement: Placement::Kernel(crate::shm::numa::Why::Off),
            placement_required: false,
        }
    }
}

/// What a pool is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// The machine's usual pages.
    Small,
    /// Pages that the kernel makes huge when it can.
    Transparent {
        /// What is not huge is not used.
        required: bool,
    },
    /// Pages that were set aside.
    Reserved {
        /// Bytes of one.
        page_bytes: u64,
    },
}

impl Backing {
    /// One word for status.
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Transparent { .. } => "transparent",
            Self::Reserved { .. } => "reserved",
        }
    }

    /// Bytes of a huge page; nothing where none is wanted.
    pub fn page_bytes(self) -> Option<u64> {
        match self {
            Self::Small => None,
            Self::Transparent { .. } => huge_page_bytes().map(|bytes| bytes as u64),
            Self::Reserved { page_bytes } => Some(page_bytes),
        }
    }
}

/// A pool's memory, of which no page has been touched.
#[derive(Debug)]
pub(super) struct PoolMemory {
    pub(super) memfd: Memfd,
    pub(super) mapping: Arc<Mapping<ReadWrite>>,
    pub(super) backing: Backing,
    pub(super) placement: Placement,
    /// Why it is not made of reserved pages although those were to be tried.
    pub(super) not_reserved: Option<String>,
    /// Why the kernel did not place it.
    pub(super) not_placed: Option<String>,
}

/// The file of a pool that is being made.
struct PoolFile {
    memfd: Memfd,
    backing: Backing,
    not_reserved: Option<String>,
}

impl PoolMemory {
    /// Of `frames` frames, or of as many as whole huge pages have where only those are used.
    pub(super) fn create(frames: u32, config: &MemoryConfig) -> Result<Self, PoolError> {
        let bytes = u64::from(frames) * FRAME_BYTES;
        let mut file = Self::file(bytes, config.huge_pages)?;
        let mapping = match (file.memfd.map(), file.backing) {
            // Only now the kernel says whether there are as many.
            (Err(error), Backing::Reserved { .. }) => {
                file = without_reserved(bytes, config.huge_pages, &error)?;
                file.memfd.map()?
            }
            (mapping, _) => mapping?,
        };
        let PoolFile {
            memfd,
            backing,
            not_reserved,
        } = file;
        if matches!(backing, Backing::Transparent { .. }) {
            mapping.welcome_huge_pages();
        }
        let not_placed = match mapping.place(&config.placement) {
            Ok(()) => None,
            Err(error) if config.placement_required => return Err(error.into()),
            Err(error) => Some(error.to_string()),
        };
        memfd.seal_seals()?;
        Ok(Self {
            memfd,
            mapping: Arc::new(mapping),
            backing,
            placement: config.placement.clone(),
            not_reserved,
            not_placed,
        })
    }

    fn file(bytes: u64, wanted: HugePages) -> Result<PoolFile, PoolError> {
        if !matches!(wanted, HugePages::Try | HugePages::Require) {
            return transparent(bytes, wanted);
        }
        let Reserved { page_bytes, .. } = Reserved::read(Path::new(SYSTEM_ROOT));
        let whole = if page_bytes.is_multiple_of(FRAME_BYTES) && page_bytes > 0 {
            bytes / page_bytes * page_bytes
        } else {
            0
        };
        if whole == 0 {
            return without_reserved(bytes, wanted, &"there are none of a size that the pool fills");
        }
        match Memfd::create_reserved("pool", whole, OwnerAccess::ReadWrite) {
            Ok(memfd) => Ok(PoolFile {
                memfd,
                backing: Backing::Reserved { page_bytes },
                not_reserved: None,
            }),
            Err(error) => without_reserved(bytes, wanted, &error),
        }
    }
}

/// Reserved pages were asked for and refused.
fn without_reserved(
    bytes: u64,
    wanted: HugePages,
    refused: &dyn fmt::Display,
) -> Result<PoolFile, PoolError> {
    let transparent_refused = match wanted {
        HugePages::Require => probe(bytes).err(),
        _ => None,
    };
    let Some(transparent_refused) = transparent_refused else {
        let file = transparent(bytes, wanted)?;
        return Ok(PoolFile {
            not_reserved: Some(too_few(bytes, refused)),
            ..file
        });
    };
    Err(PoolError::NoHugePages(Box::new(NoHugePages {
        bytes,
        reserved: Reserved::read(Path::new(SYSTEM_ROOT)),
        refused: refused.to_string(),
        transparent_bytes: huge_page_bytes().unwrap_or(0) as u64,
        transparent_setting: transparent_setting(),
        transparent_refused,
    })))
}

/// Why reserved pages were refused, with how many there are.
fn too_few(bytes: u64, refused: &dyn fmt::Display) -> String {
    let Reserved { page_bytes, free } = Reserved::read(Path::new(SYSTEM_ROOT));
    match bytes.checked_div(page_bytes) {
        None => "this kernel has no reserved huge pages".to_owned(),
        Some(needed) => format!(
            "of reserved huge pages of {} it needs {needed}, and {free} are free ({refused})",
            Bytes(page_bytes)
        ),
    }
}

fn transparent(bytes: u64, wanted: HugePages) -> Result<PoolFile, PoolError> {
    let huge = huge_page_bytes().map_or(u64::MAX, |bytes| bytes as u64);
    let required = wanted == HugePages::Require;
    let (bytes, backing) = if wanted == HugePages::Off || bytes < huge {
        (bytes, Backing::Small)
    } else if required {
        (bytes / huge * huge, Backing::Transparent { required })
    } else {
        (bytes, Backing::Transparent { required })
    };
    Ok(PoolFile {
        memfd: Memfd::create("pool", bytes, OwnerAccess::ReadWrite)?,
        backing,
        not_reserved: None,
    })
}

/// Why no transparent huge page of shared memory can be had at all: one is made, and looked at.
fn probe(bytes: u64) -> Result<(), String> {
    let Some(huge) = huge_page_bytes().filter(|huge| *huge as u64 <= bytes) else {
        return Err("the pool is smaller than one".to_owned());
    };
    let made = || -> Result<Option<String>, ShmError> {
        let memfd = Memfd::create("probe", huge as u64, OwnerAccess::Read)?;
        let mapping = memfd.map()?;
        mapping.welcome_huge_pages();
        let asked = mapping.make_huge(0..huge, || true)?;
        let is_huge = mapping.huge_bytes().is_none_or(|bytes| bytes == huge as u64);
        let not_mapped = || (!is_huge).then(|| "it was made and does not map as one".to_owned());
        Ok(asked.reasons().or_else(not_mapped))
    };
    match made() {
        Ok(None) => Ok(()),
        Ok(Some(reason)) => Err(reason),
        Err(error) => Err(error.to_string()),
    }
}
