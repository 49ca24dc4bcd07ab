//! Finding and pinning the objects that a load reads: in the mapped index, or by asking.

use std::sync::Arc;

use crate::client::ClientError;
use crate::client::link::core::Core;
use crate::client::link::session::Session;
use crate::client::link::stats::Stat;
use crate::client::link::wanted::Registered;
use crate::client::lookup::lookup::OWN;
use crate::object::{ObjectId, RetrieveAnswer, RetrieveRequest};
use crate::wire::{Reply, Request};

impl Core {
    /// Pins objects under a label and says where one part of each lies. What is not there has incarnation 0.
    pub(crate) fn retrieve(
        self: &Arc<Self>,
        registered: &Registered,
        label: u64,
        part: u16,
        ids: Vec<ObjectId>,
    ) -> Result<(RetrieveAnswer, Arc<Session>), ClientError> {
        let request = RetrieveRequest {
            domain_seed: registered.seed,
            label,
            part,
            ids,
        };
        if let Some(found) = self.retrieve_local(registered, &request) {
            return Ok(found);
        }
        let asked = request.ids.len();
        match self.call(None, &Request::Retrieve(request))? {
            (Reply::Retrieve(found), session) if found.locations.len() == asked => Ok((found, session)),
            (reply, session) => Err(self.distrust(&session, &reply)),
        }
    }

    fn retrieve_local(
        &self,
        registered: &Registered,
        request: &RetrieveRequest,
    ) -> Option<(RetrieveAnswer, Arc<Session>)> {
        let (session, domain) = (self.session()?, registered.domain?);
        let attached = session.attached().filter(|attached| attached.boot_unchanged())?;
        let (mut answer, shortened) = attached.retrieve(domain, registered.kept_frames_max, request)?;
        let evicted = attached.take_evicted();
        if evicted > 0 {
            self.counters.add(Stat::EvictedPins, evicted);
        }
        if shortened {
            self.count_at(Some(&session), Stat::Shortened, 1);
        }
        if answer.pin != 0 {
            answer.pin |= OWN;
        }
        Some((answer, session))
    }

    /// Takes back what a retrieve pinned, which nobody needs to wait for, and says what was damaged. Returns when the server
    /// knows: until then lookups find it, and what an engine computes instead would count as there.
    pub(crate) fn let_go(self: &Arc<Self>, session: &Arc<Session>, pin: u64, damage: Option<&Request>) {
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
