//! fio, the program that measures files and block devices.

use std::{path::Path, process::Command, time::Duration};

use anyhow::Result;
use serde_json::Value;

use crate::command::json_within;

/// The seconds of a measurement.
const SECONDS: u64 = 1;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Measures an existing file with synchronous direct I/O, each thread with one request at a time;
/// returns the report of all threads.
///
/// # Errors
/// fio is not installed or fails.
pub(crate) fn fio(file: &Path, size: u64, arguments: &str) -> Result<Value> {
    let options = format!(
        "--name=measured --ioengine=psync --direct=1 --overwrite=1 --time_based --size={size} \
         --runtime={SECONDS} --thread --group_reporting --output-format=json {arguments}"
    );
    let mut fio = Command::new("fio");
    fio.arg(format!("--filename={}", file.display())).args(options.split(' '));
    let mut report = json_within(&mut fio, TIMEOUT)?;
    Ok(report["jobs"][0].take())
}
