//! `kvasir clear`: a server that holds nothing but what is being read.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::output::print;
use super::socket::default_path;
use super::status::{Asking, StatusError, unexpected};
use crate::geometry::Bytes;
use crate::wire::{Reply, Request};

/// Arguments of `kvasir clear`.
#[derive(Debug, Args)]
pub(super) struct ClearArgs {
    /// Path of the server's socket [default: as for serve]
    #[arg(long, value_name = "PATH", env = "KVASIR_SOCKET")]
    socket: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// What was dropped and what stays, by the server's own figures before and after.
struct Cleared {
    dropped_objects: u64,
    freed_bytes: u64,
    kept_objects: u64,
    pinned_bytes: u64,
}

pub(super) fn run(args: &ClearArgs) -> ExitCode {
    let path = args.socket.clone().unwrap_or_else(default_path);
    match clear(&path) {
        Ok(cleared) if args.json => print(&format!("{}\n", cleared.to_json())),
        Ok(cleared) => print(&cleared.to_text()),
        Err(error) => error.failure().report("clear", args.json),
    }
}

fn clear(path: &Path) -> Result<Cleared, StatusError> {
    let mut server = Asking::connect(path, "clear")?;
    let before = server.status()?;
    match server.call(&Request::Clear)? {
        Reply::Ack => {}
        other => return Err(unexpected(&other)),
    }
    let after = server.status()?;
    let number = |status: &Value, path: &str| status.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    // Engines go on meanwhile: what they store and evict between the two is counted too.
    let grown = |path| number(&after, path).saturating_sub(number(&before, path));
    Ok(Cleared {
        dropped_objects: grown("/counters/evicted"),
        freed_bytes: grown("/pool/free"),
        kept_objects: number(&after, "/objects"),
        pinned_bytes: number(&after, "/pool/pinned"),
    })
}

impl Cleared {
    fn to_json(&self) -> Value {
        json!({
            "dropped_objects": self.dropped_objects,
            "freed_bytes": self.freed_bytes,
            "kept_objects": self.kept_objects,
            "pinned_bytes": self.pinned_bytes,
        })
    }

    fn to_text(&self) -> String {
        let plural = |count: u64| if count == 1 { "object" } else { "objects" };
        let mut text = format!(
            "dropped {} {}, {} freed",
            self.dropped_objects,
            plural(self.dropped_objects),
            Bytes(self.freed_bytes)
        );
        if self.kept_objects > 0 {
            text += &format!(
                "; {} {}, pinned by readers ({}) or stored meanwhile",
                self.kept_objects,
                if self.kept_objects == 1 {
                    "object stays"
                } else {
                    "objects stay"
                },
                Bytes(self.pinned_bytes)
            );
        }
        text + "\n"
    }
}
