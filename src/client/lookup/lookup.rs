//! Lookups: local ones from the mapped index, remote ones by asking the server.

use std::sync::Arc;

use crate::client::link::core::Core;
use crate::client::link::session::Session;
use crate::client::link::stats::Stat;
use crate::client::{ClientError, Maps};
use crate::object::{self, LoadItem, Lookup, LookupRequest, TailList};
use crate::wire::{MAX_KEYS, Reply, Request};

/// A pin: what it holds stays in the pool until it is released. It belongs to one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pin {
    /// The connection of this client that made it, counted from 1.
    pub connection: u64,
    /// Its name: the server's, or this client's own.
    pub id: u64,
}

/// Marks the ids of pins in this client's slab; the server counts its own from 1.
pub(crate) const OWN: u64 = 1 << 63;

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
    /// The server could not be asked, nor its memory read: a miss that says nothing about what it holds.
    pub degraded: bool,
    /// There is more than was promised, since the pins of this client keep as much as they may.
    pub shortened: bool,
}

impl LookupAnswer {
    pub(crate) fn degraded() -> Self {
        Self {
            degraded: true,
            ..Self::default()
        }
    }
}

impl Core {
    /// See [`crate::client::Client::lookup`].
    pub(crate) fn lookup(self: &Arc<Self>, request: &LookupRequest<'_>) -> Result<LookupAnswer, ClientError> {
        if let Some(answer) = self.lookup_local(request) {
            return Ok(answer);
        }
        self.count(Stat::Lookups, 1);
        match self.ask(request) {
            Err(ClientError::Unavailable { .. }) => {
                self.count(Stat::DegradedLookups, 1);
                Ok(LookupAnswer::degraded())
            }
            answer => answer,
        }
    }

    /// Answers a lookup from the mapped index. Nothing where it is not mapped, or the domain is not known yet.
    pub(crate) fn lookup_local(&self, request: &LookupRequest<'_>) -> Option<LookupAnswer> {
        if self.is_forked_copy() {
            return None;
        }
        let session = self.session()?;
        let answer = lookup_at(&session, request, |stat, count| {
            self.count_at(Some(&session), stat, count);
        })?;
        self.counters.add(Stat::Lookups, 1);
        Some(answer)
    }

    /// A lookup that is not answered from memory, or not yet: where the index is mapped the server is asked for the shape of
    /// the domain only.
    fn ask(self: &Arc<Self>, request: &LookupRequest<'_>) -> Result<LookupAnswer, ClientError> {
        if self.config.maps < Maps::Index {
            let request = by_message(request)?;
            return match self.call(None, &Request::Lookup(request))? {
                (Reply::Lookup(reply), session) => Ok(answer(reply, &session)),
                (reply, session) => Err(self.distrust(&session, &reply)),
            };
        }
        let asked = Lookup {
            domain_seed: request.domain_seed,
            label: request.label,
            keys: Vec::new(),
            tails: TailList::default(),
            max_tokens: 0,
            local_tokens: 0,
            pin: false,
            describe: true,
        };
        match self.call(None, &Request::Lookup(asked))? {
            (Reply::Lookup(mut reply), session) => {
                let (Some(attached), Some(shape)) = (session.attached(), reply.shape.take()) else {
                    return Ok(answer(reply, &session)); // as long as ranks are missing nothing is a hit
                };
                if let Err(shape) = attached.learn(request.domain_seed, shape) {
                    let reason = format!("the server describes a domain that cannot be: {shape:?}");
                    self.degrade(&session, &reason);
                    return Err(ClientError::unavailable(reason));
                }
                let direct = lookup_at(&session, request, |stat, count| {
                    self.count_at(Some(&session), stat, count);
                });
                direct.ok_or_else(|| ClientError::unavailable("the server or the domain changed meanwhile"))
            }
            (reply, session) => Err(self.distrust(&session, &reply)),
        }
    }

    /// See [`crate::client::Client::release_label`].
    pub(crate) fn release_label(self: &Arc<Self>, label: u64) -> Result<(), ClientError> {
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
                attached.release_label(label);
                Ok(())
            }
            None => self.acknowledge(Some(&session), &Request::ReleaseLabel { label }),
        }
    }

    /// See [`crate::client::Client::release`].
    pub(crate) fn release(self: &Arc<Self>, pins: &[Pin]) -> Result<(), ClientError> {
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

/// Answers from the memory of one connection, and has it counted.
fn lookup_at(
    session: &Session,
    request: &LookupRequest<'_>,
    add: impl Fn(Stat, u64),
) -> Option<LookupAnswer> {
    let attached = session.attached().filter(|attached| attached.boot_unchanged())?;
    let found = attached.lookup(request)?;
    let evicted = attached.take_evicted();
    if evicted > 0 {
        add(Stat::EvictedPins, evicted);
    }
    for (stat, count) in [
        (Stat::DirectLookups, 1),
        (Stat::Requested, found.requested),
        (Stat::Hit, found.hit),
        (Stat::Shortened, found.shortened.into()),
    ] {
        add(stat, count);
    }
    Some(LookupAnswer {
        hit_tokens: found.answer.hit_tokens,
        pin: (found.answer.pin != 0).then_some(Pin {
            connection: session.generation,
            id: OWN | found.answer.pin,
        }),
        loads: found.answer.loads,
        present_tokens: found.answer.present_tokens,
        degraded: false,
        shortened: found.shortened,
    })
}

/// A request as the message that asks it.
fn by_message(request: &LookupRequest<'_>) -> Result<Lookup, ClientError> {
    let lookup = Lookup {
        describe: false,
        ..Lookup::from(request)
    };
    for given in [lookup.keys.len(), lookup.tails.len()] {
        if given > MAX_KEYS {
            return Err(ClientError::TooManyItems {
                given,
                limit: MAX_KEYS,
            });
        }
    }
    Ok(lookup)
}

fn answer(reply: object::LookupAnswer, session: &Session) -> LookupAnswer {
    LookupAnswer {
        hit_tokens: reply.hit_tokens,
        pin: (reply.pin != 0).then_some(Pin {
            connection: session.generation,
            id: reply.pin,
        }),
        loads: reply.loads,
        present_tokens: reply.present_tokens,
        degraded: false,
        shortened: false, // the message does not say
    }
}
