//! Settings of the server: one struct, defaults in code, and how the sources overlay each other.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::control::{ChunkSizeConfig, ConfigError, DEFAULT_CHUNK_TOKENS, Minimum, Policy};
use crate::geometry::{ByteSize, Bytes};
use crate::pool::HugePages;
use crate::shm::numa::Numa;

/// The most bytes that a socket path can have.
pub(crate) const MAX_SOCKET_PATH_BYTES: usize = 107;

/// The longest name of `--export`.
const MAX_EXPORT_NAME_BYTES: usize = 64;

/// The most characters of a file's line that an error shows.
const SHOWN_CHARS: usize = 60;

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// Chunk size and policy do not make sense.
    #[error("{name}: {source}")]
    ChunkSize {
        /// The setting.
        name: String,
        /// What does not make sense.
        source: ConfigError,
    },
    /// The file cannot be read.
    #[error("configuration file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not TOML, or has a key or value that does not exist.
    #[error("configuration file {}, line {line} ({text}): {message}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is there.
        text: String,
        /// What is wrong, and what is allowed.
        message: String,
    },
    /// A path that neither a configuration file nor the status document could hold.
    #[error("{name} is {path:?}, which is not UTF-8; choose a path that is")]
    NotUtf8 {
        /// The setting.
        name: String,
        /// Its value.
        path: PathBuf,
    },
    /// A name that cannot be exported.
    #[error("{name} is {value:?}; it has to be 1 to 64 letters, digits, - or _")]
    Name {
        /// The setting.
        name: String,
        /// Its value.
        value: String,
    },
    /// A number outside its range.
    #[error("{name} is {value}; it has to be between {min} and {max}")]
    Range {
        /// The setting.
        name: String,
        /// Its value.
        value: u64,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// A size outside its range.
    #[error("{name} is {}; it has to be between {} and {}", Bytes(*.value), Bytes(*.min), Bytes(*.max))]
    Size {
        /// The setting.
        name: String,
        /// Its value.
        value: u64,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
}

impl SettingsError {
    /// The same error with the setting named as whoever set it knows it: a flag, a variable or a file's key. `named` is given the flag.
    #[must_use]
    pub fn named(mut self, named: impl FnOnce(&str) -> String) -> Self {
        match &mut self {
            Self::ChunkSize { name, .. }
            | Self::NotUtf8 { name, .. }
            | Self::Name { name, .. }
            | Self::Range { name, .. }
            | Self::Size { name, .. } => *name = named(name),
            Self::Read { .. } | Self::Parse { .. } => {}
        }
        self
    }
}

impl From<ConfigError> for SettingsError {
    fn from(source: ConfigError) -> Self {
        Self::ChunkSize {
            name: "--chunk-size".to_owned(),
            source,
        }
    }
}

/// `--chunk-size`: tokens, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSize(pub Minimum);

impl FromStr for ChunkSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self(Minimum::Auto));
        }
        text.parse()
            .map(|tokens| Self(Minimum::Tokens(tokens)))
            .map_err(|_| format!("{text:?} is neither a number of tokens nor \"auto\""))
    }
}

impl fmt::Display for ChunkSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Minimum::Auto => f.write_str("auto"),
            Minimum::Tokens(tokens) => write!(f, "{tokens}"),
        }
    }
}

impl Serialize for ChunkSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Minimum::Auto => serializer.serialize_str("auto"),
            Minimum::Tokens(tokens) => serializer.serialize_u64(tokens),
        }
    }
}

impl<'de> Deserialize<'de> for ChunkSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a number of tokens or \"auto\"")]
        enum Form {
            Number(u64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(tokens) => Ok(Self(Minimum::Tokens(tokens))),
            Form::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// `--chunk-size-policy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum ChunkSizePolicy {
    /// The chunk grows to suit the first model.
    #[default]
    Negotiate,
    /// The chunk size is the configured one; other models are refused.
    Fixed,
}

impl From<ChunkSizePolicy> for Policy {
    fn from(policy: ChunkSizePolicy) -> Self {
        match policy {
            ChunkSizePolicy::Negotiate => Self::Negotiate,
            ChunkSizePolicy::Fixed => Self::Fixed,
        }
    }
}

/// `--chunk-scope`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum ChunkScope {
    /// One chunk size for everybody.
    #[default]
    Server,
    /// One per binding domain, so that models of different alignments share the server.
    Model,
}

/// `--log-level`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Failures.
    Error,
    /// And what somebody should look at.
    Warn,
    /// And starting, stopping, clients that come and go.
    #[default]
    Info,
    /// And every refused request.
    Debug,
    /// And every request.
    Trace,
}

impl From<LogLevel> for tracing::Level {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
            LogLevel::Trace => Self::TRACE,
        }
    }
}

