//! Arguments: what C hands over, checked as far as it can be and copied.
//!
//! Unsafe is opened here. The invariant: a pointer that a caller gives is NULL, or points to as many valid, initialised
//! values of its type as the argument beside it or the struct's size says, and nobody writes them until the call returns.
//! That is a rule of the header. A NULL or misaligned pointer and a count beyond its limit are found before anything is read.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::time::Duration;

use kvasir::client::MAX_WAIT;
use kvasir::keys::ChunkKey;

use crate::failure::{Failure, Outcome, kvasir_code};
use crate::values::*;

/// Longest text that is read.
const TEXT_MAX: usize = 1 << 20;
/// Largest size of a struct that a later version may have.
pub(crate) const STRUCT_MAX: usize = 4096;

/// A struct of the header that begins with its size.
///
/// # Safety
/// It is `repr(C)`, any bytes are a value of it, its first field is `struct_size: u32`, and it has no padding.
pub(crate) unsafe trait Versioned: Copy {
    /// Its name in the header.
    const NAME: &'static str;
    /// Its size in the first version that had it.
    const FIRST: usize;
}

macro_rules! versioned {
    ($($name:ident: $first:literal),+ $(,)?) => { $(
        // SAFETY: the struct is `repr(C)` and made of integers, arrays of integers and raw pointers, the size in front. That it
        // has no padding is asserted beside this.
        #[allow(unsafe_code)]
        unsafe impl $crate::input::Versioned for $name {
            const NAME: &'static str = stringify!($name);
            const FIRST: usize = $first;
        }
        const _: () = assert!($first % 8 == 0 && size_of::<$name>() <= $crate::input::STRUCT_MAX);
    )+ };
}
pub(crate) use versioned;

/// Refuses NULL and addresses at which no value of the type can be.
pub(crate) fn check_pointer<T>(pointer: *const T, what: &str) -> Outcome<()> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{what} is NULL")));
    }
    if !pointer.is_aligned() {
        let (address, align) = (pointer.addr(), align_of::<T>());
        return Err(Failure::argument_of(
            &[address as u64, align as u64],
            format!("{what} is at {address:#x}, which is no multiple of {align}"),
        ));
    }
    Ok(())
}

/// The size that a struct says it has, checked against those that there are.
///
/// # Safety
/// `pointer` is as the invariant says.
pub(crate) unsafe fn struct_size<T: Versioned>(pointer: *const T, what: &str) -> Outcome<usize> {
    check_pointer(pointer, what)?;
    // SAFETY: by the invariant the struct begins with its size, and the pointer is aligned.
    let size = unsafe { pointer.cast::<u32>().read() } as usize;
    let (first, own) = (T::FIRST, size_of::<T>());
    if size < first || size > STRUCT_MAX || !size.is_multiple_of(8) {
        return Err(Failure::new(
            kvasir_code::InvalidStruct,
            &[size as u64, first as u64, own as u64],
            format!(
                "{what} says that it has {size} bytes; {} has {first} in its first version and {own} in this one: call \
                 KVASIR_INIT before it is filled",
                T::NAME
            ),
        ));
    }
    Ok(size)
}

/// A struct of this or another version: what an older caller does not know is zero, and what this library does not know
/// must be.
///
/// # Safety
/// `pointer` is as the invariant says.
pub(crate) unsafe fn read_struct<T: Versioned>(pointer: *const T, what: &str) -> Outcome<T> {
    // SAFETY: the caller's promise.
    let size = unsafe { struct_size(pointer, what) }?;
    // SAFETY: by the invariant `size` bytes are there.
    unsafe { read_sized(pointer, size, what) }
}

/// # Safety
/// `pointer` is aligned and `size` bytes are there.
unsafe fn read_sized<T: Versioned>(pointer: *const T, size: usize, what: &str) -> Outcome<T> {
    let own = size_of::<T>();
    let bytes = pointer.cast::<u8>();
    for at in own..size.max(own) {
        // SAFETY: `at` is below `size`.
        if unsafe { bytes.add(at).read() } != 0 {
            return Err(Failure::new(
                kvasir_code::InvalidStruct,
                &[size as u64, own as u64, at as u64],
                format!(
                    "{what} has {size} bytes and is not zero at byte {at}; this library knows {own} bytes of {}: use a \
                     newer library, or leave what it does not know zero",
                    T::NAME
                ),
            ));
        }
    }
    // SAFETY: any bytes are a `T`, zeroes among them.
    let mut value: T = unsafe { std::mem::zeroed() };
    let known = size.min(own);
    // SAFETY: `known` bytes are readable there and writable here, and the two do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(bytes, (&raw mut value).cast::<u8>(), known) };
    Ok(value)
}

/// An array of structs, each as large as the first says.
///
/// # Safety
/// `first` and `count` are as the invariant says.
pub(crate) unsafe fn read_structs<T: Versioned>(
    first: *const T,
    count: usize,
    limit: usize,
    what: &str,
) -> Outcome<Vec<T>> {
    check_count(count, limit, what)?;
    if count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the caller's promise, for the first element.
    let size = unsafe { struct_size(first, what) }?;
    let mut values = Vec::with_capacity(count);
    for index in 0..count {
        // SAFETY: by the invariant `count` elements of `size` bytes each are there, and sizes are multiples of 8.
        let element = unsafe { first.byte_add(index * size) };
        // SAFETY: as above.
        let own = unsafe { struct_size(element, what) }?;
        if own != size {
            return Err(Failure::new(
                kvasir_code::InvalidStruct,
                &[index as u64, own as u64, size as u64],
                format!(
                    "{what}: element {index} says that it has {own} bytes, the first one {size}; all are alike"
                ),
            ));
        }
        // SAFETY: as above.
        values.push(unsafe { read_sized(element, size, what) }?);
    }
    Ok(values)
}

