use std::os::fd::AsFd;

use super::*;
use crate::shm::{Memfd, OwnerAccess};

#[test]
fn a_byte_belongs_to_one_description_until_its_last_descriptor_is_closed() {
    let memfd = Memfd::create("test-lock", 64, OwnerAccess::ReadWrite).unwrap();
    memfd.seal_writes().unwrap();
    let client = memfd.reopen_read_write().unwrap();
    let other = memfd.reopen_read_write().unwrap();

    assert!(!byte_is_locked(memfd.as_fd(), 3).unwrap());
    assert!(try_lock_byte(client.as_fd(), 3).unwrap());
    assert!(byte_is_locked(memfd.as_fd(), 3).unwrap());
    assert!(!byte_is_locked(memfd.as_fd(), 2).unwrap(), "only that byte");
    assert!(
        !byte_is_locked(client.as_fd(), 3).unwrap(),
        "the holder does not conflict with itself"
    );
    assert!(!try_lock_byte(other.as_fd(), 3).unwrap());
    assert!(try_lock_byte(other.as_fd(), 4).unwrap());
    assert!(try_lock_byte(client.as_fd(), 3).unwrap(), "again by the holder");

    // Opening and closing the file elsewhere loses nothing, unlike with process-owned record locks.
    drop(memfd.reopen_read_write().unwrap());
    let duplicate = client.try_clone().unwrap();
    drop(client);
    assert!(
        byte_is_locked(memfd.as_fd(), 3).unwrap(),
        "a duplicate keeps the description open"
    );
    drop(duplicate);
    assert!(!byte_is_locked(memfd.as_fd(), 3).unwrap());
    assert!(byte_is_locked(memfd.as_fd(), 4).unwrap());
    unlock_byte(other.as_fd(), 4).unwrap();
    assert!(!byte_is_locked(memfd.as_fd(), 4).unwrap());
}

#[test]
fn locking_needs_a_writable_descriptor_and_asking_does_not() {
    let memfd = Memfd::create("test-lock", 64, OwnerAccess::ReadWrite).unwrap();
    let reader = memfd.reopen_read_only().unwrap();
    assert!(matches!(
        try_lock_byte(reader.as_fd(), 0),
        Err(ShmError::Os { .. })
    ));
    let client = memfd.reopen_read_write().unwrap();
    assert!(try_lock_byte(client.as_fd(), 0).unwrap());
    assert!(byte_is_locked(reader.as_fd(), 0).unwrap());
    assert!(
        try_lock_byte(client.as_fd(), u64::MAX).is_err(),
        "no file has such a byte"
    );
}
