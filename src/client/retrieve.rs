//! Finding and pinning the objects that a load reads: in the mapped index, or by asking.

use std::sync::Arc;

use super::ClientError;
use super::calls::OWN;
use super::session::Session;
use super::state::Core;
use super::stats::Stat;
use super::wanted::Registered;
use crate::cache::direct::RetrieveRequest;
use crate::cache::{self, RetrieveAnswer};
use crate::wire::{Extent, ObjectId, PartPlace, Reply, Request, Retrieve, RetrieveReply};

impl Core {
    /// Pins objects under a label and says where one part of each lies. What is not there has incarnation 0.
    pub(super) fn retrieve(
        self: &Arc<Self>,
        registered: &Registered,
        label: u64,
        part: u16,
        ids: Vec<ObjectId>,
    ) -> Result<(RetrieveReply, Arc<Session>), ClientError> {
        if let Some(found) = self.retrieve_direct(registered, label, part, &ids) {
            return Ok(found);
        }
        let asked = ids.len();
        let retrieve = Request::Retrieve(Retrieve {
            domain_seed: registered.seed,
            session: label,
            part,
            ids,
        });
        match self.call(None, &retrieve)? {
            (Reply::Retrieve(found), session) if found.places.len() == asked => Ok((found, session)),
            (reply, session) => Err(self.distrust(&session, &reply)),
        }
    }

    fn retrieve_direct(
        &self,
        registered: &Registered,
        label: u64,
        part: u16,
        ids: &[ObjectId],
    ) -> Option<(RetrieveReply, Arc<Session>)> {
        let (session, domain) = (self.session()?, registered.domain?);
        let attached = session.attached().filter(|attached| attached.boot_unchanged())?;
        let id = |id: &ObjectId| cache::ObjectId {
            key: id.key,
            group: id.group,
        };
        let request = RetrieveRequest {
            domain,
            kept_frames_max: registered.kept_frames_max,
            session: label,
            part,
            ids: &ids.iter().map(id).collect::<Vec<_>>(),
        };
        let (answer, shortened) = attached.retrieve(&request)?;
        let evicted = attached.take_evicted();
        if evicted > 0 {
            self.counters.add(Stat::EvictedPins, evicted);
        }
        if shortened {
            self.counters.add(Stat::Shortened, 1);
            attached.count(Stat::Shortened, 1);
        }
        Some((own_reply(&answer), session))
    }

    /// Takes back what a retrieve pinned, which nobody needs to wait for, and says what was damaged. Returns when the server
    /// knows: until then lookups find it, and what an engine computes instead would count as there.
    pub(super) fn let_go(self: &Arc<Self>, session: &Arc<Session>, pin: u64, damage: Option<&Request>) {
        let own = pin & OWN != 0;
        if own && let Some(attached) = session.attached() {
            // The end of its session may have taken it already.
            let _ = attached.release(&[pin & !OWN]);
        }
        if let Some(damage) = damage {
            // Refused or unheard, it changes nothing for this load, which has failed.
            let _ = self.acknowledge(Some(session), damage);
        }
        let deadline = self.deadline();
        if pin != 0
            && !own
            && let Ok(mut link) = self.acquire(Some(session), deadline)
        {
            link.post(&Request::Release { pins: vec![pin] }, deadline);
        }
    }
}

fn own_reply(answer: &RetrieveAnswer) -> RetrieveReply {
    let place = |place: &cache::PartPlace| PartPlace {
        incarnation: place.incarnation,
        bytes: place.bytes,
        checksum: place.checksum,
        first_extent: place.first_extent,
        extent_count: place.extent_count,
        tokens: place.tokens,
        held_from: place.held_from,
    };
    let extent = |extent: &cache::Extent| Extent {
        frame: extent.frame,
        count: extent.count,
    };
    RetrieveReply {
        pin: if answer.pin == 0 { 0 } else { OWN | answer.pin },
        places: answer.places.iter().map(place).collect(),
        extents: answer.extents.iter().map(extent).collect(),
    }
}
