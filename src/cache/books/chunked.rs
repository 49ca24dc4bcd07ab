//! Tables by number and lists that grow without moving: a vector of a million entries would be copied in one long turn.

use std::collections::VecDeque;

/// Entries of a table that come into being at once: a few pages at most.
const CHUNK: usize = 64;
/// Entries of a list that lie together.
const PIECE: usize = 1024;

/// A table in which every number has an entry; those never written are all the same.
#[derive(Debug)]
pub(crate) struct Chunked<T> {
    /// Only those in which something was written take memory, wherever they are.
    chunks: Vec<Option<Box<[T]>>>,
    unused: T,
}

impl<T: Copy> Chunked<T> {
    /// All entries are `unused`. As many as `room` make no list move that has to be copied.
    pub(crate) fn new(unused: T, room: u32) -> Self {
        Self {
            chunks: vec![None; (room as usize).div_ceil(CHUNK)],
            unused,
        }
    }

    /// An entry.
    pub(crate) fn get(&self, at: u32) -> &T {
        let at = at as usize;
        let chunk = self.chunks.get(at / CHUNK).and_then(Option::as_ref);
        chunk.map_or(&self.unused, |chunk| &chunk[at % CHUNK])
    }

    /// An entry to be changed.
    pub(crate) fn get_mut(&mut self, at: u32) -> &mut T {
        let at = at as usize;
        if self.chunks.len() <= at / CHUNK {
            self.chunks.resize(at / CHUNK + 1, None);
        }
        let unused = self.unused;
        let chunk = self.chunks[at / CHUNK].get_or_insert_with(|| vec![unused; CHUNK].into_boxed_slice());
        &mut chunk[at % CHUNK]
    }

    /// Whether there is memory for an entry.
    pub(crate) fn has(&self, at: u32) -> bool {
        self.chunks.get(at as usize / CHUNK).is_some_and(Option::is_some)
    }

    /// All entries that there is memory for, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let chunks = (0_u32..).step_by(CHUNK).zip(&self.chunks);
        let chunks = chunks.filter_map(|(first, chunk)| Some((first, chunk.as_ref()?)));
        chunks.flat_map(|(first, chunk)| (first..).zip(chunk.iter()))
    }
}

/// A list whose last entries go first. Short ones take what a vector takes and one word.
#[derive(Debug)]
pub(crate) struct Stack<T> {
    last: Vec<T>,
    below: Option<Box<Stack<T>>>,
}

impl<T> Default for Stack<T> {
    fn default() -> Self {
        Self {
            last: Vec::new(),
            below: None,
        }
    }
}

impl<T> Stack<T> {
    /// Puts one on top.
    pub(crate) fn push(&mut self, entry: T) {
        if self.last.len() == PIECE {
            let last = std::mem::replace(&mut self.last, Vec::with_capacity(PIECE));
            let below = self.below.take();
            self.below = Some(Box::new(Self { last, below }));
        }
        self.last.push(entry);
    }

    /// Puts some on top, in this order.
    pub(crate) fn extend(&mut self, entries: &[T])
    where
        T: Copy,
    {
        match self.last.len() + entries.len() <= PIECE {
            true => self.last.extend_from_slice(entries),
            false => entries.iter().for_each(|entry| self.push(*entry)),
        }
    }

    /// Takes the one on top.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let entry = self.last.pop();
        if self.last.is_empty()
            && let Some(below) = self.below.take()
        {
            *self = *below;
        }
        entry
    }

    /// The one on top.
    pub(crate) fn last_mut(&mut self) -> Option<&mut T> {
        self.last.last_mut()
    }

    /// All of them, that on top first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let pieces = std::iter::successors(Some(self), |stack| stack.below.as_deref());
        pieces.flat_map(|stack| stack.last.iter().rev())
    }

    /// Keeps no more room than it needs.
    pub(crate) fn shrink_to_fit(&mut self) {
        self.last.shrink_to_fit();
    }

    /// Entries that there is room for.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        let pieces = std::iter::successors(Some(self), |stack| stack.below.as_deref());
        pieces.map(|stack| stack.last.capacity()).sum()
    }
}

/// A list whose first entries go first.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    pieces: VecDeque<VecDeque<T>>,
    len: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            pieces: VecDeque::new(),
            len: 0,
        }
    }
}

impl<T> Queue<T> {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Puts one at the end.
    pub(crate) fn push(&mut self, entry: T) {
        self.len += 1;
        match self.pieces.back_mut() {
            Some(piece) if piece.len() < PIECE => piece.push_back(entry),
            _ => self.pieces.push_back(VecDeque::from([entry])),
        }
    }

    /// The first.
    pub(crate) fn first(&self) -> Option<&T> {
        self.pieces.front()?.front()
    }

    /// Takes the first.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let piece = self.pieces.front_mut()?;
        let entry = piece.pop_front()?;
        self.len -= 1;
        // The last piece is kept: it is filled again.
        if piece.is_empty() && self.pieces.len() > 1 {
            self.pieces.pop_front();
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_their_place_while_the_table_grows() {
        for room in [0, 50, 200 * CHUNK as u32] {
            let mut table = Chunked::new(7, room);
            assert_eq!((*table.get(5), table.has(5)), (7, false));
            *table.get_mut(3) = 1;
            let place = std::ptr::from_ref(table.get(3));
            *table.get_mut(100 * CHUNK as u32) = 2;
            assert_eq!(std::ptr::from_ref(table.get(3)), place);
            assert_eq!(
                (*table.get(3), *table.get(4), *table.get(100 * CHUNK as u32)),
                (1, 7, 2)
            );
            let written = table.iter().filter(|(_, value)| **value != 7);
            assert!(written.eq([(3, &1), (100 * CHUNK as u32, &2)]));
            assert!(table.has(100 * CHUNK as u32 + 1) && !table.has(101 * CHUNK as u32));
            assert!(!table.has(99 * CHUNK as u32), "what is between takes no memory");
        }
    }

    #[test]
    fn a_stack_gives_back_what_was_put_in_from_the_top() {
        let mut stack = Stack::default();
        let count = 3 * PIECE + 5;
        for entry in 0..count {
            assert_eq!(stack.last_mut().copied(), entry.checked_sub(1));
            stack.push(entry);
        }
        let more: Vec<usize> = (count..count + 2 * PIECE).collect();
        stack.extend(&more[..10]);
        stack.extend(&more[10..]);
        let count = count + more.len();
        assert!(stack.iter().copied().eq((0..count).rev()));
        stack.shrink_to_fit();
        assert_eq!(stack.capacity(), count);
        for entry in (0..count).rev() {
            assert_eq!(stack.pop(), Some(entry));
        }
        assert_eq!((stack.pop(), stack.iter().count()), (None, 0));
        stack.push(9);
        assert_eq!((stack.pop(), stack.pop()), (Some(9), None));
    }

    #[test]
    fn a_queue_gives_back_what_was_put_in_in_order() {
        let mut queue = Queue::default();
        let (mut put, mut taken) = (0, 0);
        for (more, less) in [(3 * PIECE, PIECE + 1), (5, 2 * PIECE + 4), (PIECE, PIECE)] {
            for _ in 0..more {
                queue.push(put);
                put += 1;
            }
            assert_eq!(queue.first(), Some(&taken));
            for _ in 0..less {
                assert_eq!(queue.pop(), Some(taken));
                taken += 1;
            }
            assert_eq!(queue.len(), put - taken);
        }
        assert_eq!((queue.pop(), queue.first()), (None, None));
    }
}
