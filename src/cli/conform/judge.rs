//! The script: what is answered otherwise than the server would, what is looked at, and what holds.

use std::time::Duration;

use super::acts::{Act, kind_of, step_of};
use super::commits::{check, check_keys, places};
use super::connection::Connection;
use super::inner::Engine;
use super::script::{CHUNKS, Place, Prompt, Script, hex};
use super::steps::{Sheet, Step};
use super::watch::Watch;
use crate::geometry::ObjectKind;
use crate::geometry::chunk;
use crate::keys::ChunkKey;
use crate::object::{CommitRequest, PayloadPath};
use crate::wire::{ErrorCode, Negotiate, PROTOCOL_VERSION, RegisterKvCache, Reply, Request, WireError};

/// The tails of three prompts are computed for every boundary.
pub(super) const BOUNDARIES_MAX: u64 = 1024;

/// What was done to the client so far, and what it has done.
#[derive(Default)]
pub(super) struct Past {
    hello_refused: bool,
    pub(super) grant_emptied: bool,
    lookup_refused: bool,
    commit_refused: bool,
    pub(super) was_late: bool,
    /// Chunks of the first and third prompt that are stored in this life.
    pub(super) first: [bool; CHUNKS],
    pub(super) third: [bool; CHUNKS],
    pub(super) third_is_right: bool,
    pub(super) first_was_hit: bool,
}

/// The kit's state.
pub(super) struct Judge {
    pub(super) sheet: Sheet,
    /// The server's life: 1, and 2 after the restart.
    pub(super) life: u32,
    /// How long a late reply is held back.
    pub(super) late: Duration,
    pub(super) chunk_size: u64,
    pub(super) script: Option<Script>,
    pub(super) engine: Option<Engine>,
    pub(super) watch: Watch,
    pub(super) past: Past,
}

impl Judge {
    pub(super) fn new(engine: Engine, pipes: bool, late: Duration) -> Self {
        let sheet = Sheet::new(pipes);
        Self {
            sheet,
            life: 1,
            late,
            chunk_size: 0,
            script: None,
            engine: Some(engine),
            watch: Watch::default(),
            past: Past::default(),
        }
    }

    /// Another server has taken the place of the one before.
    pub(super) fn restarted(&mut self, engine: Engine) {
        self.life += 1;
        self.engine = Some(engine);
        self.past.first = [false; CHUNKS];
        self.past.first_was_hit = false;
    }

    /// Whether the restart is due: all that the first server is needed for is done.
    pub(super) fn wants_restart(&self) -> bool {
        self.life == 1 && self.past.third_is_right
    }

    /// Whether nothing more is expected of the client but its end.
    pub(super) fn is_done(&self) -> bool {
        if self.sheet.pipes {
            return self.sheet.is_held(Step::Retrieve) && self.sheet.is_held(Step::Release);
        }
        self.sheet.is_held(Step::Again)
    }

