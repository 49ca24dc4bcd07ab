//! `kvasir status`: one question to a running server.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
use serde_json::Value;

use super::conditions::in_words;
use super::failure::Failure;
use super::output::print;
use super::socket::default_path;
use crate::geometry::Bytes;
use crate::index::slab::PIN_WORDS;
use crate::object::ClientKind;
use crate::server::config::MAX_SOCKET_PATH_BYTES;
use crate::shm::socket_path;
use crate::wire::{
    Encoder, FirstBytes, FrameReader, Hello, PROTOCOL_VERSION, Reply, Request, WireError, decode_reply,
};

/// How long a server may take for one answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Arguments of `kvasir status`.
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Path of the server's socket [default: as for serve]
    #[arg(long, value_name = "PATH", env = "KVASIR_SOCKET")]
    socket: Option<PathBuf>,
    /// Print the whole document as JSON
    #[arg(long)]
    json: bool,
}

/// Why there is no status.
#[derive(Debug, thiserror::Error)]
pub(super) enum StatusError {
    /// What is there instead of a server.
    #[error("no server on {}: {why}", path.display())]
    Connect {
        path: PathBuf,
        why: String,
        source: io::Error,
    },
    #[error("{0}")]
    NotKvasir(String),
    #[error(
        "socket path {} has {} bytes, the system allows {MAX_SOCKET_PATH_BYTES}; no server can be there",
        .0.display(),
        .0.as_os_str().len()
    )]
    TooLong(PathBuf),
    #[error("{} is a directory; name the socket in it", .0.display())]
    IsDirectory(PathBuf),
    #[error("no answer within {} s; the server is stopped, overloaded, being debugged or out of file descriptors", PATIENCE.as_secs())]
    NoAnswer,
    #[error("the server did not answer: {0}")]
    Io(io::Error),
    #[error("the server refused: {0}")]
    Refused(WireError),
    #[error("the server's answer makes no sense: {0}")]
    Nonsense(String),
}

impl StatusError {
    /// The same error of the first exchange: what is no answer there comes from no Kvasir server.
    fn of_first(self, path: &Path, first: &FirstBytes) -> Self {
        match self {
            Self::Nonsense(_) => Self::NotKvasir(first.not_kvasir(path)),
            Self::Io(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
                ) =>
            {
                Self::NotKvasir(if first.is_empty() {
                    format!(
                        "what listens on {} closed the connection without an answer",
                        path.display()
                    )
                } else {
                    first.not_kvasir(path)
                })
            }
            other => other,
        }
    }
}

impl From<io::Error> for StatusError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // What an expired timeout of a socket looks like.
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::NoAnswer,
            _ => Self::Io(error),
        }
    }
}

pub(super) fn run(args: &StatusArgs) -> ExitCode {
    let path = args.socket.clone().unwrap_or_else(default_path);
    match ask(&path) {
        Ok(json) if args.json => print(&format!("{json}\n")),
        Ok(json) => print(&table(&json)),
        Err(error) => error.failure().report("status", args.json),
    }
}

impl StatusError {
    /// For whoever asked a server for something.
    pub(super) fn failure(&self) -> Failure {
        let kind = match self {
            Self::Connect { .. } | Self::TooLong(_) | Self::IsDirectory(_) => "no_server",
            Self::NoAnswer => "no_answer",
            Self::Refused(_) => "refused",
            _ => "no_status",
        };
        let failure = Failure::new(kind, self, 1);
        match self {
            Self::Refused(error) => failure
                .with("code", format!("{:?}", error.code))
                .with("numbers", error.numbers.clone()),
            _ => failure,
        }
    }
}

/// Asks the server at `path` for its status document.
pub(super) fn ask(path: &Path) -> Result<Value, StatusError> {
    Asking::connect(path, "status")?.status()
}

/// A connection over which a command asks a server.
pub(super) struct Asking {
    stream: UnixStream,
    reader: FrameReader,
    /// What came first, to tell who is there.
    first: FirstBytes,
    /// Of the last request.
    id: u64,
}

