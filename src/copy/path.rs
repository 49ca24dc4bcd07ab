//! How payload bytes are moved: the ways there are, and their names.

use std::fmt;
use std::str::FromStr;

/// Longest strip of those that are copied or fetched in turns: a page of most machines, the reach of a hardware prefetcher.
pub(super) const STRIP_BYTES: usize = 4096;

/// How a copy without sums is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Weave {
    /// Non-temporal stores over eight strips, 64 bytes of each in turn.
    EightByLine,
    /// The same over four strips, 512 bytes of each in turn.
    FourByRun,
    /// The same one strip after the other, while lines of the next eight are fetched in turn.
    Ahead,
}

impl Weave {
    /// All of them.
    pub(super) const ALL: [Self; 3] = [Self::FourByRun, Self::EightByLine, Self::Ahead];

    const fn name(self) -> &'static str {
        match self {
            Self::EightByLine => "avx2-8x64",
            Self::FourByRun => "avx2-4x512",
            Self::Ahead => "avx2-ahead8",
        }
    }
}

/// The vectors that sum while they copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kernel {
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Kernel {
    /// All of this architecture.
    #[cfg(target_arch = "x86_64")]
    pub(super) const ALL: &[Self] = &[Self::Avx2, Self::Avx512];
    /// All of this architecture.
    #[cfg(target_arch = "aarch64")]
    pub(super) const ALL: &[Self] = &[Self::Neon];
    /// All of this architecture.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub(super) const ALL: &[Self] = &[];

    const fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "neon",
        }
    }
}

/// How many strips ahead lines may be fetched.
pub(super) const AHEADS: [usize; 4] = [8, 4, 16, 0];

/// A copy with sums in one pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Summing {
    pub(super) kernel: Kernel,
    pub(super) ahead: usize,
}

/// How payload bytes are moved on this machine: without sums, and with them. Shown as `avx2-4x512+avx2-ahead8`, or `portable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CopyPath {
    /// Without sums; `None` is the platform's ordinary copy, piece by piece.
    pub(super) plain: Option<Weave>,
    /// With sums in one pass; `None` goes through a stage.
    pub(super) summing: Option<Summing>,
}

impl CopyPath {
    /// For every machine.
    pub const PORTABLE: Self = Self {
        plain: None,
        summing: None,
    };

    /// Those that have a name, whether or not this machine can take them.
    pub(super) fn every() -> impl Iterator<Item = Self> {
        plains().flat_map(|plain| summings().map(move |summing| Self { plain, summing }))
    }
}

const PORTABLE: &str = "portable";

impl fmt::Display for Summing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-ahead{}", self.kernel.name(), self.ahead)
    }
}

impl fmt::Display for CopyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::PORTABLE {
            return f.write_str(PORTABLE);
        }
        f.write_str(self.plain.map_or(PORTABLE, Weave::name))?;
        match self.summing {
            Some(summing) => write!(f, "+{summing}"),
            None => write!(f, "+{PORTABLE}"),
        }
    }
}

/// A name in the environment that gives no copy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CopyPathError {
    /// No copy has it.
    #[error(
        "no copy is called {name:?}; a name is {PORTABLE}, or two names with a plus between them: {}",
        names()
    )]
    Unknown {
        /// The name.
        name: String,
    },
    /// This machine cannot copy so.
    #[error(
        "this machine cannot copy by {name}: its processor lacks what that needs; without a name the fastest copy is measured"
    )]
    NotHere {
        /// The name.
        name: String,
    },
}

fn plains() -> impl Iterator<Item = Option<Weave>> {
    Weave::ALL.into_iter().map(Some).chain([None])
}

fn summings() -> impl Iterator<Item = Option<Summing>> {
    let all = Kernel::ALL
        .iter()
        .flat_map(|&kernel| AHEADS.map(|ahead| Some(Summing { kernel, ahead })));
    all.chain([None])
}

/// Those that may stand before the plus, and those behind it.
fn names() -> String {
    let plains: Vec<&str> = plains()
        .map(|plain| plain.map_or(PORTABLE, Weave::name))
        .collect();
    let summings =
        summings().map(|summing| summing.map_or(PORTABLE.to_owned(), |summing| summing.to_string()));
    let summings: Vec<String> = summings.collect();
    format!(
        "{} before it, {} behind it",
        plains.join(", "),
        summings.join(", ")
    )
}

impl FromStr for CopyPath {
    type Err = CopyPathError;

    /// Reads what [`Display`](fmt::Display) writes; whether this machine can is not asked.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == PORTABLE {
            return Ok(Self::PORTABLE);
        }
        let found = Self::every().find(|path| path.to_string() == text);
        found.ok_or_else(|| CopyPathError::Unknown {
            name: text.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for plain in [None, Some(Weave::FourByRun), Some(Weave::Ahead)] {
            for kernel in Kernel::ALL {
                for ahead in AHEADS {
                    let summing = Some(Summing {
                        kernel: *kernel,
                        ahead,
                    });
                    let path = CopyPath { plain, summing };
                    assert_eq!(path.to_string().parse(), Ok(path));
                }
            }
        }
        assert_eq!("portable".parse(), Ok(CopyPath::PORTABLE));
        let error = "avx2".parse::<CopyPath>().unwrap_err().to_string();
        assert!(error.starts_with("no copy is called \"avx2\""), "{error}");
        for plain in [
            "avx2-4x512, avx2-8x64, avx2-ahead8, portable before",
            "portable behind",
        ] {
            assert!(error.contains(plain), "{error}");
        }
    }
}