/// Plain values. Nothing is copied: the caller leaves them alone until the call returns.
///
/// # Safety
/// `first` and `count` are as the invariant says, and any bytes are a `T`.
pub(crate) unsafe fn slice<'a, T: Copy>(
    first: *const T,
    count: usize,
    limit: usize,
    what: &str,
) -> Outcome<&'a [T]> {
    check_count(count, limit, what)?;
    if count == 0 {
        return Ok(&[]);
    }
    check_pointer(first, what)?;
    if count
        .checked_mul(size_of::<T>())
        .is_none_or(|bytes| bytes > isize::MAX as usize)
    {
        return Err(too_many(count, isize::MAX as usize / size_of::<T>(), what));
    }
    // SAFETY: aligned, not NULL, no longer than an allocation can be; by the invariant all of it is there and unwritten.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

fn check_count(count: usize, limit: usize, what: &str) -> Outcome<()> {
    if count > limit {
        return Err(too_many(count, limit, what));
    }
    Ok(())
}

fn too_many(count: usize, limit: usize, what: &str) -> Failure {
    Failure::new(
        kvasir_code::TooManyItems,
        &[count as u64, limit as u64],
        format!("{what}: {count} in one call, at most {limit} are allowed"),
    )
}

/// Text that ends in a zero byte.
///
/// # Safety
/// `text` is NULL or ends in a zero byte.
pub(crate) unsafe fn text(text: *const c_char, what: &str) -> Outcome<String> {
    check_pointer(text, what)?;
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    if text.count_bytes() > TEXT_MAX {
        return Err(too_many(text.count_bytes(), TEXT_MAX, what));
    }
    let text = text
        .to_str()
        .map_err(|error| Failure::argument(format!("{what} is not UTF-8: {error}")))?;
    Ok(text.to_owned())
}

/// A path: any bytes that end in a zero byte.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn path(path: *const c_char, what: &str) -> Outcome<std::path::PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    check_pointer(path, what)?;
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    if bytes.is_empty() || bytes.len() > TEXT_MAX {
        return Err(Failure::argument_of(
            &[bytes.len() as u64],
            format!("{what} has {} bytes", bytes.len()),
        ));
    }
    Ok(std::path::PathBuf::from(std::ffi::OsStr::from_bytes(bytes)))
}

/// Bytes; nothing where the pointer is NULL.
///
/// # Safety
/// `bytes` is as the invariant says.
pub(crate) unsafe fn bytes(bytes: kvasir_bytes, limit: usize, what: &str) -> Outcome<Option<Vec<u8>>> {
    if bytes.data.is_null() {
        return match bytes.size {
            0 => Ok(None),
            size => Err(Failure::argument_of(
                &[size as u64],
                format!("{what} is NULL and has {size} bytes"),
            )),
        };
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { slice(bytes.data, bytes.size, limit, what) }?;
    Ok(Some(bytes.to_vec()))
}

/// One plain value.
///
/// # Safety
/// `pointer` is as the invariant says, and any bytes are a `T`.
pub(crate) unsafe fn value<T: Copy>(pointer: *const T, what: &str) -> Outcome<T> {
    check_pointer(pointer, what)?;
    // SAFETY: aligned and not NULL; by the invariant a value is there.
    Ok(unsafe { pointer.read() })
}

pub(crate) fn key(key: &kvasir_key) -> ChunkKey {
    ChunkKey::from_bytes(key.bytes)
}

/// Refuses bits that mean nothing.
pub(crate) fn check_flags(given: u32, known: u32, what: &str) -> Outcome<()> {
    if given & !known != 0 {
        return Err(Failure::argument_of(
            &[given.into(), known.into()],
            format!("{what}: flags {given:#x}, of which {known:#x} mean something"),
        ));
    }
    Ok(())
}

/// Refuses a reserved field that is not zero.
pub(crate) fn check_reserved(given: impl Into<u64>, what: &str) -> Outcome<()> {
    match given.into() {
        0 => Ok(()),
        given => Err(Failure::argument_of(
            &[given],
            format!("{what}: a reserved field is {given}; it has to be 0"),
        )),
    }
}

/// A time in milliseconds; 0 is the default.
pub(crate) fn time_or(milliseconds: u64, default: Duration, what: &str) -> Outcome<Duration> {
    match milliseconds {
        0 => Ok(default),
        given => time(given, what),
    }
}

pub(crate) fn time(milliseconds: u64, what: &str) -> Outcome<Duration> {
    let limit = MAX_WAIT.as_millis() as u64;
    if milliseconds > limit {
        return Err(Failure::argument_of(
            &[milliseconds, limit],
            format!("{what} is {milliseconds} ms, at most {limit} ms are allowed"),
        ));
    }
    Ok(Duration::from_millis(milliseconds))
}