impl Asking {
    /// Connects to the server at `path` and greets it as the command of this name.
    pub(super) fn connect(path: &Path, command: &str) -> Result<Self, StatusError> {
        let stream = connect_to(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut asking = Self {
            stream,
            reader: FrameReader::new(),
            first: FirstBytes::default(),
            id: 0,
        };
        let hello = Request::Hello(Hello {
            protocol_version: PROTOCOL_VERSION,
            features: 0,
            kind: ClientKind::Tool,
            name: format!("kvasir {command} {}", env!("CARGO_PKG_VERSION")),
            engine_instance: [0; 16],
            wants_pool: false,
            ring_bytes: 0,
            named: false,
        });
        let greeted = asking.call(&hello);
        match greeted.map_err(|error| error.of_first(path, &asking.first))? {
            Reply::Hello(_) => Ok(asking),
            other => Err(unexpected(&other)),
        }
    }

    /// One request and its reply.
    pub(super) fn call(&mut self, request: &Request) -> Result<Reply, StatusError> {
        self.id += 1;
        call(
            &mut self.stream,
            &mut self.reader,
            self.id,
            request,
            &mut self.first,
        )
    }

    /// From here on a reply may take so much longer.
    pub(super) fn wait_longer(&mut self, more: Duration) -> Result<(), StatusError> {
        Ok(self.stream.set_read_timeout(Some(PATIENCE + more))?)
    }

    /// The status document.
    pub(super) fn status(&mut self) -> Result<Value, StatusError> {
        match self.call(&Request::Status)? {
            Reply::Status { json } => {
                serde_json::from_str(&json).map_err(|error| StatusError::Nonsense(error.to_string()))
            }
            other => Err(unexpected(&other)),
        }
    }
}

/// Connects, and waits no longer than [`PATIENCE`] for room in the queue of a server that does not accept.
fn connect_to(path: &Path) -> Result<UnixStream, StatusError> {
    if path.as_os_str().len() > MAX_SOCKET_PATH_BYTES {
        return Err(StatusError::TooLong(path.to_owned()));
    }
    if path.is_dir() {
        return Err(StatusError::IsDirectory(path.to_owned()));
    }
    let no_server = |error: Errno| match error {
        Errno::EAGAIN => StatusError::NoAnswer,
        error => StatusError::Connect {
            path: path.to_owned(),
            why: socket_path::why_not(path, error),
            source: error.into(),
        },
    };
    let address = UnixAddr::new(path).map_err(no_server)?;
    let socket = socket::socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .map_err(io::Error::from)?;
    let stream = UnixStream::from(socket);
    // Set before the call: it bounds a connect as well as a write.
    stream.set_write_timeout(Some(PATIENCE))?;
    socket::connect(stream.as_raw_fd(), &address).map_err(no_server)?;
    Ok(stream)
}

pub(super) fn unexpected(reply: &Reply) -> StatusError {
    StatusError::Nonsense(format!("unexpected reply {reply:?}"))
}

/// Sends one request and waits for its reply. A descriptor that comes along is dropped by the plain read.
fn call(
    stream: &mut UnixStream,
    reader: &mut FrameReader,
    id: u64,
    request: &Request,
    first: &mut FirstBytes,
) -> Result<Reply, StatusError> {
    let mut encoder = Encoder::new();
    let frame = encoder
        .request(id, request)
        .map_err(|error| StatusError::Nonsense(error.to_string()))?;
    // A server that refuses the connection may have closed it already; its reason is there to be read.
    let sent = stream.write_all(frame);
    let nonsense = |error: &dyn std::fmt::Display| StatusError::Nonsense(error.to_string());
    loop {
        if let Some(frame) = reader.next_frame().map_err(|error| nonsense(&error))? {
            let (answered, reply) = decode_reply(frame).map_err(|error| nonsense(&error))?;
            return match reply {
                Reply::Error(error) => Err(StatusError::Refused(error)),
                reply if answered == id => Ok(reply),
                other => Err(unexpected(&other)),
            };
        }
        let space = reader.space().map_err(|error| nonsense(&error))?;
        let bytes = match stream.read(space) {
            Ok(bytes) => bytes,
            Err(error) => return Err(sent.err().unwrap_or(error).into()),
        };
        if bytes == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        first.add(&space[..bytes]);
        reader.received(bytes);
    }
}

/// The document for people. Fields that a newer or older server does not send show as `-`.
fn table(status: &Value) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:<14}{value}");
    };
    let (pool, counters, binding) = (&status["pool"], &status["counters"], &status["binding"]);
    line(
        "server",
        format!(
            "{} (version {}, process {}, up {} s)",
            show(&status["health"]),
            show(&status["version"]),
            show(&status["pid"]),
            show(&status["uptime_s"])
        ),
    );
    line("socket", show(&status["socket"]));
    line(
        "chunk size",
        format!(
            "{} (minimum {}, policy {}, scope {})",
            if binding["scope"] == "model" {
                "one per binding domain".to_owned()
            } else {
                format!(
                    "{} tokens, {}",
                    show(&binding["chunk_size"]),
                    show(&binding["state"])
                )
            },
            show(&binding["minimum"]),
            show(&binding["policy"]),
            show(&binding["scope"])
        ),
    );
    let domains = binding["domains"].as_array().map_or(&[][..], Vec::as_slice);
    for domain in domains {
        let id: String = show(&domain["id"]).chars().take(16).collect();
        line(
            "",
            format!(
                "{} tokens, {} for domain {id}",
                show(&domain["chunk_size"]),
                show(&domain["state"])
            ),
        );
    }
    line(
        "pool",
        format!(
            "{}: {} used, {} granted, {} quarantined, {} free ({} prefaulted, {} pinned)",
            size(&pool["total"]),
            size(&pool["used"]),
            size(&pool["granted"]),
            size(&pool["quarantined"]),
            size(&pool["free"]),
            size(&pool["prefaulted"]),
            size(&pool["pinned"])
        ),
    );
    line("", memory(&pool["memory"]));
    line(
        "objects",
        format!(
            "{} in {} domains, {} incomplete; {} stored, {} evicted, {} stores dropped",
            show(&status["objects"]),
            show(&status["domains"]),
            show(&status["incomplete"]),
            show(&counters["stored"]),
            show(&counters["evicted"]),
            show(&counters["dropped_stores"])
        ),
    );
    line("tokens", tokens(&status["tokens"]));
    let models = status["models"].as_array().map_or(&[][..], Vec::as_slice);
    for row in models {
        let domain: String = show(&row["domain"]).chars().take(16).collect();
        line(
            "",
            format!(
                "{} (domain {domain}): {}",
                show(&row["model"]),
                tokens(&row["tokens"])
            ),
        );
    }
    let clients = status["clients"].as_array().map_or(&[][..], Vec::as_slice);
    line("clients", clients.len().to_string());
    for client in clients {
        let _ = writeln!(
            text,
            "  {:<8}{:<12}{:<12}granted {:<10}pins {:<6}{}{}",
            show(&client["pid"]),
            show(&client["kind"]),
            show(&client["payload_path"]),
            size(&client["granted"]),
            client["pins"].as_u64().unwrap_or(0) + client["pin_words"].as_u64().unwrap_or(0),
            show(&client["name"]),
            if client["connected"] == Value::Bool(false) {
                " (not connected)"
            } else {
                ""
            }
        );
        if client["registered"].is_object() {
            let _ = writeln!(text, "          {}", registration(&client["registered"]));
        }
        if client["ring"].is_object() {
            let ring = &client["ring"];
            let _ = writeln!(
                text,
                "          ring of two lanes of {}: {} stored, {} loaded in {} moves",
                size(&ring["lane_bytes"]),
                size(&ring["stored_bytes"]),
                size(&ring["loaded_bytes"]),
                show(&ring["moves"])
            );
        }
        if client["refused"].is_string() {
            let _ = writeln!(text, "          caches nothing: {}", show(&client["refused"]));
        }
        for condition in client["conditions"].as_array().map_or(&[][..], Vec::as_slice) {
            let (_, cause, _) = in_words(&show(condition));
            let _ = writeln!(text, "          {cause}");
        }
        if client["pin_words"].as_u64() >= Some(PIN_WORDS as u64) {
            let _ = writeln!(
                text,
                "          all {PIN_WORDS} pin words in use: it does not release its pins, and its oldest go first"
            );
        }
    }
    text
}