/// What one source says: the flags and the environment together, or a file. Each field is optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// Path of the socket [default: kvasir.sock in the user's runtime directory]
    #[cfg_attr(feature = "cli", arg(long, value_name = "PATH", env = "KVASIR_SOCKET"))]
    #[serde(default, deserialize_with = "path_not_empty")]
    pub socket: Option<PathBuf>,
    /// Size of the pool, e.g. 512MiB or 64GiB [default: 4GiB]
    #[cfg_attr(feature = "cli", arg(long, value_name = "SIZE", env = "KVASIR_POOL_SIZE"))]
    pub pool_size: Option<ByteSize>,
    /// Pages of the pool: auto takes huge ones where the kernel makes them, try also reserved ones, require no others [default: auto]
    #[cfg_attr(feature = "cli", arg(long, value_name = "USE", env = "KVASIR_HUGE_PAGES"))]
    pub huge_pages: Option<HugePages>,
    /// NUMA nodes that the pool's memory comes from: auto, off, or a list such as 0 or 0,1 [default: auto]
    #[cfg_attr(feature = "cli", arg(long, value_name = "NODES", env = "KVASIR_NUMA"))]
    pub numa: Option<Numa>,
    /// Smallest chunk in tokens, or auto to take the first client's preference [default: 256]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N|auto", env = "KVASIR_CHUNK_SIZE"))]
    pub chunk_size: Option<ChunkSize>,
    /// Whether the chunk grows to suit the first model [default: negotiate]
    #[cfg_attr(
        feature = "cli",
        arg(long, value_name = "POLICY", env = "KVASIR_CHUNK_SIZE_POLICY")
    )]
    pub chunk_size_policy: Option<ChunkSizePolicy>,
    /// Whether all models share one chunk size or each has its own [default: server]
    #[cfg_attr(feature = "cli", arg(long, value_name = "SCOPE", env = "KVASIR_CHUNK_SCOPE"))]
    pub chunk_scope: Option<ChunkScope>,
    /// File through which several servers agree on chunk sizes [default: none]
    #[cfg_attr(feature = "cli", arg(long, value_name = "PATH", env = "KVASIR_FLEET_FILE"))]
    #[serde(default, deserialize_with = "path_not_empty")]
    pub fleet_file: Option<PathBuf>,
    /// Name under which rings are exported to clients that cannot receive descriptors [default: none]
    #[cfg_attr(feature = "cli", arg(long, value_name = "NAME", env = "KVASIR_EXPORT"))]
    pub export: Option<String>,
    /// Engine processes at a time, at most 256 [default: 256]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N", env = "KVASIR_MAX_CLIENTS"))]
    pub max_clients: Option<u32>,
    /// How much is logged to standard error [default: info]
    #[cfg_attr(feature = "cli", arg(long, value_name = "LEVEL", env = "KVASIR_LOG_LEVEL"))]
    pub log_level: Option<LogLevel>,
}

impl Settings {
    /// Reads a TOML file. Its keys are the long flags without the dashes in front.
    ///
    /// # Errors
    /// [`SettingsError::Read`] or [`SettingsError::Parse`], the latter also for a key that does not exist.
    pub fn from_file(path: &Path) -> Result<Self, SettingsError> {
        let text = std::fs::read_to_string(path).map_err(|source| SettingsError::Read {
            path: path.to_owned(),
            source,
        })?;
        toml::from_str(&text).map_err(|error| parse_error(path, &text, &error))
    }

    /// These settings, and those of `under` where these say nothing.
    #[must_use]
    pub fn over(self, under: Self) -> Self {
        Self {
            socket: self.socket.or(under.socket),
            pool_size: self.pool_size.or(under.pool_size),
            huge_pages: self.huge_pages.or(under.huge_pages),
            numa: self.numa.or(under.numa),
            chunk_size: self.chunk_size.or(under.chunk_size),
            chunk_size_policy: self.chunk_size_policy.or(under.chunk_size_policy),
            chunk_scope: self.chunk_scope.or(under.chunk_scope),
            fleet_file: self.fleet_file.or(under.fleet_file),
            export: self.export.or(under.export),
            max_clients: self.max_clients.or(under.max_clients),
            log_level: self.log_level.or(under.log_level),
        }
    }
}

/// An error in one line; the library's own text draws the place over several.
fn parse_error(path: &Path, text: &str, error: &toml::de::Error) -> SettingsError {
    let at = error.span().map_or(text.len(), |span| span.start.min(text.len()));
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count();
    let shown = text.lines().nth(line).unwrap_or("end of file").trim();
    SettingsError::Parse {
        path: path.to_owned(),
        line: line + 1,
        text: shown.chars().take(SHOWN_CHARS).collect(),
        message: error.message().replace('\n', ", "),
    }
}

/// A path of a file, refused where it is empty: so are the flag and the variable.
fn path_not_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    if path.as_os_str().is_empty() {
        let message = "the path is empty; name a file, or leave the key out for the default";
        return Err(serde::de::Error::custom(message));
    }
    Ok(Some(path))
}

