//! A strict parser of OpenMetrics text, for tests of the written text.
//!
//! It checks the order and uniqueness of descriptors, that samples belong to the family above them
//! and have the suffixes of its type, that no series occurs twice, label escapes, counters that are
//! not negative, histograms whose buckets grow to their count, and the end.

use std::collections::{BTreeMap, BTreeSet};

/// A sample of an exposition.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

impl Sample {
    /// Returns true if the sample has this name and at least these labels.
    pub(crate) fn is(&self, name: &str, has: &[(&str, &str)]) -> bool {
        let label = |(key, value): &(&str, &str)| self.labels.get(*key).is_some_and(|label| label == value);
        self.name == name && has.iter().all(label)
    }
}

/// Parses every sample of an exposition.
pub(crate) fn parse(text: &str) -> Result<Vec<Sample>, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("no end")?;
    if !body.is_empty() && !body.ends_with('\n') {
        return Err("the last line is not ended".into());
    }
    let (mut families, mut series) = (BTreeMap::<String, String>::new(), BTreeSet::new());
    let (mut family, mut samples) = (String::new(), Vec::<Sample>::new());
    for line in body.lines() {
        if let Some(descriptor) = line.strip_prefix("# ") {
            let mut words = descriptor.splitn(3, ' ');
            let (word, name, rest) = (words.next(), words.next(), words.next());
            let (Some(name), Some(rest)) = (name, rest) else { return Err(format!("{line}: short")) };
            match word {
                Some("HELP") => {}
                Some("UNIT") if name.ends_with(&format!("_{rest}")) => {}
                Some("TYPE") => {
                    if families.insert(name.into(), rest.into()).is_some() {
                        return Err(format!("{name} is described twice"));
                    }
                    family = name.into();
                }
                _ => return Err(format!("{line}: not a descriptor")),
            }
            continue;
        }
        let sample = sample(line)?;
        let kind = families.get(&family).ok_or_else(|| format!("{line}: before any family"))?;
        let suffix = sample.name.strip_prefix(&family).ok_or_else(|| format!("{line}: not of {family}"))?;
        let suffixes: &[&str] = match kind.as_str() {
            "counter" => &["_total"],
            "gauge" => &[""],
            "histogram" => &["_bucket", "_count", "_sum"],
            other => return Err(format!("type {other}")),
        };
        if !suffixes.contains(&suffix) || (kind != "gauge" && sample.value < 0.0) {
            return Err(format!("{line}: no sample of a {kind}"));
        }
        if !series.insert((sample.name.clone(), sample.labels.clone())) {
            return Err(format!("{line}: twice"));
        }
        samples.push(sample);
    }
    histograms(&samples)?;
    Ok(samples)
}

fn sample(line: &str) -> Result<Sample, String> {
    let wrong = |what: &str| format!("{line}: {what}");
    let end = line.find(['{', ' ']).ok_or_else(|| wrong("no value"))?;
    let (name, mut rest) = line.split_at(end);
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') {
        return Err(wrong("name"));
    }
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (key, value) = rest.split_once("=\"").ok_or_else(|| wrong("label"))?;
            let (value, after) = quoted(value).ok_or_else(|| wrong("label value"))?;
            if labels.insert(key.to_owned(), value).is_some() {
                return Err(wrong("label twice"));
            }
            match (after.strip_prefix(','), after.strip_prefix('}')) {
                (Some(more), _) => rest = more,
                (None, Some(end)) => {
                    rest = end;
                    break;
                }
                (None, None) => return Err(wrong("labels do not end")),
            }
        }
    }
    let value = rest.strip_prefix(' ').ok_or_else(|| wrong("no space"))?;
    let value = value.parse().map_err(|_| wrong("value"))?;
    Ok(Sample { name: name.to_owned(), labels, value })
}

/// Returns the text before the closing quote, without its escapes, and the rest.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                c @ ('"' | '\\') => c,
                _ => return None,
            }),
            c => value.push(c),
        }
    }
    None
}

fn histograms(samples: &[Sample]) -> Result<(), String> {
    let mut buckets: BTreeMap<(String, BTreeMap<String, String>), Vec<(f64, f64)>> = BTreeMap::new();
    for sample in samples {
        let Some(name) = sample.name.strip_suffix("_bucket") else { continue };
        let mut labels = sample.labels.clone();
        let le = labels.remove("le").ok_or("a bucket without a bound")?;
        let le = if le == "+Inf" { f64::INFINITY } else { le.parse().map_err(|_| "bound")? };
        buckets.entry((name.to_owned(), labels)).or_default().push((le, sample.value));
    }
    for ((name, labels), buckets) in buckets {
        let grow = buckets.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
        let count =
            samples.iter().find(|sample| sample.name == format!("{name}_count") && sample.labels == labels);
        let last = buckets.last().copied();
        if !grow || last != count.map(|count| (f64::INFINITY, count.value)) {
            return Err(format!("{name} {labels:?}: buckets {buckets:?}"));
        }
    }
    Ok(())
}