/// What the pool is made of.
fn memory(memory: &Value) -> String {
    let pages = match (&memory["pages"], memory["huge_bytes"].as_u64()) {
        (Value::String(pages), Some(huge)) if pages != "small" => {
            format!(
                "{pages} huge pages ({} of {} huge)",
                Bytes(huge),
                size(&memory["seen_at"])
            )
        }
        (Value::String(pages), None) if pages != "small" => format!("{pages} huge pages"),
        (pages, _) => format!("{} pages", show(pages)),
    };
    let why = |field: &str, what: &str| match &memory[field] {
        Value::String(reason) => format!("; {what}: {reason}"),
        _ => String::new(),
    };
    let (not_huge, not_reserved) = (why("not_huge", "not huge"), why("not_reserved", "not reserved"));
    format!(
        "{pages}{not_huge}{not_reserved}; NUMA: {}",
        show(&memory["placement"])
    )
}

/// What requests reused. The percentage is that of the engines' own metrics: of what they did not hold themselves.
fn tokens(tokens: &Value) -> String {
    let percent = tokens["hit_percent"].as_f64();
    let percent = percent.map_or_else(String::new, |percent| format!(" ({percent:.1} %)"));
    format!(
        "{} asked, {} hit{percent}, {} loaded, {} failed; {} held by the engines",
        show(&tokens["asked"]),
        show(&tokens["hit"]),
        show(&tokens["loaded"]),
        show(&tokens["failed"]),
        show(&tokens["held"])
    )
}

/// What a rank moves, and by which copy.
fn registration(registered: &Value) -> String {
    let groups = registered["groups"].as_array().map_or(&[][..], Vec::as_slice);
    let group = |group: &Value| {
        let part = match group["parts"].as_u64() {
            None | Some(1) => String::new(),
            Some(parts) => format!(" (part {} of {parts})", show(&group["part"])),
        };
        let (number, kind) = (show(&group["group"]), show(&group["kind"]));
        format!("group {number} {kind} {}{part}", size(&group["chunk_bytes"]))
    };
    let groups: Vec<String> = groups.iter().map(group).collect();
    format!(
        "{} rank {} of {}{}, copies by {}; a chunk of {} tokens: {}",
        show(&registered["model"]),
        show(&registered["rank"]),
        show(&registered["world_size"]),
        if registered["stores"] == Value::Bool(false) {
            ", reads only"
        } else {
            ""
        },
        show(&registered["copy_path"]),
        show(&registered["chunk_size"]),
        groups.join(", ")
    )
}

pub(super) fn show(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => text.chars().filter(|c| !c.is_control()).collect(),
        other => other.to_string(),
    }
}

pub(super) fn size(value: &Value) -> String {
    value
        .as_u64()
        .map_or_else(|| "-".into(), |bytes| Bytes(bytes).to_string())
}