    /// Ends a life of the server: what the client has left behind.
    pub(super) fn end_life<'a>(&mut self, connections: impl Iterator<Item = &'a Connection>) {
        for connection in connections {
            connection.look_at_pins(&mut self.sheet);
            self.look_at_slab(connection);
        }
        if self.sheet.is_held(Step::Retrieve) {
            self.sheet.hold(Step::Release, "");
        }
        if let Some(engine) = &self.engine {
            self.watch.look(engine, &mut self.sheet);
        }
        self.watch.clear();
        self.engine = None;
    }

    /// A connection has ended, in the midst of a frame or between two.
    pub(super) fn closed(&mut self, connection: &Connection, partial: usize) {
        if connection.must_close {
            self.sheet.hold(Step::CommitRefused, "");
        }
        self.look_at_slab(connection);
        if partial > 0 {
            let found = format!("{partial} bytes of a frame that has no end");
            self.sheet
                .find(Step::Close, "the last frame", "a whole one", found);
        } else if self.is_done() {
            if self.sheet.pipes {
                connection.look_at_pins(&mut self.sheet);
            }
            self.sheet.hold(Step::Close, "");
        }
    }

    /// What a client that looks up by itself has counted.
    pub(super) fn look_at_slab(&mut self, connection: &Connection) {
        let (lookups, hits) = connection.local_lookups();
        if lookups == 0 || hits == 0 {
            return;
        }
        self.sheet.hold(Step::Lookup, "in its own mapping of the index");
        if connection.life > 1 && self.past.first.iter().all(|stored| *stored) {
            self.sheet
                .hold(Step::Again, "found in its own mapping of the index");
        }
        // It asks the server only for what it does not know yet.
        self.sheet
            .hold(Step::LookupRefused, "asked the server for nothing more");
    }

    /// Something that is no frame, or a frame that is no request.
    pub(super) fn malformed(&mut self, connection: &Connection, expected: &str, found: &str) {
        let step = match connection.hello {
            None => Step::Hello,
            Some(_) if connection.registered.is_none() => Step::Register,
            Some(_) => Step::Commit,
        };
        self.sheet.find(step, "the frame", expected, found);
    }

    /// A request has come.
    pub(super) fn request(&mut self, connection: &mut Connection, id: u64, request: &Request) -> Act {
        self.sheet.frames += 1;
        let step = step_of(request);
        if id == 0 {
            self.sheet.find(step, "Request.id", "any number but 0", 0);
        }
        if connection.asked.contains_key(&id) {
            let found = format!("{id}, whose first reply is awaited");
            self.sheet
                .find(step, "Request.id", "one that no other request has now", found);
        }
        if connection.must_close {
            let found = format!("{} on the same connection", kind_of(request));
            self.sheet.find(
                Step::CommitRefused,
                "the connection",
                "its end, after a commit that failed midway",
                found,
            );
        }
        for step in std::mem::take(&mut connection.proves) {
            self.sheet.hold(step, "");
        }
        if connection.hello.is_none() && !matches!(request, Request::Hello(_)) {
            self.sheet
                .find(Step::Hello, "the first frame", "Hello", kind_of(request));
        }
        let act = match request {
            Request::Hello(_) => self.hello(connection, request),
            Request::Negotiate(negotiate) => self.negotiate(connection, negotiate),
            Request::RegisterKvCache(register) => self.register(register),
            Request::Grant(_) if !self.sheet.pipes && !self.past.grant_emptied => {
                self.past.grant_emptied = true;
                Act::Answer(Reply::Grant { extents: vec![] })
            }
            Request::Commit(commit) => self.commit(connection, commit),
            Request::Lookup(lookup) => {
                self.check_seed(Step::Lookup, "Lookup.domain_seed", &lookup.domain_seed);
                self.lookup(&lookup.keys)
            }
            Request::Retrieve(retrieve) => {
                self.check_seed(Step::Retrieve, "Retrieve.domain_seed", &retrieve.domain_seed);
                Act::Forward
            }
            _ => Act::Forward,
        };
        match &act {
            Act::Refuse(_) => {}
            Act::Answer(_) => {
                if matches!(request, Request::Lookup(_)) {
                    connection.proves.push(Step::LookupRefused);
                }
            }
            Act::Forward => {
                connection.asked.insert(id, request.clone());
            }
        }
        act
    }

    fn hello(&mut self, connection: &mut Connection, request: &Request) -> Act {
        let Request::Hello(hello) = request else {
            return Act::Forward;
        };
        if connection.hello.is_some() {
            self.sheet
                .find(Step::Hello, "Hello", "one for each connection", "another");
        }
        connection.hello = Some(hello.clone());
        let (pipes, sheet) = (self.sheet.pipes, &mut self.sheet);
        let mut find = |field: &str, expected: &str, found: String| {
            sheet.find(Step::Hello, format_args!("Hello.{field}"), expected, found);
        };
        if hello.protocol_version != PROTOCOL_VERSION {
            find(
                "protocol_version",
                &PROTOCOL_VERSION.to_string(),
                hello.protocol_version.to_string(),
            );
        }
        if hello.features != 0 {
            find(
                "features",
                "0, since none exists yet",
                format!("{:#x}", hello.features),
            );
        }
        if !pipes && !hello.wants_pool {
            find("wants_pool", "true, to store and load", "false".into());
        }
        if pipes && hello.wants_pool {
            find(
                "wants_pool",
                "false",
                "true, and no descriptors can ride on a pipe".into(),
            );
        } else if hello.wants_pool && hello.engine_instance == [0; 16] {
            find(
                "engine_instance",
                "16 random bytes, the same in all processes of an engine",
                "zeroes".into(),
            );
        }
        if !self.sheet.pipes && !self.past.hello_refused {
            self.past.hello_refused = true;
            let text = "kvasir conform refuses the first hello; connect again";
            return Act::Refuse(Reply::Error(WireError::new(
                ErrorCode::Exhausted,
                text,
                [24, 1024],
            )));
        }
        if !self.sheet.pipes {
            self.sheet.hold(Step::HelloAgain, "");
        }
        Act::Forward
    }

    fn negotiate(&mut self, connection: &Connection, negotiate: &Negotiate) -> Act {
        let spans: Vec<u64> = negotiate.spans.iter().map(|span| span.tokens).collect();
        if let Ok(due) = chunk::alignment(&spans)
            && !spans.is_empty()
            && due != negotiate.required_alignment
        {
            let expected = format!("{due}, the least common multiple of the positive spans");
            let found = negotiate.required_alignment;
            self.sheet
                .find(Step::Negotiate, "Negotiate.required_alignment", expected, found);
        }
        if connection.life > 1 && negotiate.previous_size != self.chunk_size {
            let expected = format!("{}, the size of the server before", self.chunk_size);
            let found = negotiate.previous_size;
            self.sheet
                .find(Step::Restart, "Negotiate.previous_size", expected, found);
        }
        Act::Forward
    }

    fn register(&mut self, register: &RegisterKvCache) -> Act {
        let (pipes, sheet) = (self.sheet.pipes, &mut self.sheet);
        let mut find = |field: &str, expected: &str, found: String| {
            sheet.find(
                Step::Register,
                format_args!("RegisterKvCache.{field}"),
                expected,
                found,
            );
        };
        match register.groups.as_slice() {
            [group] => {
                if group.kind != ObjectKind::Full {
                    find(
                        "groups[0].kind",
                        "Full: the script is for full attention",
                        format!("{:?}", group.kind),
                    );
                }
                if (group.parts, group.part) != (1, 0) {
                    find(
                        "groups[0].parts",
                        "1",
                        format!("{}, of them number {}", group.parts, group.part),
                    );
                }
            }
            groups => find("groups", "one object group", groups.len().to_string()),
        }
        if (register.rank, register.world_size) != (0, 1) {
            let found = format!("rank {} of {}", register.rank, register.world_size);
            find("rank and world_size", "rank 0 of 1", found);
        }
        if self.chunk_size / register.required_alignment.max(1) > BOUNDARIES_MAX {
            let found = format!("{} in chunks of {}", register.required_alignment, self.chunk_size);
            find("required_alignment", "at most 1024 boundaries in a chunk", found);
        }
        if !pipes && register.payload_path != PayloadPath::ShmDirect {
            find(
                "payload_path",
                "ShmDirect",
                format!("{:?}", register.payload_path),
            );
        }
        if !pipes && !register.stores {
            find("stores", "true", "false".into());
        }
        Act::Forward
    }

    fn commit(&mut self, connection: &mut Connection, commit: &CommitRequest) -> Act {
        let (Some(script), Some(engine)) = (&self.script, &self.engine) else {
            return Act::Forward;
        };
        check(&mut self.sheet, engine, script, &connection.granted, commit);
        self.watch.look(engine, &mut self.sheet);
        let of_third = |place: &Option<Place>| place.is_some_and(|place| place.prompt == Prompt::Third);
        if !self.past.commit_refused && places(script, commit).iter().any(of_third) {
            self.past.commit_refused = true;
            connection.must_close = true;
            let text = "kvasir conform fails this commit midway; close the connection and write none of its frames again";
            return Act::Answer(Reply::Error(WireError::new(ErrorCode::Internal, text, [])));
        }
        Act::Forward
    }

    fn lookup(&mut self, keys: &[ChunkKey]) -> Act {
        if let Some(script) = &self.script {
            check_keys(&mut self.sheet, script, keys);
        }
        if self.past.lookup_refused || self.script.is_none() {
            return Act::Forward;
        }
        self.past.lookup_refused = true;
        let text = "kvasir conform refuses the first lookup; compute, and ask again for the next prompt";
        Act::Answer(Reply::Error(WireError::new(
            ErrorCode::LimitExceeded,
            text,
            [1, 0],
        )))
    }

    fn check_seed(&mut self, step: Step, field: &str, seed: &ChunkKey) {
        if let Some(script) = &self.script
            && *seed != script.seed
        {
            self.sheet.find(step, field, hex(&script.seed), hex(seed));
        }
    }
}
