//! Everything that may go goes.

use super::ends::{EndIncomplete, LaterParts};
use super::space::Space;
use crate::cache::turn::Turn;
use crate::cache::{Core, CoreError, Progress, Work, finish};

/// [`Core::clear`] in turns.
#[derive(Debug)]
pub struct Clear {
    /// The youngest incomplete object that goes.
    youngest: u64,
    ending: Option<EndIncomplete>,
    space: Option<Space>,
}

impl Clear {
    /// What is there now goes.
    pub fn new(core: &Core) -> Self {
        Self {
            youngest: core.incomplete.last_seq(),
            ending: None,
            space: None,
        }
    }
}

impl Work for Clear {
    type Answer = u64;

    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Progress<u64>, CoreError> {
        loop {
            if let Some(ending) = &mut self.ending {
                if !ending.step(core, turn)? {
                    return Ok(Progress::More);
                }
                self.ending = None;
            }
            if let Some(space) = &mut self.space {
                let done = space.step(core, turn)?;
                return Ok(match done {
                    true => Progress::Done(space.objects),
                    false => Progress::More,
                });
            }
            // The youngest first, so that most have nothing under them.
            let next = core.incomplete.youngest(self.youngest);
            match next.and_then(|(key, _)| EndIncomplete::new(core, key, LaterParts::Refused)) {
                Some(ending) => self.ending = Some(ending),
                None => self.space = Some(Space::all(core)),
            }
        }
    }
}

impl Core {
    /// Drops every unpinned object and all incomplete objects. Returns how many objects went.
    ///
    /// # Errors
    /// [`CoreError::Pool`] when the books are wrong.
    pub fn clear(&mut self) -> Result<u64, CoreError> {
        let work = Clear::new(self);
        finish(self, work)
    }
}
