//! Exchanges on the present connection, and what a server that is away means for each.

use std::sync::Arc;

use super::session::{Session, unexpected};
use super::state::Core;
use super::stats::Stat;
use super::{ClientError, Maps};
use crate::cache::{self, LookupRequest, Tail, TailList};
use crate::keys::ChunkKey;
use crate::wire::{Grant, LoadItem, Lookup, LookupReply, MAX_KEYS, ObjectId, Reply, Request, TailKey};

/// A pin: what it holds stays in the pool until it is released. It belongs to one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pin {
    /// The connection of this client that made it, counted from 1.
    pub connection: u64,
    /// Its name: the server's, or this client's own.
    pub id: u64,
}

/// Marks the ids of pins in this client's slab; the server counts its own from 1.
pub(super) const OWN: u64 = 1 << 63;

/// The answer to a lookup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookupAnswer {
    /// Length of the hit.
    pub hit_tokens: u64,
    /// What holds the objects; to be released once.
    pub pin: Option<Pin>,
    /// Objects to load.
    pub loads: Vec<LoadItem>,
    /// Per object group in ascending order: tokens up to which everything is present.
    pub present_tokens: Vec<u64>,
    /// The server could not be asked: a miss that says nothing about what it holds.
    pub degraded: bool,
}

impl LookupAnswer {
    pub(super) fn degraded() -> Self {
        Self {
            degraded: true,
            ..Self::default()
        }
    }
}

impl Core {
    /// One exchange on the present connection, or on that of `session` only.
    pub(super) fn call(
        self: &Arc<Self>,
        session: Option<&Arc<Session>>,
        request: &Request,
    ) -> Result<(Reply, Arc<Session>), ClientError> {
        let deadline = self.deadline();
        let mut link = self.acquire(session, deadline)?;
        let reply = link.call(request, deadline)?;
        Ok((reply, Arc::clone(link.session())))
    }

    /// Drops a connection whose reply does not answer the request.
    pub(super) fn distrust(&self, session: &Session, reply: &Reply) -> ClientError {
        let error = unexpected(reply);
        self.degrade(session, &error.to_string());
        error
    }

    /// An exchange that is answered with nothing; a server that is away has nothing to give back either.
    pub(super) fn acknowledge(
        self: &Arc<Self>,
        session: Option<&Arc<Session>>,
        request: &Request,
    ) -> Result<(), ClientError> {
        match self.call(session, request) {
            Ok((Reply::Ack, _)) | Err(ClientError::Unavailable { .. }) => Ok(()),
            Ok((reply, session)) => Err(self.distrust(&session, &reply)),
            Err(error) => Err(error),
        }
    }

    /// Gives all space that is held for stores back.
    pub(super) fn give_back(self: &Arc<Self>, session: &Arc<Session>) -> Result<(), ClientError> {
        let extents = session.pool()?.credit().take_all();
        if extents.is_empty() {
            return Ok(());
        }
        self.acknowledge(Some(session), &Request::Abort { extents })
    }

    /// See [`super::Client::lookup`].
    pub(super) fn lookup(
        self: &Arc<Self>,
        question: &LookupRequest<'_>,
    ) -> Result<LookupAnswer, ClientError> {
        if let Some(answer) = self.look_up_direct(question) {
            return Ok(answer);
        }
        self.count(Stat::Lookups, 1);
        match self.ask(question) {
            Err(ClientError::Unavailable { .. }) => {
                self.count(Stat::DegradedLookups, 1);
                Ok(LookupAnswer::degraded())
            }
            answer => answer,
        }
    }

    /// Answers a lookup from the mapped index. Nothing where it is not mapped, or the domain is not known yet.
    pub(super) fn look_up_direct(&self, question: &LookupRequest<'_>) -> Option<LookupAnswer> {
        if self.is_forked_copy() {
            return None;
        }
        let session = self.session()?;
        let answer = look_up_at(&session, question, |stat, count| self.counters.add(stat, count))?;
        self.counters.add(Stat::Lookups, 1);
        Some(answer)
    }

    /// A lookup that is not answered from memory, or not yet: where the index is mapped the server is asked for the shape of
    /// the domain only.
    fn ask(self: &Arc<Self>, question: &LookupRequest<'_>) -> Result<LookupAnswer, ClientError> {
        if self.config.maps < Maps::Index {
            let request = by_message(question)?;
            return match self.call(None, &Request::Lookup(request))? {
                (Reply::Lookup(reply), session) => Ok(answer(reply, &session)),
                (reply, session) => Err(self.distrust(&session, &reply)),
            };
        }
        let request = Lookup {
            domain_seed: question.domain_seed,
            session: question.session,
            keys: Vec::new(),
            tails: Vec::new(),
            max_tokens: 0,
            local_tokens: 0,
            pin: false,
            describe: true,
        };
        match self.call(None, &Request::Lookup(request))? {
            (Reply::Lookup(reply), session) => {
                let (Some(attached), Some(shape)) = (session.attached(), &reply.shape) else {
                    return Ok(answer(reply, &session)); // as long as ranks are missing nothing is a hit
                };
                if !attached.learn(question.domain_seed, shape) {
                    let reason = format!("the server describes a domain that cannot be: {shape:?}");
                    self.degrade(&session, &reason);
                    return Err(ClientError::unavailable(reason));
                }
                let direct = look_up_at(&session, question, |stat, count| self.counters.add(stat, count));
                direct.ok_or_else(|| ClientError::unavailable("the server or the domain changed meanwhile"))
            }
            (reply, session) => Err(self.distrust(&session, &reply)),
        }
    }

