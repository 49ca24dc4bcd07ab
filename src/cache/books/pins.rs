//! Pins of the request form: counted here, never in a client's slab, and gone with the connection.
//!
//! A pin takes memory for the objects that it names, whatever they hang under.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::chunked::Stack;
use super::kept::Kept;
use super::trunks::{Spot, Trunks};
use crate::cache::{ClientId, CoreError};
use crate::index::budget::Budget;

/// Parts of a step: to give back one thing that a pin holds.
const GIVE_BACK: u32 = 4;
/// Spots of a pin that are looked at before another one is added: those of the groups that a lookup is in.
const RECENT: usize = 8;

#[derive(Debug)]
struct Pin {
    label: u64,
    since: Instant,
    records: Stack<u32>,
    /// What it holds of the chains, one for each chain in turn.
    spots: Stack<Spot>,
    /// The companions that it holds.
    companions: Stack<u32>,
}

#[derive(Debug, Default)]
struct ClientPins {
    /// A tree: a hash table of 65,536 pins that grows keeps everybody waiting.
    pins: BTreeMap<u64, Pin>,
    /// Labels and pins.
    labels: BTreeSet<(u64, u64)>,
    objects: usize,
    kept: Kept,
}

/// Every pin, by client.
#[derive(Debug)]
pub(crate) struct PinTable {
    clients: HashMap<ClientId, ClientPins>,
    last: u64,
    max_pins: usize,
    max_objects: usize,
}

impl PinTable {
    /// No pins. The limits are per client.
    pub(crate) fn new(max_pins: usize, max_objects: usize) -> Self {
        Self {
            clients: HashMap::new(),
            last: 0,
            max_pins,
            max_objects,
        }
    }

    /// Begins a pin that holds nothing yet. Its number is never used again.
    ///
    /// # Errors
    /// [`CoreError::LimitExceeded`].
    pub(crate) fn open(&mut self, client: ClientId, label: u64) -> Result<u64, CoreError> {
        let held = self.clients.get(&client).map_or(0, |c| c.pins.len());
        if held >= self.max_pins {
            return Err(limit("pins of one client", held + 1, self.max_pins));
        }
        self.last += 1;
        let pin = self.last;
        let of_client = self.clients.entry(client).or_default();
        of_client.labels.insert((label, pin));
        let entry = Pin {
            label,
            since: Instant::now(),
            records: Stack::default(),
            spots: Stack::default(),
            companions: Stack::default(),
        };
        of_client.pins.insert(pin, entry);
        Ok(pin)
    }

    /// Adds records that the caller counts to a pin: all of them or none.
    ///
    /// # Errors
    /// [`CoreError::LimitExceeded`].
    pub(crate) fn name(&mut self, client: ClientId, pin: u64, records: &[u32]) -> Result<(), CoreError> {
        let Some(held) = self.clients.get_mut(&client) else {
            return Err(CoreError::UnknownPin { pin });
        };
        let objects = held.objects + records.len();
        if objects > self.max_objects {
            return Err(limit("objects pinned by one client", objects, self.max_objects));
        }
        let entry = held.pins.get_mut(&pin).ok_or(CoreError::UnknownPin { pin })?;
        entry.records.extend(records);
        held.objects = objects;
        Ok(())
    }

    /// Has a pin hold a spot, instead of the one on the same chain that it held last.
    pub(crate) fn hold(&mut self, client: ClientId, pin: u64, spot: Spot, trunks: &Trunks) {
        let Some(held) = self.clients.get_mut(&client) else {
            return;
        };
        let Some(entry) = held.pins.get_mut(&pin) else {
            return;
        };
        held.kept.hold(spot, trunks);
        match entry.spots.last_mut() {
            Some(last) if last.chain == spot.chain => held.kept.let_go(std::mem::replace(last, spot)),
            _ => entry.spots.push(spot),
        }
    }

    /// Whether a pin holds a spot on the chain or one behind it, as far as that is easily seen.
    pub(crate) fn covers(&self, client: ClientId, pin: u64, spot: Spot) -> bool {
        let entry = self.clients.get(&client).and_then(|held| held.pins.get(&pin));
        let recent = entry.map(|entry| entry.spots.iter().take(RECENT));
        recent
            .is_some_and(|mut spots| spots.any(|held| held.chain == spot.chain && held.frames >= spot.frames))
    }

    /// Has a pin hold a companion.
    pub(crate) fn hold_companion(&mut self, client: ClientId, pin: u64, record: u32, frames: u32) {
        if let Some(held) = self.clients.get_mut(&client)
            && let Some(entry) = held.pins.get_mut(&pin)
        {
            held.kept.hold_companion(record, frames);
            entry.companions.push(record);
        }
    }

