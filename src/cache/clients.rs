//! Clients that register, leave and die, and what ends with that.

use super::api::{ClientId, Registration};
use super::core::{Client, Core, Left, RankRegistration, wrong_chunk_size};
use super::error::CoreError;
use super::evict::ends::{EndClient, EndEngine};
use super::steps::{RUN_FRAMES, frame_steps};
use super::work::{Progress, Work, finish};
use crate::cache::turn::Turn;
use crate::object::Extent;

/// Steps of a registration: a look at all clients and at the groups of its domain.
const REGISTER_STEPS: u32 = 64;
/// Steps of wiping a slab.
const WIPE_STEPS: u32 = 32;

/// Ends what cannot be completed any more since the client has left.
#[derive(Debug, Default)]
struct EndLeft {
    ending: Option<Ending>,
}

#[derive(Debug)]
enum Ending {
    Engine(EndEngine),
    Client(EndClient),
}

impl EndLeft {
    /// Goes on until nothing is left. False: the turn is over.
    fn step(&mut self, core: &mut Core, turn: &mut Turn, client: ClientId) -> Result<bool, CoreError> {
        loop {
            if let Some(ending) = &mut self.ending {
                let done = match ending {
                    Ending::Engine(ending) => ending.step(core, turn)?,
                    Ending::Client(ending) => ending.step(core, turn)?,
                };
                if !done {
                    return Ok(false);
                }
                self.ending = None;
                core.client_mut(client)?.left.pop();
            }
            let entry = core.client(client)?;
            let Some(left) = entry.left.last().copied() else {
                return Ok(true);
            };
            self.ending = Some(match left {
                Left::Place { domain } => {
                    Ending::Engine(EndEngine::new(core, entry.info.engine_instance, domain))
                }
                Left::Succeeded => Ending::Client(EndClient::new(client)),
            });
        }
    }
}

/// [`Core::register`] in turns.
#[derive(Debug)]
pub struct Register<'a> {
    client: ClientId,
    registration: &'a Registration,
    registered: Option<(u32, u64)>,
    ending: EndLeft,
}

impl<'a> Register<'a> {
    /// One rank.
    pub fn new(client: ClientId, registration: &'a Registration) -> Self {
        Self {
            client,
            registration,
            registered: None,
            ending: EndLeft::default(),
        }
    }
}

impl Work for Register<'_> {
    type Answer = (u32, u64);

    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Progress<(u32, u64)>, CoreError> {
        let answer = match self.registered {
            Some(answer) => answer,
            None => {
                turn.spend(REGISTER_STEPS);
                let (answer, pieces) = core.enter(self.client, self.registration)?;
                turn.spend(pieces);
                *self.registered.insert(answer)
            }
        };
        match self.ending.step(core, turn, self.client)? {
            true => Ok(Progress::Done(answer)),
            false => Ok(Progress::More),
        }
    }
}

/// [`Core::unregister`] in turns.
#[derive(Debug)]
pub struct Unregister {
    client: ClientId,
    begun: bool,
    ending: EndLeft,
}

impl Unregister {
    /// A client's registration, if it has one.
    pub fn new(client: ClientId) -> Self {
        Self {
            client,
            begun: false,
            ending: EndLeft::default(),
        }
    }
}

impl Work for Unregister {
    type Answer = ();

    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Progress<()>, CoreError> {
        if !std::mem::replace(&mut self.begun, true) {
            turn.spend(core.leave(self.client)?);
        }
        match self.ending.step(core, turn, self.client)? {
            true => Ok(Progress::Done(())),
            false => Ok(Progress::More),
        }
    }
}

/// [`Core::disconnected`] in turns.
#[derive(Debug)]
pub struct Disconnected {
    client: ClientId,
}

impl Disconnected {
    /// A client whose connection is closed.
    pub fn new(client: ClientId) -> Self {
        Self { client }
    }
}

impl Work for Disconnected {
    type Answer = ();

    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Progress<()>, CoreError> {
        core.client(self.client)?;
        match core.end_pins(self.client, turn) {
            true => Ok(Progress::Done(())),
            false => Ok(Progress::More),
        }
    }
}

/// [`Core::client_gone`] in turns.
///
/// Nothing of the client is used by anybody else while it is taken down, and who begins again goes on where it was.
#[derive(Debug)]
pub struct ClientGone {
    client: ClientId,
    pins: Option<Disconnected>,
    unregister: Unregister,
}

impl ClientGone {
    /// A client that may be gone.
    pub fn new(client: ClientId) -> Self {
        Self {
            client,
            pins: None,
            unregister: Unregister::new(client),
        }
    }
}

impl Work for ClientGone {
    type Answer = bool;

    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Progress<bool>, CoreError> {
        core.client(self.client)?;
        let pins = match &mut self.pins {
            Some(pins) => pins,
            None => {
                turn.spend(1);
                if !core.client(self.client)?.served && core.slabs.is_locked(self.client.slab)? {
                    return Ok(Progress::Done(false));
                }
                self.pins.insert(Disconnected::new(self.client))
            }
        };
        if pins.step(core, turn)? == Progress::More || self.unregister.step(core, turn)? == Progress::More {
            return Ok(Progress::More);
        }
        while let Some(run) = core.client(self.client)?.granted.first() {
            if turn.is_over() {
                return Ok(Progress::More);
            }
            let piece = Extent::new(run.frame, run.count.min(RUN_FRAMES));
            turn.spend(frame_steps(3, piece.count.into()));
            core.take_granted(self.client, &[piece])?;
            core.pool.free_granted(&[piece])?;
        }
        // What somebody left half-way may have been this one's.
        if !core.free_waste(turn)? {
            return Ok(Progress::More);
        }
        turn.spend(WIPE_STEPS);
        let counters = core.slabs.counters(self.client.slab);
        core.departed.add(&counters);
        let named = core.client(self.client)?.reuses.clone();
        core.departed_reuse.add(named.as_ref(), &counters.tokens);
        core.slabs.close(self.client.slab);
        core.clients[usize::from(self.client.slab)] = None;
        Ok(Progress::Done(true))
    }
}