    /// See [`super::Client::end_session`].
    pub(super) fn end_session(self: &Arc<Self>, label: u64) -> Result<(), ClientError> {
        // A forked child has neither the slab nor the connection.
        if self.is_forked_copy() {
            return Ok(());
        }
        let Some(session) = self.session() else {
            return Ok(());
        };
        match session.attached() {
            // The server has nothing under a label of this client but what a load in progress will give back.
            Some(attached) => {
                attached.end_session(label);
                Ok(())
            }
            None => self.acknowledge(Some(&session), &Request::EndSession { session: label }),
        }
    }

    /// See [`super::Client::release`].
    pub(super) fn release(self: &Arc<Self>, pins: &[Pin]) -> Result<(), ClientError> {
        if self.is_forked_copy() {
            return Ok(());
        }
        let Some(session) = self.session() else {
            return Ok(());
        };
        let current = pins.iter().filter(|pin| pin.connection == session.generation);
        let (own, pins): (Vec<u64>, Vec<u64>) = current.map(|pin| pin.id).partition(|pin| pin & OWN != 0);
        if let Some(attached) = session.attached() {
            let own: Vec<u64> = own.into_iter().map(|pin| pin & !OWN).collect();
            attached.release(&own)?;
        }
        if pins.is_empty() {
            return Ok(());
        }
        self.acknowledge(Some(&session), &Request::Release { pins })
    }
}

/// Asks for space for stores to come.
pub(super) fn ahead(bytes: u64) -> Request {
    Request::Grant(Grant {
        bytes,
        ahead: true,
        ..Grant::default()
    })
}

/// Answers from the memory of one connection, and counts.
fn look_up_at(
    session: &Session,
    question: &LookupRequest<'_>,
    add: impl Fn(Stat, u64),
) -> Option<LookupAnswer> {
    let attached = session.attached().filter(|attached| attached.boot_unchanged())?;
    let found = attached.look_up(question)?;
    for (stat, count) in [
        (Stat::DirectLookups, 1),
        (Stat::Requested, found.requested),
        (Stat::Hit, found.hit),
        (Stat::Shortened, found.shortened.into()),
    ] {
        add(stat, count);
        attached.count(stat, count);
    }
    let load = |load: &cache::LoadItem| LoadItem {
        id: ObjectId {
            key: load.id.key,
            group: load.id.group,
        },
        chunk: load.chunk,
        tokens: load.tokens,
    };
    Some(LookupAnswer {
        hit_tokens: found.answer.hit_tokens,
        pin: (found.answer.pin != 0).then_some(Pin {
            connection: session.generation,
            id: OWN | found.answer.pin,
        }),
        loads: found.answer.loads.iter().map(load).collect(),
        present_tokens: found.answer.present_tokens,
        degraded: false,
    })
}

/// A question as the message that asks it.
fn by_message(question: &LookupRequest<'_>) -> Result<Lookup, ClientError> {
    let tails = question.tails.all();
    let tails: Vec<TailKey> = tails
        .iter()
        .map(|tail| TailKey {
            key: tail.key,
            chunk: tail.chunk,
            tokens: tail.tokens,
        })
        .collect();
    for given in [question.keys.len(), tails.len()] {
        if given > MAX_KEYS {
            return Err(ClientError::TooManyItems {
                given,
                limit: MAX_KEYS,
            });
        }
    }
    Ok(Lookup {
        domain_seed: question.domain_seed,
        session: question.session,
        keys: question.keys.to_vec(),
        tails,
        max_tokens: question.max_tokens,
        local_tokens: question.local_tokens,
        pin: question.pin,
        describe: false,
    })
}

/// A question that outlives its asking.
#[derive(Debug)]
pub(super) struct Question {
    domain_seed: ChunkKey,
    session: u64,
    keys: Vec<ChunkKey>,
    tails: TailList,
    max_tokens: u64,
    local_tokens: u64,
    pin: bool,
}

impl Question {
    pub(super) fn of(question: &LookupRequest<'_>) -> Self {
        Self {
            domain_seed: question.domain_seed,
            session: question.session,
            keys: question.keys.to_vec(),
            tails: TailList::new(question.tails.all().into_owned()),
            max_tokens: question.max_tokens,
            local_tokens: question.local_tokens,
            pin: question.pin,
        }
    }

    pub(super) fn borrow(&self) -> LookupRequest<'_> {
        LookupRequest {
            domain_seed: self.domain_seed,
            session: self.session,
            keys: &self.keys,
            tails: &self.tails,
            max_tokens: self.max_tokens,
            local_tokens: self.local_tokens,
            pin: self.pin,
            describe: false,
        }
    }
}

impl From<Lookup> for Question {
    fn from(lookup: Lookup) -> Self {
        let tail = |tail: &TailKey| Tail {
            key: tail.key,
            chunk: tail.chunk,
            tokens: tail.tokens,
        };
        Self {
            domain_seed: lookup.domain_seed,
            session: lookup.session,
            tails: TailList::new(lookup.tails.iter().map(tail).collect()),
            keys: lookup.keys,
            max_tokens: lookup.max_tokens,
            local_tokens: lookup.local_tokens,
            pin: lookup.pin,
        }
    }
}

fn answer(reply: LookupReply, session: &Session) -> LookupAnswer {
    LookupAnswer {
        hit_tokens: reply.hit_tokens,
        pin: (reply.pin != 0).then_some(Pin {
            connection: session.generation,
            id: reply.pin,
        }),
        loads: reply.loads,
        present_tokens: reply.present_tokens,
        degraded: false,
    }
}