    /// Has a pin let go of the companion that it was given last.
    pub(crate) fn let_go_companion(&mut self, client: ClientId, pin: u64) {
        if let Some(held) = self.clients.get_mut(&client)
            && let Some(entry) = held.pins.get_mut(&pin)
            && let Some(record) = entry.companions.pop()
        {
            held.kept.let_go_companion(record);
        }
    }

    /// Frames that a client would keep with a spot more.
    pub(crate) fn frames_with(&mut self, client: ClientId, spot: Spot, trunks: &Trunks) -> u64 {
        let Some(held) = self.clients.get_mut(&client) else {
            return 0;
        };
        held.kept.hold(spot, trunks);
        let frames = held.kept.frames();
        held.kept.let_go(spot);
        frames
    }

    /// No more will be added to a pin.
    pub(crate) fn close(&mut self, client: ClientId, pin: u64) {
        if let Some(held) = self.clients.get_mut(&client)
            && let Some(entry) = held.pins.get_mut(&pin)
        {
            entry.records.shrink_to_fit();
            entry.spots.shrink_to_fit();
            entry.companions.shrink_to_fit();
        }
    }

    /// Frames of all that the pins of a client keep, each once.
    pub(crate) fn kept_frames(&self, client: ClientId) -> u64 {
        self.clients.get(&client).map_or(0, |c| c.kept.frames())
    }

    /// Whether a pin of the client keeps a record.
    pub(crate) fn keeps(&self, client: ClientId, record: u32, trunks: &Trunks) -> bool {
        let held = self.clients.get(&client);
        held.is_some_and(|c| c.kept.has(record, trunks))
    }

    /// Whether a client holds a pin.
    pub(crate) fn is_held(&self, client: ClientId, pin: u64) -> bool {
        let held = self.clients.get(&client);
        held.is_some_and(|c| c.pins.contains_key(&pin))
    }

    /// A pin of a label, as long as there is one.
    pub(crate) fn of_label(&self, client: ClientId, label: u64) -> Option<u64> {
        let held = self.clients.get(&client)?;
        let mut pins = held.labels.range((label, 0)..=(label, u64::MAX));
        pins.next().map(|(_, pin)| *pin)
    }

    /// A pin of a client, as long as there is one.
    pub(crate) fn any(&self, client: ClientId) -> Option<u64> {
        let held = self.clients.get(&client)?;
        held.labels.first().map(|(_, pin)| *pin)
    }

    /// Takes a pin back, until nothing is left of it or the turn is over. Each record is handed to `unpin`. Whether it
    /// is gone.
    pub(crate) fn take(
        &mut self,
        client: ClientId,
        pin: u64,
        meter: &mut impl Budget,
        mut unpin: impl FnMut(u32),
    ) -> bool {
        let Some(held) = self.clients.get_mut(&client) else {
            return true;
        };
        let Some(entry) = held.pins.get_mut(&pin) else {
            return true;
        };
        while !meter.is_over() {
            meter.spend(GIVE_BACK);
            if let Some(record) = entry.records.pop() {
                held.objects -= 1;
                unpin(record);
            } else if let Some(record) = entry.companions.pop() {
                held.kept.let_go_companion(record);
            } else if let Some(spot) = entry.spots.pop() {
                held.kept.let_go(spot);
            } else {
                let label = entry.label;
                held.pins.remove(&pin);
                held.labels.remove(&(label, pin));
                if held.pins.is_empty() {
                    self.clients.remove(&client);
                }
                return true;
            }
        }
        false
    }

    /// How long a client has held its oldest pin. Numbers of pins grow.
    pub(crate) fn oldest(&self, client: ClientId) -> Option<Duration> {
        let (_, oldest) = self.clients.get(&client)?.pins.first_key_value()?;
        Some(oldest.since.elapsed())
    }

    /// Pins that a client holds.
    pub(crate) fn count(&self, client: ClientId) -> usize {
        self.clients.get(&client).map_or(0, |c| c.pins.len())
    }

    /// How many records, spots and companions the pins of a client hold, and how many chains it keeps.
    #[cfg(test)]
    pub(crate) fn memory(&self, client: ClientId) -> (usize, usize, usize, usize) {
        let Some(held) = self.clients.get(&client) else {
            return (0, 0, 0, 0);
        };
        let sum = |count: fn(&Pin) -> usize| held.pins.values().map(count).sum::<usize>();
        (
            sum(|pin| pin.records.capacity()),
            sum(|pin| pin.spots.capacity()),
            sum(|pin| pin.companions.capacity()),
            held.kept.chains(),
        )
    }

