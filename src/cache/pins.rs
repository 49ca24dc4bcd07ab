//! Pins of the request form: counted here, never in a client's slab, and gone with the connection.
//!
//! May import this module's `api` and `error`.

use std::collections::{BTreeSet, HashMap};

use super::{ClientId, CoreError};

/// Records that a pin keeps, each once, with their frames: those that it names and those that they hang under.
pub(super) type Kept = Vec<(u32, u32)>;

#[derive(Debug)]
struct Pin {
    session: u64,
    records: Vec<u32>,
    kept: Kept,
}

/// A record that a client keeps.
#[derive(Debug)]
struct KeptRecord {
    pins: u32,
    /// As they were when it was first kept: what is added is what is taken off again.
    frames: u32,
}

#[derive(Debug, Default)]
struct ClientPins {
    pins: HashMap<u64, Pin>,
    sessions: HashMap<u64, BTreeSet<u64>>,
    objects: usize,
    kept: HashMap<u32, KeptRecord>,
    kept_frames: u64,
}

/// Every pin, by client.
#[derive(Debug)]
pub(super) struct PinTable {
    clients: HashMap<ClientId, ClientPins>,
    last: u64,
    max_pins: usize,
    max_objects: usize,
}

impl PinTable {
    /// No pins. The limits are per client.
    pub(super) fn new(max_pins: usize, max_objects: usize) -> Self {
        Self {
            clients: HashMap::new(),
            last: 0,
            max_pins,
            max_objects,
        }
    }

    /// Checks that a client may make one more pin of so many objects.
    ///
    /// # Errors
    /// [`CoreError::LimitExceeded`].
    pub(super) fn check_room(&self, client: ClientId, objects: usize) -> Result<(), CoreError> {
        let (pins, held) = self
            .clients
            .get(&client)
            .map_or((0, 0), |c| (c.pins.len(), c.objects));
        let limits = [
            ("pins of one client", pins + 1, self.max_pins),
            ("objects pinned by one client", held + objects, self.max_objects),
        ];
        for (what, asked, limit) in limits {
            if asked > limit {
                return Err(CoreError::LimitExceeded {
                    what,
                    asked: asked as u64,
                    limit: limit as u64,
                });
            }
        }
        Ok(())
    }

    /// Records a pin of records that the caller has counted. Its number is never used again.
    pub(super) fn add(&mut self, client: ClientId, session: u64, records: Vec<u32>, kept: Kept) -> u64 {
        self.last += 1;
        let pin = self.last;
        let of_client = self.clients.entry(client).or_default();
        of_client.objects += records.len();
        of_client.sessions.entry(session).or_default().insert(pin);
        for &(record, frames) in &kept {
            let entry = of_client.kept.entry(record).or_insert_with(|| {
                of_client.kept_frames += u64::from(frames);
                KeptRecord { pins: 0, frames }
            });
            entry.pins += 1;
        }
        let entry = Pin {
            session,
            records,
            kept,
        };
        of_client.pins.insert(pin, entry);
        pin
    }

    /// Frames of all that the pins of a client keep, each once.
    pub(super) fn kept_frames(&self, client: ClientId) -> u64 {
        self.clients.get(&client).map_or(0, |c| c.kept_frames)
    }

    /// Whether a pin of the client keeps a record.
    pub(super) fn keeps(&self, client: ClientId, record: u32) -> bool {
        self.clients
            .get(&client)
            .is_some_and(|c| c.kept.contains_key(&record))
    }

    /// Takes pins out: all of them or, when one is not this client's or is named twice, none. Their records.
    ///
    /// # Errors
    /// [`CoreError::UnknownPin`].
    pub(super) fn remove(&mut self, client: ClientId, pins: &[u64]) -> Result<Vec<u32>, CoreError> {
        let mut seen = BTreeSet::new();
        let held = self.clients.get(&client);
        for &pin in pins {
            let known = held.is_some_and(|c| c.pins.contains_key(&pin));
            if !known || !seen.insert(pin) {
                return Err(CoreError::UnknownPin { pin });
            }
        }
        Ok(seen.into_iter().flat_map(|pin| self.take(client, pin)).collect())
    }

    /// Takes all pins of a session out. Their records.
    pub(super) fn end_session(&mut self, client: ClientId, session: u64) -> Vec<u32> {
        let pins = self
            .clients
            .get(&client)
            .and_then(|c| c.sessions.get(&session))
            .cloned();
        let pins = pins.unwrap_or_default();
        pins.into_iter().flat_map(|pin| self.take(client, pin)).collect()
    }

