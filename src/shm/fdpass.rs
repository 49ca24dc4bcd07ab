//! Descriptors over a Unix stream socket, and who is at the other end of one.
//!
//! Unsafe is opened here for `sendmsg`, `recvmsg` and the control messages around them. The invariant: the
//! control buffer is aligned for `cmsghdr`, its length is what the kernel is told, and every descriptor
//! found in it becomes an [`OwnedFd`] before anything can return, so a refused message leaks none.
//!
//! The functions make one attempt each and work on blocking and on nonblocking sockets. Errors are
//! [`io::Error`], so that readiness-driven callers see `WouldBlock` as it is; a [`FdPassError`] inside one
//! says that the peer broke the rules, and the connection is to be closed.

#![allow(unsafe_code)]

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::{io, ptr};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// The most descriptors one message can carry here: plenty for a hello reply, far below the kernel's 253.
pub const MAX_FDS_PER_MESSAGE: usize = 16;

/// Room for the control message of one more descriptor than allowed, so that a surplus is seen as one.
const CONTROL_WORDS: usize = 16 + MAX_FDS_PER_MESSAGE;

/// A message whose descriptors break the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FdPassError {
    /// More descriptors arrived than the receiver expects at this point. All were closed.
    #[error(
        "{received} descriptors arrived where at most {limit} may; all were closed, close the connection"
    )]
    Surplus {
        /// How many arrived.
        received: usize,
        /// How many were allowed.
        limit: usize,
    },
    /// The kernel had to drop descriptors: too many for the message, or this process is at its limit of
    /// open files. Those that arrived were closed.
    #[error(
        "ancillary data was truncated after {received} descriptors (at most {limit} may arrive, or this \
         process has no descriptors left); all were closed, close the connection"
    )]
    Truncated {
        /// How many arrived.
        received: usize,
        /// How many were allowed.
        limit: usize,
    },
    /// The caller wants to pass or receive more descriptors than a message carries.
    #[error("{given} descriptors do not fit a message, which carries at most {limit}")]
    TooMany {
        /// How many were given.
        given: usize,
        /// How many fit.
        limit: usize,
    },
    /// A stream socket carries descriptors only along with at least one byte.
    #[error("{given} descriptors need at least one byte of data to travel with")]
    NoBytes {
        /// How many descriptors were given.
        given: usize,
    },
}

impl FdPassError {
    /// The rule an I/O error of this module says was broken, if that is what it says.
    pub fn of(error: &io::Error) -> Option<Self> {
        error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<Self>())
            .copied()
    }
}

impl From<FdPassError> for io::Error {
    fn from(error: FdPassError) -> Self {
        let kind = match error {
            FdPassError::Surplus { .. } | FdPassError::Truncated { .. } => io::ErrorKind::InvalidData,
            FdPassError::TooMany { .. } | FdPassError::NoBytes { .. } => io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}

/// What one receive brought.
#[derive(Debug)]
pub struct Received {
    /// The bytes at the front of the buffer that are now filled; 0 when the peer has closed its side.
    pub bytes: usize,
    /// The descriptors that came along, in the order they were sent.
    ///
    /// A receive stops behind the first bytes that carry descriptors but may begin with earlier bytes that
    /// carry none: queue the descriptors and let each frame that announces some take its own.
    pub fds: Vec<OwnedFd>,
}

/// Sends bytes and descriptors with one call and says how many bytes went out. The descriptors travel with
/// the first of them: if fewer than all went out, send the rest with [`send_with_fds`] and none.
///
/// # Errors
/// [`FdPassError::TooMany`] or [`FdPassError::NoBytes`] inside an [`io::Error`]; otherwise the kernel's.
pub fn send_with_fds(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    if fds.len() > MAX_FDS_PER_MESSAGE {
        return Err(FdPassError::TooMany {
            given: fds.len(),
            limit: MAX_FDS_PER_MESSAGE,
        }
        .into());
    }
    if bytes.is_empty() && !fds.is_empty() {
        return Err(FdPassError::NoBytes { given: fds.len() }.into());
    }
    let mut iov = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut control = [0u64; CONTROL_WORDS];
    let mut message = empty_message(&mut iov);
    if !fds.is_empty() {
        let payload = size_of_val(fds) as u32;
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: plain arithmetic on a length of at most `MAX_FDS_PER_MESSAGE` descriptors.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(payload) } as _;
        // SAFETY: the control buffer is aligned to 8 and longer than `msg_controllen` (asserted below),
        // so the first header and its payload lie inside it. `BorrowedFd` is a transparent `RawFd`.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload) as _;
            ptr::copy_nonoverlapping(
                fds.as_ptr().cast::<u8>(),
                libc::CMSG_DATA(header),
                payload as usize,
            );
        }
    }
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `message` points at `iov`, `bytes` and `control`, all alive across the call; the kernel only
    // reads them.
    retry(|| unsafe { libc::sendmsg(fd, &message, libc::MSG_NOSIGNAL) })
}

