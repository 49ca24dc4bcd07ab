use std::os::fd::AsFd;

use super::*;
use crate::shm::{Memfd, OwnerAccess};

fn region(len: u64) -> (Memfd, Mapping<ReadWrite>) {
    let memfd = Memfd::create("test-mapping", len, OwnerAccess::Read).unwrap();
    let map = memfd.map().unwrap();
    (memfd, map)
}

#[test]
fn what_one_mapping_stores_another_loads() {
    let (memfd, writer) = region(8192);
    let reader = Mapping::<ReadOnly>::map_foreign(memfd.reopen_read_only().unwrap().as_fd(), 8192).unwrap();
    writer
        .atomic_u64(64)
        .unwrap()
        .store(0x0123_4567_89ab_cdef, Ordering::Release);
    assert_eq!(
        reader.atomic_u64(64).unwrap().load_acquire(),
        0x0123_4567_89ab_cdef
    );
    // Little-endian on every machine this runs on, so the low half comes first.
    assert_eq!(reader.atomic_u32(64).unwrap().load_acquire(), 0x89ab_cdef);
    assert_eq!(reader.atomic_u32(68).unwrap().load_relaxed(), 0x0123_4567);

    writer.store_words(4096, &[1, 2, 3]).unwrap();
    let mut words = [0; 4];
    reader.load_words(4096, &mut words).unwrap();
    assert_eq!(words, [1, 2, 3, 0]);

    writer.write_bytes(8187, b"tail!").unwrap();
    let mut bytes = [0; 6];
    reader.read_bytes(8186, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\0tail!");
}

#[test]
fn accesses_outside_the_mapping_are_refused() {
    let (_memfd, map) = region(100);
    for (offset, bytes) in [(100, 1), (99, 2), (0, 101), (usize::MAX, 1), (1, usize::MAX)] {
        let error = map.ptr_at(offset, bytes).unwrap_err();
        assert!(
            matches!(error, ShmError::OutOfRange { offset: o, bytes: b, len: 100 } if (o, b) == (offset, bytes)),
            "{error}"
        );
        assert!(map.ptr_at_mut(offset, bytes).is_err());
    }
    assert!(map.ptr_at(100, 0).is_ok(), "nothing at the end is still inside");
    assert!(
        matches!(map.atomic_u64(96).unwrap_err(), ShmError::OutOfRange { .. }),
        "bytes 96..104 of 100"
    );
    assert!(map.atomic_u64(88).is_ok());
    assert!(map.atomic_u32(96).is_ok());
    assert!(map.read_bytes(98, &mut [0; 3]).is_err());
    assert!(map.write_bytes(98, &[0; 3]).is_err());
    assert!(map.load_words(88, &mut [0; 2]).is_err());
    assert!(map.store_words(88, &[0; 2]).is_err());
}

#[test]
fn misaligned_words_are_refused() {
    let (_memfd, map) = region(4096);
    for offset in [1, 4, 4095] {
        assert!(matches!(
            map.atomic_u64(offset).unwrap_err(),
            ShmError::Misaligned { align: 8, .. }
        ));
        assert!(map.load_words(offset, &mut [0]).is_err());
        assert!(map.store_words(offset, &[0]).is_err());
    }
    assert!(matches!(
        map.atomic_u32(2).unwrap_err(),
        ShmError::Misaligned { offset: 2, align: 4 }
    ));
}

#[test]
fn a_file_that_is_too_short_is_refused() {
    let (memfd, _map) = region(4096);
    let error = Mapping::<ReadOnly>::map(memfd.as_fd(), 4097).unwrap_err();
    assert!(
        matches!(
            error,
            ShmError::TooShort {
                expected: 4097,
                actual: 4096
            }
        ),
        "{error}"
    );
    let error = Mapping::<ReadWrite>::map_foreign(memfd.as_fd(), 1 << 30).unwrap_err();
    assert!(matches!(error, ShmError::TooShort { .. }), "{error}");
    let page = page_size() as u64;
    let error = Mapping::<ReadOnly>::map_foreign_at(memfd.as_fd(), page, 4096).unwrap_err();
    assert!(
        matches!(error, ShmError::TooShort { expected, .. } if expected == page + 4096),
        "{error}"
    );
}

#[test]
fn empty_and_impossible_ranges_are_refused() {
    let (memfd, _map) = region(4096);
    assert!(matches!(
        Mapping::<ReadOnly>::map(memfd.as_fd(), 0),
        Err(ShmError::BadLength { len: 0, .. })
    ));
    let error = Mapping::<ReadOnly>::map_foreign_at(memfd.as_fd(), u64::MAX, 4096).unwrap_err();
    assert!(matches!(error, ShmError::BadLength { .. }), "{error}");
    let error = Mapping::<ReadOnly>::map_foreign_at(memfd.as_fd(), 8, 8).unwrap_err();
    assert!(matches!(error, ShmError::Misaligned { offset: 8, .. }), "{error}");
}

#[test]
fn a_part_of_a_file_can_be_mapped() {
    let page = page_size();
    let (memfd, whole) = region(4 * page as u64);
    whole.atomic_u64(2 * page).unwrap().store(77, Ordering::Relaxed);
    let part = Mapping::<ReadWrite>::map_foreign_at(memfd.as_fd(), 2 * page as u64, page).unwrap();
    assert_eq!(part.len(), page);
    assert_eq!(part.atomic_u64(0).unwrap().load(Ordering::Relaxed), 77);
    assert!(part.atomic_u64(page).is_err());
}

#[test]
fn a_foreign_file_whose_size_is_not_sealed_is_refused() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    // A file system that has no seals at all says EINVAL; tmpfs answers that it has sealed sealing.
    let error = Mapping::<ReadOnly>::map_foreign(file.as_fd(), 4096).unwrap_err();
    assert!(
        matches!(error, ShmError::Os { .. } | ShmError::NotSealed { .. }),
        "{error}"
    );

    let fd =
        nix::sys::memfd::memfd_create("kvasir-test", nix::sys::memfd::MFdFlags::MFD_ALLOW_SEALING).unwrap();
    nix::unistd::ftruncate(&fd, 4096).unwrap();
    let error = Mapping::<ReadOnly>::map_foreign(fd.as_fd(), 4096).unwrap_err();
    assert!(
        matches!(error, ShmError::NotSealed { seals: 0, missing: 2 }),
        "{error}"
    );
    assert!(
        Mapping::<ReadOnly>::map(fd.as_fd(), 4096).is_ok(),
        "its maker may map it"
    );
}

