//! Cutting a byte stream into frames.

use std::path::Path;

use super::{MAX_FRAME_BYTES, MAX_HELLO_FRAME_BYTES};

/// Bytes of the length in front of a frame.
pub const PREFIX_BYTES: usize = 4;

/// What is read at once when nothing says that more is coming; also what an idle connection keeps.
const IDLE_BYTES: usize = 8 << 10;

/// The room beyond what has arrived. A peer gets memory for what it sends, not for what it announces.
const STEP_BYTES: usize = 64 << 10;

/// A length prefix that ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Longer than allowed at this point.
    #[error(
        "a frame of {bytes} bytes is beyond the limit of {limit}{}; split the request",
        if *limit < MAX_FRAME_BYTES { " before the hello" } else { "" }
    )]
    TooLarge {
        /// The length announced.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A frame of no bytes cannot hold a message.
    #[error("a frame of 0 bytes holds no message")]
    Empty,
}

/// Collects bytes from a stream and hands out whole frames. The length of a frame is checked when its prefix is
/// there, before memory is taken for its body.
#[derive(Debug)]
pub struct FrameReader {
    buffer: Vec<u8>,
    /// Bytes `start..end` of the buffer are filled and not yet handed out.
    start: usize,
    end: usize,
    limit: usize,
}

impl FrameReader {
    /// A reader with the limit that holds after the hello.
    pub fn new() -> Self {
        Self::with_limit(MAX_FRAME_BYTES)
    }

    /// A reader for a connection that has not said hello yet; see [`FrameReader::opened`].
    pub fn before_hello() -> Self {
        Self::with_limit(MAX_HELLO_FRAME_BYTES)
    }

    fn with_limit(limit: usize) -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            end: 0,
            limit,
        }
    }

    /// Raises the limit once the hello was accepted.
    pub fn opened(&mut self) {
        self.limit = MAX_FRAME_BYTES;
    }

    /// Room to receive into; follow with [`FrameReader::received`]. Enough for the rest of a frame that has begun,
    /// but at most 64 KiB at a time.
    ///
    /// # Errors
    /// [`FrameError`] for a prefix that is not allowed.
    pub fn space(&mut self) -> Result<&mut [u8], FrameError> {
        let wanted = match self.frame_bytes()? {
            Some(bytes) => (PREFIX_BYTES + bytes)
                .min(self.end - self.start + STEP_BYTES)
                .max(IDLE_BYTES),
            None => IDLE_BYTES,
        };
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        // Filled bytes can be more than is wanted when several frames are waiting to be handed out.
        let len = wanted.max(self.end + 1);
        if self.buffer.len() < len {
            self.buffer.resize(len, 0);
        }
        Ok(&mut self.buffer[self.end..])
    }

    /// Says how many bytes of [`FrameReader::space`] were filled.
    pub fn received(&mut self, bytes: usize) {
        self.end = (self.end + bytes).min(self.buffer.len());
    }

    /// The next whole frame with its prefix, ready for `decode_request` and `decode_reply`.
    ///
    /// # Errors
    /// [`FrameError`] for a prefix that is not allowed.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let whole = self
            .frame_bytes()?
            .map(|bytes| self.start + PREFIX_BYTES + bytes)
            .filter(|last| *last <= self.end);
        let Some(last) = whole else {
            self.release();
            return Ok(None);
        };
        let first = std::mem::replace(&mut self.start, last);
        Ok(Some(&self.buffer[first..last]))
    }

    /// The next whole frame with its prefix, for itself, if it has more than so many bytes. It is not copied: it is what it was
    /// received into.
    ///
    /// # Errors
    /// [`FrameError`] for a prefix that is not allowed.
    pub fn take_long_frame(&mut self, more_than: usize) -> Result<Option<Vec<u8>>, FrameError> {
        let bytes = self.frame_bytes()?.map(|bytes| PREFIX_BYTES + bytes);
        let Some(bytes) = bytes.filter(|bytes| *bytes > more_than && self.start + bytes <= self.end) else {
            return Ok(None);
        };
        let mut frame = std::mem::take(&mut self.buffer);
        // What has come behind it is less than is received at once.
        self.buffer
            .extend_from_slice(&frame[self.start + bytes..self.end]);
        frame.truncate(self.start + bytes);
        frame.drain(..self.start);
        (self.start, self.end) = (0, self.buffer.len());
        Ok(Some(frame))
    }

    /// Gives the room of large frames back once they were handed out: nobody knows when the next one comes.
    fn release(&mut self) {
        let held = self.end - self.start;
        let kept = if held == 0 { IDLE_BYTES } else { held + STEP_BYTES };
        if self.start > 0 && self.buffer.len() > kept {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, held);
            self.buffer.truncate(held.max(IDLE_BYTES));
            self.buffer.shrink_to_fit();
        }
    }

    /// Whether a frame has begun that has not been handed out.
    pub fn is_partial(&self) -> bool {
        self.start < self.end
    }

    /// The length of the frame at the front, when its prefix is there.
    fn frame_bytes(&self) -> Result<Option<usize>, FrameError> {
        let Some(prefix) = self.buffer[self.start..self.end].first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        match u32::from_le_bytes(*prefix) as usize {
            0 => Err(FrameError::Empty),
            bytes if bytes > self.limit => Err(FrameError::TooLarge {
                bytes,
                limit: self.limit,
            }),
            bytes => Ok(Some(bytes)),
        }
    }
}

