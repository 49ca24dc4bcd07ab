//! Numbers for status.

use super::SLABS;
use super::api::{ClientId, ClientStatus, CoreStatus, Counters, PoolStatus};
use super::books::slabs::record_of;
use super::core::Core;
use super::error::CoreError;
use super::work::{Progress, Work};
use crate::cache::turn::Turn;
use crate::object::FRAME_BYTES;
use crate::pool::accounting::Class;

/// Pin words of a slab that are copied at once.
const WORDS: usize = 128;
/// Words of such a copy that count as one step.
const WORDS_PER_STEP: usize = 16;
/// Steps of telling what there is of a client besides its pins.
const CLIENT_STEPS: u32 = 8;
/// Objects that one status follows from pin words up to what they hang under. Of clients behind that it says only what
/// their words pin themselves.
const FOLLOWED: usize = 1 << 18;

/// Numbers below a limit, each once.
#[derive(Debug, Default)]
struct Seen {
    words: Vec<u64>,
    /// Words that are not 0.
    used: Vec<u32>,
}

impl Seen {
    fn below(limit: u32) -> Self {
        Self {
            words: vec![0; (limit as usize).div_ceil(64)],
            used: Vec::new(),
        }
    }

    /// Whether it is new.
    fn insert(&mut self, number: u32) -> bool {
        let Some(word) = self.words.get_mut(number as usize / 64) else {
            return false;
        };
        let bit = 1 << (number % 64);
        if *word == 0 {
            self.used.push(number / 64);
        }
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    fn clear(&mut self) {
        for word in self.used.drain(..) {
            self.words[word as usize] = 0;
        }
    }
}

/// Where a status is, for the client of one slab.
#[derive(Debug)]
enum Stage {
    /// Copies its pin words, from this one on.
    Words { word: usize },
    /// Follows what they pin, from this one of them on; `at` is on the way up.
    Kept { pin: usize, at: Option<u32> },
}

/// [`Core::status`] in turns.
#[derive(Debug)]
pub struct Reporting {
    slab: usize,
    stage: Stage,
    /// What words of any slab pin.
    pinned: Seen,
    /// Frames of it that no pin of the request form counts.
    pinned_frames: u64,
    /// What words of this slab pin, as often as they do, and what that keeps.
    own: Vec<u32>,
    kept: Seen,
    kept_frames: u64,
    followed: usize,
    clients: Vec<ClientStatus>,
}

impl Reporting {
    /// Of all there is.
    pub fn new(core: &Core) -> Self {
        let records = core.pool.frames();
        Self {
            slab: 0,
            stage: Stage::Words { word: 0 },
            pinned: Seen::below(records),
            pinned_frames: 0,
            own: Vec::new(),
            kept: Seen::below(records),
            kept_frames: 0,
            followed: 0,
            clients: Vec::new(),
        }
    }

    fn read_words(&mut self, core: &Core, turn: &mut Turn, word: usize) {
        let high = core.slabs.high_water(self.slab);
        let count = high.saturating_sub(word).min(WORDS);
        let mut words = [0; WORDS];
        core.slabs.load_pins(self.slab, word, &mut words[..count]);
        turn.spend(1 + (count / WORDS_PER_STEP) as u32);
        for record in words[..count]
            .iter()
            .filter_map(|word| record_of(*word, core.pool.frames()))
        {
            turn.spend(1);
            self.own.push(record);
            let entry = core.tree.get(record);
            if self.pinned.insert(record) && entry.pins == 0 {
                self.pinned_frames += u64::from(entry.frames);
            }
        }
        self.stage = match word + count < high {
            true => Stage::Words { word: word + count },
            false => Stage::Kept { pin: 0, at: None },
        };
    }

    /// Frames of records that the words of a slab keep and pins of the request form do not.
    fn follow(&mut self, core: &Core, turn: &mut Turn, client: ClientId, pin: usize, at: Option<u32>) {
        turn.spend(1);
        let Some(record) = at.or_else(|| self.own.get(pin).copied()) else {
            let status = core.client_status(client, &self.own, self.kept_frames);
            turn.spend(CLIENT_STEPS + self.kept.used.len() as u32 / 64);
            self.clients.extend(status);
            self.next_slab();
            return;
        };
        let mut up = None;
        if self.kept.insert(record) {
            let entry = core.tree.get(record);
            if !core.is_kept(client, record) {
                self.kept_frames += u64::from(entry.frames);
            }
            self.followed += 1;
            up = entry.parent.filter(|_| self.followed < FOLLOWED);
        }
        let pin = pin + usize::from(up.is_none());
        self.stage = Stage::Kept { pin, at: up };
    }