#[test]
fn mappings_stay_out_of_children_and_core_dumps() {
    let (_memfd, map) = region(4096);
    let start = format!("{:x}-", map.base() as usize);
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let ours = smaps.split_once(&start).expect("the mapping is listed").1;
    let flags = ours.lines().find(|line| line.starts_with("VmFlags:")).unwrap();
    let flags: Vec<&str> = flags.split_whitespace().skip(1).collect();
    assert!(flags.contains(&"dc"), "inherited on fork: {flags:?}");
    assert!(flags.contains(&"dd"), "in core dumps: {flags:?}");
    assert!(flags.contains(&"sh"), "not shared: {flags:?}");
}

/// The bytes of the file that have memory behind them: at least what was touched, more with huge pages.
fn resident(memfd: &Memfd) -> u64 {
    nix::sys::stat::fstat(memfd).unwrap().st_blocks as u64 * 512
}

#[test]
fn prefault_brings_pages_in_and_changes_nothing() {
    let page = page_size();
    let (memfd, map) = region(16 * page as u64);
    assert_eq!(resident(&memfd), 0);
    map.prefault(page..4 * page).unwrap();
    assert!(resident(&memfd) >= 3 * page as u64);
    map.store_words(5 * page, &[5, 6]).unwrap();
    map.prefault(0..16 * page).unwrap();
    assert!(resident(&memfd) >= 16 * page as u64);
    let mut words = [0; 2];
    map.load_words(5 * page, &mut words).unwrap();
    assert_eq!(words, [5, 6]);
    assert!(matches!(
        map.prefault(0..16 * page + 1),
        Err(ShmError::OutOfRange { .. })
    ));
    map.prefault(16 * page..16 * page).unwrap();
}

/// Minor faults of this thread.
fn minor_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields = stat.rsplit(')').next().unwrap();
    fields.split_ascii_whitespace().nth(7).unwrap().parse().unwrap()
}