/// The first bytes of a peer, to show what it is when it turns out to speak another protocol.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstBytes {
    bytes: [u8; Self::KEPT],
    len: usize,
}

impl FirstBytes {
    const KEPT: usize = 24;

    /// Takes what has arrived, up to as much as is shown.
    pub fn add(&mut self, received: &[u8]) {
        let taken = received.len().min(Self::KEPT - self.len);
        self.bytes[self.len..self.len + taken].copy_from_slice(&received[..taken]);
        self.len += taken;
    }

    /// Whether nothing has arrived.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Says that whoever sent these is no Kvasir server.
    pub fn not_kvasir(&self, path: &Path) -> String {
        format!(
            "what listens on {} is not a Kvasir server: its answer begins with \"{}\"; name the socket of a kvasir serve",
            path.display(),
            self.bytes[..self.len].escape_ascii()
        )
    }
}

impl Default for FrameReader {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn feed(reader: &mut FrameReader, mut bytes: &[u8]) -> Result<Vec<Vec<u8>>, FrameError> {
        let mut frames = Vec::new();
        while !bytes.is_empty() {
            let space = reader.space()?;
            let n = space.len().min(bytes.len());
            space[..n].copy_from_slice(&bytes[..n]);
            reader.received(n);
            bytes = &bytes[n..];
            while let Some(frame) = reader.next_frame()? {
                frames.push(frame.to_vec());
            }
        }
        Ok(frames)
    }

    fn frame(body: &[u8]) -> Vec<u8> {
        [&(body.len() as u32).to_le_bytes(), body].concat()
    }

    #[test]
    fn a_length_is_refused_before_memory_is_taken() {
        let mut reader = FrameReader::before_hello();
        let prefix = (MAX_HELLO_FRAME_BYTES as u32 + 1).to_le_bytes();
        let error = feed(&mut reader, &prefix).unwrap_err();
        let expected = FrameError::TooLarge {
            bytes: MAX_HELLO_FRAME_BYTES + 1,
            limit: MAX_HELLO_FRAME_BYTES,
        };
        assert_eq!(error, expected);
        assert!(reader.buffer.capacity() <= IDLE_BYTES);

        let mut reader = FrameReader::new();
        let error = feed(&mut reader, &u32::MAX.to_le_bytes()).unwrap_err();
        let expected = FrameError::TooLarge {
            bytes: u32::MAX as usize,
            limit: MAX_FRAME_BYTES,
        };
        assert_eq!(error, expected);
        assert!(reader.buffer.capacity() <= IDLE_BYTES);
        assert_eq!(
            feed(&mut FrameReader::new(), &[0; 4]).unwrap_err(),
            FrameError::Empty
        );
    }

