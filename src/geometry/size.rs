//! Sizes as people write them.

use std::fmt;
use std::str::FromStr;

/// A size in bytes: a number, or one with a unit.
///
/// `KiB`, `MiB`, `GiB`, `TiB` (also `Ki` and so on) are powers of 1024, `kB`, `MB`, `GB`, `TB` powers of 1000; a letter alone is a
/// power of 1024. Case does not matter. Fractions are allowed in front of a unit and rounded down to whole bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// In which whole sizes are shown.
const BINARY: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

/// Digits behind the point that are looked at; more would say less than a byte.
const FRACTION_DIGITS: usize = 18;

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let trimmed = text.trim();
        let end = trimmed
            .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(end);
        let bytes = unit_bytes(unit.trim_start()).and_then(|unit| Some((decimal(number)?, unit)));
        let Some(((whole, fraction, scale), unit)) = bytes else {
            return Err(format!(
                "{text:?} is not a size: write a number of bytes, or a number with KiB, MiB, GiB or TiB (powers of 1024; a \
                 letter alone is the same) or kB, MB, GB or TB (powers of 1000)"
            ));
        };
        if fraction != 0 && unit == 1 {
            return Err(format!("{text:?} is not a size: there is no part of a byte"));
        }
        whole
            .checked_mul(unit)
            .and_then(|bytes| bytes.checked_add(fraction.checked_mul(unit)? / scale))
            .and_then(|bytes| u64::try_from(bytes).ok())
            .map(Self)
            .ok_or_else(|| format!("{text:?} is more than 2^64 bytes"))
    }
}

fn unit_bytes(unit: &str) -> Option<u128> {
    let unit = unit.to_ascii_lowercase();
    let power = |letter: &str| ["k", "m", "g", "t"].iter().position(|known| *known == letter);
    if unit.is_empty() || unit == "b" {
        return Some(1);
    }
    let binary = unit.strip_suffix("ib").or_else(|| unit.strip_suffix('i'));
    if let Some(power) = power(binary.unwrap_or(&unit)) {
        return Some(1 << (10 * (power + 1)));
    }
    let power = power(unit.strip_suffix('b')?)?;
    Some(1000u128.pow(power as u32 + 1))
}

/// A number without a sign: what stands before the point, what stands behind it, and the power of ten that this is a part
/// of. Underscores may stand between digits.
fn decimal(text: &str) -> Option<(u128, u128, u128)> {
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) => (digits(whole)?, Some(digits(fraction)?)),
        None => (digits(text)?, None),
    };
    let fraction: String = fraction
        .unwrap_or_default()
        .chars()
        .take(FRACTION_DIGITS)
        .collect();
    let scale = 10u128.pow(fraction.len() as u32);
    let fraction = if fraction.is_empty() {
        0
    } else {
        fraction.parse().ok()?
    };
    // Saturated: whatever has so many digits is refused as too much.
    Some((whole.parse().unwrap_or(u128::MAX), fraction, scale))
}

fn digits(text: &str) -> Option<String> {
    let well_placed = !text.starts_with('_') && !text.ends_with('_') && !text.contains("__");
    let digits: String = text.chars().filter(|c| *c != '_').collect();
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    (well_placed && is_number).then_some(digits)
}

impl fmt::Display for ByteSize {
    /// Exactly, in the largest unit of which it is a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = BINARY
            .iter()
            .find(|(_, shift)| self.0 != 0 && self.0.is_multiple_of(1 << shift));
        match whole {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_spellings_are_read_and_sizes_shown() {
        for (text, bytes, shown) in [
            ("4GiB", 4 << 30, "4GiB"),
            ("4gib", 4 << 30, "4GiB"),
            ("4Gi", 4 << 30, "4GiB"),
            ("4G", 4 << 30, "4GiB"),
            ("4g", 4 << 30, "4GiB"),
            ("4GB", 4_000_000_000, "3906250KiB"),
            ("4gb", 4_000_000_000, "3906250KiB"),
            ("1kB", 1000, "1000"),
            ("1k", 1024, "1KiB"),
            ("1.5GiB", 3 << 29, "1536MiB"),
            ("0.5 TiB", 1 << 39, "512GiB"),
            ("1.1KiB", 1126, "1126"),
            ("1536MiB", 1536 << 20, "1536MiB"),
            ("65536", 65536, "64KiB"),
            ("65_536", 65536, "64KiB"),
            ("1_0.2_5MB", 10_250_000, "10250000"),
            ("4096B", 4096, "4KiB"),
            (" 1 TiB ", 1 << 40, "1TiB"),
            ("0", 0, "0"),
            ("1023", 1023, "1023"),
            (
                "16777215.99999999999999999999TiB",
                18_446_744_073_709_551_615,
                "18446744073709551615",
            ),
        ] {
            let size: ByteSize = text.parse().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!((size.0, size.to_string().as_str()), (bytes, shown), "{text}");
            // What is shown reads as the same.
            assert_eq!(shown.parse::<ByteSize>().unwrap(), size, "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_units() {
        for text in [
            "",
            " ",
            "GiB",
            ".5GiB",
            "5.GiB",
            "1.2.3GiB",
            "-1",
            "+1",
            "4GiBs",
            "4 Gi B",
            "4PB",
            "1e9",
            "0x10",
            "_1",
            "1_",
            "1__0",
            "4ib",
            "4bb",
            "\u{0664}GiB",
        ] {
            let error = text.parse::<ByteSize>().unwrap_err();
            assert!(error.contains("KiB, MiB, GiB or TiB"), "{text}: {error}");
        }
        assert!(
            "1.5"
                .parse::<ByteSize>()
                .unwrap_err()
                .contains("no part of a byte")
        );
        for text in [
            "20000000TiB",
            "16777216TiB",
            "99999999999999999999",
            &"9".repeat(60),
        ] {
            let error = text.parse::<ByteSize>().unwrap_err();
            assert!(error.contains("more than 2^64"), "{text}: {error}");
        }
    }
}
