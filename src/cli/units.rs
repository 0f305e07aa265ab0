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

/// `1000`, `1k` (powers of 1000) or `1K` (powers of 1024), as vLLM writes numbers of tokens.
pub(crate) fn parse_count(text: &str) -> Result<u64, String> {
    let Some(unit) = text.chars().last().filter(char::is_ascii_alphabetic) else {
        return text
            .parse()
            .map_err(|error: std::num::ParseIntError| error.to_string());
    };
    let fault = || format!("`{text}` is not a number, such as 8192, 8k (8000) or 8K (8192)");
    let power = "kmgt".find(unit.to_ascii_lowercase()).ok_or_else(fault)? as i32 + 1;
    let base: f64 = if unit.is_lowercase() { 1000.0 } else { 1024.0 };
    let number: f64 = text[..text.len() - 1].parse().map_err(|_| fault())?;
    let count = number * base.powi(power);
    if !(number >= 0.0 && count < 1e15) {
        return Err(fault());
    }
    Ok(count.round() as u64)
}

#[cfg(test)]
mod tests;
