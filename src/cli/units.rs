//! Numbers with units, as options take them.

/// `1073741824`, `512MiB`, `512M` (powers of 1024) or `1.5GB` (powers of 1000).
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let split = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor: f64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1024.0 * 1024.0,
        "g" | "gib" => 1024.0 * 1024.0 * 1024.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        _ => {
            return Err(format!(
                "unknown unit `{unit}`: use KiB, MiB, GiB, KB, MB or GB"
            ));
        }
    };
    let number: f64 = number
        .trim()
        .parse()
        .map_err(|_| format!("`{text}` is not a number of bytes"))?;
    if !(number >= 0.0 && number * factor < 1e18) {
        return Err(format!("`{text}` is not a number of bytes"));
    }
    Ok((number * factor) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        let check = |text: &str, bytes: u64| assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        check("4096", 4096);
        check("512MiB", 512 << 20);
        check("2g", 2 << 30);
        check("1.5GB", 1_500_000_000);
        for wrong in ["", "MiB", "-1", "1e30", "12 parsecs", "NaN"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong:?} is refused");
        }
    }
}
