//! The C header read back: what a compiled program depends on, whether another version kept it, and where fields lie.
//!
//! The header is one that cbindgen wrote, so this reads what such headers have: constants, enums with their type, structs,
//! functions. Anything else is an error and not passed over.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

/// What a header declares.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Abi {
    constants: BTreeMap<String, String>,
    enums: BTreeMap<String, Enum>,
    /// In the header's order: a struct stands behind those that it has fields of.
    structs: Vec<Struct>,
    functions: BTreeMap<String, String>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Enum {
    /// The integer type that has its values.
    integer: String,
    values: BTreeMap<String, String>,
}

#[derive(Debug, PartialEq, Eq)]
struct Struct {
    name: String,
    fields: Vec<Field>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    name: String,
    kind: String,
    /// Elements of an array; 1 for what is none.
    count: u64,
}

/// The constant that says which version a header is of.
const VERSION: &str = "KVASIR_ABI_VERSION";
/// The first field of a struct that may grow.
const SIZE_FIELD: &str = "struct_size";

impl Struct {
    fn may_grow(&self) -> bool {
        self.fields.first().is_some_and(|field| field.name == SIZE_FIELD)
    }
}

/// Size and alignment.
type Layout = (u64, u64);
/// A struct's name, its layout, and its fields with their offsets.
type Laid<'a> = (&'a str, Layout, Vec<(&'a str, u64)>);

impl Abi {
    /// The header's version.
    pub(crate) fn version(&self) -> Result<u32> {
        let text = self
            .constants
            .get(VERSION)
            .with_context(|| format!("no {VERSION}"))?;
        text.parse().with_context(|| format!("{VERSION} is {text}"))
    }

    /// The names of its functions.
    pub(crate) fn functions(&self) -> impl Iterator<Item = &str> {
        self.functions.keys().map(String::as_str)
    }

    /// Structs that may grow, with their sizes.
    pub(crate) fn growing(&self) -> Result<Vec<(&str, u64)>> {
        let growing = self.structs.iter().filter(|one| one.may_grow());
        growing
            .map(|one| Ok((one.name.as_str(), self.layout(one)?.0)))
            .collect()
    }

    /// Every struct with its size, its alignment and its fields' offsets.
    pub(crate) fn layouts(&self) -> Result<Vec<Laid<'_>>> {
        let laid =
            |one: &'_ Struct| -> Result<(Layout, Vec<u64>)> { Ok((self.layout(one)?, self.offsets(one)?)) };
        let named = self.structs.iter().map(|one| {
            let (layout, offsets) = laid(one)?;
            let names = one.fields.iter().map(|field| field.name.as_str());
            Ok((one.name.as_str(), layout, names.zip(offsets).collect()))
        });
        named.collect()
    }

    fn offsets(&self, of: &Struct) -> Result<Vec<u64>> {
        let mut at = 0_u64;
        let mut offsets = Vec::new();
        for field in &of.fields {
            let (size, align) = self.layout_of(&field.kind)?;
            if !at.is_multiple_of(align) {
                bail!("struct {}: {} has padding before it", of.name, field.name);
            }
            offsets.push(at);
            at += size * field.count;
        }
        Ok(offsets)
    }

    fn layout(&self, of: &Struct) -> Result<Layout> {
        let mut align = 1;
        let mut size = 0;
        for field in &of.fields {
            let (one, of_one) = self.layout_of(&field.kind)?;
            align = align.max(of_one);
            size += one * field.count;
        }
        if size == 0 || !size.is_multiple_of(align) {
            bail!(
                "struct {}: {size} bytes and alignment {align}: it has padding at its end",
                of.name
            );
        }
        Ok((size, align))
    }

    fn layout_of(&self, kind: &str) -> Result<Layout> {
        if kind.ends_with('*') {
            return Ok((8, 8));
        }
        Ok(match kind {
            "uint8_t" => (1, 1),
            "uint16_t" => (2, 2),
            "int32_t" | "uint32_t" => (4, 4),
            "int64_t" | "uint64_t" | "size_t" => (8, 8),
            _ => {
                let name = kind.strip_prefix("struct ").unwrap_or(kind);
                let found = self.structs.iter().find(|one| one.name == name);
                return self.layout(found.with_context(|| format!("unknown type {kind:?}"))?);
            }
        })
    }
}

