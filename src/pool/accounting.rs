//! The books: every frame is in exactly one class.

use super::PoolError;

/// What a frame is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Nothing, prefaulted or not.
    Free,
    /// An object that is visible, or kept for a reader.
    Used,
    /// Granted to a client, or a part of an object that is not complete.
    Granted,
    /// Held for a client of an earlier boot.
    Quarantined,
}

/// Frames per class. Their sum never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accounting {
    frames: [u64; 4],
}

impl Accounting {
    /// All frames are free.
    pub fn new(total: u64) -> Self {
        Self {
            frames: [total, 0, 0, 0],
        }
    }

    /// Frames in a class.
    pub fn frames(&self, class: Class) -> u64 {
        self.frames[class as usize]
    }

    /// All frames.
    pub fn total(&self) -> u64 {
        self.frames.iter().sum()
    }

    /// Moves frames from one class to another.
    ///
    /// # Errors
    /// [`PoolError::Broken`] when there are not as many. Nothing changes.
    pub fn move_frames(&mut self, from: Class, to: Class, frames: u64) -> Result<(), PoolError> {
        let have = &mut self.frames[from as usize];
        *have = have.checked_sub(frames).ok_or(PoolError::Broken {
            what: "more frames leave a class than it has",
            a: frames,
            b: *have,
        })?;
        self.frames[to as usize] += frames;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_stays() {
        let mut books = Accounting::new(10);
        books.move_frames(Class::Free, Class::Granted, 7).unwrap();
        books.move_frames(Class::Granted, Class::Used, 3).unwrap();
        assert!(books.move_frames(Class::Granted, Class::Free, 5).is_err());
        assert_eq!(books.total(), 10);
        let by_class =
            [Class::Free, Class::Used, Class::Granted, Class::Quarantined].map(|c| books.frames(c));
        assert_eq!(by_class, [3, 3, 4, 0]);
    }
}
