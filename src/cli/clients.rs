//! `kvasir clients`: who holds what, and an operator's way out of what somebody holds.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::output::print;
use super::socket::default_path;
use super::status::{Asking, StatusError, show, size, unexpected};
use crate::geometry::Bytes;
use crate::wire::{Kick, KickOutcome, Kicked, Reply, Request};

/// What the server takes beside the grace: a killed process has to end first.
const MORE_PATIENCE: Duration = Duration::from_secs(10);
/// Exit code where a client still holds what it held.
const NOT_ENDED: u8 = 1;

/// Arguments of `kvasir clients`.
#[derive(Debug, Args)]
pub(super) struct ClientsArgs {
    /// Path of the server's socket [default: as for serve]
    #[arg(long, value_name = "PATH", env = "KVASIR_SOCKET")]
    socket: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
    /// End the clients of a process, or one client by its number (c7): close the connection, and kill the process if it
    /// does not let go of what it holds
    #[arg(long, value_name = "PID|cNUMBER", value_parser = target)]
    kick: Option<Target>,
    /// Milliseconds that a kicked client may take to let go by itself, at most 60000
    #[arg(long, value_name = "MS", default_value_t = 2000, requires = "kick")]
    grace: u32,
    /// Kill no process: what a kicked client does not let go of stays its own
    #[arg(long, requires = "kick")]
    spare: bool,
}

/// Who is kicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Process(u32),
    Client(u64),
}

fn target(text: &str) -> Result<Target, String> {
    let parsed = match text.strip_prefix('c') {
        Some(number) => number.parse().ok().filter(|n| *n > 0).map(Target::Client),
        None => text.parse().ok().filter(|pid| *pid > 0).map(Target::Process),
    };
    parsed.ok_or_else(|| "name a process, such as 4711, or a client of the list, such as c7".to_owned())
}

pub(super) fn run(args: &ClientsArgs) -> ExitCode {
    let path = args.socket.clone().unwrap_or_else(default_path);
    let done = match args.kick {
        None => list(&path, args.json).map(|text| (text, true)),
        Some(target) => kick(&path, target, args),
    };
    match done {
        Ok((text, true)) => print(&text),
        Ok((text, false)) => {
            let _ = print(&text);
            ExitCode::from(NOT_ENDED)
        }
        Err(error) => error.failure().report("clients", args.json),
    }
}

fn list(path: &Path, json: bool) -> Result<String, StatusError> {
    let status = Asking::connect(path, "clients")?.status()?;
    let mut rows: Vec<Row> = rows(&status).map(Row::of).collect();
    if json {
        let rows: Vec<Value> = rows.iter().map(Row::to_json).collect();
        return Ok(format!("{}\n", json!({ "clients": rows })));
    }
    // Whoever keeps most from the others is looked for.
    rows.sort_by_key(|row| std::cmp::Reverse(row.holds));
    Ok(table(&rows))
}

fn rows(status: &Value) -> impl Iterator<Item = &Value> {
    status["clients"].as_array().map_or(&[][..], Vec::as_slice).iter()
}

/// What a client holds, by the status of its server.
struct Row {
    client: Value,
    /// Bytes of the pool that others cannot have because of it.
    holds: u64,
    ring_bytes: u64,
}

impl Row {
    fn of(client: &Value) -> Self {
        let number = |name: &str| client[name].as_u64().unwrap_or(0);
        Self {
            holds: number("granted").saturating_add(number("kept")),
            ring_bytes: client["ring"]["lane_bytes"]
                .as_u64()
                .unwrap_or(0)
                .saturating_mul(2),
            client: client.clone(),
        }
    }

    fn to_json(&self) -> Value {
        let client = &self.client;
        let registered = &client["registered"];
        json!({
            "number": client["number"],
            "pid": client["pid"],
            "process": client["process"],
            "kind": client["kind"],
            "name": client["name"],
            "model": registered["model"],
            "rank": registered["rank"],
            "world_size": registered["world_size"],
            "connected": client["connected"],
            "lock_held": client["lock_held"],
            "age_s": client["age_s"],
            "idle_s": client["idle_s"],
            "granted": client["granted"],
            "incomplete": client["incomplete"],
            "pins": client["pins"],
            "pin_words": client["pin_words"],
            "oldest_pin_s": client["oldest_pin_s"],
            "kept": client["kept"],
            "ring_bytes": self.ring_bytes,
            "holds": self.holds,
        })
    }

    /// Why nothing comes back of itself, where it does not.
    fn state(&self) -> String {
        let client = &self.client;
        let process = show(&client["process"]);
        match (&client["connected"], client["lock_held"].as_bool()) {
            (Value::Bool(false), Some(true)) => format!("{process}, no connection, holds its lock"),
            (Value::Bool(false), _) => format!("{process}, leaving"),
            _ => process,
        }
    }
}

