//! The script, as the server's answers go by.

use super::acts::{Shape, kind_of, step_of};
use super::commits::{check_copy, extents_of};
use super::connection::Connection;
use super::judge::{BOUNDARIES_MAX, Judge};
use super::script::{CHUNKS, Prompt, Script};
use super::steps::Step;
use crate::keys::ChunkKey;
use crate::object::{CommitAnswer, CommitOutcome, CommitRequest, Extent, RetrieveAnswer, RetrieveRequest};
use crate::wire::{RegisterKvCache, Reply, Request, WireError};

impl Judge {
    /// The server has answered: how the answer travels.
    ///
    /// # Errors
    /// Why the kit cannot go on.
    pub(super) fn reply(
        &mut self,
        connection: &mut Connection,
        id: u64,
        reply: &Reply,
    ) -> Result<Shape, String> {
        let request = connection.asked.remove(&id);
        let mut shape = Shape {
            pieces: id.is_multiple_of(2) || matches!(reply, Reply::Hello(_)),
            grown: !matches!(reply, Reply::Hello(_)),
            late: false,
        };
        match (&request, reply) {
            (_, Reply::Error(error)) => self.refused(request.as_ref(), error),
            (Some(Request::Hello(_)), _) => self.sheet.hold(Step::Hello, ""),
            (Some(Request::Attach), _) => self.sheet.hold(Step::Attach, ""),
            (_, Reply::Negotiate(answer)) => {
                self.chunk_size = answer.chunk_size;
                self.sheet.hold(Step::Negotiate, "");
            }
            (Some(Request::RegisterKvCache(register)), Reply::Register(_)) => {
                self.registered(connection, register)?
            }
            (_, Reply::Grant { extents }) => self.granted(connection, extents),
            (Some(Request::Commit(commit)), Reply::Commit(answer)) => {
                self.granted(connection, &answer.granted);
                self.committed(connection, commit, answer);
                shape.late = !self.past.was_late;
                self.past.was_late = true;
            }
            (Some(Request::Abort { extents }), Reply::Ack) => self.given_back(connection, extents),
            (Some(Request::Lookup(lookup)), Reply::Lookup(answer)) => {
                if answer.pin != 0 {
                    connection.pins.insert(answer.pin, lookup.label);
                }
                // Over pipes nothing can be stored, and the second prompt is what there is to be found.
                let due = if self.sheet.pipes {
                    Prompt::Second
                } else {
                    Prompt::First
                };
                let due = self.script.as_ref().and_then(|script| script.keys(due).first());
                if answer.hit_tokens > 0 && lookup.keys.first() == due {
                    self.sheet.hold(Step::Lookup, "");
                    self.past.first_was_hit = true;
                    self.again();
                }
            }
            (Some(Request::Retrieve(retrieve)), Reply::Retrieve(answer)) => {
                if answer.pin != 0 {
                    connection.pins.insert(answer.pin, retrieve.label);
                }
                if self.sheet.pipes {
                    self.retrieved(retrieve, answer);
                }
            }
            (Some(Request::Release { pins }), Reply::Ack) => {
                for pin in pins {
                    connection.pins.remove(pin);
                }
                self.released(connection);
            }
            (Some(Request::ReleaseLabel { label }), Reply::Ack) => {
                connection.pins.retain(|_, other| other != label);
                self.released(connection);
            }
            _ => {}
        }
        if shape.late {
            connection.proves.push(Step::Late);
        }
        if shape.pieces {
            connection.proves.push(Step::Pieces);
        }
        if shape.grown && matches!(reply, Reply::Register(_)) {
            connection.proves.push(Step::NewFields);
        }
        Ok(shape)
    }

    /// The server refuses what the script asks for.
    fn refused(&mut self, request: Option<&Request>, error: &WireError) {
        let step = request.map_or(Step::Hello, step_of);
        let kind = request.map_or("a frame", kind_of);
        let found = format!("{:?} {:?}: {}", error.code, error.numbers, error.message);
        self.sheet
            .find(step, kind, "a request that the server takes", found);
    }

