//! Settings of the server: one struct, defaults in code, and how the sources overlay each other.
//!
//! May import `control`, `pool`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::control::{ChunkSizeConfig, ConfigError, DEFAULT_CHUNK_TOKENS, Minimum, Policy};

/// The most bytes that a socket path can have.
pub const MAX_SOCKET_PATH_BYTES: usize = 107;

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// Chunk size and policy do not make sense.
    #[error("--chunk-size: {0}")]
    ChunkSize(#[from] ConfigError),
    /// The file cannot be read.
    #[error("configuration file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not TOML, or has a key or value that does not exist.
    #[error("configuration file {}: {message}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and what.
        message: String,
    },
    /// A number outside its range.
    #[error("{name} is {value}; it has to be between {min} and {max}")]
    Range {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: u64,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
}

/// A size in bytes, written as a number or with `KiB`, `MiB`, `GiB` or `TiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, shift) = UNITS
            .iter()
            .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?.trim_end(), *shift)))
            .unwrap_or((text, 0));
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!(
                "{text:?} is not a size: write a number of bytes, or a number with KiB, MiB, GiB or TiB"
            ));
        }
        digits
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(1 << shift))
            .map(Self)
            .ok_or_else(|| format!("{text:?} is more than 2^64 bytes"))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS
            .iter()
            .find(|(_, shift)| self.0 != 0 && self.0.is_multiple_of(1 << shift));
        match whole {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a number of bytes or a text like \"4GiB\"")]
        enum Form {
            Number(u64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(bytes) => Ok(Self(bytes)),
            Form::Text(text) => text.parse().map_err(serde::de::Error::custom),
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ChunkScope {
    /// One chunk size for everybody.
    #[default]
    Server,
    /// One per binding domain, so that models of different alignments share the server.
    Model,
}

/// `--log-level`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// Path of the socket [default: kvasir.sock in the user's runtime directory]
    #[arg(long, value_name = "PATH", env = "KVASIR_SOCKET")]
    pub socket: Option<PathBuf>,
    /// Bytes of the pool, e.g. 512MiB or 64GiB [default: 4GiB]
    #[arg(long, value_name = "SIZE", env = "KVASIR_POOL_SIZE")]
    pub pool_size: Option<ByteSize>,
    /// Smallest chunk in tokens, or auto to take the first client's preference [default: 256]
    #[arg(long, value_name = "N|auto", env = "KVASIR_CHUNK_SIZE")]
    pub chunk_size: Option<ChunkSize>,
    /// Whether the chunk grows to suit the first model [default: negotiate]
    #[arg(long, value_name = "POLICY", env = "KVASIR_CHUNK_SIZE_POLICY")]
    pub chunk_size_policy: Option<ChunkSizePolicy>,
    /// Whether all models share one chunk size or each has its own [default: server]
    #[arg(long, value_name = "SCOPE", env = "KVASIR_CHUNK_SCOPE")]
    pub chunk_scope: Option<ChunkScope>,
    /// File through which several servers agree on chunk sizes [default: none]
    #[arg(long, value_name = "PATH", env = "KVASIR_FLEET_FILE")]
    pub fleet_file: Option<PathBuf>,
    /// Engine processes at a time, at most 256 [default: 256]
    #[arg(long, value_name = "N", env = "KVASIR_MAX_CLIENTS")]
    pub max_clients: Option<u32>,
    /// How much is logged to standard error [default: info]
    #[arg(long, value_name = "LEVEL", env = "KVASIR_LOG_LEVEL")]
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
        toml::from_str(&text).map_err(|error| SettingsError::Parse {
            path: path.to_owned(),
            message: error.to_string(),
        })
    }

    /// These settings, and those of `under` where these say nothing.
    #[must_use]
    pub fn over(self, under: Self) -> Self {
        Self {
            socket: self.socket.or(under.socket),
            pool_size: self.pool_size.or(under.pool_size),
            chunk_size: self.chunk_size.or(under.chunk_size),
            chunk_size_policy: self.chunk_size_policy.or(under.chunk_size_policy),
            chunk_scope: self.chunk_scope.or(under.chunk_scope),
            fleet_file: self.fleet_file.or(under.fleet_file),
            max_clients: self.max_clients.or(under.max_clients),
            log_level: self.log_level.or(under.log_level),
        }
    }
}

