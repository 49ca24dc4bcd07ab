//! Answers: what is written into memory of the caller.
//!
//! Unsafe is opened here. The invariant: a pointer for an answer is NULL, or there is room for as many values of its type as
//! the argument beside it or the struct's size says, and nobody else reads or writes it until the call returns. That is
//! a rule of the header. NULL and misaligned pointers are found before anything is done.

#![allow(unsafe_code)]

use std::ffi::c_char;

use crate::failure::{Failure, Outcome};
use crate::input::{Versioned, check_pointer, struct_size};

/// Where one value is written.
pub(crate) struct Place<T>(*mut T);

impl<T: Copy> Place<T> {
    /// # Safety
    /// `pointer` is as the invariant says.
    pub(crate) unsafe fn new(pointer: *mut T, what: &str) -> Outcome<Self> {
        check_pointer(pointer.cast_const(), what)?;
        Ok(Self(pointer))
    }

    pub(crate) fn write(&self, value: T) {
        // SAFETY: checked in `new`, and by the invariant there is room for one value.
        unsafe { self.0.write(value) };
    }
}

/// Where a struct is written that may be of another version.
pub(crate) struct StructPlace<T> {
    pointer: *mut T,
    size: usize,
}

impl<T: Versioned> StructPlace<T> {
    /// # Safety
    /// `pointer` is as the invariant says, and the struct's size is set.
    pub(crate) unsafe fn new(pointer: *mut T, what: &str) -> Outcome<Self> {
        // SAFETY: the caller's promise.
        let size = unsafe { struct_size(pointer.cast_const(), what) }?;
        Ok(Self { pointer, size })
    }

    /// Writes as much as the caller's version has; what only a later one has stays as it is. The size stays the caller's.
    pub(crate) fn write(&self, value: &T) {
        let front = size_of::<u32>();
        let end = self.size.min(size_of::<T>());
        // SAFETY: by the invariant `size` bytes are there, `end` of them are in `value` too, and `front < end` since every
        // version is larger than its size field.
        unsafe {
            let from = std::ptr::from_ref(value).cast::<u8>().add(front);
            std::ptr::copy_nonoverlapping(from, self.pointer.cast::<u8>().add(front), end - front);
        }
    }
}

/// Where an array is written.
pub(crate) struct Room<T> {
    first: *mut T,
    capacity: usize,
    what: &'static str,
}

impl<T: Copy> Room<T> {
    /// # Safety
    /// `first` and `capacity` are as the invariant says.
    pub(crate) unsafe fn new(first: *mut T, capacity: usize, what: &'static str) -> Outcome<Self> {
        if capacity > 0 || !first.is_null() {
            check_pointer(first.cast_const(), what)?;
        }
        Ok(Self {
            first,
            capacity,
            what,
        })
    }

    /// Whether there is no room because none is wanted.
    pub(crate) fn unwanted(&self) -> bool {
        self.first.is_null()
    }

    /// Refuses what would not fit.
    pub(crate) fn check(&self, needed: usize) -> Outcome<()> {
        if needed > self.capacity && !self.unwanted() {
            return Err(Failure::too_small(self.what, needed, self.capacity));
        }
        Ok(())
    }

    /// Refuses what would not fit, also into no room at all.
    pub(crate) fn check_all(&self, needed: usize) -> Outcome<()> {
        if needed > self.capacity {
            return Err(Failure::too_small(self.what, needed, self.capacity));
        }
        Ok(())
    }

    /// Writes all, which has passed a check, or nothing where nothing is wanted.
    pub(crate) fn write(&self, values: impl ExactSizeIterator<Item = T>) {
        for (index, value) in values.enumerate().take(self.capacity) {
            // SAFETY: `index` is below `capacity`, and by the invariant there is room for so many. The pointer was checked.
            unsafe { self.first.add(index).write(value) };
        }
    }
}

/// Writes a text with a zero byte at its end, and its length without. NULL and 0 ask for the length.
///
/// # Safety
/// The pointers are as the invariant says.
pub(crate) unsafe fn text(
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
    text: impl FnOnce() -> Outcome<String>,
) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let room = unsafe { Room::new(buffer.cast::<u8>(), capacity, "buffer") }?;
    // SAFETY: as above.
    let length = unsafe { Place::new(length, "length") }?;
    let text = text()?.replace('\0', "?");
    length.write(text.len());
    if room.unwanted() {
        return Ok(());
    }
    room.check_all(text.len() + 1)?;
    let bytes: Vec<u8> = text.bytes().chain([0]).collect();
    room.write(bytes.into_iter());
    Ok(())
}
