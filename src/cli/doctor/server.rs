//! Traps of the servers that an engine uses: away, another user's, of another chunk size, too small.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io};

use serde_json::Value;

use super::{Report, state};
use crate::cli::status::{self, StatusError};
use crate::geometry::chunk::resolve_chunk;
use crate::geometry::{BoundGeometry, ByteSize, Bytes, ObjectGroup, ObjectKind, ResolvedGeometry, Warning};
use crate::object::FRAME_BYTES;
use crate::wire::ErrorCode;

/// How long a server that makes its pool present is given.
const SETTLING_ROUNDS: u32 = 5;
const SETTLING_PAUSE: Duration = Duration::from_millis(100);

/// What an engine wants of its servers.
pub(super) struct Fit<'a> {
    pub(super) geometry: Option<&'a ResolvedGeometry>,
    pub(super) preferred_base: u64,
    pub(super) max_model_len: Option<u64>,
}

pub(super) fn check(sockets: &[PathBuf], fit: Option<&Fit<'_>>, report: &mut Report) {
    let mut sizes: Vec<(&Path, u64)> = Vec::new();
    for socket in sockets {
        match ask_settled(socket) {
            Ok(status) => {
                state::check(socket, &status, report);
                let server = Server {
                    socket,
                    status: &status,
                };
                if let Some(size) = server.check(fit, report) {
                    sizes.push((socket, size));
                }
            }
            Err(error) => no_status(socket, &error, report),
        }
    }
    if sizes.windows(2).any(|pair| pair[0].1 != pair[1].1) {
        let each: Vec<String> = sizes
            .iter()
            .map(|(socket, size)| format!("{} at {}", size, socket.display()))
            .collect();
        report.refused(
            "servers_differ",
            format_args!(
                "the servers' chunk sizes differ ({}), and a prefix needs the same chunks on all; restart them with one \
                 --chunk-size",
                each.join(", ")
            ),
        );
    }
}

/// The status of a server that has made its pool present, or takes its time over that. One that has just started is done
/// in a moment, and is no finding.
fn ask_settled(socket: &Path) -> Result<Value, StatusError> {
    let mut status = status::ask(socket)?;
    for _ in 0..SETTLING_ROUNDS {
        let pool = &status["pool"];
        if pool["prefaulted"].as_u64() >= pool["total"].as_u64() {
            break;
        }
        std::thread::sleep(SETTLING_PAUSE);
        status = status::ask(socket)?;
    }
    Ok(status)
}

fn no_status(socket: &Path, error: &StatusError, report: &mut Report) {
    let at = socket.display();
    let unused = "the engine starts without it and caches nothing until it answers";
    match error {
        StatusError::Connect { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            report.silent(
                "other_user",
                format_args!("{at} may not be opened by this user; {unused}; run both as one user"),
            );
        }
        StatusError::Refused(refusal) => match refusal.code {
            ErrorCode::PermissionDenied => report.refused("other_user", format_args!("{at}: {refusal}")),
            ErrorCode::LimitExceeded => {
                report.silent("server_full", format_args!("{at}: {refusal}; {unused}"))
            }
            ErrorCode::Draining => report.silent("server_draining", format_args!("{at}: {refusal}")),
            _ => report.refused("server_refuses", format_args!("{at}: {refusal}")),
        },
        StatusError::NoAnswer => report.silent("server_stalled", format_args!("{at}: {error}; {unused}")),
        StatusError::Connect { .. } | StatusError::TooLong(_) | StatusError::IsDirectory(_) => {
            report.silent("server_away", format_args!("{error}; {unused}"));
        }
        StatusError::NotKvasir(_) => report.silent("server_unknown", format_args!("{error}; {unused}")),
        StatusError::Io(_) | StatusError::Nonsense(_) => {
            report.silent(
                "server_unknown",
                format_args!("{at}: {error}; is it a Kvasir server of this version?"),
            );
        }
    }
}

/// A server that has answered.
struct Server<'a> {
    socket: &'a Path,
    status: &'a Value,
}

