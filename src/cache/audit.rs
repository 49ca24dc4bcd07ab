//! The audit that recomputes all numbers.

use std::collections::HashMap;

use super::books::tree::Record;
use super::core::Core;
use super::error::CoreError;
use crate::index::body::blocks_for;
use crate::object::{Extent, count_frames};
use crate::pool::RecordState;
use crate::pool::directory::DirectoryTotals;

impl Core {
    /// Recomputes every total and checks every invariant. Walks everything: for tests and diagnosis.
    ///
    /// # Errors
    /// [`CoreError::Pool`] or [`CoreError::Broken`] with the first thing that does not hold.
    pub fn audit(&self) -> Result<(), CoreError> {
        let totals = self.pool.audit()?;
        self.audit_totals(&totals)?;
        let mut tree: HashMap<u32, (u32, u32, u32)> = HashMap::new();
        let mut tails: HashMap<u32, u32> = HashMap::new();
        for (number, record) in self.tree.iter() {
            self.audit_record(number, record)?;
            if let Some(chunk) = self.tree.chunk_before(number)
                && record.state == RecordState::Live
            {
                *tails.entry(chunk).or_default() |= record.tail;
            }
            if let Some(parent) = record.parent {
                let entry = tree.entry(parent).or_default();
                entry.0 += 1;
                if record.is_companion && record.state == RecordState::Live {
                    entry.1 |= record.bit;
                    entry.2 |= if record.held_from > 0 { record.bit } else { 0 };
                }
            }
        }
        let mut pins: HashMap<u32, u32> = HashMap::new();
        for record in self.pins.records() {
            *pins.entry(record).or_default() += 1;
        }
        for (number, record) in self.tree.iter() {
            let linked = self.tree.linked_children(number);
            same("records in the list of children", record.children.into(), linked)?;
            let (children, below, holed) = tree.get(&number).copied().unwrap_or_default();
            let counted = pins.remove(&number).unwrap_or_default();
            same("children of a record", record.children.into(), children.into())?;
            same(
                "companions of a record",
                record.companions.groups.into(),
                below.into(),
            )?;
            same(
                "companions of a record that have holes",
                record.companions.holed.into(),
                holed.into(),
            )?;
            same("pins of a record", record.pins.into(), counted.into())?;
            let behind = tails.get(&number).copied().unwrap_or_default();
            same("tails behind a record", record.tails.into(), behind.into())?;
        }
        same("pins of records that are not in use", 0, pins.len() as u64)
    }

    fn audit_totals(&self, totals: &DirectoryTotals) -> Result<(), CoreError> {
        let clients = self.clients.iter().flatten();
        same(
            "frames of granted space",
            clients.map(|c| c.granted.frames()).sum(),
            totals.granted,
        )?;
        let extents = self.incomplete.iter().map(|(_, p)| count_frames(&p.extents()));
        let wasted = self.waste.iter().map(|waste| waste.held(self));
        let wasted = wasted.collect::<Result<Vec<_>, _>>()?;
        let (wasted, wasted_blocks) = wasted.iter().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        same(
            "frames of incomplete objects",
            extents.sum::<u64>() + wasted,
            totals.incomplete,
        )?;
        for client in self.clients.iter().flatten() {
            let counted = self.incomplete.frames_of(client.id);
            let parts = self
                .incomplete
                .iter()
                .flat_map(|(_, incomplete)| incomplete.parts());
            let own = parts.filter(|part| part.by == client.id);
            let found = own.map(|part| count_frames(&part.body.extents)).sum();
            same("frames of a client's parts", counted, found)?;
        }
        same("live records", self.tree.live(), totals.live_records)?;
        same("records in limbo", self.tree.limbo(), totals.limbo_records)?;
        let undecided = self.tree.iter().filter(|(_, r)| r.undecided).count();
        same(
            "records that are decided about",
            self.sweep.undecided() as u64,
            undecided as u64,
        )?;
        let incomplete = self.incomplete.len() + self.waste.len();
        same("incomplete objects", incomplete as u64, totals.incomplete_records)?;
        same("slots of the index", self.index.used_slots(), totals.live_records)?;
        let c = &self.counters;
        same("requested units", c.requested, c.hit + c.miss)?;
        let pinned = self.tree.iter().filter(|(_, r)| r.pins > 0);
        let pinned = pinned.map(|(_, r)| u64::from(r.frames)).sum();
        same("pinned frames", self.tree.pinned_frames(), pinned)?;
        let objects = self
            .tree
            .iter()
            .filter(|(_, r)| r.state != RecordState::Incomplete);
        let mut blocks = wasted_blocks;
        blocks += self
            .incomplete
            .iter()
            .map(|(_, incomplete)| incomplete.blocks())
            .sum::<usize>();
        for (number, _) in objects {
            let words = self.pool.directory.shared_words(number)?[7] & 0xffff_ffff;
            blocks += blocks_for(words as usize);
        }
        same("chain blocks", self.chains.taken() as u64, blocks as u64)
    }

    fn audit_record(&self, number: u32, record: &Record) -> Result<(), CoreError> {
        let directory = &self.pool.directory;
        let state = directory.state(number)?;
        same("state of a record", record.state as u64, state as u64)?;
        let candidate = self.tree.is_candidate(number);
        same(
            "a record that may go",
            self.tree.may_go(number).into(),
            candidate.into(),
        )?;
        let id = self.id_of(number)?;
        let found = self.index.reader().lookup(&id);
        let live = state == RecordState::Live;
        let found = found.filter(|view| view.record == number);
        same(
            "a record in the index",
            u64::from(live),
            u64::from(found.is_some()),
        )?;
        if let Some(view) = found {
            let companions = record.companions.to_word();
            same(
                "companions that the index names",
                view.companions.to_word(),
                companions,
            )?;
            let tails = record.tails.into();
            same("tails that the index says are behind", view.tails.into(), tails)?;
            same("frames that the index says", view.frames, record.frames.into())?;
        }
        if let Some(parent) = record.parent {
            // Leaves first: what hangs under something that is gone would be unreachable, or unprotected.
            let above = self.tree.get(parent).state;
            let fits = match state {
                RecordState::Live => above == RecordState::Live,
                RecordState::Limbo => matches!(above, RecordState::Live | RecordState::Limbo),
                _ => matches!(above, RecordState::Live | RecordState::Incomplete),
            };
            same("a record under another", 1, fits.into())?;
        }
        if state == RecordState::Incomplete {
            return Ok(());
        }
        let incarnation = directory.shared_words(number)?[0];
        let (parts, _) = directory.body(number)?;
        let extents: Vec<Extent> = parts.iter().flat_map(|p| p.extents.iter().copied()).collect();
        same("frames of a record", record.frames.into(), count_frames(&extents))?;
        for frame in extents.iter().flat_map(|e| e.frames()) {
            same("epoch of a frame", self.pool.epochs.of(frame), incarnation)?;
        }
        Ok(())
    }
}

fn same(what: &'static str, a: u64, b: u64) -> Result<(), CoreError> {
    if a == b {
        return Ok(());
    }
    Err(CoreError::Broken { what, a, b })
}
