//! Huge pages: how large they are here, how many are reserved, and how many a mapping really has.
//!
//! All of it is read from the kernel's files.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::errno::Errno;
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};

use super::memfd::page_size;

/// Bytes of a transparent huge page; nothing where the kernel has none.
pub fn huge_page_bytes() -> Option<usize> {
    // Nobody waits for who reads it first: a child that was forked meanwhile would do so for ever.
    static BYTES: AtomicUsize = AtomicUsize::new(NOT_READ);
    let mut bytes = BYTES.load(Ordering::Relaxed);
    if bytes == NOT_READ {
        bytes = read_huge_page_bytes().unwrap_or(0);
        BYTES.store(bytes, Ordering::Relaxed);
    }
    (bytes > 0).then_some(bytes)
}

/// No size of a page.
const NOT_READ: usize = usize::MAX;

fn read_huge_page_bytes() -> Option<usize> {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").ok()?;
    let bytes: usize = text.trim().parse().ok()?;
    (bytes.is_power_of_two() && bytes > page_size()).then_some(bytes)
}

/// Bytes of a page of a file that is made of reserved huge pages; nothing for any other file.
pub(super) fn reserved_page_bytes(fd: BorrowedFd<'_>) -> Option<usize> {
    let seen = fstatfs(fd).ok()?;
    let bytes = usize::try_from(seen.optimal_transfer_size()).ok()?;
    (seen.filesystem_type() == HUGETLBFS_MAGIC && bytes.is_power_of_two()).then_some(bytes)
}

/// What came of asking for huge pages, one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MadeHuge {
    /// How many are huge now.
    pub made: u64,
    /// How many were refused, by the kernel's error.
    pub refused: BTreeMap<i32, u64>,
}

impl MadeHuge {
    /// How many were asked for.
    pub fn asked(&self) -> u64 {
        self.made + self.refused.values().sum::<u64>()
    }

    /// What came of others, too.
    pub fn add(&mut self, more: &Self) {
        self.made += more.made;
        for (error, pages) in &more.refused {
            *self.refused.entry(*error).or_default() += pages;
        }
    }

    /// Why pages were refused, in words; nothing where none was.
    pub fn reasons(&self) -> Option<String> {
        let reason = |(error, pages): (&i32, &u64)| {
            let why = match Errno::from_raw(*error) {
                Errno::ENOMEM => "no memory in one piece is free, or a control group allows no more",
                Errno::EAGAIN | Errno::EBUSY => "their memory was in use in that moment",
                Errno::EINVAL => {
                    "this kernel is older than 6.1, or has them off for this process or this memory"
                }
                Errno::EPERM | Errno::EACCES => "this process may not ask for them",
                other => other.desc(),
            };
            format!("{pages} refused with {:?} ({why})", Errno::from_raw(*error))
        };
        let reasons: Vec<String> = self.refused.iter().map(reason).collect();
        (!reasons.is_empty()).then(|| reasons.join(", "))
    }
}

/// Huge pages that an administrator has set aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Bytes of one, of the size that the system uses by default; 0 where there are none.
    pub page_bytes: u64,
    /// How many nobody has or was promised.
    pub free: u64,
}

impl Reserved {
    /// As it is now, under a root that tests replace.
    pub fn read(root: &Path) -> Self {
        let text = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let number = |name: &str| -> Option<u64> {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let free = number("HugePages_Free").unwrap_or(0);
        Self {
            page_bytes: number("Hugepagesize").unwrap_or(0) << 10,
            // Those of mappings that have not touched them yet are counted as free, too.
            free: free.saturating_sub(number("HugePages_Rsvd").unwrap_or(0)),
        }
    }
}

/// What the kernel says of transparent huge pages in shared memory: the setting in force.
pub fn transparent_setting() -> String {
    let path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let text = fs::read_to_string(path).unwrap_or_default();
    let chosen = text.split('[').nth(1).and_then(|rest| rest.split(']').next());
    chosen.unwrap_or("not there").to_owned()
}

/// Bytes of a range of addresses that `/proc/self/smaps` says are mapped by huge pages. `None`: it does not say.
pub(super) fn huge_bytes(addresses: &Range<usize>) -> Option<u64> {
    Some(huge_bytes_in(
        &fs::read_to_string("/proc/self/smaps").ok()?,
        addresses,
    ))
}

fn huge_bytes_in(smaps: &str, addresses: &Range<usize>) -> u64 {
    const FIELDS: [&str; 3] = ["ShmemPmdMapped:", "Shared_Hugetlb:", "Private_Hugetlb:"];
    let mut inside = false;
    let mut kib = 0;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some((start, end)) = first.split_once('-') {
            let parse = |hex| usize::from_str_radix(hex, 16);
            if let (Ok(start), Ok(end)) = (parse(start), parse(end)) {
                inside = addresses.start <= start && end <= addresses.end.next_multiple_of(page_size());
            }
        } else if inside && FIELDS.contains(&first) {
            kib += words.next().and_then(|number| number.parse().ok()).unwrap_or(0);
        }
    }
    kib << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_mapping_itself_counts() {
        let smaps = "7f0000000000-7f0000400000 rw-s 00000000 00:01 5 /memfd:kvasir-pool (deleted)\n\
                     Size:               4096 kB\nShmemPmdMapped:     2048 kB\nShared_Hugetlb:        0 kB\n\
                     VmFlags: rd wr sh\n\
                     7f0000400000-7f0000800000 rw-s 00000000 00:01 6 /memfd:other (deleted)\n\
                     ShmemPmdMapped:     4096 kB\nPrivate_Hugetlb:    2048 kB\n";
        let of = |start: usize, end: usize| huge_bytes_in(smaps, &(start..end));
        assert_eq!(of(0x7f00_0000_0000, 0x7f00_0040_0000), 2 << 20);
        assert_eq!(of(0x7f00_0040_0000, 0x7f00_0080_0000), 6 << 20);
        assert_eq!(of(0x7f00_0000_0000, 0x7f00_0080_0000), 8 << 20);
        assert_eq!(of(0x7f00_0080_0000, 0x7f00_0090_0000), 0);
        assert_eq!(huge_bytes_in("", &(0..1)), 0);
    }

    #[test]
    fn each_refusal_is_counted_and_explained() {
        let mut all = MadeHuge::default();
        assert_eq!((all.asked(), all.reasons()), (0, None));
        let step = |made, errors: &[i32]| MadeHuge {
            made,
            refused: errors.iter().map(|error| (*error, 2)).collect(),
        };
        all.add(&step(3, &[libc::ENOMEM]));
        all.add(&step(0, &[libc::ENOMEM, libc::EINVAL, libc::EIO]));
        assert_eq!((all.made, all.asked()), (3, 11));
        let said = all.reasons().unwrap();
        for part in [
            "4 refused with ENOMEM (no memory in one piece",
            "2 refused with EINVAL (this kernel",
            "EIO (I/O error)",
        ] {
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn reserved_pages_that_were_promised_are_not_free() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("proc")).unwrap();
        assert_eq!(Reserved::read(root.path()), Reserved::default());
        let text = "HugePages_Total:      64\nHugePages_Free:       60\nHugePages_Rsvd:       50\nHugepagesize:       2048 kB\n";
        std::fs::write(root.path().join("proc/meminfo"), text).unwrap();
        let seen = Reserved::read(root.path());
        assert_eq!((seen.page_bytes, seen.free), (2 << 20, 10));
    }
}
