//! `strftime`, as templates call it: `strftime_now`.

const WEEKDAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];
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

/// Maximum width of a field.
const WIDTH_MAX: usize = 99;

/// A moment, taken apart.
struct Moment {
    unix_time: u64,
    /// Days since 1970-01-01.
    days: u64,
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

/// `datetime.strftime(pattern)` of a time in UTC without a zone, with glibc's flags. An unknown code stays as it is.
pub(in crate::text) fn strftime(pattern: &str, unix_time: u64) -> String {
    let days = unix_time / 86_400;
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (unix_time / 3600 % 24, unix_time / 60 % 60, unix_time % 60);
    let moment = Moment {
        unix_time,
        days,
        year,
        month,
        day,
        hour,
        minute,
        second,
    };
    let mut text = String::new();
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('%') {
        text.push_str(before);
        let flags_len = after.len() - after.trim_start_matches(['-', '_', '0', '^', '#']).len();
        let (flags, behind) = after.split_at(flags_len);
        let (digits, behind) = behind.split_at(
            behind.len()
                - behind
                    .trim_start_matches(|c: char| c.is_ascii_digit())
                    .len(),
        );
        // The other ways to write numbers and years are the usual ones.
        let behind = behind.strip_prefix(['E', 'O']).unwrap_or(behind);
        let code = behind.chars().next();
        let width = if digits.is_empty() {
            Some(0)
        } else {
            digits.parse().ok().filter(|width| *width <= WIDTH_MAX)
        };
        let field = code
            .zip(width)
            .and_then(|(code, width)| Some((moment.field(code, flags)?, code, width)));
        match field {
            Some((field, code, width)) => {
                text.push_str(&filled(&with_case(field, flags), flags, width));
                rest = &behind[code.len_utf8()..];
            }
            None => {
                text.push('%');
                rest = after;
            }
        }
    }
    text.push_str(rest);
    text
}

/// A field filled up to a width: numbers with zeros and others with spaces, unless a flag says otherwise.
fn filled(field: &str, flags: &str, width: usize) -> String {
    let is_number = field.chars().all(|c| c.is_ascii_digit());
    let flag = flags.chars().rfind(|flag| matches!(flag, '_' | '0'));
    let fill = if flag == Some('0') || flag.is_none() && is_number {
        "0"
    } else {
        " "
    };
    fill.repeat(width.saturating_sub(field.chars().count())) + field
}

fn with_case(field: String, flags: &str) -> String {
    if flags.contains(['^', '#']) {
        field.to_uppercase()
    } else {
        field
    }
}

impl Moment {
    /// 0 is Sunday. 1970-01-01 was a Thursday.
    fn weekday(&self) -> u64 {
        (self.days + 4) % 7
    }

    /// Days since the first of January.
    fn day_of_year(&self) -> u64 {
        self.days - days_before(self.year)
    }

    /// The year and the number of the week that ISO 8601 counts: a week belongs to the year that has its Thursday.
    fn iso_week(&self) -> (u64, u64) {
        let thursday = self.days + 3 - (self.weekday() + 6) % 7;
        let (year, ..) = civil(thursday);
        (year, (thursday - days_before(year)) / 7 + 1)
    }

    /// What a code stands for. `None` if it is unknown.
    fn field(&self, code: char, flags: &str) -> Option<String> {
        if let Some((value, width, fill)) = self.number(code) {
            return Some(padded(value, width, fill, flags));
        }
        match pattern_of(code) {
            Some(pattern) => Some(strftime(pattern, self.unix_time)),
            None => self.word(code),
        }
    }

    /// The number that a code stands for, its least width, and what fills it.
    fn number(&self, code: char) -> Option<(u64, usize, char)> {
        let hour_of_half = match self.hour % 12 {
            0 => 12,
            hour => hour,
        };
        let (weekday, day_of_year) = (self.weekday(), self.day_of_year());
        let days_since_monday = (weekday + 6) % 7;
        let (iso_year, iso_week) = self.iso_week();
        Some(match code {
            'Y' => (self.year, 1, '0'),
            'C' => (self.year / 100, 2, '0'),
            'y' => (self.year % 100, 2, '0'),
            'm' => (self.month, 2, '0'),
            'd' => (self.day, 2, '0'),
            'e' => (self.day, 2, ' '),
            'H' => (self.hour, 2, '0'),
            'I' => (hour_of_half, 2, '0'),
            'k' => (self.hour, 2, ' '),
            'l' => (hour_of_half, 2, ' '),
            'M' => (self.minute, 2, '0'),
            'S' => (self.second, 2, '0'),
            's' => (self.unix_time, 1, '0'),
            'j' => (day_of_year + 1, 3, '0'),
            'u' => (days_since_monday + 1, 1, '0'),
            'w' => (weekday, 1, '0'),
            'U' => ((day_of_year + 7 - weekday) / 7, 2, '0'),
            'W' => ((day_of_year + 7 - days_since_monday) / 7, 2, '0'),
            'G' => (iso_year, 1, '0'),
            'g' => (iso_year % 100, 2, '0'),
            'V' => (iso_week, 2, '0'),
            _ => return None,
        })
    }

    /// The word or sign that a code stands for.
    fn word(&self, code: char) -> Option<String> {
        let month = MONTHS[self.month as usize - 1];
        let weekday = WEEKDAYS[(self.weekday() as usize + 6) % 7];
        let word = match code {
            'B' => month,
            'b' | 'h' => &month[..3],
            'A' => weekday,
            'a' => &weekday[..3],
            'p' if self.hour < 12 => "AM",
            'p' => "PM",
            'P' if self.hour < 12 => "am",
            'P' => "pm",
            'f' => "000000",
            'Z' | 'z' => "",
            'n' => "\n",
            't' => "\t",
            '%' => "%",
            _ => return None,
        };
        Some(word.to_owned())
    }
}

/// The pattern that a code abbreviates.
fn pattern_of(code: char) -> Option<&'static str> {
    Some(match code {
        'c' => "%a %b %e %H:%M:%S %Y",
        'D' | 'x' => "%m/%d/%y",
        'F' => "%Y-%m-%d",
        'R' => "%H:%M",
        'r' => "%I:%M:%S %p",
        'T' | 'X' => "%H:%M:%S",
        _ => return None,
    })
}

/// A number filled up to a width, unless a flag says otherwise.
fn padded(value: u64, width: usize, fill: char, flags: &str) -> String {
    let flag = flags.chars().rfind(|flag| matches!(flag, '-' | '_' | '0'));
    match (flag, fill) {
        (Some('-'), _) => value.to_string(),
        (Some('_'), _) | (None, ' ') => format!("{value:width$}"),
        _ => format!("{value:0width$}"),
    }
}

/// Days from 1970-01-01 to the first day of `year`.
fn days_before(year: u64) -> u64 {
    let past = year - 1;
    past * 365 + past / 4 - past / 100 + past / 400 - 719_162
}

/// Year, month and day of the day `days` after 1970-01-01, by Howard Hinnant's `civil_from_days`: years begin in March,
/// so that a leap day is the last of its year, and the calendar repeats every 400 years.
fn civil(days: u64) -> (u64, u64, u64) {
    const DAYS_PER_ERA: u64 = 146_097;
    // Days from 0000-03-01 to 1970-01-01.
    let days = days + 719_468;
    let (era, day_of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_since_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months_since_march + 2) / 5 + 1;
    let month = if months_since_march < 10 {
        months_since_march + 3
    } else {
        months_since_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests;