/// Receives bytes and at most `max_fds` descriptors with one call.
///
/// # Errors
/// [`FdPassError::Surplus`] or [`FdPassError::Truncated`] inside an [`io::Error`], with every descriptor
/// of the message closed; [`FdPassError::TooMany`] for a `max_fds` beyond [`MAX_FDS_PER_MESSAGE`];
/// otherwise the kernel's.
pub fn recv_with_fds(socket: impl AsFd, buffer: &mut [u8], max_fds: usize) -> io::Result<Received> {
    if max_fds > MAX_FDS_PER_MESSAGE {
        return Err(FdPassError::TooMany {
            given: max_fds,
            limit: MAX_FDS_PER_MESSAGE,
        }
        .into());
    }
    let mut iov = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let mut control = [0u64; CONTROL_WORDS];
    let mut message = empty_message(&mut iov);
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: plain arithmetic on a small length.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(((max_fds + 1) * size_of::<RawFd>()) as u32) } as _;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `message` points at `iov`, `buffer` and `control`, all alive and exclusively ours across the
    // call, with their true lengths (the control length is asserted below to fit).
    let bytes = retry(|| unsafe { libc::recvmsg(fd, &mut message, libc::MSG_CMSG_CLOEXEC) })?;

    // Owned from here on: whatever is returned below, none of them leaks.
    let fds = take_descriptors(&message);
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(FdPassError::Truncated {
            received: fds.len(),
            limit: max_fds,
        }
        .into());
    }
    if fds.len() > max_fds {
        return Err(FdPassError::Surplus {
            received: fds.len(),
            limit: max_fds,
        }
        .into());
    }
    Ok(Received { bytes, fds })
}

/// The process, user and group at the other end of a Unix socket, as they were when it was connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCred {
    /// Process id.
    pub pid: u32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

/// Asks the kernel who is at the other end.
///
/// # Errors
/// The kernel's, for a socket that is not a connected Unix socket.
pub fn peer_cred(socket: impl AsFd) -> io::Result<PeerCred> {
    let cred = getsockopt(&socket.as_fd(), PeerCredentials)?;
    Ok(PeerCred {
        pid: cred.pid() as u32,
        uid: cred.uid(),
        gid: cred.gid(),
    })
}

fn empty_message(iov: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: `msghdr` is plain data for which all zeroes is the empty message.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = iov;
    message.msg_iovlen = 1;
    message
}

fn take_descriptors(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the kernel filled the control buffer and set `msg_controllen` to what it wrote, so walking it
    // by the kernel's macros stays inside. Each SCM_RIGHTS payload holds descriptors that were installed in
    // this process for this message and that nobody else owns; they may be unaligned, hence the read.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let payload = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                for i in 0..payload / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(i).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    fds
}

fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(n) => return Ok(n),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

// SAFETY: `CMSG_SPACE` is arithmetic. The control buffers hold one descriptor more than a message may.
const _: () = assert!(
    unsafe { libc::CMSG_SPACE(((MAX_FDS_PER_MESSAGE + 1) * size_of::<RawFd>()) as u32) } as usize
        <= CONTROL_WORDS * size_of::<u64>()
);

#[cfg(test)]
#[path = "tests/fdpass.rs"]
mod tests;