    /// Every pinned record as often as it is pinned, for the audit.
    pub(crate) fn records(&self) -> impl Iterator<Item = u32> + '_ {
        let pins = self.clients.values().flat_map(|c| c.pins.values());
        pins.flat_map(|pin| pin.records.iter().copied())
    }
}

fn limit(what: &'static str, asked: usize, limit: usize) -> CoreError {
    CoreError::LimitExceeded {
        what,
        asked: asked as u64,
        limit: limit as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::meter::Meter;
    use crate::cache::turn::Turn;

    const A: ClientId = ClientId { slab: 0, nonce: 1 };
    const B: ClientId = ClientId { slab: 0, nonce: 2 };

    fn pin(table: &mut PinTable, client: ClientId, label: u64, records: &[u32]) -> u64 {
        let pin = table.open(client, label).unwrap();
        table.name(client, pin, records).unwrap();
        table.close(client, pin);
        pin
    }

    fn take(table: &mut PinTable, client: ClientId, pin: u64) -> Vec<u32> {
        let mut taken = Vec::new();
        let mut turn = Turn::endless();
        assert!(table.take(client, pin, &mut Meter::new(&mut turn), |record| {
            taken.push(record)
        }));
        taken.sort_unstable();
        taken
    }

    #[test]
    fn pins_are_ones_own_and_found_by_their_label() {
        let mut table = PinTable::new(4, 100);
        let one = pin(&mut table, A, 7, &[1, 2]);
        let two = pin(&mut table, A, 8, &[2]);
        let other = pin(&mut table, B, 7, &[3]);
        assert!(table.is_held(A, one) && !table.is_held(A, other) && !table.is_held(A, 99));
        assert!(take(&mut table, A, other).is_empty());
        assert_eq!((table.of_label(A, 7), table.of_label(A, 9)), (Some(one), None));
        assert_eq!(take(&mut table, A, one), [1, 2]);
        assert_eq!((table.of_label(A, 7), table.any(A)), (None, Some(two)));
        assert_eq!(take(&mut table, A, two), [2]);
        assert_eq!((table.count(A), table.count(B)), (0, 1));
        assert_eq!(table.records().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_large_pin_is_taken_back_in_several_turns() {
        let mut table = PinTable::new(4, 1 << 20);
        let records: Vec<u32> = (0..10_000).collect();
        let one = pin(&mut table, A, 7, &records);
        let (mut turns, mut taken) = (0, 0);
        loop {
            let mut turn = Turn::new();
            turns += 1;
            if table.take(A, one, &mut Meter::new(&mut turn), |_| taken += 1) {
                break;
            }
            assert!(table.is_held(A, one));
        }
        assert_eq!((taken, table.count(A)), (10_000, 0));
        assert!((15..30).contains(&turns), "{turns}");
    }

    #[test]
    fn what_pins_keep_counts_once_and_until_the_last_goes() {
        let mut trunks = Trunks::default();
        trunks.grow(1, None, 4);
        trunks.grow(2, Some(1), 4);
        trunks.grow(3, Some(1), 2);
        let mut table = PinTable::new(4, 100);
        let hold = |table: &mut PinTable, client, record| {
            let pin = pin(table, client, 7, &[record]);
            table.hold(client, pin, trunks.spot(record).unwrap(), &trunks);
            pin
        };
        let one = hold(&mut table, A, 2);
        let two = hold(&mut table, A, 3);
        let other = hold(&mut table, B, 1);
        table.hold_companion(A, two, 9, 5);
        assert_eq!((table.kept_frames(A), table.kept_frames(B)), (15, 4));
        take(&mut table, A, one);
        assert!(table.keeps(A, 1, &trunks) && !table.keeps(A, 2, &trunks) && table.keeps(A, 9, &trunks));
        assert_eq!(table.kept_frames(A), 11);
        take(&mut table, A, two);
        take(&mut table, B, other);
        assert_eq!((table.kept_frames(A), table.kept_frames(B)), (0, 0));
    }

    #[test]
    fn bounded_in_pins_and_objects() {
        let mut table = PinTable::new(2, 3);
        let one = pin(&mut table, A, 0, &[1, 2, 2]);
        assert!(matches!(
            table.name(A, one, &[1]),
            Err(CoreError::LimitExceeded {
                asked: 4,
                limit: 3,
                ..
            })
        ));
        pin(&mut table, A, 0, &[]);
        assert!(matches!(
            table.open(A, 0),
            Err(CoreError::LimitExceeded {
                asked: 3,
                limit: 2,
                ..
            })
        ));
        pin(&mut table, B, 0, &[3]);
    }
}
