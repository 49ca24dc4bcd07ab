//! Byte counts for people.

use std::fmt;

const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

/// A number of bytes that shows as people read it: `512 B`, `64.0 KiB`, `4.0 GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What rounds up to 1024 of a unit is one of the next: 1048575 bytes are 1.0 MiB, not 1024.0 KiB.
        let tenths = |shift: u32| (u128::from(self.0) * 10 + (1 << (shift - 1))) >> shift;
        let unit = UNITS.iter().find(|(_, shift)| tenths(*shift) >= 10);
        let text = match unit {
            Some((name, shift)) if self.0 >= 1024 => {
                let tenths = tenths(*shift);
                format!("{}.{} {name}", tenths / 10, tenths % 10)
            }
            _ => format!("{} B", self.0),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_show_as_people_read_them() {
        for (bytes, shown) in [
            (0, "0 B"),
            (1, "1 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (65536, "64.0 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (4 << 30, "4.0 GiB"),
            (4_000_000_000, "3.7 GiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), shown);
        }
        assert_eq!(format!("{:<9}|", Bytes(1024)), "1.0 KiB  |");
    }
}
