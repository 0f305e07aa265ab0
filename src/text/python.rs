//! Python behavior that templates expect: `json.dumps`, `strftime`, and how `None` and booleans print.

use super::template_limits::{Capped, bytes_left, pay, pay_for_text};
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, escape_formatter};
use serde::Serialize;
use std::io;

const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// `{{ value }}`: none and booleans print as in Python, other values unchanged.
pub(super) fn format(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    pay_for_text(state, value)?;
    if value.is_none() {
        return out.write_str("None").map_err(Error::from);
    }
    match bool::try_from(value.clone()) {
        Ok(truth) if value.kind() == ValueKind::Bool => {
            out.write_str(if truth { "True" } else { "False" }).map_err(Error::from)
        }
        _ => escape_formatter(out, state, value),
    }
}

/// `value is iterable`: false for none; true for an undefined value, which is empty.
#[allow(clippy::needless_pass_by_value, reason = "a template test's arguments arrive by value")]
pub(super) fn is_iterable(value: Value) -> bool {
    !value.is_none() && (value.is_undefined() || value.kind() == ValueKind::String || value.try_iter().is_ok())
}

/// `json.dumps(value, ensure_ascii=False)`: a space after comma and colon, no HTML escapes.
#[allow(clippy::needless_pass_by_value, reason = "a template filter's arguments arrive by value")]
pub(super) fn tojson(
    state: &State<'_, '_>,
    value: Value,
    indent: Option<Value>,
    options: Kwargs,
) -> Result<String, Error> {
    pay_for_text(state, &value)?;
    let named: Option<Value> = options.get("indent")?;
    let indent = indent.or(named).filter(|indent| !indent.is_none() && !indent.is_undefined());
    let spaces = indent.map(usize::try_from).transpose()?.map(|spaces| spaces.min(16));
    let _: Option<Value> = options.get("ensure_ascii")?;
    let _: Option<Value> = options.get("sort_keys")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    options.assert_all_used()?;
    let comma_default = if spaces.is_some() { "," } else { ", " };
    let [comma, colon] = match separators.as_deref() {
        Some([comma, colon]) => [comma.clone(), colon.clone()],
        _ => [comma_default.to_owned(), ": ".to_owned()],
    };
    // The value is paid for, but not its separators and indents.
    let mut output = Capped::new(usize::try_from(bytes_left(state)).unwrap_or(usize::MAX));
    let style = PythonJson { comma, colon, spaces, depth: 0, empty: true };
    let outcome = value.serialize(&mut serde_json::Serializer::with_formatter(&mut output, style));
    if output.full {
        pay(state, u64::MAX)?;
    }
    outcome.map_err(invalid)?;
    String::from_utf8(output.bytes).map_err(invalid)
}

fn invalid(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::BadSerialization, error.to_string())
}

struct PythonJson {
    comma: String,
    colon: String,
    spaces: Option<usize>,
    depth: usize,
    empty: bool,
}

impl PythonJson {
    fn open<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.empty = true;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.empty {
            self.line(writer)?;
        }
        self.empty = false;
        writer.write_all(bracket)
    }

    fn item<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.comma.as_bytes())?;
        }
        self.line(writer)
    }

    fn line<W: ?Sized + io::Write>(&self, writer: &mut W) -> io::Result<()> {
        let Some(spaces) = self.spaces else { return Ok(()) };
        write!(writer, "\n{:width$}", "", width = spaces * self.depth)
    }
}

impl serde_json::ser::Formatter for PythonJson {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        // Python writes a sign and at least two digits in an exponent: 1e+16, 1e-05.
        let text = serde_json::Number::from_f64(value).map_or("null".to_owned(), |number| number.to_string());
        match text.split_once('e') {
            None => writer.write_all(text.as_bytes()),
            Some((mantissa, exponent)) => {
                let digits = exponent.trim_start_matches(['+', '-']);
                let sign = if exponent.starts_with('-') { '-' } else { '+' };
                write!(writer, "{mantissa}e{sign}{digits:0>2}")
            }
        }
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.item(writer, first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.empty = false;
        Ok(())
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.item(writer, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.colon.as_bytes())
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.empty = false;
        Ok(())
    }
}

/// `time.strftime(pattern)` in UTC, for the codes that templates use; an unknown code is an error.
pub(super) fn strftime(pattern: &str, unix_time: u64) -> Result<String, Error> {
    let days = unix_time / 86_400;
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (unix_time / 3600 % 24, unix_time / 60 % 60, unix_time % 60);
    // 1970-01-01 was a Thursday.
    let weekday = ((days + 3) % 7) as usize;
    let half = if hour < 12 { "AM" } else { "PM" };
    let hour_of_half = if hour % 12 == 0 { 12 } else { hour % 12 };
    let mut text = String::new();
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let mut code = characters.next();
        let padded = code != Some('-');
        if !padded {
            code = characters.next();
        }
        let number = |value: u64| if padded { format!("{value:02}") } else { value.to_string() };
        text.push_str(&match code {
            Some('Y') => year.to_string(),
            Some('y') => number(year % 100),
            Some('m') => number(month),
            Some('d') => number(day),
            Some('H') => number(hour),
            Some('I') => number(hour_of_half),
            Some('M') => number(minute),
            Some('S') => number(second),
            Some('B') => MONTHS[month as usize - 1].to_owned(),
            Some('b' | 'h') => MONTHS[month as usize - 1][..3].to_owned(),
            Some('A') => WEEKDAYS[weekday].to_owned(),
            Some('a') => WEEKDAYS[weekday][..3].to_owned(),
            Some('p') => half.to_owned(),
            Some('j') => format!("{:03}", days + 1 - days_before(year)),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            other => {
                let code = other.map(String::from).unwrap_or_default();
                let message = format!("strftime_now: unsupported code %{code}");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        });
    }
    Ok(text)
}

/// Days from 1970-01-01 to the first day of `year`.
fn days_before(year: u64) -> u64 {
    let past = year - 1;
    past * 365 + past / 4 - past / 100 + past / 400 - 719_162
}

/// Year, month and day of the day `days` after 1970-01-01, by Howard Hinnant's `civil_from_days`: years begin in March,
/// so that a leap day is the last of its year, and the calendar repeats every 400 years.
pub(super) fn civil(days: u64) -> (u64, u64, u64) {
    const DAYS_PER_ERA: u64 = 146_097;
    // Days from 0000-03-01 to 1970-01-01.
    let days = days + 719_468;
    let (era, day_of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_since_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months_since_march + 2) / 5 + 1;
    let month = if months_since_march < 10 { months_since_march + 3 } else { months_since_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}