impl Server<'_> {
    /// Returns the chunk size that the engine gets, where it is known.
    fn check(&self, fit: Option<&Fit<'_>>, report: &mut Report) -> Option<u64> {
        if self.status["health"] == "draining" {
            report.silent(
                "server_draining",
                format_args!(
                    "{} is stopping, and what it holds goes with it; start another",
                    self.socket.display()
                ),
            );
        }
        let binding = &self.status["binding"];
        let decided = binding["chunk_size"].as_u64();
        let Some((geometry, fit)) = fit.and_then(|fit| Some((fit.geometry?, fit))) else {
            return decided;
        };
        if binding["scope"] == "model" {
            report.unchecked(format!(
                "chunk size at {}: with --chunk-scope model one that an earlier engine of this model decided on holds, \
                 and is not recognized here",
                self.socket.display()
            ));
        }
        let chunk = self.chunk_size(decided, geometry.required_alignment(), fit.preferred_base, report)?;
        match geometry.bind(chunk) {
            Ok(bound) => self.check_bound(geometry, &bound, fit.max_model_len, report),
            Err(error) => self.refuse("object_too_large", &error, report),
        }
        Some(chunk)
    }

    fn refuse(&self, name: &'static str, reason: &dyn fmt::Display, report: &mut Report) {
        report.refused(name, format_args!("{}: {reason}", self.socket.display()));
    }

    /// What the server answers an engine that asks for this alignment.
    fn chunk_size(
        &self,
        decided: Option<u64>,
        alignment: u64,
        base: u64,
        report: &mut Report,
    ) -> Option<u64> {
        let binding = &self.status["binding"];
        if let Some(size) = decided {
            if size.is_multiple_of(alignment) {
                return Some(size);
            }
            let reason = format_args!(
                "its chunk size is {size} tokens, no multiple of the {alignment} that this model needs; use another \
                 server, restart this one, or start it with --chunk-scope model"
            );
            self.refuse("chunk_size", &reason, report);
            return None;
        }
        // A server of another version may say something else.
        let minimum = binding["minimum"]
            .as_u64()
            .or_else(|| (binding["minimum"] == "auto").then_some(base))?;
        if binding["policy"] == "fixed" {
            if minimum.is_multiple_of(alignment) {
                return Some(minimum);
            }
            let reason = format_args!(
                "its chunk size is fixed at {minimum} tokens, no multiple of the {alignment} that this model needs; \
                 start it with --chunk-size {alignment} or --chunk-size-policy negotiate"
            );
            self.refuse("chunk_size", &reason, report);
            return None;
        }
        match resolve_chunk(alignment, minimum) {
            Ok(size) => Some(size),
            Err(error) => {
                self.refuse("chunk_size", &error, report);
                None
            }
        }
    }

    fn check_bound(
        &self,
        geometry: &ResolvedGeometry,
        bound: &BoundGeometry,
        max_model_len: Option<u64>,
        report: &mut Report,
    ) {
        let at = self.socket.display();
        for warning in bound.warnings() {
            if matches!(warning, Warning::LongRecurrentChunk { .. }) {
                let alignment = geometry.required_alignment();
                report.note(
                    "long_chunk",
                    format_args!(
                        "{at}: {warning}; a server started with --chunk-size {alignment} keeps one at each"
                    ),
                );
            }
        }
        let Some(pool_frames) = self.status["pool"]["total"]
            .as_u64()
            .map(|bytes| bytes / FRAME_BYTES)
        else {
            return;
        };
        let chunk = bound.chunk_size();
        // Whole frames of one worker's part of a chunk.
        let frames = |object: &ObjectGroup| {
            let bytes = object.object_bytes(chunk).unwrap_or(u64::MAX);
            bytes.div_ceil(FRAME_BYTES)
        };
        for object in bound
            .objects()
            .iter()
            .filter(|object| frames(object) > pool_frames)
        {
            let groups: Vec<String> = object.groups().map(|group| group.to_string()).collect();
            report.refused(
                "object_too_large",
                format_args!(
                    "{at}: a chunk of {chunk} tokens of {} {} takes {} and the pool has {}; enlarge --pool-size",
                    if groups.len() == 1 { "group" } else { "groups" },
                    groups.join(", "),
                    Bytes(frames(object).saturating_mul(FRAME_BYTES)),
                    Bytes(pool_frames.saturating_mul(FRAME_BYTES))
                ),
            );
        }
        let full = bound
            .objects()
            .iter()
            .find(|object| object.kind() == ObjectKind::Full);
        let (Some(full), Some(tokens)) = (full, max_model_len) else {
            return;
        };
        let each = frames(full).max(1);
        // A client may keep a quarter of the pool from eviction, or one chunk of all groups where that is more.
        let whole = bound.objects().iter().map(frames).fold(0, u64::saturating_add);
        let chunks = (pool_frames / 4).max(whole) / each;
        if each <= pool_frames && tokens / chunk > chunks {
            let needed = (tokens / chunk).saturating_mul(each).saturating_mul(FRAME_BYTES);
            report.slow(
                "small_pool",
                format_args!(
                    "{at}: a prompt of max_model_len {tokens} takes at least {}, and hits may hold a quarter of the pool \
                     of {}: none is longer than {} tokens; a --pool-size of {} or more holds the longest",
                    Bytes(needed),
                    Bytes(pool_frames.saturating_mul(FRAME_BYTES)),
                    chunks.saturating_mul(chunk),
                    ByteSize(needed.saturating_mul(4))
                ),
            );
        }
    }
}
