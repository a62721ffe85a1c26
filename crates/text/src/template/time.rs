//! `strftime` for `strftime_now`, in UTC and without a locale.

const SECONDS_PER_DAY: i64 = 86_400;

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

const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// Length of month and weekday abbreviations.
const ABBREVIATION_BYTES: usize = 3;

/// Seconds since 1970, where there is a clock.
#[cfg(not(target_arch = "wasm32"))]
pub(super) fn now_seconds() -> Option<i64> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_secs()).ok()
}

/// The standard library has no clock here.
#[cfg(target_arch = "wasm32")]
pub(super) fn now_seconds() -> Option<i64> {
    None
}

/// A moment in the Gregorian calendar.
struct Moment {
    year: i64,
    /// From 0.
    month: usize,
    /// From 1.
    day: i64,
    /// From 1.
    day_of_year: i64,
    /// From Monday, 0.
    weekday: usize,
    second_of_day: i64,
}

impl Moment {
    fn new(unix_seconds: i64) -> Self {
        let mut days = unix_seconds.div_euclid(SECONDS_PER_DAY);
        let weekday = (days + 3).rem_euclid(7) as usize; // 1970 began on a Thursday
        // Whole 400-year cycles are equally long, so at most 400 years are left to count one by one.
        const CYCLE_DAYS: i64 = 146_097;
        let mut year = 1970 + 400 * days.div_euclid(CYCLE_DAYS);
        days = days.rem_euclid(CYCLE_DAYS);
        while days >= year_days(year) {
            days -= year_days(year);
            year += 1;
        }
        let (mut month, mut day) = (0, days);
        while day >= month_days(year, month) {
            day -= month_days(year, month);
            month += 1;
        }
        let second_of_day = unix_seconds.rem_euclid(SECONDS_PER_DAY);
        Self { year, month, day: day + 1, day_of_year: days + 1, weekday, second_of_day }
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn year_days(year: i64) -> i64 {
    365 + i64::from(is_leap(year))
}

fn month_days(year: i64, month: usize) -> i64 {
    match month {
        1 => 28 + i64::from(is_leap(year)),
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

/// Formats a time; an unknown directive is an error that names it.
pub(super) fn format(format: &str, unix_seconds: i64) -> Result<String, String> {
    let moment = Moment::new(unix_seconds);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let unpadded = directive == Some('-');
        if unpadded {
            directive = chars.next();
        }
        let text = directive.and_then(|d| field(&moment, d));
        let text = text.ok_or_else(|| {
            format!("strftime_now: %{} in '{format}' is not supported", directive.unwrap_or(' '))
        })?;
        match text.trim_start_matches(['0', ' ']) {
            _ if !unpadded => out.push_str(&text),
            "" => out.push('0'),
            short => out.push_str(short),
        }
    }
    Ok(out)
}

fn field(m: &Moment, directive: char) -> Option<String> {
    let (hour, minute, second) = (m.second_of_day / 3600, m.second_of_day / 60 % 60, m.second_of_day % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let (month, weekday) = (MONTHS.get(m.month)?, WEEKDAYS.get(m.weekday)?);
    Some(match directive {
        'Y' => m.year.to_string(),
        'y' => format!("{:02}", m.year.rem_euclid(100)),
        'm' => format!("{:02}", m.month + 1),
        'd' => format!("{:02}", m.day),
        'e' => format!("{:2}", m.day),
        'j' => format!("{:03}", m.day_of_year),
        'B' => (*month).to_owned(),
        'b' | 'h' => month.get(..ABBREVIATION_BYTES)?.to_owned(),
        'A' => (*weekday).to_owned(),
        'a' => weekday.get(..ABBREVIATION_BYTES)?.to_owned(),
        'H' => format!("{hour:02}"),
        'I' => format!("{hour12:02}"),
        'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
        'M' => format!("{minute:02}"),
        'S' => format!("{second:02}"),
        'F' => format!("{}-{:02}-{:02}", m.year, m.month + 1, m.day),
        'T' => format!("{hour:02}:{minute:02}:{second:02}"),
        'Z' => "UTC".to_owned(),
        'z' => "+0000".to_owned(),
        '%' => "%".to_owned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    fn check(format: &str, unix_seconds: i64, expected: &str) {
        assert_eq!(super::format(format, unix_seconds).as_deref(), Ok(expected));
    }

    #[test]
    fn formats_as_strftime_does() {
        check("%d %b %Y", 0, "01 Jan 1970");
        check("%A, %B %-d, %Y", 1_709_164_800, "Thursday, February 29, 2024");
        check("%Y-%m-%d %H:%M:%S", 1_735_689_599, "2024-12-31 23:59:59");
        check("%F %T %a %j %y %p %I %-I", 1_735_689_600, "2025-01-01 00:00:00 Wed 001 25 AM 12 12");
        check("%F", -1, "1969-12-31");
        check("%F", 4_107_542_400, "2100-03-01");
        check("100%% %e", 0, "100%  1");
        check("%-H", 0, "0");
    }

    #[test]
    fn unknown_directives_are_named() {
        for format in ["%Q", "%", "%-"] {
            assert!(super::format(format, 0).is_err(), "{format}");
        }
        super::format("%F", i64::MAX).unwrap();
        super::format("%F", i64::MIN).unwrap();
    }
}