#[test]
fn populated_pages_are_written_without_faults() {
    const BYTES: usize = 4 << 20;
    let (memfd, owner) = region(BYTES as u64);
    owner.prefault(0..BYTES).unwrap();
    owner.store_words(4096, &[7]).unwrap();
    let faults = |populated: bool| {
        let map = memfd.map().unwrap();
        if populated {
            map.populate(0..BYTES).unwrap();
        }
        let before = minor_faults();
        for offset in (0..BYTES).step_by(page_size()) {
            map.store_words(offset + 8, &[1]).unwrap();
        }
        let mut word = [0];
        map.load_words(4096, &mut word).unwrap();
        assert_eq!(word, [7], "nothing else changes");
        minor_faults() - before
    };
    let (without, with) = (faults(false), faults(true));
    // Huge pages need hardly any fault either way.
    assert!(
        with * 8 <= without || without < 16,
        "{with} faults after populating, {without} otherwise"
    );
    let map = memfd.map().unwrap();
    assert!(matches!(
        map.populate(0..BYTES + 1),
        Err(ShmError::OutOfRange { .. })
    ));
    map.populate(BYTES..BYTES).unwrap();
}

#[test]
fn the_fallback_of_prefault_touches_every_page_of_the_range() {
    let page = page_size();
    let (memfd, map) = region(8 * page as u64);
    map.store_words(2 * page, &[9]).unwrap();
    map.touch(page + 100..3 * page + 1).unwrap();
    assert!(resident(&memfd) >= 3 * page as u64);
    assert_eq!(map.atomic_u64(2 * page).unwrap().load(Ordering::Relaxed), 9);
}

#[test]
fn a_memfd_has_one_size_for_life_and_belongs_to_its_owner() {
    let memfd = Memfd::create("test-fixed", 4096, OwnerAccess::Read).unwrap();
    assert_eq!((memfd.len(), memfd.name()), (4096, "kvasir-test-fixed"));
    for len in [0, 4095, 4097] {
        assert_eq!(
            nix::unistd::ftruncate(&memfd, len),
            Err(nix::errno::Errno::EPERM),
            "to {len} bytes"
        );
    }
    let mode = |memfd: &Memfd| nix::sys::stat::fstat(memfd).unwrap().st_mode & 0o7777;
    assert_eq!(mode(&memfd), 0o400);
    assert_eq!(
        mode(&Memfd::create("test-rw", 1, OwnerAccess::ReadWrite).unwrap()),
        0o600
    );
    for fd in [memfd.as_fd(), memfd.reopen_read_only().unwrap().as_fd()] {
        let flags = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_GETFD).unwrap();
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    }
    assert!(matches!(
        Memfd::create("none", 0, OwnerAccess::Read),
        Err(ShmError::BadLength { len: 0, .. })
    ));
    assert!(matches!(
        Memfd::create("huge", u64::MAX, OwnerAccess::Read),
        Err(ShmError::BadLength { .. })
    ));
}

#[test]
fn the_set_of_seals_can_be_closed() {
    let memfd = Memfd::create("test-seals", 4096, OwnerAccess::ReadWrite).unwrap();
    memfd.seal_seals().unwrap();
    assert!(matches!(memfd.seal_future_writes(), Err(ShmError::Os { .. })));
    assert!(memfd.map().is_ok());
}

#[test]
fn huge_pages_are_asked_for_one_by_one_and_each_answer_counts() {
    let Some(huge) = huge_page_bytes() else {
        eprintln!("SKIPPED: this kernel has no transparent huge pages");
        return;
    };
    let memfd = Memfd::create("huge", 4 * huge as u64, OwnerAccess::ReadWrite).unwrap();
    let mapping = memfd.map().unwrap();
    let looks = std::cell::Cell::new(0);
    let asked = mapping.make_huge(0..4 * huge, || {
        looks.set(looks.get() + 1);
        looks.get() <= 2
    });
    // It was told to stop before the third.
    assert_eq!((asked.unwrap().asked(), looks.get()), (2, 3));
    // No whole one lies in it.
    let none = mapping.make_huge(1..2 * huge - 1, || true).unwrap();
    assert_eq!(none.asked(), 0);
    let rest = mapping.make_huge(huge + 1..4 * huge, || true).unwrap();
    assert_eq!(rest.asked(), 2);
}