/// The effective settings, as `--print-config` writes them and `--config` reads them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Config {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Bytes of the pool; whole frames of it are used.
    pub pool_size: ByteSize,
    /// Which pages it is made of.
    pub huge_pages: HugePages,
    /// Which nodes they come from.
    pub numa: Numa,
    /// Smallest chunk.
    pub chunk_size: ChunkSize,
    /// Whether the chunk grows.
    pub chunk_size_policy: ChunkSizePolicy,
    /// Whether models share one chunk size.
    pub chunk_scope: ChunkScope,
    /// Where several servers agree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fleet_file: Option<PathBuf>,
    /// Under which name rings are exported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export: Option<String>,
    /// Clients at a time that map the pool or hold pins.
    pub max_clients: u32,
    /// What is logged.
    pub log_level: LogLevel,
}

impl Config {
    /// The defaults, with a socket path that depends on the user.
    pub fn with_defaults(socket: PathBuf) -> Self {
        Self {
            socket,
            pool_size: ByteSize(4 << 30),
            huge_pages: HugePages::Auto,
            numa: Numa::Auto,
            chunk_size: ChunkSize(Minimum::Tokens(u64::from(DEFAULT_CHUNK_TOKENS))),
            chunk_size_policy: ChunkSizePolicy::Negotiate,
            chunk_scope: ChunkScope::Server,
            fleet_file: None,
            export: None,
            max_clients: crate::cache::SLABS as u32,
            log_level: LogLevel::Info,
        }
    }

    /// Settings over the defaults, checked.
    ///
    /// # Errors
    /// [`SettingsError`] for a number outside its range or a pair that contradicts itself.
    pub fn resolve(
        settings: Settings,
        default_socket: impl FnOnce() -> PathBuf,
    ) -> Result<Self, SettingsError> {
        let Settings {
            socket,
            pool_size,
            huge_pages,
            numa,
            chunk_size,
            chunk_size_policy,
            chunk_scope,
            fleet_file,
            export,
            max_clients,
            log_level,
        } = settings;
        let default = Self::with_defaults(socket.unwrap_or_else(default_socket));
        let config = Self {
            pool_size: pool_size.unwrap_or(default.pool_size),
            huge_pages: huge_pages.unwrap_or(default.huge_pages),
            numa: numa.unwrap_or(default.numa),
            chunk_size: chunk_size.unwrap_or(default.chunk_size),
            chunk_size_policy: chunk_size_policy.unwrap_or(default.chunk_size_policy),
            chunk_scope: chunk_scope.unwrap_or(default.chunk_scope),
            fleet_file,
            export,
            max_clients: max_clients.unwrap_or(default.max_clients),
            log_level: log_level.unwrap_or(default.log_level),
            socket: default.socket,
        };
        config.chunk_size_config()?;
        in_range(
            "--max-clients",
            u64::from(config.max_clients),
            1,
            crate::cache::SLABS as u64,
        )?;
        let (value, min) = (config.pool_size.0, crate::object::FRAME_BYTES);
        let max = u64::from(u32::MAX) * crate::object::FRAME_BYTES;
        if !(min..=max).contains(&value) {
            return Err(SettingsError::Size {
                name: "--pool-size".to_owned(),
                value,
                min,
                max,
            });
        }
        config.check_paths()?;
        if let Some(value) = config.export.clone().filter(|name| !is_name(name)) {
            let name = "--export".to_owned();
            return Err(SettingsError::Name { name, value });
        }
        Ok(config)
    }

    /// Chunk size and policy as the binding takes them.
    ///
    /// # Errors
    /// [`ConfigError`] when the two do not make sense together.
    pub fn chunk_size_config(&self) -> Result<ChunkSizeConfig, ConfigError> {
        ChunkSizeConfig::new(self.chunk_size.0, self.chunk_size_policy.into())
    }

    /// The settings as a TOML file.
    ///
    /// # Errors
    /// [`SettingsError::NotUtf8`]; never for settings that [`resolve`](Self::resolve) has made.
    pub fn to_toml(&self) -> Result<String, SettingsError> {
        self.check_paths()?;
        Ok(toml::to_string(self).expect("only a path can be no TOML, and these are"))
    }

    fn check_paths(&self) -> Result<(), SettingsError> {
        let paths = [
            ("--socket", Some(&self.socket)),
            ("--fleet-file", self.fleet_file.as_ref()),
        ];
        let bad = paths
            .into_iter()
            .find_map(|(name, path)| path.filter(|p| p.to_str().is_none()).map(|path| (name, path)));
        bad.map_or(Ok(()), |(name, path)| {
            Err(SettingsError::NotUtf8 {
                name: name.to_owned(),
                path: path.clone(),
            })
        })
    }
}

/// Whether rings can be exported under a name.
pub(super) fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=MAX_EXPORT_NAME_BYTES).contains(&name.len()) && name.chars().all(fits)
}

fn in_range(name: &str, value: u64, min: u64, max: u64) -> Result<(), SettingsError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(SettingsError::Range {
        name: name.to_owned(),
        value,
        min,
        max,
    })
}

#[cfg(test)]
#[path = "tests/config.rs"]
mod tests;