/// What a program that was compiled with the old header would find changed. Additions are no fault.
pub(crate) fn broken(old: &Abi, new: &Abi) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, value) in old.constants.iter().filter(|(name, _)| *name != VERSION) {
        match new.constants.get(name) {
            None => faults.push(format!("{name} is gone")),
            Some(now) if now != value => faults.push(format!("{name} was {value} and is {now}")),
            Some(_) => {}
        }
    }
    for (name, before) in &old.enums {
        let Some(now) = new.enums.get(name) else {
            faults.push(format!("enum {name} is gone"));
            continue;
        };
        if now.integer != before.integer {
            faults.push(format!(
                "enum {name} was {} and is {}",
                before.integer, now.integer
            ));
        }
        for (value, number) in &before.values {
            match now.values.get(value) {
                None => faults.push(format!("{value} is gone")),
                Some(other) if other != number => faults.push(format!("{value} was {number} and is {other}")),
                Some(_) => {}
            }
        }
    }
    for before in &old.structs {
        match new.structs.iter().find(|one| one.name == before.name) {
            None => faults.push(format!("struct {} is gone", before.name)),
            Some(now) => faults.extend(changed_fields(before, now)),
        }
    }
    for (name, before) in &old.functions {
        match new.functions.get(name) {
            None => faults.push(format!("{name}() is gone")),
            Some(now) if now != before => faults.push(format!("{name}() was `{before}` and is `{now}`")),
            Some(_) => {}
        }
    }
    faults
}

fn changed_fields(before: &Struct, now: &Struct) -> Option<String> {
    let name = &before.name;
    for (at, field) in before.fields.iter().enumerate() {
        match now.fields.get(at) {
            None => return Some(format!("struct {name}: {} is gone", field.name)),
            Some(other) if other != field => {
                return Some(format!(
                    "struct {name}: field {at} was `{} {}[{}]` and is `{} {}[{}]`",
                    field.kind, field.name, field.count, other.kind, other.name, other.count
                ));
            }
            Some(_) => {}
        }
    }
    let more = now.fields.len() > before.fields.len();
    (more && !before.may_grow()).then(|| {
        format!(
            "struct {name} has no {SIZE_FIELD} and has grown by {}",
            now.fields[before.fields.len()].name
        )
    })
}

/// Reads a header.
pub(crate) fn read(header: &str) -> Result<Abi> {
    let mut abi = Abi::default();
    let code = preprocessed(&without_comments(header)?, &mut abi.constants)?;
    for statement in statements(&code)? {
        read_statement(&statement, &mut abi).with_context(|| format!("cannot read `{statement}`"))?;
    }
    Ok(abi)
}

fn without_comments(text: &str) -> Result<String> {
    let mut code = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("/*") {
        code += &rest[..at];
        let end = rest[at..].find("*/").context("a comment does not end")?;
        rest = &rest[at + end + 2..];
    }
    code += rest;
    let line = |line: &str| line.split("//").next().unwrap_or("").to_owned() + "\n";
    Ok(code.lines().map(line).collect())
}

/// The code as a C compiler sees it, and the constants.
fn preprocessed(code: &str, constants: &mut BTreeMap<String, String>) -> Result<String> {
    let mut seen = String::new();
    let mut taken: Vec<bool> = Vec::new();
    for line in code.lines().map(str::trim) {
        let visible = taken.iter().all(|taken| *taken);
        let Some(directive) = line.strip_prefix('#') else {
            if visible {
                seen += line;
                seen.push('\n');
            }
            continue;
        };
        match directive.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["ifdef", name] => taken.push(*name != "__cplusplus"),
            ["ifndef", _] => taken.push(true),
            ["endif"] => drop(taken.pop().context("#endif without #if")?),
            ["include", ..] | ["define", "KVASIR_H"] => {}
            ["define", name, ..] if name.contains('(') => {}
            ["define", name, value] if visible => drop(constants.insert((*name).into(), (*value).into())),
            _ => bail!("unknown directive {line:?}"),
        }
    }
    Ok(seen)
}