    #[test]
    fn the_limit_rises_with_the_hello_and_memory_is_given_back() {
        let mut reader = FrameReader::before_hello();
        let big = frame(&vec![7; MAX_HELLO_FRAME_BYTES + 1]);
        reader.opened();
        assert_eq!(feed(&mut reader, &big).unwrap(), vec![big]);
        let huge = frame(&vec![7; MAX_FRAME_BYTES]);
        assert_eq!(feed(&mut reader, &huge).unwrap().len(), 1);
        assert!(
            reader.buffer.capacity() <= 2 * IDLE_BYTES,
            "not only at the next read"
        );
        // The same when the next frame has begun.
        let begun = [&huge[..], &huge[..PREFIX_BYTES + 1]].concat();
        assert_eq!(feed(&mut reader, &begun).unwrap().len(), 1);
        assert!(reader.buffer.capacity() <= 2 * (IDLE_BYTES + STEP_BYTES));
        assert_eq!(
            feed(&mut reader, &huge[PREFIX_BYTES + 1..]).unwrap(),
            vec![huge.clone()]
        );
        assert_eq!(reader.space().unwrap().len(), IDLE_BYTES);
        assert!(reader.buffer.capacity() <= 2 * IDLE_BYTES);
    }

    #[test]
    fn a_long_frame_is_handed_out_as_it_was_received() {
        let (short, long) = (frame(&[1; 100]), frame(&vec![2; 300_000]));
        let mut reader = FrameReader::new();
        let stream = [&short[..], &long, &short, &long[..10]].concat();
        let mut frames = Vec::new();
        let mut left = &stream[..];
        while !left.is_empty() {
            let space = reader.space().unwrap();
            let n = space.len().min(left.len()).min(7000);
            space[..n].copy_from_slice(&left[..n]);
            reader.received(n);
            left = &left[n..];
            loop {
                if let Some(frame) = reader.take_long_frame(1000).unwrap() {
                    assert_eq!(reader.take_long_frame(1000).unwrap(), None);
                    frames.push(frame);
                } else if let Some(frame) = reader.next_frame().unwrap() {
                    frames.push(frame.to_vec());
                } else {
                    break;
                }
            }
        }
        assert_eq!(frames, [short.clone(), long, short]);
        assert!(reader.is_partial());
    }

    #[test]
    fn memory_is_taken_for_what_has_arrived_and_not_for_what_is_announced() {
        let mut reader = FrameReader::new();
        let huge = frame(&vec![7; MAX_FRAME_BYTES]);
        let mut sent = 0;
        for piece in [PREFIX_BYTES, 1, 100, 64 << 10, 1 << 20] {
            feed(&mut reader, &huge[sent..sent + piece]).unwrap();
            sent += piece;
            assert!(reader.space().unwrap().len() <= STEP_BYTES);
            // A vector may double when it grows.
            let limit = 2 * (sent + STEP_BYTES);
            assert!(
                reader.buffer.capacity() <= limit,
                "{} for {sent}",
                reader.buffer.capacity()
            );
        }
        assert_eq!(feed(&mut reader, &huge[sent..]).unwrap(), vec![huge]);
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20_000), 0..6),
            cut in 1usize..5000,
        ) {
            let frames: Vec<Vec<u8>> = bodies.iter().map(|body| frame(body)).collect();
            let stream = frames.concat();
            let mut reader = FrameReader::new();
            let mut out = Vec::new();
            for piece in stream.chunks(cut) {
                out.extend(feed(&mut reader, piece).unwrap());
            }
            prop_assert_eq!(out, frames);
            prop_assert!(!reader.is_partial());
        }
    }
}