/// The effective settings, as `--print-config` writes them and `--config` reads them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Config {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Bytes of the pool; whole frames of it are used.
    pub pool_size: ByteSize,
    /// Smallest chunk.
    pub chunk_size: ChunkSize,
    /// Whether the chunk grows.
    pub chunk_size_policy: ChunkSizePolicy,
    /// Whether models share one chunk size.
    pub chunk_scope: ChunkScope,
    /// Where several servers agree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fleet_file: Option<PathBuf>,
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
            chunk_size: ChunkSize(Minimum::Tokens(u64::from(DEFAULT_CHUNK_TOKENS))),
            chunk_size_policy: ChunkSizePolicy::Negotiate,
            chunk_scope: ChunkScope::Server,
            fleet_file: None,
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
            chunk_size,
            chunk_size_policy,
            chunk_scope,
            fleet_file,
            max_clients,
            log_level,
        } = settings;
        let default = Self::with_defaults(socket.unwrap_or_else(default_socket));
        let config = Self {
            pool_size: pool_size.unwrap_or(default.pool_size),
            chunk_size: chunk_size.unwrap_or(default.chunk_size),
            chunk_size_policy: chunk_size_policy.unwrap_or(default.chunk_size_policy),
            chunk_scope: chunk_scope.unwrap_or(default.chunk_scope),
            fleet_file,
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
        in_range(
            "--pool-size",
            config.pool_size.0,
            crate::pool::FRAME_BYTES,
            u64::from(u32::MAX) * crate::pool::FRAME_BYTES,
        )?;
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
    pub fn to_toml(&self) -> String {
        // A path that is not UTF-8 is the one value TOML cannot hold.
        toml::to_string(self).unwrap_or_else(|error| format!("# not expressible as TOML: {error}\n"))
    }
}

fn in_range(name: &'static str, value: u64, min: u64, max: u64) -> Result<(), SettingsError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(SettingsError::Range {
        name,
        value,
        min,
        max,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<Settings, SettingsError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Settings::from_file(file.path())
    }

    fn resolve(settings: Settings) -> Result<Config, SettingsError> {
        Config::resolve(settings, || "/run/default.sock".into())
    }

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes, shown) in [
            ("4GiB", 4 << 30, "4GiB"),
            ("1536MiB", 1536 << 20, "1536MiB"),
            ("65536", 65536, "64KiB"),
            ("1 TiB", 1 << 40, "1TiB"),
            ("0", 0, "0"),
            ("1023", 1023, "1023"),
        ] {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, shown), "{text}");
        }
        for text in [
            "",
            "GiB",
            "4GB",
            "4gib",
            "-1",
            "1.5GiB",
            "20000000TiB",
            "99999999999999999999",
        ] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_file_can_hold_every_setting_and_the_effective_one_reads_back() {
        let text = "socket = \"/run/k.sock\"\npool-size = \"1GiB\"\nchunk-size = \"auto\"\n\
                    chunk-size-policy = \"negotiate\"\nchunk-scope = \"model\"\nfleet-file = \"/run/fleet\"\nmax-clients = 8\nlog-level = \"debug\"\n";
        let settings = file(text).unwrap();
        let config = resolve(settings.clone()).unwrap();
        assert_eq!(config.to_toml(), text);
        assert_eq!(file(&config.to_toml()).unwrap(), settings);
        assert_eq!(
            file("pool-size = 65536").unwrap().pool_size,
            Some(ByteSize(65536))
        );
    }

    #[test]
    fn unknown_keys_and_values_are_refused_by_name() {
        for (text, named) in [
            ("pool_size = 1", "pool_size"),
            ("poolsize = 1", "poolsize"),
            ("[server]\nsocket = 'x'", "server"),
            ("chunk-size-policy = 'grow'", "grow"),
            ("chunk-scope = 'engine'", "engine"),
            ("pool-size = '4GB'", "4GB"),
            ("chunk-size = -1", "chunk-size"),
        ] {
            let error = file(text).unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_above_wins() {
        let flags = Settings {
            pool_size: Some(ByteSize(1 << 20)),
            ..Settings::default()
        };
        let file = Settings {
            pool_size: Some(ByteSize(1 << 30)),
            max_clients: Some(3),
            ..Settings::default()
        };
        let config = resolve(flags.over(file)).unwrap();
        assert_eq!((config.pool_size.0, config.max_clients), (1 << 20, 3));
        assert_eq!(config.socket, PathBuf::from("/run/default.sock"));
    }

    #[test]
    fn numbers_that_cannot_work_are_refused() {
        let chunk = |minimum, policy| {
            resolve(Settings {
                chunk_size: Some(ChunkSize(minimum)),
                chunk_size_policy: Some(policy),
                ..Settings::default()
            })
        };
        let zero = chunk(Minimum::Tokens(0), ChunkSizePolicy::Negotiate);
        assert!(matches!(zero, Err(SettingsError::ChunkSize(ConfigError::Zero))));
        let fixed = chunk(Minimum::Auto, ChunkSizePolicy::Fixed);
        assert!(matches!(
            fixed,
            Err(SettingsError::ChunkSize(ConfigError::AutoFixed))
        ));
        let clients = resolve(Settings {
            max_clients: Some(0),
            ..Settings::default()
        });
        assert!(matches!(clients, Err(SettingsError::Range { value: 0, .. })));
        let pool = resolve(Settings {
            pool_size: Some(ByteSize(65535)),
            ..Settings::default()
        });
        assert!(matches!(
            pool,
            Err(SettingsError::Range {
                value: 65535,
                min: 65536,
                ..
            })
        ));
    }
}
