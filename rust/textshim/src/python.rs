//! What chat templates expect of Python and transformers beyond minijinja's own: json.dumps, strftime, a few string methods.
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// json.dumps(value, ensure_ascii, indent, separators, sort_keys) with the defaults of transformers' tojson filter.
pub fn tojson(state: &State, value: &Value, indent: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let ensure_ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    let indent = match indent {
        Some(indent) => Some(indent),
        None => kwargs.get::<Option<Value>>("indent")?,
    };
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let sort_keys: Option<bool> = kwargs.get("sort_keys")?;
    kwargs.assert_all_used()?;
    let indent = match indent.filter(|v| !v.is_none()) {
        None => None,
        Some(v) => match v.as_str() {
            Some(text) => Some(text.to_string()),
            None => Some(" ".repeat(usize::try_from(v)?.min(64))),
        },
    };
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        _ if indent.is_some() => (",".to_string(), ": ".to_string()),
        _ => (", ".to_string(), ": ".to_string()),
    };
    let mut dump = Dump {
        state,
        out: String::new(),
        charged: 0,
        ascii: ensure_ascii.unwrap_or(false),
        sort: sort_keys.unwrap_or(false),
        indent,
        item_separator,
        key_separator,
    };
    dump.value(value, 0)?;
    Ok(Value::from(dump.out))
}

struct Dump<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    out: String,
    charged: usize,
    ascii: bool,
    sort: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
}

const MAX_JSON_DEPTH: usize = 256;

impl Dump<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_JSON_DEPTH {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "value is nested too deeply for tojson",
            ));
        }
        self.charge()?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.sequence(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            kind => {
                let message = format!("{kind} is not JSON serializable");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
        Ok(())
    }

    /// Four units of fuel per value and one per 64 bytes written: about what the engine charges its own filters.
    fn charge(&mut self) -> Result<(), Error> {
        let units = (self.out.len() - self.charged) / 64;
        self.charged += units * 64;
        self.state.consume_fuel(units as u64 + 4)
    }

    fn number(&mut self, value: &Value) {
        let text = value.to_string();
        let is_integer = value.is_integer();
        match f64::try_from(value.clone()) {
            Ok(float) if !is_integer => self.out.push_str(&python_float(float)),
            _ => self.out.push_str(&text),
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ascii && !c.is_ascii()) => {
                    let mut units = [0u16; 2];
                    for unit in c.encode_utf16(&mut units) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn newline(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn sequence(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            if !empty {
                self.out.push_str(&self.item_separator.clone());
            }
            empty = false;
            self.newline(depth + 1);
            self.value(&item, depth + 1)?;
        }
        if !empty {
            self.newline(depth);
        }
        self.out.push(']');
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort {
            keys.sort();
        }
        self.out.push('{');
        for (i, key) in keys.iter().enumerate() {
            if i > 0 {
                self.out.push_str(&self.item_separator.clone());
            }
            self.newline(depth + 1);
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or_default()),
                ValueKind::None => self.out.push_str("\"null\""),
                ValueKind::Bool => self.string(if key.is_true() { "true" } else { "false" }),
                _ => self.string(&key.to_string()),
            }
            self.out.push_str(&self.key_separator.clone());
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        if !keys.is_empty() {
            self.newline(depth);
        }
        self.out.push('}');
        Ok(())
    }
}

/// Python's repr(float), which json.dumps uses: shortest digits, exponent form below 1e-4 and from 1e16 on.
fn python_float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_string();
    }
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    format!("{value:?}")
}

/// Unlike minijinja's own test, None is not iterable, as in Python: templates ask this before they take a length.
pub fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// String methods that real templates call and minijinja-contrib lacks; the rest goes to contrib's pycompat.
pub fn unknown_method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if let (Some(text), [arg]) = (value.as_str(), args) {
        match (method, arg.as_str()) {
            ("removeprefix", Some(prefix)) => return Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text))),
            ("removesuffix", Some(suffix)) => return Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text))),
            ("rsplit", Some(separator)) if !separator.is_empty() => {
                let mut parts: Vec<&str> = text.rsplit(separator).collect();
                parts.reverse();
                return Ok(Value::from_iter(parts));
            }
            _ => {}
        }
    }
    if let (Some(text), "rsplit", [separator, count]) = (value.as_str(), method, args) {
        if let Some(separator) = separator.as_str().filter(|s| !s.is_empty()) {
            let count = usize::try_from(count.clone()).unwrap_or(usize::MAX - 1);
            let mut parts: Vec<&str> = text.rsplitn(count.saturating_add(1), separator).collect();
            parts.reverse();
            return Ok(Value::from_iter(parts));
        }
    }
    if let (Some(text), "format") = (value.as_str(), method) {
        check_widths(text)?;
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

/// minijinja pads to any width that a format string names, without charging fuel.
fn check_widths(format: &str) -> Result<(), Error> {
    let long_number = format.as_bytes().windows(5).any(|w| w.iter().all(u8::is_ascii_digit));
    if long_number {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "format: a width has more than four digits",
        ));
    }
    Ok(())
}

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
const DAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];

/// strftime in the C locale for the directives templates use; unknown ones are copied.
pub fn strftime(now_s: i64, format: &str) -> String {
    let days = now_s.div_euclid(86_400);
    let second = now_s.rem_euclid(86_400);
    let (year, month, day) = civil_from_days(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let weekday = DAYS[days.rem_euclid(7) as usize];
    let month_name = MONTHS[(month - 1) as usize];
    let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&format!("{:02}", year.rem_euclid(100))),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('e') => out.push_str(&format!("{day:2}")),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(weekday),
            Some('a') => out.push_str(&weekday[..3]),
            Some('j') => out.push_str(&format!("{:03}", days - days_from_civil(year, 1, 1) + 1)),
            Some('H') => out.push_str(&format!("{hour:02}")),
            Some('I') => out.push_str(&format!("{hour12:02}")),
            Some('M') => out.push_str(&format!("{minute:02}")),
            Some('S') => out.push_str(&format!("{:02}", second % 60)),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('F') => out.push_str(&format!("{year}-{month:02}-{day:02}")),
            Some('T') => out.push_str(&format!("{hour:02}:{minute:02}:{:02}", second % 60)),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// Days since 1970-01-01 to (year, month, day) in the proleptic Gregorian calendar (H. Hinnant, chrono-compatible algorithms).
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_python_does() {
        for (value, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1.5e-7, "1.5e-07"),
            (-0.0, "-0.0"),
            (123456.75, "123456.75"),
        ] {
            assert_eq!(python_float(value), text);
        }
    }

    #[test]
    fn dates() {
        assert_eq!(strftime(0, "%d %B %Y %A %j"), "01 January 1970 Thursday 001");
        assert_eq!(
            strftime(1_709_164_800, "%Y-%m-%d %a %b %H:%M:%S"),
            "2024-02-29 Thu Feb 00:00:00"
        );
        assert_eq!(strftime(-1, "%F %T %I%p %q"), "1969-12-31 23:59:59 11PM %q");
    }
}
