//! Commits of one store that are under way: sent one behind the other, and answered in that order.
//!
//! While the server works on one, its client copies what the next one brings. What a commit named is not used again before its answer.
//! A commit without an answer may have been done or not, and the link is given up with it: the grants of answers that nobody reads would be
//! nobody's.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::client::ClientError;
use crate::client::link::core::Core;
use crate::client::link::populate::When;
use crate::client::link::session::{PoolSide, Session, unexpected};
use crate::object::{CommitAnswer, CommitRequest, Extent, ObjectId};
use crate::wire::{Reply, Request};

/// Commits that are under way at a time. Two keep both sides at work, and more even out what they take.
pub(crate) const UNDER_WAY: usize = 4;

/// A commit that was sent.
#[derive(Debug)]
pub(crate) struct Sent {
    request: u64,
    pub(crate) ids: Vec<ObjectId>,
    /// Position in the call, for each item.
    pub(crate) positions: Vec<usize>,
    extents: Vec<Extent>,
    /// When the space is needed that the answer brings.
    pub(crate) when: When,
}

/// The commits of one store on one session.
#[derive(Debug)]
pub(crate) struct Commits<'a> {
    core: &'a Arc<Core>,
    session: &'a Arc<Session>,
    under_way: VecDeque<Sent>,
}

impl<'a> Commits<'a> {
    pub(crate) fn new(core: &'a Arc<Core>, session: &'a Arc<Session>) -> Self {
        Self {
            core,
            session,
            under_way: VecDeque::new(),
        }
    }

    /// Whether nothing is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Sends a commit. What it names is out of this client's hands until [`Self::answers`] says what became of it.
    pub(crate) fn send(
        &mut self,
        pool: &PoolSide,
        commit: CommitRequest,
        positions: Vec<usize>,
        when: When,
    ) -> Result<(), ClientError> {
        let ids = commit.items.iter().map(|item| item.id).collect();
        let extents = commit.extents.clone();
        let deadline = self.core.deadline();
        let mut link = match self.core.acquire(Some(self.session), deadline) {
            Ok(link) => link,
            Err(error) => {
                pool.granted().add(extents); // nobody was told of them
                return Err(error);
            }
        };
        let request = link.begin(&Request::Commit(commit), deadline)?;
        self.under_way.push_back(Sent {
            request,
            ids,
            positions,
            extents,
            when,
        });
        Ok(())
    }

    /// Waits until at most so many are under way. What came of the others, in their order, and the first refusal or whatever ended it.
    pub(crate) fn answers(
        &mut self,
        pool: &PoolSide,
        left: usize,
    ) -> (Vec<(Sent, CommitAnswer)>, Result<(), ClientError>) {
        let (mut answered, mut refused) = (Vec::new(), Ok(()));
        if self.under_way.len() <= left {
            return (answered, refused);
        }
        // Held for all of them: what has come is read even if the server hangs up meanwhile, while the link is held. Another store
        // may hold it as long, and to give up on it would take its answers too.
        let patience = self.core.config.deadline.saturating_mul(UNDER_WAY as u32 + 1);
        let mut link = match self.core.acquire(Some(self.session), Instant::now() + patience) {
            Ok(link) => link,
            Err(error) => {
                self.abandon();
                return (answered, Err(error));
            }
        };
        while self.under_way.len() > left
            && let Some(sent) = self.under_way.pop_front()
        {
            // Each has as long as a call of its own, from when the one before it was answered.
            let error = match link.finish(sent.request, self.core.deadline()) {
                Ok(Reply::Commit(answer)) if answer.outcomes.len() == sent.positions.len() => {
                    answered.push((sent, answer));
                    continue;
                }
                Ok(reply) => {
                    let error = unexpected(&reply);
                    link.give_up(&error.to_string());
                    error
                }
                Err(ClientError::Refused(error)) if error.code.refuses_whole_commit() => {
                    pool.granted().add(sent.extents); // refused as a whole: still ours
                    refused = refused.and(Err(ClientError::Refused(error)));
                    continue;
                }
                Err(ClientError::Refused(error)) => {
                    // The two sides disagree about this client's space, or some of it may hold objects by now: start anew rather
                    // than write into it again.
                    let reason = format!("the server refused a commit: {error}");
                    link.give_up(&reason);
                    ClientError::unavailable(reason)
                }
                Err(error) => error,
            };
            drop(link);
            self.abandon();
            return (answered, Err(error));
        }
        (answered, refused)
    }

    /// What is under way stays without an answer.
    fn abandon(&mut self) {
        self.under_way.clear();
        self.core
            .abandon(self.session, "the answers to commits were not waited for");
    }
}

impl Drop for Commits<'_> {
    fn drop(&mut self) {
        if !self.is_empty() {
            self.abandon();
        }
    }
}