    /// Takes all pins of a client out. Their records.
    pub(super) fn end_client(&mut self, client: ClientId) -> Vec<u32> {
        let held = self.clients.remove(&client).unwrap_or_default();
        held.pins.into_values().flat_map(|pin| pin.records).collect()
    }

    /// Pins that a client holds.
    pub(super) fn count(&self, client: ClientId) -> usize {
        self.clients.get(&client).map_or(0, |c| c.pins.len())
    }

    /// Every pinned record as often as it is pinned, for the audit.
    pub(super) fn records(&self) -> impl Iterator<Item = u32> + '_ {
        let pins = self.clients.values().flat_map(|c| c.pins.values());
        pins.flat_map(|pin| pin.records.iter().copied())
    }

    fn take(&mut self, client: ClientId, pin: u64) -> Vec<u32> {
        let Some(held) = self.clients.get_mut(&client) else {
            return Vec::new();
        };
        let Some(taken) = held.pins.remove(&pin) else {
            return Vec::new();
        };
        held.objects -= taken.records.len();
        for (record, _) in taken.kept {
            let Some(entry) = held.kept.get_mut(&record) else {
                continue;
            };
            entry.pins -= 1;
            if entry.pins == 0 {
                held.kept_frames -= u64::from(entry.frames);
                held.kept.remove(&record);
            }
        }
        if let Some(session) = held.sessions.get_mut(&taken.session) {
            session.remove(&pin);
            if session.is_empty() {
                held.sessions.remove(&taken.session);
            }
        }
        if held.pins.is_empty() {
            self.clients.remove(&client);
        }
        taken.records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId { slab: 0, nonce: 1 };
    const B: ClientId = ClientId { slab: 0, nonce: 2 };

    #[test]
    fn releases_are_all_or_nothing_and_only_ones_own() {
        let mut table = PinTable::new(4, 100);
        let one = table.add(A, 7, vec![1, 2], vec![]);
        let two = table.add(A, 8, vec![2], vec![]);
        let other = table.add(B, 7, vec![3], vec![]);
        for bad in [&[one, other][..], &[one, one], &[0], &[99]] {
            assert!(matches!(table.remove(A, bad), Err(CoreError::UnknownPin { .. })));
            assert_eq!((table.count(A), table.count(B)), (2, 1));
        }
        assert_eq!(table.remove(A, &[one, two]).unwrap(), [1, 2, 2]);
        assert!(table.remove(A, &[one]).is_err());
        assert_eq!(table.records().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn sessions_and_clients_end_with_all_their_pins() {
        let mut table = PinTable::new(4, 100);
        table.add(A, 7, vec![1], vec![]);
        table.add(A, 7, vec![2], vec![]);
        table.add(A, 8, vec![3], vec![]);
        table.add(B, 7, vec![4], vec![]);
        assert_eq!(table.end_session(A, 7), [1, 2]);
        assert!(table.end_session(A, 7).is_empty());
        assert_eq!(table.end_client(A), [3]);
        assert_eq!(table.count(B), 1);
    }

    #[test]
    fn what_pins_keep_counts_once_and_until_the_last_goes() {
        let mut table = PinTable::new(4, 100);
        let one = table.add(A, 7, vec![2], vec![(2, 4), (1, 4)]);
        let two = table.add(A, 8, vec![3], vec![(3, 2), (1, 4)]);
        table.add(B, 7, vec![1], vec![(1, 4)]);
        assert_eq!((table.kept_frames(A), table.kept_frames(B)), (10, 4));
        table.remove(A, &[one]).unwrap();
        assert!(table.keeps(A, 1) && !table.keeps(A, 2));
        assert_eq!(table.kept_frames(A), 6);
        table.remove(A, &[two]).unwrap();
        table.end_client(B);
        assert_eq!((table.kept_frames(A), table.kept_frames(B)), (0, 0));
    }

    #[test]
    fn bounded_in_pins_and_objects() {
        let mut table = PinTable::new(2, 3);
        table.add(A, 0, vec![1, 2], vec![]);
        table.check_room(A, 1).unwrap();
        assert!(matches!(
            table.check_room(A, 2),
            Err(CoreError::LimitExceeded {
                asked: 4,
                limit: 3,
                ..
            })
        ));
        table.add(A, 0, vec![], vec![]);
        assert!(matches!(
            table.check_room(A, 0),
            Err(CoreError::LimitExceeded {
                asked: 3,
                limit: 2,
                ..
            })
        ));
        table.check_room(B, 3).unwrap();
    }
}
