//! Names of devices.

use std::fmt;
use std::str::FromStr;

/// The UUID of a device, or of a part of one (MIG). Ordinals differ between processes, UUIDs do not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceUuid(pub [u8; 16]);

/// A name that is no UUID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no UUID of a device; `nvidia-smi -L` shows them, such as GPU-01234567-89ab-cdef-0123-456789abcdef"
)]
pub struct BadUuid {
    /// The name, or its beginning.
    pub text: String,
}

/// Hex digits between the dashes.
const PARTS: [usize; 5] = [8, 4, 4, 4, 12];

impl fmt::Display for DeviceUuid {
    /// As `nvidia-smi` shows a whole device. The driver does not say which UUIDs are of parts (`MIG-`).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU-")?;
        for (index, byte) in self.0.iter().enumerate() {
            if [4, 6, 8, 10].contains(&index) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for DeviceUuid {
    type Err = BadUuid;

    /// Reads `GPU-..` and `MIG-..`, and a UUID without either.
    fn from_str(text: &str) -> Result<Self, BadUuid> {
        let bad = || BadUuid {
            text: text.chars().take(64).collect(),
        };
        let body = text
            .strip_prefix("GPU-")
            .or_else(|| text.strip_prefix("MIG-"))
            .unwrap_or(text);
        // Each dash has its place.
        if !body.split('-').map(str::len).eq(PARTS) || !body.is_ascii() {
            return Err(bad());
        }
        let mut uuid = [0; 16];
        let digits: Vec<char> = body.chars().filter(|&letter| letter != '-').collect();
        for (byte, pair) in uuid.iter_mut().zip(digits.chunks(2)) {
            for letter in pair {
                *byte = *byte << 4 | letter.to_digit(16).ok_or_else(bad)? as u8;
            }
        }
        Ok(Self(uuid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_shown() {
        let text = "GPU-01234567-89ab-cdef-0123-456789abcdef";
        let uuid: DeviceUuid = text.parse().unwrap();
        assert_eq!(uuid.0[..4], [0x01, 0x23, 0x45, 0x67]);
        assert_eq!(uuid.to_string(), text);
        assert_eq!(text.replace("GPU-", "MIG-").parse(), Ok(uuid));
        assert_eq!(text.replace("GPU-", "").to_uppercase().parse(), Ok(uuid));
    }

    #[test]
    fn what_is_no_uuid_is_refused_and_shown() {
        for text in [
            "",
            "0",
            "GPU-0",
            "GPU-01234567-89ab-cdef-0123-456789abcde",
            "GPU-01234567-89ab-cdef-0123-456789abcdef0",
            "GPU-0123456789abcdef0123456789abcdef",
            "GPU-0123456-789ab-cdef-0123-456789abcdef",
            "GPU-01234567-89ab-cdef-0123-456789abcdeg",
            "GPU--01234567-89ab-cdef-0123456789abcdef",
            "GPU-0123456\u{e9}-89ab-cdef-0123-456789abcde",
            "GPU-+1234567-89ab-cdef-0123-456789abcdef",
        ] {
            assert_eq!(text.parse::<DeviceUuid>(), Err(BadUuid { text: text.into() }));
        }
    }
}
