//! What a Rust file says about other files: the paths that it names and the names that it hands on.
//!
//! The walk reads tokens, not text. A path inside a macro call counts, and one inside a comment or a string does not.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// A path inside the crate, as a file names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    /// From the crate's root.
    pub(crate) path: Vec<String>,
    /// It is the path of a `use` that starts at neither `crate`, `self` nor `super`: a child's name, or another crate's.
    pub(crate) relative: bool,
    pub(crate) line: usize,
}

/// A name that a file's own `use` items make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Import {
    /// `None` for `*`.
    pub(crate) name: Option<String>,
    pub(crate) path: Vec<String>,
}

/// What a walk found in one file.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) named: Vec<Named>,
    pub(crate) imports: Vec<Import>,
    /// Items that the file defines at its top level.
    pub(crate) items: Vec<String>,
    /// Modules that it declares for tests only.
    pub(crate) test_modules: Vec<String>,
    /// The length in lines and the first line of each inline test module.
    pub(crate) inline_tests: Vec<(usize, usize)>,
}

/// Reads the tokens of the file that is `module`, with or without what is compiled for tests only.
pub(crate) fn read(tokens: TokenStream, module: &[String], tests: bool) -> Found {
    let mut walk = Walk {
        found: Found::default(),
        module: module.to_vec(),
        depth: 0,
        tests,
    };
    walk.tokens(tokens);
    walk.found
}

struct Walk {
    found: Found,
    /// The module that the walk is in.
    module: Vec<String>,
    /// How many groups are open around the current token.
    depth: usize,
    /// Whether test items count.
    tests: bool,
}

impl Walk {
    fn tokens(&mut self, stream: TokenStream) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            at = self.token(&tokens, at);
        }
    }

    /// Looks at one token, or at an item that starts there, and returns where to go on.
    fn token(&mut self, tokens: &[TokenTree], at: usize) -> usize {
        match &tokens[at] {
            TokenTree::Punct(mark) if mark.as_char() == '#' => match tokens.get(at + 1) {
                Some(TokenTree::Group(attribute)) if test_only(attribute) => {
                    let end = item_end(tokens, at + 2);
                    self.test_item(&tokens[at + 2..end]);
                    // Its tokens count as any others where tests count.
                    if self.tests { at + 2 } else { end }
                }
                _ => at + 1,
            },
            TokenTree::Ident(word) if word == "use" => self.import(tokens, at + 1),
            TokenTree::Ident(word) if word == "mod" => match (tokens.get(at + 1), tokens.get(at + 2)) {
                (Some(TokenTree::Ident(name)), Some(TokenTree::Group(body))) => {
                    self.module.push(name.to_string());
                    self.group(body);
                    self.module.pop();
                    at + 3
                }
                _ => self.item(tokens, at),
            },
            TokenTree::Ident(word) if is_root(&word.to_string()) && !follows_path(tokens, at) => {
                let (segments, next) = segments(tokens, at);
                if segments.len() > 1 {
                    self.record(segments, word.span().start().line);
                }
                next
            }
            TokenTree::Ident(_) => self.item(tokens, at),
            TokenTree::Group(group) => {
                self.group(group);
                at + 1
            }
            _ => at + 1,
        }
    }

    fn group(&mut self, group: &Group) {
        self.depth += 1;
        self.tokens(group.stream());
        self.depth -= 1;
    }

    fn item(&mut self, tokens: &[TokenTree], at: usize) -> usize {
        const KEYWORDS: [&str; 9] = [
            "mod", "fn", "struct", "enum", "trait", "type", "const", "static", "union",
        ];
        if self.depth == 0
            && KEYWORDS.iter().any(|keyword| tokens[at].to_string() == *keyword)
            && let Some(TokenTree::Ident(name)) = tokens.get(at + 1)
        {
            self.found.items.push(name.to_string());
        }
        at + 1
    }

    fn test_item(&mut self, item: &[TokenTree]) {
        for window in item.windows(3) {
            let [TokenTree::Ident(word), TokenTree::Ident(name), body] = window else {
                continue;
            };
            match body {
                TokenTree::Punct(_) if word == "mod" => self.found.test_modules.push(name.to_string()),
                TokenTree::Group(body) if word == "mod" => {
                    let (first, last) = (word.span().start().line, body.span_close().start().line);
                    self.found.inline_tests.push((last + 1 - first, first));
                }
                _ => {}
            }
        }
    }

    /// Reads the tree of a `use` and returns the position of what follows it.
    fn import(&mut self, tokens: &[TokenTree], at: usize) -> usize {
        let end = (at..tokens.len()).find(|index| is_mark(tokens.get(*index), ';'));
        let end = end.unwrap_or(tokens.len());
        // `use<'a>` in a type is no import.
        if !is_mark(tokens.get(at), '<') {
            self.tree(&tokens[at..end], &[]);
        }
        end + 1
    }

    fn tree(&mut self, tokens: &[TokenTree], before: &[String]) {
        for entry in tokens.split(|token| is_mark(Some(token), ',')) {
            let mut path = before.to_vec();
            let mut line = None;
            let mut at = 0;
            while let Some(TokenTree::Ident(word)) = entry.get(at) {
                path.push(word.to_string());
                line.get_or_insert(word.span().start().line);
                match after_colons(entry, at + 1) {
                    Some(next) => at = next,
                    None => break,
                }
            }
            match entry.get(at) {
                Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                    self.tree(&group.stream().into_iter().collect::<Vec<_>>(), &path);
                }
                Some(TokenTree::Punct(mark)) if mark.as_char() == '*' => {
                    let line = mark.span().start().line;
                    self.leaf(path, None, line);
                }
                Some(TokenTree::Ident(_)) => {
                    if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
                        path.pop();
                    }
                    let renamed = matches!(entry.get(at + 1), Some(TokenTree::Ident(word)) if word == "as");
                    let name = if renamed {
                        entry.get(at + 2).map(ToString::to_string)
                    } else {
                        path.last().cloned()
                    };
                    self.leaf(path, name, line.unwrap_or_default());
                }
                _ => {}
            }
        }
    }

    fn leaf(&mut self, path: Vec<String>, name: Option<String>, line: usize) {
        if let Some(path) = self.record(path, line)
            && self.depth == 0
        {
            self.found.imports.push(Import { name, path });
        }
    }

    /// Notes a path and returns it as seen from the root; `None` if it climbs out of the crate.
    fn record(&mut self, segments: Vec<String>, line: usize) -> Option<Vec<String>> {
        let relative = !is_root(&segments[0]);
        let mut path = if segments[0] == "crate" {
            Vec::new()
        } else {
            self.module.clone()
        };
        for segment in segments {
            match segment.as_str() {
                "crate" | "self" => {}
                "super" => {
                    path.pop()?;
                }
                _ => path.push(segment),
            }
        }
        self.found.named.push(Named {
            path: path.clone(),
            relative,
            line,
        });
        Some(path)
    }
}

