//! Element types by their tensor-library names.

use std::fmt;
use std::str::FromStr;

/// Element names an engine may declare.
///
/// Pages are moved as bytes; the name goes into the layout fingerprint, where a misspelling would silently
/// split a cache in two. So only known names pass.
const ELEMENTS: &[&str] = &[
    "bfloat16",
    "bool",
    "float16",
    "float32",
    "float64",
    "float4_e2m1fn_x2",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
];

/// At most this many element types in one page (recurrent pages hold a convolution and a state part).
const MAX_PARTS: usize = 8;

/// The element types of one page: one name, or several joined by `+` in the order they lie in the page.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Dtype(String);

impl Dtype {
    /// The declared name, as given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Bytes of one element; none where the page holds several types, or elements that share a byte.
    pub fn element_bytes(&self) -> Option<u64> {
        match self.as_str() {
            "bool" | "float8_e4m3fn" | "float8_e4m3fnuz" | "float8_e5m2" | "float8_e5m2fnuz"
            | "float8_e8m0fnu" | "int8" | "uint8" => Some(1),
            "bfloat16" | "float16" | "int16" | "uint16" => Some(2),
            "float32" | "int32" | "uint32" => Some(4),
            "float64" | "int64" | "uint64" => Some(8),
            _ => None,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name is no element type this build knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown dtype {name:?}; known: {}", ELEMENTS.join(", "))]
pub struct UnknownDtype {
    name: String,
}

impl FromStr for Dtype {
    type Err = UnknownDtype;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known =
            name.split('+').all(|part| ELEMENTS.contains(&part)) && name.split('+').count() <= MAX_PARTS;
        if known {
            Ok(Self(name.to_owned()))
        } else {
            Err(UnknownDtype {
                name: name.chars().take(64).collect(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_names_pass_and_unknown_ones_do_not() {
        assert_eq!(
            "bfloat16+float32".parse::<Dtype>().unwrap().as_str(),
            "bfloat16+float32"
        );
        for bad in [
            "",
            "bf16",
            "bfloat16+",
            "+float32",
            "BFLOAT16",
            "bfloat16 + float32",
            "torch.bfloat16",
        ] {
            assert!(bad.parse::<Dtype>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn only_one_whole_type_has_a_width() {
        let open: Vec<&str> = ELEMENTS
            .iter()
            .copied()
            .filter(|name| name.parse::<Dtype>().unwrap().element_bytes().is_none())
            .collect();
        assert_eq!(open, ["float4_e2m1fn_x2"]);
        for (name, bytes) in [
            ("uint8", Some(1)),
            ("bfloat16", Some(2)),
            ("float32", Some(4)),
            ("int64", Some(8)),
            ("bfloat16+float32", None),
        ] {
            assert_eq!(name.parse::<Dtype>().unwrap().element_bytes(), bytes, "{name}");
        }
    }
}
