use std::fs::File;
use std::io::{PipeReader, Read, Write};
use std::os::unix::net::UnixStream;

use super::*;

/// Pipes whose write ends are to be sent: reading one to its end proves that no copy is open anywhere.
fn pipes(n: usize) -> (Vec<PipeReader>, Vec<OwnedFd>) {
    (0..n)
        .map(|_| std::io::pipe().unwrap())
        .map(|(r, w)| (r, OwnedFd::from(w)))
        .unzip()
}

fn send(socket: &UnixStream, bytes: &[u8], fds: Vec<OwnedFd>) -> io::Result<usize> {
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    send_with_fds(socket, bytes, &borrowed)
}

fn assert_all_closed(readers: Vec<PipeReader>) {
    for mut reader in readers {
        // Returns only when the last write end is closed.
        assert_eq!(reader.read(&mut [0; 1]).unwrap(), 0);
    }
}

#[test]
fn descriptors_arrive_in_order_and_cloexec() {
    for n in [0, 1, 2, MAX_FDS_PER_MESSAGE] {
        let (a, b) = UnixStream::pair().unwrap();
        let (readers, writers) = pipes(n);
        assert_eq!(send(&a, b"frame", writers).unwrap(), 5);
        let mut buffer = [0; 64];
        let received = recv_with_fds(&b, &mut buffer, n).unwrap();
        assert_eq!((received.bytes, &buffer[..5]), (5, &b"frame"[..]));
        assert_eq!(received.fds.len(), n);
        for (i, fd) in received.fds.iter().enumerate() {
            let flags = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_GETFD).unwrap();
            assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
            File::from(fd.try_clone().unwrap()).write_all(&[i as u8]).unwrap();
        }
        drop(received);
        for (i, mut reader) in readers.into_iter().enumerate() {
            let mut text = Vec::new();
            reader.read_to_end(&mut text).unwrap();
            assert_eq!(text, [i as u8]);
        }
    }
}

#[test]
fn more_than_a_message_carries_is_refused_before_it_is_sent() {
    let (a, b) = UnixStream::pair().unwrap();
    let (_readers, writers) = pipes(MAX_FDS_PER_MESSAGE + 1);
    let error = send(&a, b"x", writers).unwrap_err();
    let expected = FdPassError::TooMany {
        given: MAX_FDS_PER_MESSAGE + 1,
        limit: MAX_FDS_PER_MESSAGE,
    };
    assert_eq!(FdPassError::of(&error), Some(expected));
    let error = recv_with_fds(&b, &mut [0; 1], MAX_FDS_PER_MESSAGE + 1).unwrap_err();
    assert_eq!(FdPassError::of(&error), Some(expected));

    let (_readers, writers) = pipes(1);
    let error = send(&a, b"", writers).unwrap_err();
    assert_eq!(FdPassError::of(&error), Some(FdPassError::NoBytes { given: 1 }));
    b.set_nonblocking(true).unwrap();
    let error = recv_with_fds(&b, &mut [0; 1], 0).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "nothing was sent");
    assert_eq!(FdPassError::of(&error), None);
}

#[test]
fn surplus_descriptors_are_closed_and_reported() {
    for limit in [0, 1, 3, MAX_FDS_PER_MESSAGE - 1] {
        let (a, b) = UnixStream::pair().unwrap();
        let (readers, writers) = pipes(limit + 1);
        send(&a, b"x", writers).unwrap();
        let error = recv_with_fds(&b, &mut [0; 8], limit).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(
            FdPassError::of(&error),
            Some(FdPassError::Surplus {
                received: limit + 1,
                limit
            }),
            "{error}"
        );
        assert_all_closed(readers);
    }
}

#[test]
fn truncated_ancillary_data_is_closed_and_reported() {
    for limit in [0, 1, 4] {
        let (a, b) = UnixStream::pair().unwrap();
        let (readers, writers) = pipes(MAX_FDS_PER_MESSAGE);
        send(&a, b"x", writers).unwrap();
        let error = recv_with_fds(&b, &mut [0; 8], limit).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        match FdPassError::of(&error) {
            Some(FdPassError::Truncated { received, limit: l }) => {
                assert_eq!(l, limit);
                assert!(received > limit && received < MAX_FDS_PER_MESSAGE, "{received}");
            }
            other => panic!("{other:?}"),
        }
        assert_all_closed(readers);
    }
}

#[test]
fn the_end_of_the_stream_is_zero_bytes() {
    let (a, b) = UnixStream::pair().unwrap();
    drop(a);
    let received = recv_with_fds(&b, &mut [0; 8], 1).unwrap();
    assert_eq!((received.bytes, received.fds.len()), (0, 0));
    let error = send_with_fds(&b, b"x", &[]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe, "an error, not SIGPIPE");
}

#[test]
fn bytes_that_do_not_fit_the_buffer_stay_for_the_next_receive() {
    let (a, b) = UnixStream::pair().unwrap();
    let (readers, writers) = pipes(1);
    send(&a, b"abcdef", writers).unwrap();
    let mut buffer = [0; 4];
    let first = recv_with_fds(&b, &mut buffer, 1).unwrap();
    assert_eq!((first.bytes, first.fds.len()), (4, 1));
    let second = recv_with_fds(&b, &mut buffer, 1).unwrap();
    assert_eq!((second.bytes, second.fds.len(), &buffer[..2]), (2, 0, &b"ef"[..]));
    drop(first);
    assert_all_closed(readers);
}

#[test]
fn a_partial_send_says_how_much_went_out() {
    let (a, b) = UnixStream::pair().unwrap();
    a.set_nonblocking(true).unwrap();
    let big = vec![7u8; 8 << 20];
    let sent = send_with_fds(&a, &big, &[]).unwrap();
    assert!(sent > 0 && sent < big.len(), "{sent}");
    let error = send_with_fds(&a, &big[sent..], &[]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    let mut got = 0;
    let mut buffer = vec![0; 1 << 20];
    while got < sent {
        got += recv_with_fds(&b, &mut buffer, 0).unwrap().bytes;
    }
    assert_eq!(got, sent);
}

#[cfg(all(feature = "server", not(loom)))] // tokio has no sockets under loom
#[test]
fn a_readiness_driven_caller_can_wait_for_descriptors() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (a, b) = tokio::net::UnixStream::pair().unwrap();
        let receive = async {
            let mut buffer = [0; 8];
            b.async_io(tokio::io::Interest::READABLE, || {
                recv_with_fds(&b, &mut buffer, 1)
            })
            .await
        };
        let (_reader, writer) = std::io::pipe().unwrap();
        let send = async {
            tokio::task::yield_now().await; // let the receiver find nothing first
            a.async_io(tokio::io::Interest::WRITABLE, || {
                send_with_fds(&a, b"x", &[writer.as_fd()])
            })
            .await
        };
        let (received, sent) = tokio::join!(receive, send);
        assert_eq!(sent.unwrap(), 1);
        assert_eq!(received.unwrap().fds.len(), 1);
    });
}

#[test]
fn the_peer_is_who_the_kernel_says() {
    let (a, _b) = UnixStream::pair().unwrap();
    let peer = peer_cred(&a).unwrap();
    let expected = PeerCred {
        pid: std::process::id(),
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
    };
    assert_eq!(peer, expected);
    let (reader, _writer) = std::io::pipe().unwrap();
    assert!(peer_cred(&reader).is_err());
}