    fn next_slab(&mut self) {
        self.slab += 1;
        self.stage = Stage::Words { word: 0 };
        self.own.clear();
        self.kept.clear();
        self.kept_frames = 0;
    }
}

impl Work for Reporting {
    type Answer = CoreStatus;

    fn step(&mut self, core: &mut Core, turn: &mut Turn) -> Result<Progress<CoreStatus>, CoreError> {
        Ok(self.look(core, turn).map_or(Progress::More, Progress::Done))
    }
}

impl Reporting {
    /// Goes on; nothing while the turn is over. It changes nothing.
    fn look(&mut self, core: &Core, turn: &mut Turn) -> Option<CoreStatus> {
        while self.slab < SLABS {
            if turn.is_over() {
                return None;
            }
            let client = core.clients[self.slab].as_ref().map(|client| client.id);
            match (client, &self.stage) {
                (None, _) => self.next_slab(),
                (Some(_), Stage::Words { word }) => self.read_words(core, turn, *word),
                (Some(client), Stage::Kept { pin, at }) => {
                    let (pin, at) = (*pin, *at);
                    self.follow(core, turn, client, pin, at);
                }
            }
        }
        let (counters, mut pool) = core.counters();
        pool.pinned += self.pinned_frames * FRAME_BYTES;
        let clients = std::mem::take(&mut self.clients);
        let (mut reported, mut reuse) = (core.departed, core.departed_reuse.clone());
        // What a client that has gone meanwhile said is in the sums of the departed.
        for status in &clients {
            if let Ok(client) = core.client(status.id) {
                reported.add(&status.reported);
                reuse.add(client.reuses.as_ref(), &status.reported.tokens);
            }
        }
        Some(CoreStatus {
            pool,
            objects: core.tree.live(),
            limbo: core.tree.limbo(),
            incomplete: core.incomplete.len() as u64,
            domains: core.registry.len() as u64,
            counters,
            clients,
            reported,
            reuse: reuse.into_rows(),
        })
    }
}

impl Core {
    /// Everything that status shows. Pins of slabs are read now, so `pinned` is exact for both forms.
    pub fn status(&self) -> CoreStatus {
        let (mut reporting, mut turn) = (Reporting::new(self), Turn::endless());
        loop {
            if let Some(status) = reporting.look(self, &mut turn) {
                return status;
            }
        }
    }

    /// Counters and bytes by class, without walking clients or slabs: cheap enough after every request.
    /// `pinned` leaves out the pins of slabs.
    pub fn counters(&self) -> (Counters, PoolStatus) {
        let bytes = |class| self.pool.books().frames(class) * FRAME_BYTES;
        let pool = PoolStatus {
            total: self.pool.books().total() * FRAME_BYTES,
            prefaulted: u64::from(self.pool.prefaulted_frames()) * FRAME_BYTES,
            free: bytes(Class::Free),
            used: bytes(Class::Used),
            granted: bytes(Class::Granted),
            quarantined: bytes(Class::Quarantined),
            pinned: self.tree.pinned_frames() * FRAME_BYTES,
        };
        (self.counters, pool)
    }

    /// What there is of a client whose pin words pin these records, which keeps so many frames.
    fn client_status(&self, client: ClientId, own: &[u32], kept: u64) -> Option<ClientStatus> {
        let client = self.client(client).ok()?;
        let registration = client.registration.as_ref();
        let domain = registration.and_then(|r| Some((r.rank, self.registry.get(r.domain)?.seed)));
        Some(ClientStatus {
            id: client.id,
            info: client.info.clone(),
            attached: client.attached,
            payload_path: registration.map(|r| r.payload_path).unwrap_or_default(),
            registered: domain,
            granted: (client.granted.frames() + self.incomplete.frames_of(client.id)) * FRAME_BYTES,
            incomplete: self.incomplete.frames_of(client.id) * FRAME_BYTES,
            pins: self.pins.count(client.id) as u64,
            oldest_pin: self.pins.oldest(client.id),
            pin_words: own.len() as u64,
            kept: (self.pins.kept_frames(client.id) + kept) * FRAME_BYTES,
            reported: self.slabs.counters(client.id.slab),
            conditions: self.slabs.conditions(client.id.slab),
        })
    }
}