fn is_root(word: &str) -> bool {
    matches!(word, "crate" | "self" | "super")
}

/// The names of a path that starts at `at`, and the position behind it.
fn segments(tokens: &[TokenTree], at: usize) -> (Vec<String>, usize) {
    let mut names = vec![tokens[at].to_string()];
    let mut end = at + 1;
    while let Some(next) = after_colons(tokens, end) {
        let Some(TokenTree::Ident(name)) = tokens.get(next) else {
            break;
        };
        names.push(name.to_string());
        end = next + 1;
    }
    (names, end)
}

/// Whether an attribute's brackets hold a `cfg` that only tests meet.
fn test_only(attribute: &Group) -> bool {
    let tokens: Vec<TokenTree> = attribute.stream().into_iter().collect();
    match &tokens[..] {
        [TokenTree::Ident(word), TokenTree::Group(condition)] if word == "cfg" => needs_test(condition),
        _ => false,
    }
}

/// Whether a condition in parentheses, or each part of an `any`, needs `test`.
fn needs_test(condition: &Group) -> bool {
    let tokens: Vec<TokenTree> = condition.stream().into_iter().collect();
    let mut parts = tokens
        .split(|token| is_mark(Some(token), ','))
        .filter(|part| !part.is_empty());
    let needs = |part: &[TokenTree]| match part {
        [TokenTree::Ident(word)] => word == "test",
        [TokenTree::Ident(word), TokenTree::Group(inner)] if word == "all" => inner
            .stream()
            .into_iter()
            .collect::<Vec<_>>()
            .split(|token| is_mark(Some(token), ','))
            .any(|part| matches!(part, [TokenTree::Ident(word)] if word == "test")),
        [TokenTree::Ident(word), TokenTree::Group(inner)] if word == "any" => needs_test(inner),
        _ => false,
    };
    parts.all(needs)
}

/// Where the item that starts at `at` ends: behind its body or its semicolon.
fn item_end(tokens: &[TokenTree], at: usize) -> usize {
    let mut braces_end_it = true;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token {
            TokenTree::Ident(word) if word == "use" || word == "static" || word == "const" => {
                braces_end_it = matches!(tokens.get(index + 1), Some(TokenTree::Ident(next)) if next == "fn");
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace && braces_end_it => {
                return index + 1;
            }
            token if is_mark(Some(token), ';') => return index + 1,
            _ => {}
        }
    }
    tokens.len()
}

/// Whether the token at `at` continues a path (`super::super`).
fn follows_path(tokens: &[TokenTree], at: usize) -> bool {
    at >= 2 && after_colons(tokens, at - 2) == Some(at)
}

/// The position after a `::` at `at`.
fn after_colons(tokens: &[TokenTree], at: usize) -> Option<usize> {
    (is_mark(tokens.get(at), ':') && is_mark(tokens.get(at + 1), ':')).then_some(at + 2)
}

fn is_mark(token: Option<&TokenTree>, mark: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == mark)
}