/// Statements with their braces; a function with a body is left out, since a program has its own copy of it.
fn statements(code: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let (mut statement, mut depth) = (String::new(), 0_u32);
    for c in code.chars() {
        statement.push(c);
        match c {
            '{' => depth += 1,
            '}' => depth = depth.checked_sub(1).context("a brace too many")?,
            _ => {}
        }
        let inlined = c == '}' && depth == 0 && statement.trim_start().starts_with("static inline");
        if inlined {
            statement.clear();
        } else if c == ';' && depth == 0 {
            let words: Vec<&str> = statement.split_whitespace().collect();
            found.push(words.join(" "));
            statement.clear();
        }
    }
    if !statement.trim().is_empty() || depth != 0 {
        bail!("the end of the header is missing: {:?}", statement.trim());
    }
    Ok(found)
}

fn read_statement(statement: &str, abi: &mut Abi) -> Result<()> {
    let statement = statement.trim_end_matches(';').trim();
    if let Some(rest) = statement.strip_prefix("enum ") {
        let (name, body) = braces(rest)?;
        let values = body.split(',').map(str::trim).filter(|value| !value.is_empty());
        let values = values.map(|value| {
            let (name, number) = value.split_once('=').context("a value without a number")?;
            Ok((name.trim().to_owned(), number.trim().to_owned()))
        });
        abi.enums.entry(name.to_owned()).or_default().values = values.collect::<Result<_>>()?;
    } else if let Some(rest) = statement.strip_prefix("typedef struct ") {
        let (name, body) = braces(rest)?;
        let fields = body.split(';').map(str::trim).filter(|field| !field.is_empty());
        abi.structs.push(Struct {
            name: name.to_owned(),
            fields: fields.map(field).collect::<Result<_>>()?,
        });
    } else if let Some(rest) = statement.strip_prefix("typedef ") {
        let (integer, name) = rest.rsplit_once(' ').context("a typedef of nothing")?;
        abi.enums.entry(name.to_owned()).or_default().integer = integer.to_owned();
    } else {
        let (front, _) = statement
            .split_once('(')
            .context("neither a type nor a function")?;
        let (_, name) = front
            .rsplit_once([' ', '*'])
            .context("a function without a type")?;
        abi.functions.insert(name.to_owned(), statement.to_owned());
    }
    Ok(())
}

fn braces(text: &str) -> Result<(&str, &str)> {
    let (name, rest) = text.split_once('{').context("no brace")?;
    let (body, _) = rest.rsplit_once('}').context("no closing brace")?;
    Ok((name.trim(), body))
}

