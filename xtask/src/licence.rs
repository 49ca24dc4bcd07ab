//! Licence expressions of packages: SPDX with `AND`, `OR`, `WITH` and parentheses, and the older `MIT/Apache-2.0`.

use anyhow::{Result, bail};

/// What a package is under.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Expression {
    /// One licence, with its exception: `Apache-2.0 WITH LLVM-exception`.
    One(String),
    /// The user's choice.
    Any(Vec<Expression>),
    /// All of them at once.
    All(Vec<Expression>),
}

impl Expression {
    /// Whether the licences that `allowed` accepts are enough.
    pub(crate) fn holds(&self, allowed: &dyn Fn(&str) -> bool) -> bool {
        match self {
            Self::One(name) => allowed(name),
            Self::Any(parts) => parts.iter().any(|part| part.holds(allowed)),
            Self::All(parts) => parts.iter().all(|part| part.holds(allowed)),
        }
    }

    /// Names every licence.
    pub(crate) fn names(&self, take: &mut dyn FnMut(&str)) {
        match self {
            Self::One(name) => take(name),
            Self::Any(parts) | Self::All(parts) => parts.iter().for_each(|part| part.names(take)),
        }
    }
}

/// Reads an expression.
///
/// # Errors
/// Text that is none.
pub(crate) fn parse(text: &str) -> Result<Expression> {
    let spaced = text.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    match any(&words) {
        Some((expression, [])) => Ok(expression),
        _ => bail!("has the licence {text:?}, which is no expression"),
    }
}

/// A part of an expression, and the words behind it.
type Read<'a, 'w> = Option<(Expression, &'a [&'w str])>;

fn any<'a, 'w>(words: &'a [&'w str]) -> Read<'a, 'w> {
    list(words, "OR", all, Expression::Any)
}

fn all<'a, 'w>(words: &'a [&'w str]) -> Read<'a, 'w> {
    list(words, "AND", one, Expression::All)
}

/// Parts with a word between them; one part alone is itself.
fn list<'a, 'w>(
    mut words: &'a [&'w str],
    between: &str,
    part: impl Fn(&'a [&'w str]) -> Read<'a, 'w>,
    together: impl Fn(Vec<Expression>) -> Expression,
) -> Read<'a, 'w> {
    let mut parts = Vec::new();
    loop {
        let (read, rest) = part(words)?;
        parts.push(read);
        match rest {
            [word, rest @ ..] if *word == between => words = rest,
            _ if parts.len() == 1 => return Some((parts.remove(0), rest)),
            _ => return Some((together(parts), rest)),
        }
    }
}

fn one<'a, 'w>(words: &'a [&'w str]) -> Read<'a, 'w> {
    let is_name = |word: &str| !matches!(word, "(" | ")" | "AND" | "OR" | "WITH");
    match words {
        ["(", rest @ ..] => match any(rest)? {
            (inside, [")", rest @ ..]) => Some((inside, rest)),
            _ => None,
        },
        [name, "WITH", exception, rest @ ..] if is_name(name) && is_name(exception) => {
            Some((Expression::One(format!("{name} WITH {exception}")), rest))
        }
        [name, rest @ ..] if is_name(name) => Some((Expression::One((*name).to_owned()), rest)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed_is_enough_or_not() {
        let allowed = |name: &str| {
            [
                "MIT",
                "Apache-2.0",
                "Apache-2.0 WITH LLVM-exception",
                "Unicode-3.0",
            ]
            .contains(&name)
        };
        for (text, enough) in [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("Unlicense OR MIT", true),
            ("Unlicense/MIT", true),
            ("Apache-2.0 / MIT", true),
            ("MIT AND BSD-2-Clause", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND Zlib", false),
            // AND binds more tightly.
            ("Zlib AND BSD-2-Clause OR MIT", true),
            ("Zlib AND (BSD-2-Clause OR MIT)", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("GPL-2.0-only WITH Classpath-exception-2.0", false),
            // An exception is part of the name: what is allowed with one is not allowed with another.
            ("MIT WITH LLVM-exception", false),
        ] {
            assert_eq!(parse(text).unwrap().holds(&allowed), enough, "{text}");
        }
    }

    #[test]
    fn every_licence_is_named() {
        let mut names = Vec::new();
        let expression = parse("(MIT OR Apache-2.0 WITH LLVM-exception) AND Unicode-3.0").unwrap();
        expression.names(&mut |name| names.push(name.to_owned()));
        assert_eq!(names, ["MIT", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"]);
    }

    #[test]
    fn text_that_is_no_expression_is_refused() {
        for text in [
            "",
            "OR",
            "MIT OR",
            "AND MIT",
            "MIT MIT",
            "(MIT",
            "MIT)",
            "()",
            "MIT WITH",
            "(MIT) WITH x",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
