//! Exchanges on the present connection, and what a server that is away means for each.

use std::sync::Arc;

use super::session::{Session, unexpected};
use super::state::Core;
use super::stats::Stat;
use super::{ClientError, Maps};
use crate::cache;
use crate::wire::{ErrorCode, LoadItem, Lookup, LookupReply, MAX_KEYS, ObjectId, Reply, Request, WireError};

/// A pin: what it holds stays in the pool until it is released. It belongs to one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pin {
    /// The connection of this client that made it, counted from 1.
    pub connection: u64,
    /// Its name: the server's, or this client's own.
    pub id: u64,
}

/// Marks the ids of pins in this client's slab; the server counts its own from 1.
const OWN: u64 = 1 << 63;

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
        match link.call(request, deadline) {
            Ok(reply) => Ok((reply, Arc::clone(link.session()))),
            // A server that is going away is one that is away.
            Err(ClientError::Refused(WireError {
                code: ErrorCode::Draining,
                message,
                ..
            })) => Err(ClientError::unavailable(message)),
            Err(error) => Err(error),
        }
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

    /// See [`super::Client::lookup`].
    pub(super) fn lookup(self: &Arc<Self>, request: Lookup) -> Result<LookupAnswer, ClientError> {
        for given in [request.keys.len(), request.tails.len()] {
            if given > MAX_KEYS {
                return Err(ClientError::TooManyItems {
                    given,
                    limit: MAX_KEYS,
                });
            }
        }
        if let Some(answer) = self.look_up_direct(&request) {
            return Ok(answer);
        }
        self.count(Stat::Lookups, 1);
        let (seed, label) = (request.domain_seed, request.session);
        let request = Lookup {
            describe: self.config.maps >= Maps::Index,
            ..request
        };
        match self.call(None, &Request::Lookup(request)) {
            Ok((Reply::Lookup(reply), session)) => {
                if let (Some(attached), Some(shape)) = (session.attached(), &reply.shape) {
                    attached.learn(seed, shape);
                }
                if reply.pin != 0 {
                    session.asked().insert(reply.pin, label);
                }
                Ok(answer(reply, &session))
            }
            Ok((reply, session)) => {
                let _ = self.distrust(&session, &reply);
                self.count(Stat::DegradedLookups, 1);
                Ok(LookupAnswer::degraded())
            }
            Err(ClientError::Unavailable { .. }) => {
                self.count(Stat::DegradedLookups, 1);
                Ok(LookupAnswer::degraded())
            }
            Err(error) => Err(error),
        }
    }

    /// Answers a lookup from the mapped index. Nothing where it is not mapped, where the domain is not known yet, and
    /// where the server has to say what is wrong with the request.
    pub(super) fn look_up_direct(&self, request: &Lookup) -> Option<LookupAnswer> {
        if self.is_forked_copy() {
            return None;
        }
        let session = self.session()?;
        let attached = session.attached().filter(|attached| attached.boot_unchanged())?;
        let found = attached.look_up(request)?.ok()?;
        self.counters.add(Stat::Lookups, 1);
        for (stat, count) in [
            (Stat::DirectLookups, 1),
            (Stat::Requested, found.requested),
            (Stat::Hit, found.hit),
            (Stat::Shortened, found.shortened.into()),
        ] {
            self.counters.add(stat, count);
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

    /// See [`super::Client::end_session`].
    pub(super) fn end_session(self: &Arc<Self>, label: u64) -> Result<(), ClientError> {
        let Some(session) = self.session() else {
            return Ok(());
        };
        if let Some(attached) = session.attached() {
            attached.end_session(label);
        }
        let before = session.asked().len();
        session.asked().retain(|_, of| *of != label);
        if session.asked().len() == before {
            return Ok(()); // the server has nothing under this label
        }
        self.acknowledge(Some(&session), &Request::EndSession { session: label })
    }

    /// See [`super::Client::release`].
    pub(super) fn release(self: &Arc<Self>, pins: &[Pin]) -> Result<(), ClientError> {
        let Some(session) = self.session() else {
            return Ok(());
        };
        let current = pins.iter().filter(|pin| pin.connection == session.generation);
        let (own, pins): (Vec<u64>, Vec<u64>) = current.map(|pin| pin.id).partition(|pin| pin & OWN != 0);
        if let Some(attached) = session.attached() {
            attached.release(own.into_iter().map(|pin| pin & !OWN));
        }
        if pins.is_empty() {
            return Ok(());
        }
        session.asked().retain(|pin, _| !pins.contains(pin));
        self.acknowledge(Some(&session), &Request::Release { pins })
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
