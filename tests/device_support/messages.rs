//! What the two processes of a test say to each other.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use kvasir::device::*;
use kvasir::shm::fdpass::{recv_with_fds, send_with_fds};

pub fn send(socket: &mut UnixStream, bytes: &[u8]) {
    socket.write_all(bytes).unwrap();
}

pub fn receive<const N: usize>(socket: &mut UnixStream) -> [u8; N] {
    let mut bytes = [0; N];
    socket.read_exact(&mut bytes).unwrap();
    bytes
}

/// Each side says so when it has come to a place, and waits for the other.
pub fn meet(socket: &mut UnixStream) {
    send(socket, b"!");
    assert_eq!(receive(socket), *b"!");
}

pub fn send_memory(socket: &mut UnixStream, memory: &IpcMemory) {
    send(socket, &memory.handle);
    send(socket, &memory.offset.to_le_bytes());
    send(socket, &memory.bytes.to_le_bytes());
}

pub fn receive_memory(socket: &mut UnixStream) -> IpcMemory {
    let handle = receive(socket);
    let offset = u64::from_le_bytes(receive(socket));
    IpcMemory {
        handle,
        offset,
        bytes: u64::from_le_bytes(receive(socket)),
    }
}

pub fn send_chunks(socket: &mut UnixStream, memory: &VmmMemory) {
    let mut bytes = Vec::new();
    for word in [memory.lead, memory.bytes, memory.chunks.len() as u64] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(memory.chunks.iter().flat_map(|chunk| chunk.bytes.to_le_bytes()));
    let fds: Vec<_> = memory.chunks.iter().map(|chunk| chunk.fd.as_fd()).collect();
    assert_eq!(send_with_fds(&*socket, &bytes, &fds).unwrap(), bytes.len());
}

pub fn receive_chunks(socket: &UnixStream) -> VmmMemory {
    let mut bytes = [0; 256];
    let received = recv_with_fds(socket, &mut bytes, 4).unwrap();
    let word = |index: usize| u64::from_le_bytes(bytes[8 * index..8 * index + 8].try_into().unwrap());
    assert_eq!(word(2), received.fds.len() as u64);
    let chunks = received.fds.into_iter().enumerate();
    let chunks = chunks
        .map(|(index, fd)| VmmChunk {
            bytes: word(3 + index),
            fd,
        })
        .collect();
    VmmMemory {
        lead: word(0),
        bytes: word(1),
        chunks,
    }
}

/// Descriptors that this process has open.
pub fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}
