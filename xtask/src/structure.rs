//! The checks of how `src/` is built up: who may import whom, and where things are kept.

use anyhow::Result;

use crate::command;
use crate::{circles, layers, places, sources};

/// Checks the repository's `src/`.
pub(crate) fn run() -> Result<()> {
    let sources = sources::read(&command::root().join("src"))?;
    layers::run(&sources)?;
    circles::run(&sources)?;
    places::run(&sources)
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_repository_passes() {
        super::run().unwrap();
    }
}
