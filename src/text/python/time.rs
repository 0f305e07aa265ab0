//! `strftime`, as templates call it: `strftime_now`.

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

/// How a field is filled up to its width.
#[derive(Clone, Copy)]
enum Padding {
    None,
    With(char),
}

/// `datetime.strftime(pattern)` of a time in UTC without a zone, with glibc's flags. An unknown code stays as it is.
pub(in crate::text) fn strftime(pattern: &str, unix_time: u64) -> String {
    let days = unix_time / 86_400;
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (unix_time / 3600 % 24, unix_time / 60 % 60, unix_time % 60);
    let moment = Moment { unix_time, days, year, month, day, hour, minute, second };
    let mut text = String::new();
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('%') {
        text.push_str(before);
        let flags_len = after.len() - after.trim_start_matches(['-', '_', '0', '^', '#']).len();
        let (flags, behind) = after.split_at(flags_len);
        let code = behind.chars().next();
        let field = code.and_then(|code| moment.field(code, flags));
        match (field, code) {
            (Some(field), Some(code)) => {
                text.push_str(&with_case(field, flags));
                rest = &behind[code.len_utf8()..];
            }
            _ => {
                text.push('%');
                rest = after;
            }
        }
    }
    text.push_str(rest);
    text
}

fn with_case(field: String, flags: &str) -> String {
    if flags.contains(['^', '#']) { field.to_uppercase() } else { field }
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
        let pad = |value: u64, width: usize, with: char| {
            let padding = match flags.chars().rfind(|flag| matches!(flag, '-' | '_' | '0')) {
                Some('-') => Padding::None,
                Some('_') => Padding::With(' '),
                Some(_) => Padding::With('0'),
                None => Padding::With(with),
            };
            match padding {
                Padding::None => value.to_string(),
                Padding::With(' ') => format!("{value:width$}"),
                Padding::With(_) => format!("{value:0width$}"),
            }
        };
        let two = |value: u64| pad(value, 2, '0');
        let hour_of_half = if self.hour.is_multiple_of(12) { 12 } else { self.hour % 12 };
        let half = if self.hour < 12 { "AM" } else { "PM" };
        let (month, weekday) = (MONTHS[self.month as usize - 1], WEEKDAYS[(self.weekday() as usize + 6) % 7]);
        let whole = |pattern: &str| Some(strftime(pattern, self.unix_time));
        let field = match code {
            'Y' => self.year.to_string(),
            'C' => two(self.year / 100),
            'y' => two(self.year % 100),
            'm' => two(self.month),
            'd' => two(self.day),
            'e' => pad(self.day, 2, ' '),
            'H' => two(self.hour),
            'I' => two(hour_of_half),
            'k' => pad(self.hour, 2, ' '),
            'l' => pad(hour_of_half, 2, ' '),
            'M' => two(self.minute),
            'S' => two(self.second),
            'f' => "000000".to_owned(),
            's' => self.unix_time.to_string(),
            'B' => month.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'p' => half.to_owned(),
            'P' => half.to_lowercase(),
            'j' => pad(self.day_of_year() + 1, 3, '0'),
            'u' => ((self.weekday() + 6) % 7 + 1).to_string(),
            'w' => self.weekday().to_string(),
            'U' => two((self.day_of_year() + 7 - self.weekday()) / 7),
            'W' => two((self.day_of_year() + 7 - (self.weekday() + 6) % 7) / 7),
            'G' => self.iso_week().0.to_string(),
            'g' => two(self.iso_week().0 % 100),
            'V' => two(self.iso_week().1),
            'c' => return whole("%a %b %e %H:%M:%S %Y"),
            'D' | 'x' => return whole("%m/%d/%y"),
            'F' => return whole("%Y-%m-%d"),
            'R' => return whole("%H:%M"),
            'r' => return whole("%I:%M:%S %p"),
            'T' | 'X' => return whole("%H:%M:%S"),
            'Z' | 'z' => String::new(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        };
        Some(field)
    }
}

/// Days from 1970-01-01 to the first day of `year`.
fn days_before(year: u64) -> u64 {
    let past = year - 1;
    past * 365 + past / 4 - past / 100 + past / 400 - 719_162
}

/// Year, month and day of the day `days` after 1970-01-01.
fn civil(days: u64) -> (u64, u64, u64) {
    let mut year = 1970 + days / 366;
    while days_before(year + 1) <= days {
        year += 1;
    }
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut rest = days - days_before(year);
    let mut month = 1;
    for length in lengths {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    (year, month, rest + 1)
}
