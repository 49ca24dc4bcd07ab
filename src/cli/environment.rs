//! Variables of the environment that look like settings and are none.

use std::ffi::OsString;
use std::fmt;

use clap::Command;

/// What every variable of this project begins with.
const PREFIX: &str = "KVASIR_";

/// Variables that no option reads but the connector or the project's tests and tools do. A server that they start
/// inherits them.
const TOOLS: [&str; 11] = [
    "KVASIR_BINARY",
    "KVASIR_BLESS",
    "KVASIR_CACHE_DIR",
    "KVASIR_COPY_PATH",
    "KVASIR_DEVICE_CASE",
    "KVASIR_DEVICE_PEER",
    "KVASIR_MODEL_CACHE",
    "KVASIR_TEST_ARGUMENT",
    "KVASIR_TEST_PAGES",
    "KVASIR_TEST_ROLE",
    "KVASIR_WRITE_GOLDEN",
];

/// Edits between a name and a known one up to which the one is taken for a slip of the other.
const LIKELY_EDITS: usize = 4;

/// Variables that begin as this project's do and mean nothing to it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnknownVariables {
    /// In alphabetical order.
    names: Vec<String>,
    /// What options read.
    known: Vec<String>,
}

impl fmt::Display for UnknownVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, name) in self.names.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { "; " })?;
            write!(f, "environment variable {name} is no setting")?;
            match nearest(name, &self.known) {
                Some(known) => write!(f, ", did you mean {known}?")?,
                None => write!(f, "; there are {}", self.known.join(", "))?,
            }
        }
        f.write_str("; unset what is not meant for Kvasir")
    }
}

/// Refuses variables that `command`, its subcommands and the project's tools do not know.
///
/// # Errors
/// [`UnknownVariables`], all of them at once.
pub(super) fn check(
    command: &Command,
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<(), UnknownVariables> {
    let mut known = Vec::new();
    option_variables(command, &mut known);
    known.sort();
    known.dedup();
    let mut names: Vec<String> = variables
        .map(|(name, value)| {
            (
                name.to_string_lossy().into_owned(),
                value.to_string_lossy().into_owned(),
            )
        })
        .filter(|(name, value)| {
            name.starts_with(PREFIX)
                // Set to nothing is not set.
                && !value.is_empty()
                && !known.contains(name)
                && !TOOLS.contains(&name.as_str())
                && !is_service_link(name, value)
        })
        .map(|(name, _)| name)
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    names.sort();
    Err(UnknownVariables { names, known })
}

fn option_variables(command: &Command, known: &mut Vec<String>) {
    let variables = command.get_arguments().filter_map(|arg| arg.get_env());
    known.extend(variables.map(|name| name.to_string_lossy().into_owned()));
    for subcommand in command.get_subcommands() {
        option_variables(subcommand, known);
    }
}

/// Kubernetes puts the addresses of every service of a namespace into every container: a service called
/// `kvasir`, or `kvasir-` and anything, makes names that begin as settings do. They are told by their ends and, where that
/// could be a setting's name, by their values.
fn is_service_link(name: &str, value: &str) -> bool {
    let is_address = ["tcp://", "udp://", "sctp://"]
        .iter()
        .any(|scheme| value.starts_with(scheme));
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = name.split('_').collect();
    match parts.as_slice() {
        [.., "SERVICE", "HOST"] => true,
        [.., "SERVICE", "PORT"] => is_port(value),
        [.., "PORT"] if is_address => true,
        [.., "PORT", port, "TCP" | "UDP" | "SCTP"] => is_port(port),
        [
            ..,
            "PORT",
            port,
            "TCP" | "UDP" | "SCTP",
            "PROTO" | "PORT" | "ADDR",
        ] => is_port(port),
        // A port with a name of its own, which may have parts again.
        _ => name.contains("_SERVICE_PORT_") && is_port(value),
    }
}

/// The known name that is the fewest edits away, if it is near enough to be meant.
fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a str> {
    let (edits, nearest) = known.iter().map(|known| (edits(name, known), known)).min()?;
    (edits <= LIKELY_EDITS).then_some(nearest.as_str())
}

/// Letters to insert, remove or replace to get from one text to the other.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn check_all(variables: &[(&str, &str)]) -> Result<(), UnknownVariables> {
        let variables = variables.iter().map(|&(name, value)| (name.into(), value.into()));
        check(&super::super::Cli::command(), variables)
    }

    #[test]
    fn edits_are_counted() {
        for (from, to, expected) in [
            ("", "", 0),
            ("abc", "", 3),
            ("", "abc", 3),
            ("KVASIR_POOLSIZE", "KVASIR_POOL_SIZE", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(edits(from, to), expected, "{from} {to}");
        }
    }

    #[test]
    fn what_services_put_there_is_let_through_and_nothing_that_only_looks_like_it() {
        let host = [
            ("KVASIR_SERVICE_HOST", "10.0.0.1"),
            ("KVASIR_SERVICE_PORT", "80"),
            ("KVASIR_SERVICE_PORT_METRICS_HTTP", "80"),
            ("KVASIR_PORT", "tcp://10.0.0.1:80"),
            ("KVASIR_PORT_80_TCP", "tcp://10.0.0.1:80"),
            ("KVASIR_PORT_80_TCP_PROTO", "tcp"),
            ("KVASIR_PORT_80_TCP_PORT", "80"),
            ("KVASIR_PORT_80_TCP_ADDR", "10.0.0.1"),
            ("KVASIR_NODE_2_SERVICE_HOST", "10.0.0.1"),
            ("KVASIR_NODE_2_PORT", "udp://10.0.0.1:80"),
        ];
        assert_eq!(check_all(&host), Ok(()));
        for (name, value) in [
            ("KVASIR_PORT", "80"),
            ("KVASIR_SERVICE", "80"),
            ("KVASIR_PORT_X_TCP", "80"),
        ] {
            assert!(check_all(&[(name, value)]).is_err(), "{name}={value}");
        }
    }

    #[test]
    fn all_unknown_variables_are_named_with_the_nearest_known() {
        let error = check_all(&[
            ("PATH", "/bin"),
            ("KVASIR_SOCKET", "/run/k"),
            ("KVASIR_POOLSIZE", "1GiB"),
            ("KVASIR_EVICTION_ALGORITHM", "lru"),
            ("KVASIR_BINARY", "kvasir"),
            ("KVASIR_CHUNK", ""),
        ])
        .unwrap_err()
        .to_string();
        assert!(
            error.contains("KVASIR_POOLSIZE is no setting, did you mean KVASIR_POOL_SIZE?"),
            "{error}"
        );
        assert!(
            error.contains("KVASIR_EVICTION_ALGORITHM is no setting; there are KVASIR_CHUNK_SCOPE"),
            "{error}"
        );
        assert!(!error.contains("KVASIR_BINARY"), "{error}");
        assert!(!error.contains("KVASIR_CHUNK is"), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}