fn table(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "no clients\n".to_owned();
    }
    let mut text = format!(
        "{:<8}{:<10}{:<11}{:<9}{:<9}{:<12}{:<12}{:<16}{:<12}{}\n",
        "client", "process", "kind", "age", "idle", "granted", "incomplete", "pins (oldest)", "kept", "state"
    );
    for row in rows {
        let client = &row.client;
        let pins = client["pins"].as_u64().unwrap_or(0) + client["pin_words"].as_u64().unwrap_or(0);
        let pins = match client["oldest_pin_s"].as_u64() {
            Some(age) => format!("{pins} ({})", seconds(age)),
            None => pins.to_string(),
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{:<8}{:<10}{:<11}{:<9}{:<9}{:<12}{:<12}{:<16}{:<12}{}",
            format!("c{}", show(&client["number"])),
            show(&client["pid"]),
            show(&client["kind"]),
            age(&client["age_s"]),
            age(&client["idle_s"]),
            size(&client["granted"]),
            size(&client["incomplete"]),
            pins,
            size(&client["kept"]),
            row.state(),
        );
        let registered = &client["registered"];
        let mut about = vec![show(&client["name"])];
        if registered.is_object() {
            let (model, rank) = (show(&registered["model"]), show(&registered["rank"]));
            about.push(format!(
                "{model} rank {rank} of {}",
                show(&registered["world_size"])
            ));
        }
        if row.ring_bytes > 0 {
            about.push(format!("a ring of {}", Bytes(row.ring_bytes)));
        }
        if row.holds > 0 {
            about.push(format!("keeps {} from others", Bytes(row.holds)));
        }
        let _ = writeln!(text, "        {}", about.join("; "));
    }
    text
}

fn age(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".to_owned(), seconds)
}

fn seconds(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86400),
    }
}

/// Ends clients. Whether nothing is held for any of them any more.
fn kick(path: &Path, target: Target, args: &ClientsArgs) -> Result<(String, bool), StatusError> {
    let mut server = Asking::connect(path, "clients --kick")?;
    let before = server.status()?;
    server.wait_longer(Duration::from_millis(args.grace.into()) + MORE_PATIENCE)?;
    let (client, pid) = match target {
        Target::Process(pid) => (0, pid),
        Target::Client(number) => (number, 0),
    };
    let kick = Kick {
        client,
        pid,
        grace_ms: args.grace,
        spare: args.spare,
    };
    let clients = match server.call(&Request::Kick(kick))? {
        Reply::Kick { clients } => clients,
        other => return Err(unexpected(&other)),
    };
    let was = |kicked: &Kicked| {
        let row = rows(&before).find(|row| row["number"].as_u64() == Some(kicked.client));
        Row::of(row.unwrap_or(&Value::Null))
    };
    let gone = |kicked: &Kicked| matches!(kicked.outcome, KickOutcome::LetGo | KickOutcome::Killed);
    let all_gone = clients.iter().all(gone);
    if args.json {
        let row = |kicked: &Kicked| {
            json!({
                "number": kicked.client,
                "pid": kicked.pid,
                "outcome": word(kicked.outcome),
                "held": was(kicked).holds,
            })
        };
        let rows: Vec<Value> = clients.iter().map(row).collect();
        return Ok((format!("{}\n", json!({ "kicked": rows })), all_gone));
    }
    let mut text = String::new();
    for kicked in &clients {
        let row = was(kicked);
        let _ = writeln!(
            text,
            "client c{} of process {} ({}): {}",
            kicked.client,
            kicked.pid,
            show(&row.client["name"]),
            in_words(kicked.outcome, row.holds)
        );
    }
    Ok((text, all_gone))
}

/// A stable word.
fn word(outcome: KickOutcome) -> &'static str {
    match outcome {
        KickOutcome::LetGo => "let_go",
        KickOutcome::Killed => "killed",
        KickOutcome::Kept => "kept",
        KickOutcome::HeldByOther => "held_by_other",
    }
}

fn in_words(outcome: KickOutcome, held: u64) -> String {
    let held = Bytes(held);
    match outcome {
        KickOutcome::LetGo => format!("let go of {held}"),
        KickOutcome::Killed => format!("did not let go, so its process was killed; {held} came back"),
        KickOutcome::Kept => format!(
            "keeps {held}: its process lives and may still write there; without --spare it is killed, or the server's log \
             says why it cannot be"
        ),
        KickOutcome::HeldByOther => format!(
            "keeps {held}: its process has ended, but a child of it has its lock and may still write there; end that child"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_process_or_a_client() {
        assert_eq!(target("4711"), Ok(Target::Process(4711)));
        assert_eq!(target("c7"), Ok(Target::Client(7)));
        for wrong in ["", "0", "c", "c0", "-1", "7c", "c-1", "4294967296", "kvasir"] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_age_is_one_number_with_a_unit() {
        let shown = [0, 59, 60, 3599, 3600, 86_399, 86_400].map(seconds);
        assert_eq!(shown, ["0 s", "59 s", "1 min", "59 min", "1 h", "23 h", "1 d"]);
    }

    /// An older server sends none of the newer fields, and what it does not send is not made up.
    #[test]
    fn a_row_of_an_older_server_shows_what_there_is() {
        let row = Row::of(
            &json!({ "pid": 5, "kind": "worker", "name": "e", "granted": 65536, "kept": 0, "connected": true }),
        );
        assert_eq!((row.holds, row.ring_bytes), (65536, 0));
        let text = table(&[row]);
        assert!(
            text.contains("c-") && text.contains("keeps 64.0 KiB from others"),
            "{text}"
        );
    }
}