fn field(text: &str) -> Result<Field> {
    let (text, count) = match text.split_once('[') {
        Some((text, count)) => (text, count.trim_end_matches(']').parse().context("an odd array")?),
        None => (text, 1),
    };
    let at = text.rfind([' ', '*']).context("a field without a type")? + 1;
    Ok(Field {
        name: text[at..].to_owned(),
        kind: text[..at].split_whitespace().collect::<Vec<_>>().join(" "),
        count,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#"
/* A comment; with { everything. */
#ifndef KVASIR_H
#define KVASIR_H
#include <stdint.h>
#define KVASIR_INIT(pointer) kvasir_init_((pointer), sizeof *(pointer))
static inline void kvasir_init_(void *structure, size_t size)
{
    if (size) { memset(structure, 0, size); }
}
#define KVASIR_ABI_VERSION 3
#define KVASIR_FLAG 4
enum kvasir_code
#ifdef __cplusplus
  : int32_t
#endif // __cplusplus
 {
    KVASIR_CODE_OK = 0,
    KVASIR_CODE_NO = 1,
};
#ifndef __cplusplus
typedef int32_t kvasir_code;
#endif // __cplusplus
typedef struct kvasir_key {
    uint8_t bytes[32];
} kvasir_key;
typedef struct kvasir_options {
    uint32_t struct_size;
    uint32_t flags;
    const struct kvasir_key *keys;
    struct kvasir_key key;
} kvasir_options;
#ifdef __cplusplus
extern "C" {
#endif
const char *kvasir_text(void);
kvasir_code kvasir_open(const struct kvasir_options *options,
                        size_t count);
#ifdef __cplusplus
}
#endif
#endif /* KVASIR_H */
"#;

    fn changed(from: &str, to: &str) -> Vec<String> {
        assert!(HEADER.contains(from), "{from}");
        broken(&read(HEADER).unwrap(), &read(&HEADER.replace(from, to)).unwrap())
    }

    #[test]
    fn everything_is_read() {
        let abi = read(HEADER).unwrap();
        assert_eq!(abi.version().unwrap(), 3);
        assert_eq!(
            abi.functions().collect::<Vec<_>>(),
            ["kvasir_open", "kvasir_text"]
        );
        assert_eq!(abi.growing().unwrap(), [("kvasir_options", 48)]);
        let layouts = abi.layouts().unwrap();
        assert_eq!(layouts[0], ("kvasir_key", (32, 1), vec![("bytes", 0)]));
        let fields = vec![("struct_size", 0), ("flags", 4), ("keys", 8), ("key", 16)];
        assert_eq!(layouts[1], ("kvasir_options", (48, 8), fields));
        assert_eq!(abi.enums["kvasir_code"].integer, "int32_t");
    }

    #[test]
    fn additions_are_no_fault() {
        for (from, to) in [
            (
                "    struct kvasir_key key;\n",
                "    struct kvasir_key key;\n    uint64_t more;\n",
            ),
            (
                "    KVASIR_CODE_NO = 1,\n",
                "    KVASIR_CODE_NO = 1,\n    KVASIR_CODE_MAYBE = 2,\n",
            ),
            (
                "const char *kvasir_text(void);",
                "const char *kvasir_text(void); void kvasir_more(void);",
            ),
            ("#define KVASIR_ABI_VERSION 3", "#define KVASIR_ABI_VERSION 4"),
        ] {
            assert_eq!(changed(from, to), [""; 0], "{to}");
        }
    }

    #[test]
    fn what_a_compiled_program_depends_on_is_named() {
        for (from, to, fault) in [
            (
                "uint32_t flags;",
                "uint64_t flags; uint32_t x; uint32_t y;",
                "struct kvasir_options: field 1 was",
            ),
            ("    uint32_t flags;\n", "", "struct kvasir_options: field 1 was"),
            (
                "    struct kvasir_key key;\n",
                "",
                "struct kvasir_options: key is gone",
            ),
            (
                "uint8_t bytes[32];",
                "uint8_t bytes[64];",
                "struct kvasir_key: field 0 was",
            ),
            (
                "uint8_t bytes[32];",
                "uint8_t bytes[32]; uint8_t more[8];",
                "has no struct_size and has grown by more",
            ),
            (
                "KVASIR_CODE_NO = 1",
                "KVASIR_CODE_NO = 2",
                "KVASIR_CODE_NO was 1 and is 2",
            ),
            ("    KVASIR_CODE_NO = 1,\n", "", "KVASIR_CODE_NO is gone"),
            (
                "typedef int32_t kvasir_code;",
                "typedef int64_t kvasir_code;",
                "enum kvasir_code was int32_t",
            ),
            ("size_t count);", "uint64_t count);", "kvasir_open() was"),
            ("const char *kvasir_text(void);", "", "kvasir_text() is gone"),
            (
                "#define KVASIR_FLAG 4",
                "#define KVASIR_FLAG 8",
                "KVASIR_FLAG was 4 and is 8",
            ),
        ] {
            let faults = changed(from, to);
            assert!(faults.len() == 1 && faults[0].contains(fault), "{to}: {faults:?}");
        }
    }

    #[test]
    fn padding_and_what_is_not_understood_are_errors() {
        let padded = HEADER.replace("uint32_t flags;", "uint16_t flags;");
        assert!(
            read(&padded)
                .unwrap()
                .layouts()
                .unwrap_err()
                .to_string()
                .contains("padding")
        );
        assert!(read(&HEADER.replace("#define KVASIR_FLAG 4", "#pragma once")).is_err());
        assert!(read(&HEADER.replace("enum kvasir_code", "union kvasir_code")).is_err());
    }
}
