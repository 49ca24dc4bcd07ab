//! Tables by number that grow without moving: a vector of a million entries would be copied in one long turn.
//!
//! Imports nothing of this crate.

/// Entries that come into being at once.
const CHUNK: usize = 512;

/// A table in which every number has an entry; those never written are all the same.
#[derive(Debug)]
pub(super) struct Chunked<T> {
    chunks: Vec<Box<[T]>>,
    unused: T,
}

impl<T: Copy> Chunked<T> {
    /// All entries are `unused`.
    pub(super) fn new(unused: T) -> Self {
        Self {
            chunks: Vec::new(),
            unused,
        }
    }

    /// An entry.
    pub(super) fn get(&self, at: u32) -> &T {
        let at = at as usize;
        let chunk = self.chunks.get(at / CHUNK);
        chunk.map_or(&self.unused, |chunk| &chunk[at % CHUNK])
    }

    /// An entry to be changed.
    pub(super) fn get_mut(&mut self, at: u32) -> &mut T {
        let at = at as usize;
        while self.chunks.len() <= at / CHUNK {
            self.chunks.push(vec![self.unused; CHUNK].into_boxed_slice());
        }
        &mut self.chunks[at / CHUNK][at % CHUNK]
    }

    /// Whether there is memory for an entry.
    pub(super) fn has(&self, at: u32) -> bool {
        at as usize / CHUNK < self.chunks.len()
    }

    /// All entries that there is memory for, by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(self.chunks.iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_their_place_while_the_table_grows() {
        let mut table = Chunked::new(7);
        assert_eq!((*table.get(5), table.has(5)), (7, false));
        *table.get_mut(3) = 1;
        let place = std::ptr::from_ref(table.get(3));
        *table.get_mut(100 * CHUNK as u32) = 2;
        assert_eq!(std::ptr::from_ref(table.get(3)), place);
        assert_eq!(
            (*table.get(3), *table.get(4), *table.get(100 * CHUNK as u32)),
            (1, 7, 2)
        );
        assert_eq!(table.iter().filter(|(_, value)| **value != 7).count(), 2);
        assert!(table.has(99 * CHUNK as u32) && !table.has(101 * CHUNK as u32));
    }
}