    fn registered(&mut self, connection: &mut Connection, register: &RegisterKvCache) -> Result<(), String> {
        connection.registered = Some(register.clone());
        if self.chunk_size / register.required_alignment.max(1) > BOUNDARIES_MAX {
            return Ok(());
        }
        let size = u32::try_from(self.chunk_size).map_err(|error| error.to_string())?;
        let script = Script::new(register, size).map_err(|error| error.to_string())?;
        let is_first = self.script.as_ref().is_none_or(|other| other.seed != script.seed);
        if self.life > 1 {
            if is_first {
                let expected = "the domain that it registered with the server before";
                self.sheet
                    .find(Step::Restart, "RegisterKvCache.domain", expected, "another");
            }
            self.sheet.hold(Step::Restart, "");
        }
        let usable = register.groups.len() == 1 && register.world_size == 1;
        if self.life == 1
            && is_first
            && usable
            && let Some(engine) = &mut self.engine
        {
            for (id, extents, bytes) in engine.store_second(register, &script)? {
                let place = script
                    .find(&id.key)
                    .map(|place| place.text(size))
                    .unwrap_or_default();
                self.watch.keep(
                    engine,
                    format!("{place}, which is another engine's"),
                    extents,
                    bytes,
                );
            }
        }
        self.sheet.hold(Step::Register, "");
        self.script = Some(script);
        Ok(())
    }

    fn granted(&mut self, connection: &mut Connection, extents: &[Extent]) {
        if extents.is_empty() {
            return;
        }
        self.watch.forget(extents);
        connection
            .granted
            .extend(extents.iter().flat_map(|extent| extent.frames()));
        self.sheet.hold(Step::Grant, "");
        if self.past.grant_emptied {
            self.sheet.hold(Step::GrantEmpty, "");
        }
    }

    /// Frames that the client gave back with an abort.
    fn given_back(&mut self, connection: &mut Connection, extents: &[Extent]) {
        for frame in extents.iter().flat_map(|extent| extent.frames()) {
            connection.granted.remove(&frame);
        }
        if let Some(engine) = &self.engine {
            let bytes = extents.iter().map(|extent| extent.bytes()).sum();
            self.watch.keep(
                engine,
                "space that was given back".into(),
                extents.to_vec(),
                bytes,
            );
        }
    }

    fn committed(&mut self, connection: &mut Connection, commit: &CommitRequest, answer: &CommitAnswer) {
        let (Some(script), Some(engine)) = (&self.script, &self.engine) else {
            return;
        };
        for (item, outcome) in commit.items.iter().zip(&answer.outcomes) {
            let extents = extents_of(commit, item);
            for frame in extents.iter().flat_map(|extent| extent.frames()) {
                connection.granted.remove(&frame);
            }
            let Some(place) = script.find(&item.id.key) else {
                continue;
            };
            let text = place.text(script.chunk_size);
            match outcome {
                CommitOutcome::Published => {
                    self.watch.keep(
                        engine,
                        format!("{text}, which is stored"),
                        extents.to_vec(),
                        item.bytes,
                    );
                }
                CommitOutcome::Exists | CommitOutcome::Skipped => {}
                other => self.sheet.find(
                    Step::Commit,
                    text,
                    "an item that can be stored",
                    format_args!("{other:?}"),
                ),
            }
            let stored = matches!(outcome, CommitOutcome::Published | CommitOutcome::Exists);
            let right = place.prompt != Prompt::Third
                || *outcome != CommitOutcome::Published
                || check_copy(&mut self.sheet, engine, script, commit, item, &place);
            if stored && right && place.chunk < CHUNKS && place.tokens == script.chunk_size {
                match place.prompt {
                    Prompt::First => self.past.first[place.chunk] = true,
                    Prompt::Third => self.past.third[place.chunk] = true,
                    Prompt::Second => {}
                }
            }
        }
        if self.past.first.iter().all(|stored| *stored) {
            self.sheet.hold(Step::Commit, "");
        }
        if self.past.third.iter().all(|stored| *stored) {
            self.past.third_is_right = true;
            self.sheet.hold(Step::Retrieve, "");
        }
        self.look_at_slab(connection);
        self.again();
    }

    /// Over pipes: the answer to a retrieve of the second prompt is all that there is to load.
    fn retrieved(&mut self, retrieve: &RetrieveRequest, answer: &RetrieveAnswer) {
        let Some(script) = &self.script else { return };
        let second = script.keys(Prompt::Second);
        let found = |key: &ChunkKey| {
            let rows = retrieve.ids.iter().zip(&answer.locations);
            rows.filter(|(id, _)| id.key == *key)
                .any(|(_, location)| location.incarnation != 0)
        };
        if second.iter().all(found) {
            self.sheet
                .hold(Step::Retrieve, "its extents; no byte can be read over pipes");
        }
    }

    fn released(&mut self, connection: &Connection) {
        if self.sheet.pipes && connection.pins.is_empty() {
            self.sheet.hold(Step::Release, "");
        }
    }

    fn again(&mut self) {
        if self.life > 1 && self.past.first_was_hit && self.past.first.iter().all(|stored| *stored) {
            self.sheet.hold(Step::Again, "");
        }
    }
}