impl Core {
    /// Registers one rank, and returns the number of its domain and how many frames its pins may keep. A rank of an
    /// engine that registers again ends the engine's incomplete objects: whatever it stored before may never be
    /// completed.
    ///
    /// # Errors
    /// [`CoreError::NotNegotiated`], [`CoreError::UnknownClient`], and those of the layout:
    /// [`CoreError::InvalidArgument`], [`CoreError::InvalidGroup`], [`CoreError::RegistrationConflict`],
    /// [`CoreError::ObjectTooLarge`], [`CoreError::LimitExceeded`]. Nothing has changed then.
    pub fn register(
        &mut self,
        client: ClientId,
        registration: &Registration,
    ) -> Result<(u32, u64), CoreError> {
        finish(self, Register::new(client, registration))
    }

    /// Drops the client's registration and its engine's incomplete objects. If another client of the engine has
    /// registered as the same rank since, or the rank only reads, only those go that the client began itself.
    /// Objects stay. Fine when there is no registration.
    ///
    /// # Errors
    /// [`CoreError::UnknownClient`]; [`CoreError::Pool`] when the books are wrong.
    pub fn unregister(&mut self, client: ClientId) -> Result<(), CoreError> {
        finish(self, Unregister::new(client))
    }

    /// The connection is closed: drops the pins it made in the request form. Slab and grants stay.
    ///
    /// # Errors
    /// [`CoreError::UnknownClient`].
    pub fn disconnected(&mut self, client: ClientId) -> Result<(), CoreError> {
        finish(self, Disconnected::new(client))
    }

    /// Whether the client is gone: its lock byte is free, and everything it held has been taken back. False:
    /// it lives on without its connection and may still write its grants; ask again later.
    ///
    /// # Errors
    /// [`CoreError::UnknownClient`], [`CoreError::Shm`]; [`CoreError::Pool`] when the books are wrong.
    pub fn client_gone(&mut self, client: ClientId) -> Result<bool, CoreError> {
        finish(self, ClientGone::new(client))
    }

    /// Whether a living process holds the lock byte of a client.
    ///
    /// # Errors
    /// [`CoreError::UnknownClient`], [`CoreError::Shm`].
    pub fn is_alive(&self, client: ClientId) -> Result<bool, CoreError> {
        Ok(!self.client(client)?.served && self.slabs.is_locked(client.slab)?)
    }

    /// Registers, and notes in which domains what the engine has begun is to end. Besides the answer, pieces of memory of a domain
    /// that went with the registration before.
    fn enter(
        &mut self,
        client: ClientId,
        registration: &Registration,
    ) -> Result<((u32, u64), u32), CoreError> {
        self.require_chunk_size()?;
        if !self.chunk_sizes.contains(&registration.chunk_size) {
            let size = registration.chunk_size;
            return Err(wrong_chunk_size(size, "it must be one that was negotiated"));
        }
        let instance = self.client(client)?.info.engine_instance;
        let domain = self.registry.register(registration, self.pool.frames())?;
        // What is incomplete is of one engine in one domain, so nothing else of that engine ends.
        let begins_anew = |c: &Client| {
            let old = c.registration.as_ref()?;
            let same_rank = old.domain == domain && old.rank == registration.rank;
            (c.info.engine_instance == instance && (c.id == client || same_rank)).then_some(old.domain)
        };
        let mut ended: Vec<u32> = self.clients.iter().flatten().filter_map(begins_anew).collect();
        ended.sort_unstable();
        ended.dedup();
        let new = RankRegistration {
            domain,
            rank: registration.rank,
            parts: registration.groups.iter().map(|g| (g.group, g.part)).collect(),
            stores: registration.stores,
            payload_path: registration.payload_path,
            world_size: registration.world_size,
            succeeded: false,
        };
        for other in self.clients.iter_mut().flatten() {
            if other.info.engine_instance == instance
                && let Some(old) = &mut other.registration
                && (old.domain, old.rank) == (domain, registration.rank)
            {
                old.succeeded = true;
            }
        }
        let kept = self.kept_frames_max(self.domain(domain)?);
        let entry = self.client_mut(client)?;
        entry
            .left
            .extend(ended.into_iter().map(|domain| Left::Place { domain }));
        let old = entry.registration.replace(new);
        let pieces = old.map_or(0, |old| self.registry.unregister(old.domain));
        Ok(((domain, kept), pieces))
    }

    /// Unregisters, and notes what is to end for it. Pieces of memory that went with the registration.
    fn leave(&mut self, client: ClientId) -> Result<u32, CoreError> {
        let entry = self.client_mut(client)?;
        let mut pieces = 0;
        if let Some(old) = entry.registration.take() {
            entry.left.push(match old.succeeded || !old.stores {
                true => Left::Succeeded,
                false => Left::Place { domain: old.domain },
            });
            pieces = self.registry.unregister(old.domain);
        }
        Ok(pieces)
    }
}
