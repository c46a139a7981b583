//! `plexus stat record` writes intervals into a file; `plexus stat report` shows them.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use plexus_observe::{
    cluster::Reading,
    recording::{Head, Recorder, Recording},
    show,
    study::Study,
};

use crate::{
    commands::{cluster::ClusterOptions, measured::prepare, pace, pace::Pace},
    output,
};

/// The arguments of `plexus stat record`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file; an existing recording of the same cluster is continued.
    file: PathBuf,
    /// Length of an interval in seconds.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = pace::seconds)]
    interval: f64,
    /// End after this long: `60s`, `10m`, `48h` [default: at Ctrl-C].
    #[arg(long = "for", value_name = "TIME", value_parser = span)]
    how_long: Option<Duration>,
}

/// The arguments of `plexus stat report`.
#[derive(clap::Args)]
pub(crate) struct ReportArgs {
    /// The recording.
    file: PathBuf,
    /// The directory for the charts and the page.
    #[arg(short, long, value_name = "DIR", default_value = "plexus-out")]
    output: PathBuf,
    /// Show only the last part: `10m`, `48h`.
    #[arg(long, value_name = "TIME", value_parser = span)]
    last: Option<Duration>,
}

/// Parses a time like `90s`, `10m`, `48h` or `2d`; a bare number is seconds.
fn span(text: &str) -> Result<Duration, String> {
    let unit = text.chars().last().filter(char::is_ascii_alphabetic);
    let number = &text[..text.len() - unit.map_or(0, char::len_utf8)];
    let factor = match unit {
        None | Some('s') => 1.0,
        Some('m') => 60.0,
        Some('h') => 3600.0,
        Some('d') => 86_400.0,
        Some(_) => return Err("use s, m, h or d".into()),
    };
    let seconds = number.parse::<f64>().map_err(|_| "use a number and s, m, h or d".to_owned())? * factor;
    match seconds.is_finite() && (0.1..=1e9).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("use 0.1 s to 10000 days".into()),
    }
}

/// Runs `plexus stat record`.
pub(crate) fn record(args: &Args, cluster: &ClusterOptions) -> anyhow::Result<()> {
    let config = cluster.load()?;
    prepare(&args.file)?;
    let names: Vec<String> = config.nodes.iter().map(|node| node.name.clone()).collect();
    let head = Head::new(&config.name, &config.id.to_string(), &names, (args.interval * 1e3) as u64);
    let mut before = super::take(&config, None)?;
    let mut recorder = Recorder::open(&args.file, head)?;
    let had = recorder.records();
    let times =
        args.how_long.map(|how_long| (how_long.as_secs_f64() / args.interval).round().max(1.0) as u64);
    let until = args.how_long.map_or_else(
        || "until Ctrl-C".to_owned(),
        |how_long| format!("for {}", show::duration(how_long.as_secs_f64())),
    );
    output::progress(&format!(
        "{}: recording every {} {until}",
        args.file.display(),
        show::duration(args.interval)
    ));
    let mut pace = Pace::new(args.interval, times)?;
    while pace.next() {
        let now = Reading::take(&config, None)?;
        recorder.append(&now.since(&before))?;
        before = now;
    }
    let (file, new) = (args.file.display(), recorder.records() - had);
    if cluster.json {
        return output::json(&serde_json::json!({ "file": args.file, "intervals": new, "before": had }));
    }
    let kept = if had > 0 { format!(" after {} existing ones", show::count(had)) } else { String::new() };
    output::line(&format!(
        "{file}: {} intervals{kept}; show them with `plexus stat report {file}`",
        show::count(new)
    ))
}

/// Runs `plexus stat report`.
pub(crate) fn report(args: &ReportArgs, json: bool) -> anyhow::Result<()> {
    let recording = Recording::read(&args.file)?;
    let study = Study::of(&recording, args.last).with_context(|| format!("{}", args.file.display()))?;
    let Some(study) = study else {
        bail!("{}: the recording has no interval yet; record for longer", args.file.display());
    };
    let files = study.files()?;
    std::fs::create_dir_all(&args.output).with_context(|| format!("{}", args.output.display()))?;
    let mut written = vec![write(&args.output.join("index.html"), files.html.as_bytes())?];
    let pictures = [("sizes", &files.sizes_svg), ("shares", &files.shares_svg), ("rates", &files.rates_svg)];
    for (name, svg) in pictures {
        let path = args.output.join(name);
        written.push(write(&path.with_extension("svg"), svg.as_bytes())?);
        written.push(write(&path.with_extension("png"), &show::png(svg)?)?);
    }
    if json {
        return output::json(&serde_json::json!({ "text": study.text(), "files": written }));
    }
    output::line(study.text().trim_end())?;
    output::line(&format!("\npage: {}", written[0].display()))
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<PathBuf> {
    std::fs::write(path, bytes).with_context(|| format!("{}", path.display()))?;
    Ok(path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_with_units_are_parsed() {
        let seconds = |text| span(text).map(|span| span.as_secs_f64());
        let good = [("60", 60.0), ("0.5s", 0.5), ("10m", 600.0), ("48h", 172_800.0), ("2d", 172_800.0)];
        good.iter().for_each(|(text, value)| assert_eq!(seconds(text), Ok(*value)));
        let bad = ["", "m", "5w", "-1s", "0s", "nan", "inf", "1e30d", "5µ"];
        bad.iter().for_each(|text| assert!(span(text).is_err(), "{text}"));
    }
}
